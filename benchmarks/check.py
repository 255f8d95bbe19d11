"""``pb.check`` beside ``torch.autograd.gradcheck``, fast and slow, on functions that are right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.timing import console, in_turns, one_thread, verdict
from pullback.check.door import check

SIZES, QUICK_SIZES = (1_000, 10_000, 100_000), (1_000,)
# Slow mode takes a pass for each entry: minutes beyond this, and the whole Jacobian in memory.
LARGEST_SLOW = 1_000
REPEATS, BUDGET, QUICK_BUDGET = 30, 2.0, 0.2
NOT_SLOWER, TIMES_FASTER = 1.0, 10.0
OURS, WITHOUT, FAST, FORWARD, SLOW = "pb.check", "numbers only", "fast", "fast, forward too", "slow"


class Cube(torch.autograd.Function):
    """A Function with reverse mode only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * g


def layer(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x @ _weight(), (100,)).tanh()


def loss(x: Tensor) -> Tensor:
    return (x @ _weight()).logsumexp(1).mean()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "x**3, a Function": Cube.apply,
    "layer norm of x @ W": layer,
    "loss": loss,
}


def _weight() -> Tensor:
    return torch.eye(100, dtype=torch.float64) + 0.01


def contestants(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Callable[[], Any]]:
    """The ways to check a function."""
    gradcheck = partial(torch.autograd.gradcheck, f, (x,))
    found: dict[str, Callable[[], Any]] = {
        OURS: partial(check, f, x),
        WITHOUT: partial(check, f, x, behaviours=False),
        FAST: partial(gradcheck, fast_mode=True),
    }
    if f is not FUNCTIONS["x**3, a Function"]:
        found[FORWARD] = partial(gradcheck, fast_mode=True, check_forward_ad=True)
    if x.numel() <= LARGEST_SLOW:
        found[SLOW] = gradcheck
    return found


def main(*, quick: bool = False) -> None:
    table = Table(title="Checking a gradient, ms (minima)", title_justify="left")
    for header in ("function", "entries", OURS, WITHOUT, FAST, FORWARD, SLOW):
        table.add_column(header, justify="left" if header == "function" else "right")
    table.add_column(f"numbers / fast <= {NOT_SLOWER:.0f}")
    table.add_column(f"slow / numbers >= {TIMES_FASTER:.0f}")
    with one_thread():
        for name, f in FUNCTIONS.items():
            for size in QUICK_SIZES if quick else SIZES:
                x = torch.randn(size // 100, 100, dtype=torch.float64, requires_grad=True)
                ways = contestants(f, x)
                in_turns({way: call for way, call in ways.items() if way != SLOW}, repeats=2)
                seconds = in_turns(ways, repeats=REPEATS, budget=QUICK_BUDGET if quick else BUDGET)
                least = {way: min(turns) for way, turns in seconds.items()}
                peer = least.get(FORWARD, least[FAST])
                numbers = [
                    f"{least[way] * 1e3:.1f}" if way in least else "" for way in (OURS, WITHOUT, FAST, FORWARD, SLOW)
                ]
                ratio = least[WITHOUT] / peer
                said = f"{ratio:.2f} {verdict(ratio <= NOT_SLOWER)}"
                times = least[SLOW] / least[WITHOUT] if SLOW in least else None
                faster = "" if times is None else f"{times:.0f} {verdict(times >= TIMES_FASTER)}"
                table.add_row(name, f"{size:,}", *numbers, said, faster)
    console().print(table)


if __name__ == "__main__":
    main()
