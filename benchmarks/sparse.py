"""Sparse Jacobians and Hessians against asdex on JAX, torch.func with a coloring by hand, and torch.func's dense ones.

float64, one thread, in turns, minima. Every way gives the entries of a sparse matrix, recovery included: Pullback and
what is written by hand a torch CSR tensor; asdex its BCOO array from one jitted function, and with ``scipy_csr`` a
SciPy array from the same, jitted inside. Results are compared before anything is timed: all entries at small sizes,
random products at full size.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch._inductor import config as inductor_config

import pullback as pb
from benchmarks.jax_peer import Peer, PeerError
from benchmarks.problems import Problem, arrow, by_hand, small_suite, suite
from benchmarks.sparse_dense import dense_tables
from benchmarks.timing import console, once, one_thread, verdict
from pullback.coloring import color_bidirectional, color_columns, color_rows, color_symmetric

COMPILED, PREPARED, HAND = "pullback, prepared and compiled", "pullback, prepared", "by hand"
BCOO, CSR, FORWARD = "asdex, jitted, BCOO", "asdex, jitted inside, SciPy CSR", "the function itself, eager"
REPEATS, BUDGET = 60, 3.0
# What must be reached: asdex / compiled, and by hand / prepared.
AGAINST_ASDEX = {"brusselator": 1.5, "broyden": 1.5, "conv": 2.0, "bundle": 5.0, "arrowhead": 100.0, "rosenbrock": 1.0}
AGAINST_HAND = {"brusselator": 3.0, "bundle": 3.0}
FORWARDS, DETECTION = 100.0, 10.0
FIRST_CALL = {"broyden": 5.0, "bundle": 2.0}
COLORS = {"brusselator": 10, "broyden": 3, "conv": 49, "bundle": 12, "arrowhead": 3, "rosenbrock": 3}


@dataclass
class Target:
    """What must be shown, and what was measured; None where a peer is missing.

    Attributes:
        what: What is measured.
        needed: The limit.
        measured: What this run has found.
        at_least: Whether the limit is a lower one.
        unit: What stands behind the numbers.
    """

    what: str
    needed: float
    measured: float | None
    at_least: bool = True
    unit: str = "x"

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "[yellow]not measured[/]"
        return verdict(self.measured >= self.needed if self.at_least else self.measured <= self.needed)


@dataclass
class Found:
    """What was measured of a problem, in seconds."""

    problem: Problem
    pattern: pb.Pattern
    best: dict[str, float] = field(default_factory=dict)
    detect: float = math.inf
    first: float = math.inf
    prepare: float = math.inf
    compile: float = math.inf
    asdex: dict[str, float] = field(default_factory=dict)

    def ratio(self, one: str, other: str) -> float | None:
        """How many times the other one ``one`` takes."""
        return self.best[one] / self.best[other] if one in self.best else None


def turns(contestants: dict[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """The seconds that contestants say their turns took; every other round goes the other way round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats):
        for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
            if sum(seconds[name]) < BUDGET:
                seconds[name].append(contestants[name]())
    return seconds


def timed(call: Callable[[Tensor], object], points: tuple[Tensor, Tensor]) -> Callable[[], float]:
    """What times a call at one point after the other."""
    at = cycle(points)

    def turn() -> float:
        x = next(at)
        return once(lambda: call(x))

    return turn


def close(found: Tensor, expected: Tensor, name: str) -> None:
    """Refuse numbers that differ by more than rounding.

    Raises:
        AssertionError: They do.
    """
    error = ((found - expected).norm() / expected.norm()).item()
    assert error < 1e-9, f"{name}: relative error {error:.1e}"


def check(problem: Problem, ways: dict[str, Callable[[Tensor], Tensor]], peer: Peer | None) -> None:
    """Hold every way against a random product, and all ways against each other at another point."""
    x, other = problem.points
    v = torch.from_numpy(np.random.default_rng(2).normal(size=len(x)))
    expected = problem.product(v)
    last = None
    for name, way in ways.items():
        close(way(x) @ v, expected, f"{problem}, {name}")
        values = way(other).values()
        close(values, values if last is None else last, f"{problem}, {name}, at another point")
        last = values
    if peer is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "product.npy")
            peer.ask("product", path=path)
            close(torch.from_numpy(np.load(path)), expected, f"{problem}, asdex")


def measure(problem: Problem, peer: Peer | None) -> tuple[Found, Table]:
    """Everything about one problem."""
    x = problem.points[0]
    found = Found(problem, problem.lazy().pattern)
    # The first call and detection, of functions that were not seen before.
    f = problem.fresh()
    once_each = turns(
        {
            FORWARD: lambda: once(lambda: f(x)),
            "detect": lambda: once(lambda: problem.lazy().pattern),
            "first": lambda: once(lambda: problem.lazy().sparse()),
        },
        repeats=5,
    )
    found.detect, found.first = min(once_each["detect"]), min(once_each["first"])
    note = ""
    if peer is not None:
        try:
            peer.ask("make", key=problem.key, sizes=list(problem.sizes), of=problem.of)
            found.asdex = peer.ask("first")
        except PeerError as error:
            peer, note = None, f"\nasdex: {error}"
    kept = {}

    def prepare(name: str, *, compile: bool) -> float:
        return once(lambda: kept.update({name: problem.prepare(compile=compile)}))

    found.prepare = min(prepare(PREPARED, compile=False) for _ in range(3))
    with inductor_config.patch(force_disable_caches=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the caches are off
        found.compile = prepare(COMPILED, compile=True)
    hand, way = by_hand(problem, found.pattern)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        COMPILED: lambda x: kept[COMPILED](x).sparse(),
        PREPARED: lambda x: kept[PREPARED](x).sparse(),
        HAND: way,
    }
    check(problem, ways, peer)
    contestants = {name: timed(way, problem.points) for name, way in ways.items()}
    contestants[FORWARD] = timed(f, problem.points)
    if peer is not None:
        contestants |= {BCOO: partial(peer.seconds, "bcoo"), CSR: partial(peer.seconds, "csr")}
    seconds = turns(contestants)
    found.best = {name: min(each) for name, each in seconds.items()}
    found.best[FORWARD] = min(found.best[FORWARD], *once_each[FORWARD])
    names = {
        HAND: hand,
        BCOO: f"{BCOO}, {found.asdex.get('colors', 0):,} colours",
        COMPILED: f"{COMPILED}: {kept[COMPILED].plan().chosen}, {kept[COMPILED].plan().passes:,} passes",
    }
    table = Table(title=f"{problem}: one sparse {problem.of}", title_justify="left", caption_justify="left")
    table.caption = "; ".join(kept[COMPILED].plan().notes) + note
    table.add_column("way", min_width=50)
    for header in ("min ms", "/ compiled", "/ prepared", "turns"):
        table.add_column(header, justify="right")
    for name in sorted(found.best, key=found.best.__getitem__):
        ratios = [f"{found.best[name] / found.best[to]:.2f}" for to in (COMPILED, PREPARED)]
        style = "bold" if name in {COMPILED, PREPARED} else None
        table.add_row(
            names.get(name, name), f"{found.best[name] * 1e3:.3f}", *ratios, str(len(seconds[name])), style=style
        )
    return found, table


def detection_table(all_found: list[Found]) -> Table:
    """What it takes to find the pattern of a function that was not seen before."""
    table = Table(title="Detection alone", title_justify="left")
    table.add_column("problem")
    for header in ("forward ms", "detect ms", "detect / forward", "asdex detect ms", "asdex / ours"):
        table.add_column(header, justify="right")
    for found in all_found:
        forward, ratio = found.best[FORWARD], asdex_detection(found)
        table.add_row(
            str(found.problem),
            f"{forward * 1e3:.3f}",
            f"{found.detect * 1e3:.1f}",
            f"{found.detect / forward:.0f}",
            f"{found.asdex['detect'] * 1e3:,.0f}" if found.asdex else "",
            "" if ratio is None else f"{ratio:.0f}",
        )
    return table


def first_table(all_found: list[Found]) -> Table:
    """What it takes to the first Jacobian of a function that was not seen before, and to prepare the others."""
    title = "First call, seconds: detection, coloring, plan, one Jacobian (asdex: jitted or not, the faster)"
    table = Table(title=title, title_justify="left")
    table.add_column("problem")
    for header in ("first call", "asdex", "asdex / ours", "prepare", "prepare and compile"):
        table.add_column(header, justify="right")
    for found in all_found:
        first = asdex_first(found)
        table.add_row(
            str(found.problem),
            f"{found.first:.3f}",
            "" if first is None else f"{first:.2f}",
            "" if first is None else f"{first / found.first:.0f}",
            f"{found.prepare:.3f}",
            f"{found.compile:.1f}",
        )
    return table


def asdex_detection(found: Found) -> float | None:
    """How many times as long asdex takes to find the pattern."""
    return found.asdex["detect"] / found.detect if found.asdex else None


def asdex_first(found: Found) -> float | None:
    """The seconds of asdex to its first Jacobian, the faster way."""
    if not found.asdex:
        return None
    before = found.asdex["detect"] + found.asdex["color"]
    return min(found.asdex["first"], before + found.asdex["jit"])


def coloring_table(all_found: list[Found], *, quick: bool) -> tuple[Table, list[Target]]:
    """Colorings alone, without cuts and waists: how many colors, at least how many, and how long it takes."""
    kinds: dict[str, Callable[..., object]] = {
        "conv": color_rows,
        "arrowhead": color_bidirectional,
        "rosenbrock": color_symmetric,
    }
    cases = [
        (str(found.problem), found.pattern, kinds.get(found.problem.key, color_columns), found.asdex,
         COLORS[found.problem.key]) for found in all_found
    ]  # fmt: skip
    x = torch.linspace(0.5, 1.5, 500 if quick else 4_000, dtype=torch.float64)
    cases.append((f"arrow Hessian {len(x):,}", pb.hessian(arrow(), x).pattern, color_symmetric, {}, 2))
    table = Table(title="Coloring alone, within 0.2 s of search (asdex: one order, no search)", title_justify="left")
    table.add_column("problem")
    for header in ("nonzeros", "coloring", "colors", "at least", "seconds", "asdex colors", "asdex seconds"):
        table.add_column(header, justify="left" if header == "coloring" else "right")
    targets = []
    for name, pattern, color, theirs, needed in cases:
        best = color(pattern)
        seconds = min(once(partial(color, pattern)) for _ in range(3))
        table.add_row(
            name,
            f"{pattern.nnz:,}",
            color.__name__.removeprefix("color_"),
            f"{best.count:,}",
            f"{best.bound:,}",
            f"{seconds:.3f}",
            f"{theirs['colors']:,}" if theirs else "",
            f"{theirs['color']:.3f}" if theirs else "",
        )
        targets.append(Target(f"{name}: colors", needed, best.count, at_least=False, unit=""))
        if name.startswith("Broyden"):
            targets.append(Target(f"{name}: seconds to color", 0.5, seconds, at_least=False, unit=" s"))
    return table, targets


def check_small() -> Table:
    """Every entry at small sizes, and the times of dense Jacobians there."""
    table = Table(title="Small sizes, where dense matrices fit; every entry compared; ms", title_justify="left")
    table.add_column("problem")
    for header in ("prepared, sparse", "jacfwd, dense", "jacrev, dense", "best dense / ours"):
        table.add_column(header, justify="right")
    for problem in small_suite():
        prepared, (x, other) = problem.prepare(compile=False), problem.points
        for point in (x, other):
            for name, way in problem.dense(point).items():
                close(prepared(point).sparse().to_dense(), way(), f"{problem}, {name}")
        close(problem.lazy().sparse().to_dense(), problem.dense(x)["torch.func.jacrev"](), f"{problem}, one call")
        ways = {name: partial(once, way) for name, way in problem.dense(x).items()}
        contestants = {PREPARED: timed(lambda x, p=prepared: p(x).sparse(), problem.points), **ways}
        best = {name: min(each) for name, each in turns(contestants, repeats=10).items()}
        dense = [best["torch.func.jacfwd"], best["torch.func.jacrev"]]
        numbers = [best[PREPARED] * 1e3, *(each * 1e3 for each in dense)]
        table.add_row(str(problem), *(f"{each:.2f}" for each in numbers), f"{min(dense) / best[PREPARED]:.1f}")
    return table


def targets_of(found: Found) -> list[Target]:
    """The targets of one problem."""
    key, name = found.problem.key, str(found.problem)
    by_hand_needs = AGAINST_HAND.get(key, 1.0)
    targets = [
        Target(f"{name}: asdex jitted / compiled", AGAINST_ASDEX[key], found.ratio(BCOO, COMPILED)),
        Target(f"{name}: by hand / prepared", by_hand_needs, found.ratio(HAND, PREPARED)),
    ]
    if key != "arrowhead":
        detect = found.detect / found.best[FORWARD]
        targets.append(Target(f"{name}: detection, forward passes", FORWARDS, detect, at_least=False, unit=""))
        targets.append(Target(f"{name}: detection, asdex / ours", DETECTION, asdex_detection(found)))
    if key in FIRST_CALL:
        targets.append(Target(f"{name}: first call", FIRST_CALL[key], found.first, at_least=False, unit=" s"))
    return targets


def summary(targets: list[Target], *, quick: bool) -> Table:
    """Which targets this run meets."""
    title = "Targets" + (", which are for the full sizes: these are small ones" if quick else "")
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for header in ("needed", "measured", ""):
        table.add_column(header, justify="right" if header else "left")
    for target in targets:
        sign = "≥" if target.at_least else "≤"
        measured = "" if target.measured is None else f"{target.measured:.3g}{target.unit}"
        table.add_row(target.what, f"{sign} {target.needed:g}{target.unit}", measured, target.verdict)
    return table


def main(*, quick: bool = False) -> None:
    """Run it, at full sizes or small ones."""
    screen = console()
    peer, about = Peer.find()
    screen.print(about, highlight=False)
    found, targets = [], []
    with one_thread():
        # What a process does once (Numba loads its kernels, torch and asdex their own) is told apart.
        warm = small_suite()[0]
        cold = once(lambda: warm.lazy().sparse())
        screen.print(f"The first sparse Jacobian of this process, {warm}: {cold:.2f} s", highlight=False)
        screen.print(check_small())
        if peer is not None:
            for problem in small_suite():
                peer.ask("make", key=problem.key, sizes=list(problem.sizes), of=problem.of)
                peer.ask("first")
        for problem in suite(quick=quick):
            one, table = measure(problem, peer)
            screen.print(table)
            found.append(one)
            targets += targets_of(one)
        screen.print(detection_table(found))
        screen.print(first_table(found))
        table, more = coloring_table(found, quick=quick)
        screen.print(table)
        targets += more
        for table, what, ratio, needed in dense_tables(quick=quick):
            screen.print(table)
            if needed:
                targets.append(Target(what, needed, ratio))
    if peer is not None:
        peer.close()
    screen.print(summary(targets, quick=quick))


if __name__ == "__main__":
    main()
