"""Whole Jacobians: ``pb.jacobian(...).dense()`` and ``.blocks()`` against every way that PyTorch offers.

float32, one thread, in turns, minima. Results are compared before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.func import jacfwd, jacrev, vmap

import pullback as pb
from benchmarks.timing import console, in_turns, one_thread

OURS, UNCHECKED = "pullback", "pullback, verify=False"
REPEATS = 30
# A contestant has had enough turns after so many seconds, be it one.
BUDGET = 0.8


@dataclass(frozen=True)
class Problem:
    """A function whose Jacobian is wanted, and the ways to it.

    Attributes:
        name: What it is called.
        ours: How Pullback finds it.
        unchecked: How it does when nothing is to be verified.
        peers: How PyTorch does, by name; each gives the same numbers in the same shape.
        plan: What Pullback chose.
    """

    name: str
    ours: Callable[[], Tensor]
    unchecked: Callable[[], Tensor]
    peers: dict[str, Callable[[], Tensor]]
    plan: Callable[[], str]


def whole(name: str, f: Callable[[Tensor], Tensor], x: Tensor) -> Problem:
    """The problem of every entry of one Jacobian."""
    functional = torch.autograd.functional.jacobian

    def plan() -> str:
        J = pb.jacobian(f, x)
        J.dense()
        return described(J)

    return Problem(
        name,
        lambda: pb.jacobian(f, x).dense(),
        lambda: pb.jacobian(f, x, verify=False).dense(),
        {
            "func.jacrev": lambda: jacrev(f)(x),
            "func.jacfwd": lambda: jacfwd(f)(x),
            "functional.jacobian": lambda: functional(f, x),
            "functional.jacobian, vectorize": lambda: functional(f, x, vectorize=True),
            "a loop over rows": lambda: row_loop(f, x),
        },
        plan,
    )


def row_loop(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """One ``torch.autograd.grad`` for each output element."""
    x = x.detach().requires_grad_()
    y = f(x)
    flat = y.flatten()
    rows = [torch.autograd.grad(flat[i], x, retain_graph=True)[0] for i in range(len(flat))]
    return torch.stack(rows).reshape(y.shape + x.shape)


def by_example(name: str, f: Callable[[Tensor], Tensor], x: Tensor) -> Problem:
    """The problem of one small Jacobian for each example of a batch."""

    def summed(x: Tensor) -> Tensor:
        return f(x).sum(0)

    def plan() -> str:
        J = pb.jacobian(f, x)
        J.blocks()
        return described(J)

    return Problem(
        name,
        lambda: pb.jacobian(f, x).blocks(),
        lambda: pb.jacobian(f, x, verify=False).blocks(),
        {
            "vmap(jacrev)": lambda: vmap(jacrev(f))(x),
            "vmap(jacfwd)": lambda: vmap(jacfwd(f))(x),
            "jacrev of the batch's sum": lambda: jacrev(summed)(x).transpose(0, 1),
            "functional.jacobian of the sum": lambda: torch.autograd.functional.jacobian(summed, x).transpose(0, 1),
            "a loop over rows of the sum": lambda: row_loop(summed, x).transpose(0, 1),
        },
        plan,
    )


def described(J: pb.Jacobian) -> str:
    """What a Jacobian that was built had chosen."""
    plan = J.plan()
    return f"{plan.chosen}, {plan.passes:,} passes; {plan.route}"


def mlp(*sizes: int) -> nn.Sequential:
    """A network of linear layers with tanh between them; its parameters are constants."""
    layers: list[nn.Module] = []
    for size, after in pairwise(sizes):
        layers += [nn.Linear(size, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).requires_grad_(False)


def cnn() -> nn.Sequential:
    """A small network for one image 3 x 32 x 32, with ten outputs."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    ).requires_grad_(False)


def neighbours(x: Tensor) -> Tensor:
    """Every output reads three neighbouring inputs."""
    return x.sin() * x.roll(1) + x.roll(-1) ** 2


def problems() -> list[Problem]:
    """The problems, the same numbers every time."""
    torch.manual_seed(0)
    w = torch.randn(10_000, 4)
    return [
        whole("A  MLP 256 → 3 x 512 → 128, one input", mlp(256, 512, 512, 512, 128), torch.randn(256)),
        by_example("B  MLP 3 → 2 x 64 → 5, 512 examples", mlp(3, 64, 64, 5), torch.randn(512, 3)),
        whole("C  CNN 3 x 32 x 32 → 10, by the image", cnn(), torch.randn(1, 3, 32, 32)),
        whole("E  R^1000 → R^1000, three neighbours", neighbours, torch.randn(1000)),
        whole("F  R^4 → R^10000, sin(Wx)", lambda x: (w @ x).sin(), torch.randn(4)),
    ]


def compare(problem: Problem) -> Table:
    """Check that all ways agree, time them, and tell of it in a table.

    Raises:
        AssertionError: Two ways give different numbers.
    """
    contestants = {OURS: problem.ours, UNCHECKED: problem.unchecked, **problem.peers}
    expected = problem.ours()
    first = {}
    for name, call in contestants.items():
        began = time.perf_counter()
        found = call()
        first[name] = time.perf_counter() - began
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    # Who took long once is not asked again.
    again = {name: call for name, call in contestants.items() if first[name] < BUDGET}
    turns = in_turns(again, repeats=REPEATS, budget=BUDGET)
    best = {name: min([first[name], *turns.get(name, ())]) for name in contestants}
    table = Table(title=problem.name, title_justify="left", caption=problem.plan(), caption_justify="left")
    table.add_column("way", min_width=34)
    for header in ("min ms", "peer / ours", "turns"):
        table.add_column(header, justify="right")
    for name in sorted(best, key=best.__getitem__):
        ratio = "" if name == OURS else f"{best[name] / best[OURS]:.2f}"
        turned = str(1 + len(turns.get(name, ())))
        table.add_row(name, f"{best[name] * 1e3:.2f}", ratio, turned, style="bold" if name == OURS else None)
    return table


def main() -> None:
    screen = console()
    with one_thread():
        for problem in problems():
            screen.print(compare(problem))


if __name__ == "__main__":
    main()
