"""Every entry of Jacobians with structure: a narrow waist, or few nonzeros; against torch.func. float32, one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from rich.table import Table
from torch import Tensor
from torch.func import jacfwd, jacrev

import pullback as pb
from benchmarks.dense import described, mlp, neighbours
from benchmarks.timing import in_turns

COMPILED, PREPARED, ONE_CALL = "pullback, prepared and compiled", "pullback, prepared", "pullback, one call"
PEERS = ("torch.func.jacrev", "torch.func.jacfwd")
REPEATS, BUDGET = 40, 1.5
SIZE, WAIST = 1000, 8
NEEDED = 20.0


def ways_of(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The ways to every entry."""
    prepared, compiled = pb.prepare(f, x), pb.prepare(f, x, compile=True)
    return {
        COMPILED: lambda: compiled(x).dense(),
        PREPARED: lambda: prepared(x).dense(),
        ONE_CALL: lambda: pb.jacobian(f, x).dense(),
        PEERS[0]: lambda: jacrev(f)(x),
        PEERS[1]: lambda: jacfwd(f)(x),
    }


def autoencoder(width: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A network with a waist, and its Jacobian as one writes it who knows of the waist."""
    net = mlp(SIZE, width, WAIST, width, SIZE)
    encoder, decoder = net[:3], net[3:]
    return net, lambda x: jacfwd(decoder)(encoder(x)) @ jacrev(encoder)(x)


def dense_tables(*, quick: bool) -> Iterator[tuple[Table, str, float, float]]:
    """For each problem a table, what is compared, the ratio found, and what is needed (0: nothing)."""
    torch.manual_seed(0)
    x = torch.randn(SIZE)
    yield compare("R^1000 → R^1000, three neighbours", ways_of(neighbours, x), described(built(neighbours, x)), 0.0)
    for width in (64, 256) if quick else (64, 256, 1000):
        net, by_hand = autoencoder(width)
        hand = {"by hand: jacfwd(decoder) @ jacrev(encoder)": lambda by_hand=by_hand: by_hand(x)}
        title = f"autoencoder {SIZE}-{width}-{WAIST}-{width}-{SIZE}"
        outer, inner = torch.randn(SIZE, WAIST), torch.randn(WAIST, SIZE)
        floor = {"floor: one product of the two factors": lambda outer=outer, inner=inner: outer @ inner}
        yield compare(title, ways_of(net, x) | hand, described(built(net, x)), NEEDED, floor)


def built(f: Callable[[Tensor], Tensor], x: Tensor) -> pb.Jacobian:
    """A Jacobian that was built, and so knows its plan."""
    J = pb.jacobian(f, x)
    J.dense()
    return J


def compare(
    title: str,
    ways: dict[str, Callable[[], Tensor]],
    plan: str,
    needed: float,
    floor: dict[str, Callable[[], Tensor]] | None = None,
) -> tuple[Table, str, float, float]:
    """Check that all ways agree, and time them beside what none can do without."""
    expected = ways[PEERS[0]]()
    for name, way in ways.items():
        torch.testing.assert_close(way(), expected, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    seconds = in_turns(ways | (floor or {}), repeats=REPEATS, budget=BUDGET)
    best = {name: min(each) for name, each in seconds.items()}
    table = Table(title=f"{title}: every entry", title_justify="left", caption=plan, caption_justify="left")
    table.add_column("way", min_width=44)
    for header in ("min ms", "/ compiled", "/ prepared", "/ one call", "turns"):
        table.add_column(header, justify="right")
    for name in sorted(best, key=best.__getitem__):
        ratios = [f"{best[name] / best[ours]:.2f}" for ours in (COMPILED, PREPARED, ONE_CALL)]
        style = "bold" if name in {COMPILED, PREPARED, ONE_CALL} else None
        table.add_row(name, f"{best[name] * 1e3:.3f}", *ratios, str(len(seconds[name])), style=style)
    ratio = min(best[peer] for peer in PEERS) / best[COMPILED]
    return table, f"{title}: best of jacrev, jacfwd / compiled", ratio, needed
