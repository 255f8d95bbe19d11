"""Dense, per-example, parameter, Gram and second-order Jacobians against every way that PyTorch and JAX offer.

float32 and float64, one thread. Every contestant is held against a float64 reference of plain reverse passes first; one
that is wrong or raises is shown as such, and not timed. The others take turns, and minima and medians count.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import by_hand, dense_ours, dense_peers
from benchmarks.dense_problems import PROBLEMS, Case, Problem, reference
from benchmarks.jax_peer import Peer, PeerError
from benchmarks.measure import BUDGET, REPEATS, Contestant, Here, Jax, Result, measure

DTYPES = (torch.float32, torch.float64)
QUICK_REPEATS, QUICK_BUDGET = 7, 0.02


def contestants(problem: Problem, case: Case, peer: Peer | None, *, quick: bool) -> Iterator[Contestant]:
    """Everyone who takes part in a problem."""
    for name, make in dense_ours.ways(problem, case, quick=quick).items():
        yield Here(name, "ours", make)
    for name, make in dense_peers.ALL[problem.want](case).items():
        yield Here(name, "peer", make)
    if problem.key in by_hand.ALL:
        for name, call in by_hand.ALL[problem.key](case).items():
            yield Here(name, "hand", dense_peers.ready(call))
    if peer is not None:
        sizes, dtype = list(problem.quick if quick else problem.sizes), str(case.x.dtype).removeprefix("torch.")
        try:
            for way in peer.ask("dense.make", key=problem.key, sizes=sizes, dtype=dtype)["ways"]:
                yield Jax(f"JAX {way}", peer, way)
        except PeerError:
            return  # its interpreter has ended, which was said


def run(
    problem: Problem,
    dtype: torch.dtype,
    peer: Peer | None,
    record: list[dict[str, Any]],
    *,
    quick: bool,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Measure one problem in one dtype, and put what is found into the record, also where it is cut short."""
    name = str(dtype).removeprefix("torch.")

    def tell(text: str) -> None:
        say(f"{problem.key} {name}: {text}")

    tell("finding the reference")
    expected = reference(problem, problem.case(torch.float64, quick=quick))
    case = problem.case(dtype, quick=quick)
    results: list[Result] = []
    title = problem.title + (", small" if quick else "")
    entry: dict[str, Any] = {"key": problem.key, "title": title, "dtype": name, "shape": list(expected.shape)}
    record.append(entry)
    try:
        repeats, budget = (QUICK_REPEATS, QUICK_BUDGET) if quick else (REPEATS, BUDGET)
        everyone = list(contestants(problem, case, peer, quick=quick))
        measure(everyone, expected, dtype, results, repeats=repeats, budget=budget, say=tell)
        entry["plan"] = dense_ours.plan(problem, case)
    finally:
        entry["ways"] = [result.told() for result in results]
        gc.collect()  # what libraries keep in cycles is large


def keys() -> tuple[str, ...]:
    """The problems' letters."""
    return tuple(problem.key for problem in PROBLEMS)
