"""The sparse part: its tables, its targets, and small sizes where every entry is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from rich.table import Table

import pullback as pb
from benchmarks.jax_peer import Peer, PeerError
from benchmarks.problems import Problem, arrow, small_suite
from benchmarks.sparse import BCOO, COMPILED, FORWARD, HAND, PREPARED, TOLERANCE, Found, distance, timed
from benchmarks.targets import Target
from benchmarks.timing import once, turns
from pullback.coloring import color_bidirectional, color_columns, color_rows, color_symmetric

# What must be reached: asdex / compiled, and by hand / prepared.
AGAINST_ASDEX = {"brusselator": 1.5, "broyden": 1.5, "conv": 2.0, "bundle": 5.0, "arrowhead": 100.0, "rosenbrock": 1.0}
AGAINST_HAND = {"brusselator": 3.0, "bundle": 3.0}
FORWARDS, DETECTION = 100.0, 10.0
FIRST_CALL = {"broyden": 5.0, "bundle": 2.0}
COLORS = {"brusselator": 10, "broyden": 3, "conv": 49, "bundle": 12, "arrowhead": 3, "rosenbrock": 3}


def warm_up(peer: Peer | None, *, quick: bool) -> str:
    """What a process does once (Numba loads its kernels, torch and asdex their own), told apart."""
    warm = small_suite()[0]
    cold = once(lambda: warm.lazy().sparse())
    if peer is not None:
        try:
            for problem in [warm] if quick else small_suite():
                peer.ask("sparse.make", key=problem.key, sizes=list(problem.sizes), of=problem.of)
                peer.ask("sparse.first")
        except PeerError as error:
            return f"asdex: {error}"
    return f"The first sparse Jacobian of this process, {warm}: {cold:.2f} s"


def check_small(problems: list[Problem]) -> Table:
    """Every entry at small sizes, and the times of dense Jacobians there.

    Raises:
        AssertionError: An entry is wrong.
    """
    table = Table(title="Small sizes, where dense matrices fit; every entry compared; ms", title_justify="left")
    table.add_column("problem")
    for header in ("prepared, sparse", "jacfwd, dense", "jacrev, dense", "best dense / ours"):
        table.add_column(header, justify="right")
    for problem in problems:
        prepared, (x, other) = problem.prepare(compile=False), problem.points
        for point in (x, other):
            for name, way in problem.dense(point).items():
                error = distance(prepared(point).sparse().to_dense(), way())
                assert error < TOLERANCE, f"{problem}, {name}: relative error {error:.1e}"
        error = distance(problem.lazy().sparse().to_dense(), problem.dense(x)["torch.func.jacrev"]())
        assert error < TOLERANCE, f"{problem}, one call: relative error {error:.1e}"
        ways = {name: partial(once, way) for name, way in problem.dense(x).items()}
        contestants = {PREPARED: timed(lambda x, p=prepared: p(x).sparse(), problem.points), **ways}
        best = {name: min(each) for name, each in turns(contestants, repeats=10, budget=1.0).items()}
        dense = [best["torch.func.jacfwd"], best["torch.func.jacrev"]]
        numbers = [best[PREPARED] * 1e3, *(each * 1e3 for each in dense)]
        table.add_row(str(problem), *(f"{each:.2f}" for each in numbers), f"{min(dense) / best[PREPARED]:.1f}")
    return table


def detection_table(all_found: list[Found]) -> Table:
    """What it takes to find the pattern of a function that was not seen before."""
    table = Table(title="Detection alone", title_justify="left")
    table.add_column("problem")
    for header in ("forward ms", "detect ms", "detect / forward", "asdex detect ms", "asdex / ours"):
        table.add_column(header, justify="right")
    for found in all_found:
        forward, ratio = found.best(FORWARD), asdex_detection(found)
        assert forward is not None
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
            f"{found.compile:.1f}" if math.isfinite(found.compile) else "",
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
    kinds: dict[str, Callable[..., Any]] = {
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


def targets_of(found: Found) -> Iterator[Target]:
    """The targets of one problem."""
    key, name = found.problem.key, str(found.problem)
    yield Target(f"{name}: asdex jitted / compiled", AGAINST_ASDEX[key], found.ratio(BCOO, COMPILED))
    yield Target(f"{name}: by hand / prepared", AGAINST_HAND.get(key, 1.0), found.ratio(HAND, PREPARED))
    forward = found.best(FORWARD)
    if key != "arrowhead" and forward is not None:
        yield Target(f"{name}: detection, forward passes", FORWARDS, found.detect / forward, at_least=False, unit="")
        yield Target(f"{name}: detection, asdex / ours", DETECTION, asdex_detection(found))
    if key in FIRST_CALL:
        yield Target(f"{name}: first call", FIRST_CALL[key], found.first, at_least=False, unit=" s")
