"""Sparse Jacobians and Hessians against asdex on JAX, torch.func with a coloring by hand, and torch.func's dense ones.

float64, one thread, in turns. Every way gives the entries of a sparse matrix, recovery included: Pullback and what is
written by hand a torch CSR tensor; asdex its BCOO array from one jitted function, and with ``scipy_csr`` a SciPy array
from the same, jitted inside. Results are compared before anything is timed: all entries at small sizes, random products
at full size. What is wrong, or raises, is shown as such and not timed.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._inductor import config as inductor_config

import pullback as pb
from benchmarks.jax_peer import Peer, PeerError
from benchmarks.measure import Kind, Result, nothing_to_collect, peak
from benchmarks.problems import Problem, by_hand
from benchmarks.timing import once, turns

COMPILED, PREPARED, CALLED = "pullback, prepared and compiled", "pullback, prepared", "pullback, one call"
HAND, BCOO, CSR, FORWARD = (
    "by hand",
    "asdex, jitted, BCOO",
    "asdex, jitted inside, SciPy CSR",
    "the function itself, eager",
)
REPEATS, BUDGET, QUICK_BUDGET = 60, 3.0, 0.1
TOLERANCE = 1e-9
Way = Callable[[Tensor], Tensor]


@dataclass
class Found:
    """What was measured of a problem, in seconds.

    Attributes:
        problem: The problem.
        pattern: Its pattern.
        results: The contestants, by name.
        detect: Finding the pattern of a function that was not seen before.
        first: The first Jacobian of such a function.
        prepare: Preparing.
        compile: Preparing and compiling.
        asdex: What asdex says of its first Jacobian.
        plan: What was chosen.
    """

    problem: Problem
    pattern: pb.Pattern
    results: dict[str, Result] = field(default_factory=dict)
    detect: float = math.inf
    first: float = math.inf
    prepare: float = math.inf
    compile: float = math.inf
    asdex: dict[str, float] = field(default_factory=dict)
    plan: str = ""

    def best(self, name: str) -> float | None:
        """The least seconds of a contestant, if it was timed."""
        result = self.results.get(name)
        return min(result.seconds) if result and result.seconds else None

    def ratio(self, one: str, other: str) -> float | None:
        """How many times the other one ``one`` takes."""
        ours, theirs = self.best(one), self.best(other)
        return ours / theirs if ours and theirs else None

    def told(self) -> dict[str, Any]:
        """What JSON is to hold of it."""
        return {
            "key": self.problem.key,
            "title": str(self.problem),
            "dtype": "float64",
            "shape": list(self.pattern.shape),
            "nonzeros": self.pattern.nnz,
            "plan": self.plan,
            "detect": _finite(self.detect),
            "prepare": _finite(self.prepare),
            "compile": _finite(self.compile),
            "asdex": self.asdex,
            "ways": [result.told() for result in self.results.values()],
        }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def timed(call: Callable[[Tensor], object], points: tuple[Tensor, Tensor]) -> Callable[[], float]:
    """What times a call at one point after the other."""
    at = cycle(points)

    def turn() -> float:
        x = next(at)
        return once(lambda: call(x))

    return turn


def distance(found: Tensor, expected: Tensor) -> float:
    """The relative error."""
    return ((found - expected).norm() / expected.norm()).item()


def judged(name: str, kind: Kind, errors: Callable[[], float]) -> Result:
    """A contestant whose error is found by a call."""
    try:
        error = errors()
    except Exception as problem:
        why = f"{type(problem).__name__}: {str(problem).strip()}".splitlines()[0][:200]
        return Result(name, kind, "raises", why=why)
    right = error < TOLERANCE  # a NaN is not
    return Result(name, kind, "right" if right else "wrong", error if math.isfinite(error) else None)


def check(problem: Problem, ways: dict[str, tuple[Kind, Way]], peer: Peer | None) -> dict[str, Result]:
    """Hold every way against products with a random vector, at two points."""
    v = torch.from_numpy(np.random.default_rng(2).normal(size=len(problem.points[0])))
    expected = [problem.product(v, x) for x in problem.points]

    def here(way: Way) -> float:
        return max(distance(way(x) @ v, right) for x, right in zip(problem.points, expected, strict=True))

    def there(asked: Peer) -> float:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "product.npy")
            asked.ask("sparse.product", path=path)
            return distance(torch.from_numpy(np.load(path)), expected[0])

    results = {name: judged(name, kind, partial(here, way)) for name, (kind, way) in ways.items()}
    if peer is not None:
        results |= {name: judged(name, "jax", partial(there, peer)) for name in (BCOO, CSR)}
    return results


def first_calls(found: Found, f: Way, budget: float) -> list[float]:
    """Time the first call and detection, of functions that were not seen before; and the function itself."""
    problem, x = found.problem, found.problem.points[0]
    seconds = turns(
        {
            FORWARD: lambda: once(lambda: f(x)),
            "detect": lambda: once(lambda: problem.lazy().pattern),
            CALLED: lambda: once(lambda: problem.lazy().sparse()),
        },
        repeats=5,
        budget=budget,
    )
    found.detect, found.first = min(seconds["detect"]), min(seconds[CALLED])
    if found.results[CALLED].status == "right":
        found.results[CALLED].seconds = seconds[CALLED]
    return seconds[FORWARD]


def prepared_ways(found: Found, *, quick: bool) -> dict[str, pb.Prepared]:
    """Prepare the problem, and compile it if there is the time, both timed."""
    problem, kept = found.problem, {}

    def prepare(name: str, *, compile: bool) -> float:
        return once(lambda: kept.update({name: problem.prepare(compile=compile)}))

    try:
        found.prepare = min(prepare(PREPARED, compile=False) for _ in range(1 if quick else 3))
        if quick:
            return kept
        with inductor_config.patch(force_disable_caches=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the caches are off
            found.compile = prepare(COMPILED, compile=True)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        for name in {PREPARED, COMPILED} - set(kept):
            found.results[name] = Result(name, "ours", "raises", why=why)
    return kept


def measure(problem: Problem, peer: Peer | None, *, quick: bool = False) -> Found:
    """Everything about one problem."""
    budget, f = QUICK_BUDGET if quick else BUDGET, problem.fresh()
    found = Found(problem, problem.lazy().pattern)
    ways: dict[str, tuple[Kind, Way]] = {CALLED: ("ours", lambda x: problem.lazy(x).sparse())}
    if peer is not None:
        try:
            peer.ask("sparse.make", key=problem.key, sizes=list(problem.sizes), of=problem.of)
            found.asdex = peer.ask("sparse.first")
        except PeerError as error:
            found.results |= {name: Result(name, "jax", "raises", why=str(error)) for name in (BCOO, CSR)}
            peer = None
    kept = prepared_ways(found, quick=quick)
    ways |= {name: ("ours", lambda x, name=name: kept[name](x).sparse()) for name in kept}  # type: ignore[misc]
    hand, way = by_hand(problem, found.pattern)
    ways[HAND] = "hand", way
    found.results |= check(problem, ways, peer)
    found.results[FORWARD] = Result(FORWARD, "floor", "right")
    once_each = first_calls(found, f, budget)
    contestants = {name: timed(way, problem.points) for name, (_, way) in ways.items()}
    contestants[FORWARD] = timed(f, problem.points)
    if peer is not None:
        contestants |= {name: partial(peer.seconds, "sparse.time", way) for name, way in ((BCOO, "bcoo"), (CSR, "csr"))}
    del contestants[CALLED]
    running = {name: each for name, each in contestants.items() if found.results[name].status == "right"}
    turns(running, repeats=REPEATS, budget=budget, into={name: each.seconds for name, each in found.results.items()})
    found.results[FORWARD].seconds += once_each
    with nothing_to_collect():
        for name, (_, way) in ways.items():
            if found.results[name].status == "right":
                result = found.results[name]
                result.tensor_bytes, result.python_bytes = peak(partial(way, problem.points[0]))
    if "bytes" in found.asdex:
        found.results[BCOO].tensor_bytes, found.results[BCOO].python_bytes = int(found.asdex["bytes"]), 0
    plans = [kept[name].plan() for name in (COMPILED, PREPARED) if name in kept]
    if plans:
        found.plan = "; ".join([f"{plans[0].chosen}, {plans[0].passes:,} passes", *plans[0].notes])
    found.plan += f"; {hand}" + (f"; asdex: {found.asdex['colors']:,} colours" if found.asdex else "")
    return found
