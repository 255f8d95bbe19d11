"""Deliberately wrong backwards, each beside its right twin, and the cause that ought to be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

Backward = Callable[[Any, tuple[Tensor, ...], Any], Any]


@dataclass(frozen=True)
class Mutant:
    """One formula with a wrong and a right backward.

    Attributes:
        name: The operator and what is wrong with it.
        wrong: The function with the wrong backward.
        right: The same function with the right one.
        inputs: Arguments in float64.
        cause: The name of the cause; None if it has to be caught, but nobody can say why.
    """

    name: str
    wrong: Callable[..., Any]
    right: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    cause: str | None


def function(forward: Callable[..., Any], backward: Backward, name: str = "Made") -> Callable[..., Any]:
    """A custom Function: ``backward(grad, inputs, output)`` returns a gradient for each input."""

    def run(ctx: Any, *inputs: Tensor) -> Any:
        output = forward(*inputs)
        ctx.save_for_backward(*inputs, output)
        return output

    def back(ctx: Any, grad: Any) -> Any:
        *inputs, output = ctx.saved_tensors
        return backward(grad, tuple(inputs), output)

    body = {"forward": staticmethod(run), "backward": staticmethod(back)}
    return type(name, (torch.autograd.Function,), body).apply


def numbers(*shape: int, seed: int = 0, low: float = 0.3, high: float = 1.7, dtype: Any = torch.float64) -> Tensor:
    """Random numbers without zeros, ties and signs."""
    generator = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    return low + (high - low) * torch.rand(shape, dtype=dtype, generator=generator)


def signed(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Tensor:
    """Random numbers of both signs, away from zero."""
    generator = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    drawn = torch.randn(shape, dtype=dtype, generator=generator)
    return drawn + 0.2 * torch.sgn(drawn)


MUTANTS: list[Mutant] = []


def mutant(
    name: str,
    inputs: tuple[Tensor, ...],
    cause: str | None,
    forward: Callable[..., Any],
    right: Backward,
    wrong: Backward,
) -> None:
    """Add one formula with its two backwards."""
    MUTANTS.append(Mutant(name, function(forward, wrong), function(forward, right), inputs, cause))


def _layer_norm(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()


def _deviation(x: Tensor) -> Tensor:
    return x.var(-1, unbiased=False, keepdim=True).sqrt()


def _layer_norm_back(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)) / _deviation(x)


def _scan(x: Tensor, decay: float = 0.7) -> Tensor:
    states = [x[0]]
    for step in x[1:]:
        states.append(decay * states[-1] + step)
    return torch.stack(states)


def _scan_back(g: Tensor, decay: float = 0.7) -> Tensor:
    return _scan(g.flip(0), decay).flip(0)


def _conv(x: Tensor, w: Tensor) -> Tensor:
    return nnf.conv1d(x[None, None], w[None, None], padding=w.numel() // 2)[0, 0]


def _conv_x(g: Tensor, w: Tensor) -> Tensor:
    return _conv(g, w.flip(0))


def _conv_w(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
    reach = w.numel() // 2
    return nnf.conv1d(nnf.pad(x, (reach, reach))[None, None], g[None, None])[0, 0]


def _valid(x: Tensor, w: Tensor) -> Tensor:
    return nnf.conv1d(x[None, None], w[None, None])[0, 0]


def _valid_x(g: Tensor, w: Tensor) -> Tensor:
    return nnf.conv_transpose1d(g[None, None], w[None, None])[0, 0]


_INDEX = torch.tensor([3, 0, 2, 4, 1])
_REPEATED = torch.tensor([0, 2, 2, 1, 0])


def _put(g: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=g.dtype, device=g.device).index_add(0, index, g)


def _cholesky_like(a: Tensor) -> Tensor:
    """A quadratic form of the lower triangle."""
    return (a.tril() * numbers(3, 3, seed=5)).sum() + (a.tril() ** 2).sum()


def _cholesky_back(g: Tensor, a: Tensor) -> Tensor:
    return g * (numbers(3, 3, seed=5) + 2 * a).tril()


# A constant factor.
mutant("square without its 2", (signed(5),), "missing factor 2",
       lambda x: x * x, lambda g, s, y: 2 * g * s[0], lambda g, s, y: g * s[0])  # fmt: skip
mutant("squared norm without its 2", (signed(3, 4),), "missing factor 2",
       lambda x: (x * x).sum(1), lambda g, s, y: 2 * g[:, None] * s[0], lambda g, s, y: g[:, None] * s[0])  # fmt: skip
mutant("sum counted twice", (signed(2, 3),), "factor 2 too many",
       lambda x: x.sum(0), lambda g, s, y: g.expand_as(s[0]), lambda g, s, y: 2 * g.expand_as(s[0]))  # fmt: skip
mutant("trace of a product counted twice", (signed(3, 3), signed(3, 3, seed=1)), "factor 2 too many",
       lambda a, b: (a.mT * b).sum(), lambda g, s, y: (g * s[1].mT, g * s[0].mT),
       lambda g, s, y: (2 * g * s[1].mT, g * s[0].mT))  # fmt: skip
mutant("difference with the sign of a sum", (signed(4), signed(4, seed=1)), "wrong sign",
       lambda a, b: a - b, lambda g, s, y: (g, -g), lambda g, s, y: (g, g))  # fmt: skip
mutant("cosine without its minus", (signed(5),), "wrong sign",
       lambda x: x.cos(), lambda g, s, y: -g * s[0].sin(), lambda g, s, y: g * s[0].sin())  # fmt: skip
mutant("reciprocal without its minus", (numbers(5),), "wrong sign",
       lambda x: 1 / x, lambda g, s, y: -g * y * y, lambda g, s, y: g * y * y)  # fmt: skip
mutant("inverse of a matrix without its minus", (numbers(3, 3) + 3 * torch.eye(3, dtype=torch.float64),), "wrong sign",
       torch.linalg.inv, lambda g, s, y: -y.mT @ g @ y.mT, lambda g, s, y: y.mT @ g @ y.mT)  # fmt: skip
mutant("mean with the gradient of a sum", (signed(7),), "mean and sum confused",
       lambda x: x.mean(), lambda g, s, y: g.expand_as(s[0]) / max(s[0].numel(), 1),
       lambda g, s, y: g.expand_as(s[0]))  # fmt: skip
mutant("sum with the gradient of a mean", (signed(3, 5),), "mean and sum confused",
       lambda x: x.sum(1), lambda g, s, y: g[:, None].expand_as(s[0]),
       lambda g, s, y: g[:, None].expand_as(s[0]) / 5)  # fmt: skip
mutant("squared error over the batch only", (signed(4, 3), signed(4, 3, seed=1)), "mean and sum confused",
       lambda a, b: ((a - b) ** 2).mean(),
       lambda g, s, y: (2 * g * (s[0] - s[1]) / 12, -2 * g * (s[0] - s[1]) / 12),
       lambda g, s, y: (2 * g * (s[0] - s[1]) / 4, -2 * g * (s[0] - s[1]) / 12))  # fmt: skip
mutant("bias gradient averaged over the batch", (signed(4, 3), signed(3)), "mean and sum confused",
       lambda x, b: x + b, lambda g, s, y: (g, g.sum(0)), lambda g, s, y: (g, g.mean(0)))  # fmt: skip
mutant("unbiased variance divided by n", (signed(6),), "n and n - 1 confused",
       lambda x: x.var(), lambda g, s, y: 2 * g * (s[0] - s[0].mean()) / 5,
       lambda g, s, y: 2 * g * (s[0] - s[0].mean()) / 6)  # fmt: skip
mutant("degrees taken for radians", (signed(4),), "constant factor",
       lambda x: torch.deg2rad(x).sin(), lambda g, s, y: g * torch.deg2rad(torch.deg2rad(s[0]).cos()),
       lambda g, s, y: g * torch.deg2rad(s[0]).cos())  # fmt: skip
mutant("logarithm to base 2 as the natural one", (numbers(5),), "constant factor",
       torch.log2, lambda g, s, y: g / s[0] / 0.6931471805599453, lambda g, s, y: g / s[0])  # fmt: skip

# Transposed, reversed, shifted, permuted.
mutant("matmul by the matrix, not its transpose", (signed(2, 3), signed(3, 3)), "transposed",
       lambda a, b: a @ b, lambda g, s, y: (g @ s[1].mT, s[0].mT @ g),
       lambda g, s, y: (g @ s[1], s[0].mT @ g))  # fmt: skip
mutant("matmul with a transposed gradient", (signed(3, 3), signed(3, 3, seed=1)), "transposed",
       lambda a, b: a @ b, lambda g, s, y: (g @ s[1].mT, s[0].mT @ g),
       lambda g, s, y: (g @ s[1].mT, (s[0].mT @ g).mT))  # fmt: skip
mutant("linear with a weight of the wrong arrangement", (signed(5, 2), signed(3, 2)), "transposed",
       lambda x, w: x @ w.mT, lambda g, s, y: (g @ s[1], g.mT @ s[0]),
       lambda g, s, y: (g @ s[1], (s[0].mT @ g).reshape(3, 2)))  # fmt: skip
mutant("transpose that is not transposed back", (signed(2, 3),), "transposed",
       lambda x: x.mT * 1.0, lambda g, s, y: g.mT, lambda g, s, y: g.reshape(2, 3))  # fmt: skip
mutant("outer product with a transposed gradient", (signed(3), signed(3, seed=2)), "transposed",
       torch.outer, lambda g, s, y: (g @ s[1], g.mT @ s[0]), lambda g, s, y: (g.mT @ s[1], g.mT @ s[0]))  # fmt: skip
mutant("convolution with the kernel unflipped", (signed(8), signed(3)), "transposed",
       _conv, lambda g, s, y: (_conv_x(g, s[1]), _conv_w(g, s[0], s[1])),
       lambda g, s, y: (_conv(g, s[1]), _conv_w(g, s[0], s[1])))  # fmt: skip
mutant("valid convolution with the kernel unflipped", (signed(8), signed(3)), "reversed",
       _valid, lambda g, s, y: (_valid_x(g, s[1]), _valid(s[0], g)),
       lambda g, s, y: (_valid_x(g, s[1].flip(0)), _valid(s[0], g)))  # fmt: skip
mutant("convolution kernel's gradient flipped", (signed(8), signed(3)), "reversed",
       _conv, lambda g, s, y: (_conv_x(g, s[1]), _conv_w(g, s[0], s[1])),
       lambda g, s, y: (_conv_x(g, s[1]), _conv_w(g, s[0], s[1]).flip(0)))  # fmt: skip
mutant("cumulative sum forwards again", (signed(5),), "transposed",
       lambda x: x.cumsum(0), lambda g, s, y: g.flip(0).cumsum(0).flip(0), lambda g, s, y: g.cumsum(0))  # fmt: skip
mutant("permutation applied again", (signed(5),), "transposed",
       lambda x: x[_INDEX], lambda g, s, y: _put(g, _INDEX, 5), lambda g, s, y: g[_INDEX])  # fmt: skip
mutant("permutation of a weighted sum", (signed(5), signed(3, 5)), "permuted",
       lambda x, w: w @ x[_INDEX], lambda g, s, y: (_put(g @ s[1], _INDEX, 5), torch.outer(g, s[0][_INDEX])),
       lambda g, s, y: (g @ s[1], torch.outer(g, s[0][_INDEX])))  # fmt: skip
mutant("shift in the wrong direction", (signed(6),), "transposed",
       lambda x: x.roll(1, 0), lambda g, s, y: g.roll(-1, 0), lambda g, s, y: g.roll(1, 0))  # fmt: skip
mutant("difference with a slice off by one", (signed(6),), "off by one",
       lambda x: (x.narrow(0, 1, 4) ** 2).cumsum(0),
       lambda g, s, y: nnf.pad(2 * s[0][1:-1] * g.flip(0).cumsum(0).flip(0), (1, 1)),
       lambda g, s, y: nnf.pad(2 * s[0][1:-1] * g.flip(0).cumsum(0).flip(0), (0, 2)))  # fmt: skip
mutant("padding cut at one side only", (signed(4, 3),), "off by one",
       lambda x: nnf.pad(x, (1, 1)).sin() * numbers(4, 5),
       lambda g, s, y: (g * nnf.pad(s[0], (1, 1)).cos() * numbers(4, 5))[:, 1:-1],
       lambda g, s, y: (g * nnf.pad(s[0], (1, 1)).cos() * numbers(4, 5)).roll(-1, 1)[:, 1:-1])  # fmt: skip

# Two inputs.
mutant("product with its factors swapped", (signed(4), signed(4, seed=1)), "swapped inputs",
       lambda a, b: a * b, lambda g, s, y: (g * s[1], g * s[0]), lambda g, s, y: (g * s[0], g * s[1]))  # fmt: skip
mutant("power with base and exponent swapped", (numbers(4), numbers(4, seed=3)), "swapped inputs",
       lambda a, b: a**b, lambda g, s, y: (g * s[1] * y / s[0], g * y * s[0].log()),
       lambda g, s, y: (g * y * s[0].log(), g * s[1] * y / s[0]))  # fmt: skip
mutant("product without its other factor", (signed(4), signed(4, seed=1)), "missing chain factor",
       lambda a, b: a * b, lambda g, s, y: (g * s[1], g * s[0]), lambda g, s, y: (g, g * s[0]))  # fmt: skip

# A broadcast input.
mutant("bias gradient of the first example only", (signed(4, 3), signed(3)), "missing sum over a broadcast dimension",
       lambda x, b: x + b, lambda g, s, y: (g, g.sum(0)), lambda g, s, y: (g, g[0]))  # fmt: skip
mutant("scale of the channels, last position only", (signed(2, 3, 4), signed(3, 1)),
       "missing sum over a broadcast dimension", lambda x, w: x * w,
       lambda g, s, y: (g * s[1], (g * s[0]).sum((0, 2))[:, None]),
       lambda g, s, y: (g * s[1], (g * s[0])[:, :, -1].sum(0)[:, None]))  # fmt: skip
mutant("bias gradient summed over the features too", (signed(4, 3), signed(3)), "sum over too many dimensions",
       lambda x, b: x * 1.0 + b * numbers(3), lambda g, s, y: (g, (g * numbers(3)).sum(0)),
       lambda g, s, y: (g, (g * numbers(3)).sum().expand(3)))  # fmt: skip
mutant("layer norm's weight averaged over its features", (signed(4, 3), signed(3)), "sum over too many dimensions",
       lambda x, w: x * w, lambda g, s, y: (g * s[1], (g * s[0]).sum(0)),
       lambda g, s, y: (g * s[1], (g * s[0]).sum(0).mean().expand(3)))  # fmt: skip

# The input where the output is needed, chain factors.
mutant("sigmoid by its input", (signed(5),), "one value in place of another",
       torch.sigmoid, lambda g, s, y: g * y * (1 - y), lambda g, s, y: g * s[0] * (1 - s[0]))  # fmt: skip
mutant("tanh by its input", (signed(5),), "one value in place of another",
       torch.tanh, lambda g, s, y: g * (1 - y * y), lambda g, s, y: g * (1 - s[0] * s[0]))  # fmt: skip
mutant("exp by its input", (signed(5),), "one value in place of another",
       torch.exp, lambda g, s, y: g * y, lambda g, s, y: g * s[0])  # fmt: skip
mutant("square root by its input", (numbers(5),), "one value in place of another",
       torch.sqrt, lambda g, s, y: g / (2 * y), lambda g, s, y: g / (2 * s[0]))  # fmt: skip
mutant("dense layer without the derivative of tanh", (signed(4), signed(3, 4)), "missing chain factor",
       lambda x, w: torch.tanh(w @ x),
       lambda g, s, y: (s[1].mT @ (g * (1 - y * y)), torch.outer(g * (1 - y * y), s[0])),
       lambda g, s, y: (s[1].mT @ g, torch.outer(g * (1 - y * y), s[0])))  # fmt: skip
mutant("sine without its cosine", (signed(5),), "missing chain factor",
       torch.sin, lambda g, s, y: g * s[0].cos(), lambda g, s, y: g)  # fmt: skip
mutant("cube with the derivative of a square", (signed(5),), "missing chain factor",
       lambda x: x**3, lambda g, s, y: 3 * g * s[0] ** 2, lambda g, s, y: 2 * g * s[0])  # fmt: skip
mutant("sigmoid squared its derivative", (signed(5),), "surplus factor",
       torch.sigmoid, lambda g, s, y: g * y * (1 - y), lambda g, s, y: g * (y * (1 - y)) ** 2)  # fmt: skip
mutant("gelu handed through", (signed(5),), "gradient handed through",
       lambda x: nnf.gelu(x), lambda g, s, y: g * torch.func.vmap(torch.func.grad(nnf.gelu))(s[0]),
       lambda g, s, y: g)  # fmt: skip
mutant("absolute value without its sign", (signed(6),), "missing chain factor",
       torch.abs, lambda g, s, y: g * s[0].sgn(), lambda g, s, y: g)  # fmt: skip

# Masks and branches.
mutant("clamp without its mask", (signed(9),), "wrong mask",
       lambda x: x.clamp(-0.8, 0.8), lambda g, s, y: g * (s[0].abs() <= 0.8), lambda g, s, y: g)  # fmt: skip
mutant("hard shrink with another bound", (torch.linspace(-1.9, 2.0, 10, dtype=torch.float64),), "wrong mask",
       lambda x: x * (x > 0.3), lambda g, s, y: g * (s[0] > 0.3), lambda g, s, y: g * (s[0] > -1.0))  # fmt: skip
mutant("leaky relu with another slope", (torch.linspace(-1.9, 2.0, 8, dtype=torch.float64),), "wrong branch",
       lambda x: nnf.leaky_relu(x, 0.2), lambda g, s, y: g * torch.where(s[0] > 0, torch.ones_like(g), 0.2),
       lambda g, s, y: g * torch.where(s[0] > 0, torch.ones_like(g), 0.01))  # fmt: skip
mutant("rounding straight through", (numbers(5),), "straight-through estimator",
       torch.round, lambda g, s, y: torch.zeros_like(g), lambda g, s, y: g)  # fmt: skip
mutant("spike with a surrogate", (signed(6),), "surrogate gradient",
       lambda x: (x > 0).to(x), lambda g, s, y: torch.zeros_like(g),
       lambda g, s, y: g / (1 + s[0].abs()) ** 2)  # fmt: skip

# Paths that are missing.
mutant("input that gets no gradient", (signed(4), signed(4, seed=1)), "detached path",
       lambda a, b: a * b.exp(), lambda g, s, y: (g * s[1].exp(), g * y),
       lambda g, s, y: (g * s[1].exp(), torch.zeros_like(g)))  # fmt: skip
mutant("softmax without its sum", (signed(3, 5),), "detached path",
       lambda x: x.softmax(-1), lambda g, s, y: y * (g - (g * y).sum(-1, keepdim=True)),
       lambda g, s, y: y * g)  # fmt: skip
mutant("log-softmax without its sum", (signed(6),), "detached path",
       lambda x: x.log_softmax(-1), lambda g, s, y: g - y.exp() * g.sum(-1, keepdim=True),
       lambda g, s, y: g)  # fmt: skip
mutant("layer norm without its mean", (signed(3, 6),), "detached path",
       _layer_norm, lambda g, s, y: _layer_norm_back(g, s[0], y),
       lambda g, s, y: (g - y * (g * y).mean(-1, keepdim=True)) / _deviation(s[0]))  # fmt: skip
mutant("layer norm without its variance", (signed(3, 6),), "detached path",
       _layer_norm, lambda g, s, y: _layer_norm_back(g, s[0], y),
       lambda g, s, y: (g - g.mean(-1, keepdim=True)) / _deviation(s[0]))  # fmt: skip
mutant("unit vector without its norm", (signed(5),), "detached path",
       lambda x: x / x.norm(), lambda g, s, y: (g - y * (g @ y)) / s[0].norm(),
       lambda g, s, y: g / s[0].norm())  # fmt: skip
mutant("scan that forgets the steps before", (signed(5, 2),), "detached path",
       _scan, lambda g, s, y: _scan_back(g), lambda g, s, y: g)  # fmt: skip
mutant("scan run forwards in backward", (signed(6),), "transposed",
       _scan, lambda g, s, y: _scan_back(g), lambda g, s, y: _scan(g))  # fmt: skip
mutant("gather that assigns", (signed(3), numbers(5)), "lost accumulation",
       lambda x, w: x[_REPEATED] * w, lambda g, s, y: (_put(g * s[1], _REPEATED, 3), g * s[0][_REPEATED]),
       lambda g, s, y: (torch.zeros_like(s[0]).index_put((_REPEATED,), g * s[1]), g * s[0][_REPEATED]))  # fmt: skip
mutant("embedding that assigns", (signed(3, 2),), "lost accumulation",
       lambda w: w[_REPEATED].exp(),
       lambda g, s, y: torch.zeros(3, 2, dtype=g.dtype).index_add(0, _REPEATED, g * y),
       lambda g, s, y: torch.zeros(3, 2, dtype=g.dtype).index_put((_REPEATED,), g * y))  # fmt: skip
mutant("concatenation without its second half", (signed(6),), "detached path",
       lambda x: torch.cat([x[:3].sin(), x[3:].cos()]),
       lambda g, s, y: torch.cat([g[:3] * s[0][:3].cos(), -g[3:] * s[0][3:].sin()]),
       lambda g, s, y: torch.cat([g[:3] * s[0][:3].cos(), 0 * g[3:]]))  # fmt: skip

# Complex numbers.
_Z = signed(4, dtype=torch.complex128)
_W = signed(4, seed=2, dtype=torch.complex128)
mutant("complex product without conjugates", (_Z, _W), "missing conjugate",
       lambda a, b: a * b, lambda g, s, y: (g * s[1].conj(), g * s[0].conj()),
       lambda g, s, y: (g * s[1], g * s[0].conj()))  # fmt: skip
mutant("complex exp without its conjugate", (_Z,), "missing conjugate",
       torch.exp, lambda g, s, y: g * y.conj(), lambda g, s, y: g * y)  # fmt: skip
mutant("complex absolute value without its conjugate", (_Z,), "missing conjugate",
       torch.abs, lambda g, s, y: g * s[0] / y, lambda g, s, y: g * s[0].conj() / y)  # fmt: skip
mutant("complex square that loses its imaginary part", (_Z,), "imaginary part lost",
       lambda a: (a * a.conj()).real, lambda g, s, y: 2 * g * s[0],
       lambda g, s, y: (2 * g * s[0].real).to(s[0]))  # fmt: skip

# Symmetric matrices.
mutant("quadratic form of a triangle made symmetric", (signed(3, 3),), "triangles confused",
       _cholesky_like, lambda g, s, y: _cholesky_back(g, s[0]),
       lambda g, s, y: (_cholesky_back(g, s[0]) + _cholesky_back(g, s[0]).mT) / 2)  # fmt: skip
mutant("cholesky with its diagonal halved once too often", (signed(3, 3),), "triangles confused",
       _cholesky_like, lambda g, s, y: _cholesky_back(g, s[0]),
       lambda g, s, y: _cholesky_back(g, s[0]) * (1 - torch.eye(3, dtype=g.dtype) / 2))  # fmt: skip

# Numbers that are not finite.
mutant("norm of zero", (torch.zeros(3, dtype=torch.float64),), "NaN at a kink",
       lambda x: (x * x).sum().sqrt(), lambda g, s, y: 0 * s[0] * g, lambda g, s, y: g * s[0] / y)  # fmt: skip
mutant("where with a NaN behind it", (torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64),),
       "NaN where the derivative is finite", lambda x: torch.where(x == 0, 1.0, x.expm1() / x),
       lambda g, s, y: g * torch.where(s[0] == 0, 0.5, (s[0].exp() - y) / torch.where(s[0] == 0, 1.0, s[0])),
       lambda g, s, y: g * torch.where(s[0] == 0, 0.5, 1.0) * (s[0].exp() - s[0].expm1() / s[0]) / s[0])  # fmt: skip

# Nothing that has a name: caught, and no cause is guessed.
mutant("logsumexp with a strange temperature", (signed(2, 5),), None,
       lambda x: x.logsumexp(-1), lambda g, s, y: g[:, None] * s[0].softmax(-1),
       lambda g, s, y: g[:, None] * (1.3 * s[0]).softmax(-1))  # fmt: skip
mutant("logsumexp that is a maximum", (signed(2, 5),), None,
       lambda x: x.logsumexp(-1), lambda g, s, y: g[:, None] * s[0].softmax(-1),
       lambda g, s, y: g[:, None] * nnf.one_hot(s[0].argmax(-1), 5))  # fmt: skip
mutant("matmul with noise", (signed(2, 3), signed(3, 2)), None,
       lambda a, b: a @ b, lambda g, s, y: (g @ s[1].mT, s[0].mT @ g),
       lambda g, s, y: (g @ (s[1] + 0.1 * signed(3, 2, seed=9)).mT, s[0].mT @ g))  # fmt: skip


# Backwards that keep a state, or are modules and plain functions rather than one formula.
class _Dropout(torch.autograd.Function):
    """Dropout whose backward draws another mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 3.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3.0 * (torch.rand_like(grad) < 0.5)


class _Scaling(torch.autograd.Function):
    """A product whose backward changes what it saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = torch.full_like(x, 2.0)
        return 2.0 * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        ctx.factor.mul_(2.0)
        return grad * ctx.factor * x


def _gate(keep: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, weight: x * keep(x @ weight).sigmoid()


def _plain(keep: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: x / keep(x.exp().sum(-1, keepdim=True))


MUTANTS += [
    Mutant("dropout with a mask of its own in backward", _Dropout.apply, lambda x: x * 3.0, (signed(6),),
           "nondeterministic backward"),
    Mutant("square that changes what it keeps", _Scaling.apply, lambda x: 2.0 * x * x, (signed(4),),
           "backward changes what it keeps"),
    Mutant("gate that is detached", _gate(Tensor.detach), _gate(lambda x: x), (signed(2, 3, seed=4), signed(3, 3)),
           "detached path"),
    Mutant("normaliser that is detached", _plain(Tensor.detach), _plain(lambda x: x), (signed(2, 5),),
           "detached path"),
    Mutant("normaliser through .data", _plain(lambda x: x.data), _plain(lambda x: x), (signed(4, 4),),
           "detached path"),
    Mutant("value through .item()", lambda x: x * x.sum().item(), lambda x: x * x.sum(), (signed(5),),
           "detached path"),
]  # fmt: skip
