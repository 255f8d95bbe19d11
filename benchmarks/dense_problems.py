"""The dense problems in PyTorch, as values; and what their Jacobians are, by one plain reverse pass for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks import dense_numbers

Function = Callable[[Tensor], Tensor]
Numbers = dict[str, Tensor]
# Every entry; one block for each example; by a model's parameters; the Gram matrix of that; second derivatives.
Want = Literal["whole", "examples", "parameters", "gram", "hessian"]


def network(numbers: Numbers) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for k in range(sum(name.startswith("w") for name in numbers)):
        layers += [_linear(numbers[f"w{k}"], numbers[f"b{k}"]), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def _convolution(weight: Tensor, bias: Tensor) -> nn.Conv2d:
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def cnn(numbers: Numbers) -> nn.Sequential:
    """Two convolutions with ReLU and pooling, and a linear layer."""
    return nn.Sequential(
        _convolution(numbers["c0"], numbers["d0"]),
        nn.ReLU(),
        nn.MaxPool2d(2),
        _convolution(numbers["c1"], numbers["d1"]),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        _linear(numbers["w"], numbers["b"]),
    )


class Block(nn.Module):
    """A transformer's block: attention and a network of one hidden layer, each added to what came in."""

    def __init__(self, numbers: Numbers, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.up, self.down = (
            _linear(numbers[f"{name}_w"], numbers[f"{name}_b"]) for name in ("qkv", "out", "up", "down")
        )

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1:]
        y = self.qkv(nn.functional.layer_norm(x, width)).unflatten(-1, (3, self.heads, -1))
        q, k, v = y.movedim(-3, 0).transpose(-3, -2)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(-3, -2).flatten(-2))
        y = nn.functional.gelu(self.up(nn.functional.layer_norm(x, width)), approximate="tanh")
        return x + self.down(y)


def neighbours(x: Tensor) -> Tensor:
    """Every output reads three neighbouring inputs."""
    return x.sin() * x.roll(1) + x.roll(-1) ** 2


def loss(sizes: tuple[int, ...], data: Tensor, target: Tensor) -> Function:
    """The mean square error of a network, as a function of all its parameters in one vector."""

    def f(parameters: Tensor) -> Tensor:
        y, rest = data, parameters
        for k, (before, after) in enumerate(pairwise(sizes)):
            weight, bias, rest = rest.split([before * after, after, len(rest) - (before + 1) * after])
            y = nn.functional.linear(y.tanh() if k else y, weight.reshape(after, before), bias)
        return ((y - target) ** 2).mean()

    return f


@dataclass(frozen=True)
class Case:
    """A problem at one size in one dtype.

    Attributes:
        f: The function; a model's is the model.
        x: The point.
        model: The model, where there is one.
        numbers: What it is made of.
    """

    f: Function
    x: Tensor
    model: nn.Module | None
    numbers: Numbers

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters, by name."""
        assert self.model is not None
        return dict(self.model.named_parameters())


@dataclass(frozen=True)
class Problem:
    """A function whose derivatives are wanted.

    Attributes:
        key: Its letter in shared tables; S is the small one.
        title: Its name in a table.
        want: What of its derivatives.
        sizes: What it is made by.
        quick: The same, when it is to be small.
    """

    key: str
    title: str
    want: Want
    sizes: tuple[int, ...]
    quick: tuple[int, ...]

    def case(self, dtype: torch.dtype, *, quick: bool) -> Case:
        """The problem in a dtype."""
        sizes = self.quick if quick else self.sizes
        made = {name: torch.from_numpy(each).to(dtype) for name, each in dense_numbers.ALL[self.key](*sizes).items()}
        x, model = made["x"], None
        if self.key in {"S", "E"}:
            f: Function = neighbours
        elif self.key == "F":
            f = Tall(made["w"])
        elif self.key == "H":
            f = loss(sizes[1:], made["data"], made["target"])
        else:
            makers = {"C": cnn, "C2": cnn, "D": lambda numbers: Block(numbers, sizes[2])}
            f = model = makers.get(self.key, network)(made)
            model.requires_grad_(self.want in {"parameters", "gram"})
        return Case(f, x, model, made)


@dataclass(frozen=True)
class Tall:
    """Few inputs, many outputs."""

    w: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return (self.w @ x).sin()


PROBLEMS = (
    Problem("S", "three inputs, three outputs", "whole", (3,), (3,)),
    Problem("A", "MLP 256-512³-128, one input", "whole", (256, 512, 512, 512, 128), (24, 32, 32, 32, 12)),
    Problem("B", "MLP 3-64²-5, each of 512 examples", "examples", (512, 3, 64, 64, 5), (24, 3, 16, 16, 5)),
    Problem("C", "CNN 3x32x32 → 10, by the image", "whole", (32, 16, 32), (8, 4, 6)),
    Problem("C2", "CNN → 10, by 25,578 parameters", "parameters", (32, 16, 32), (8, 4, 6)),
    Problem("D", "transformer block, 32 tokens of 64", "whole", (32, 64, 4, 256), (6, 8, 2, 16)),
    Problem("E", "R^1000 → R^1000, three neighbours", "whole", (1000,), (150,)),
    Problem("F", "R^4 → R^10000", "whole", (4, 10_000), (4, 300)),
    Problem("G", "MLP 64-256²-10, 64 examples, by parameters", "parameters", (64, 64, 256, 256, 10), (6, 8, 16, 16, 4)),
    Problem("G2", "the Gram matrix J Jᵀ of G (NTK)", "gram", (64, 64, 256, 256, 10), (6, 8, 16, 16, 4)),
    Problem("H", "Hessian of an MLP's loss, 496 parameters", "hessian", (64, 15, 15, 15, 1), (12, 5, 6, 6, 1)),
)


def reference(problem: Problem, case: Case) -> Tensor:
    """What is wanted, from one plain reverse pass for each row: no batching, no forward mode, no structure."""
    x = case.x.detach().clone().requires_grad_()
    if problem.want == "examples":
        examples = [each.clone().requires_grad_() for each in case.x.unbind()]
        return torch.stack([rows(case.f(one[None])[0], [one]) for one in examples])
    if problem.want == "hessian":
        (gradient,) = torch.autograd.grad(case.f(x), x, create_graph=True)
        return rows(gradient, [x])
    if problem.want == "whole":
        return rows(case.f(x), [x])
    J = rows(case.f(x.detach()), list(case.parameters.values()))
    return J @ J.T if problem.want == "gram" else J


def rows(y: Tensor, inputs: list[Any]) -> Tensor:
    """The Jacobian as a matrix, one ``torch.autograd.grad`` for each output element."""
    found, flat = [], y.flatten()
    for i in range(len(flat)):  # "for element in flat" would send every row back through all the elements
        row = torch.autograd.grad(flat[i], inputs, retain_graph=True)
        found.append(torch.cat([each.flatten() for each in row]))
    return torch.stack(found)
