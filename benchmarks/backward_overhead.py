"""What ``pb.backward`` costs more than ``torch.autograd.backward``, for one call."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from rich.table import Table

import pullback as pb
from benchmarks.timing import console, differences, in_turns, one_thread, verdict

TARGET = 20e-6  # for a seed that is a tensor just like its output
SIZES = (1, 1_000, 100_000)
REPEATS, CALLS = 200, 10
BUDGET, QUICK_BUDGET = 1.0, 0.05
OURS, THEIRS = "pullback", "torch"


def cases(size: int) -> dict[str, dict[str, Callable[[], None]]]:
    """For each kind of seed, the two ways to send it through ``x.sin()``."""
    x = torch.linspace(0, 1, size, requires_grad=True)
    y, other = x.sin(), x.exp()
    losses = {"fit": y.sum(), "rest": other.sum()}
    seed, weights = torch.rand(size), (torch.tensor(0.3), torch.tensor(0.7))
    by_name = pb.seed.weights(fit=0.3, rest=0.7)
    torch_backward = torch.autograd.backward
    return {
        "tensor": {
            OURS: lambda: pb.backward(y, seed, retain_graph=True),
            THEIRS: lambda: torch_backward(y, seed, retain_graph=True),
        },
        '"ones"': {
            OURS: lambda: pb.backward(y, "ones", retain_graph=True),
            THEIRS: lambda: torch_backward(y, torch.ones_like(y), retain_graph=True),
        },
        "weights by name": {
            OURS: lambda: pb.backward(losses, by_name, retain_graph=True),
            THEIRS: lambda: torch_backward(list(losses.values()), list(weights), retain_graph=True),
        },
    }


def main(*, quick: bool = False) -> None:
    table = Table(title="One backward pass through x.sin(), µs", title_justify="left")
    for header in ("seed", "elements", "torch min", "ours min", "torch median", "ours median", "more (min)",
                   "more (median)", f"target {TARGET * 1e6:.0f}"):  # fmt: skip
        table.add_column(header, justify="left" if header == "seed" else "right")
    with one_thread():
        for size in SIZES:
            for kind, contestants in cases(size).items():
                in_turns(contestants, repeats=5)
                seconds = in_turns(contestants, repeats=REPEATS, calls=CALLS, budget=QUICK_BUDGET if quick else BUDGET)
                rounds = min(len(turns) for turns in seconds.values())
                seconds = {name: turns[:rounds] for name, turns in seconds.items()}
                by_minima, by_median = differences(seconds, OURS, THEIRS)
                numbers = [min(seconds[THEIRS]), min(seconds[OURS])]
                numbers += [statistics.median(seconds[THEIRS]), statistics.median(seconds[OURS])]
                numbers += [by_minima, by_median]
                target = verdict(by_median < TARGET) if kind == "tensor" else ""
                table.add_row(kind, f"{size:,}", *(f"{number * 1e6:.1f}" for number in numbers), target)
    console().print(table)


if __name__ == "__main__":
    main()
