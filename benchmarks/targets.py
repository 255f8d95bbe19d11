"""What must be shown, and whether a run shows it. Everything is read from the run's record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.dense_ours import CALLED, COMPILED, PREPARED, REUSED

Entry = dict[str, Any]
# How many times as fast as the best library on PyTorch one call must be, by problem.
AGAINST_PEERS = {"A": 0.9, "B": 1.5, "C": 0.9, "C2": 0.9, "D": 1.5, "E": 3.0, "F": 0.9, "G": 0.9, "G2": 30.0, "H": 0.9}
AGAINST_JAX = ("B", "E", "F", "H")
# The megabytes that a call may take more than the best library on PyTorch: a few Python objects, no tensor to speak of.
MORE_MEMORY = 0.25


@dataclass
class Target:
    """What must be shown, and what was measured.

    Attributes:
        what: What is measured.
        needed: The limit.
        measured: What this run has found; None where a contestant is missing.
        at_least: Whether the limit is a lower one.
        unit: What stands behind the numbers.
        other: What the run has found in float64, where that is not what counts.
    """

    what: str
    needed: float
    measured: float | None
    at_least: bool = True
    unit: str = "x"
    other: float | None = None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.needed if self.at_least else self.measured <= self.needed

    def told(self) -> Entry:
        """What JSON is to hold of it."""
        sign = "≥" if self.at_least else "≤"
        return {
            "what": self.what,
            "needed": f"{sign} {self.needed:g}{self.unit}",
            "measured": self.measured,
            "float64": self.other,
            "met": self.met,
        }


def way(entry: Entry | None, name: str) -> Entry | None:
    """A contestant that was timed, by name."""
    found = [each for each in entry["ways"] if each["name"] == name and each["min"]] if entry else []
    return found[0] if found else None


def best(entry: Entry | None, kind: str, start: str = "") -> Entry | None:
    """The fastest contestant of a kind that was timed."""
    found = [each for each in entry["ways"] if each["kind"] == kind and each["min"]] if entry else []
    return min(
        (each for each in found if each["name"].startswith(start)), key=lambda each: float(each["min"]), default=None
    )


def find(entries: list[Entry], key: str, dtype: str) -> Entry | None:
    """A problem in a dtype."""
    return next((each for each in entries if each["key"] == key and each["dtype"] == dtype), None)


def ratio(one: Entry | None, other: Entry | None) -> float | None:
    """How many times the other's time one takes."""
    return one["min"] / other["min"] if one and other else None


def memory(entry: Entry | None) -> float | None:
    """The megabytes of one call beyond those of the best library on PyTorch."""
    ours, theirs = way(entry, CALLED), best(entry, "peer")
    if not ours or not theirs:
        return None
    taken, allowed = (each["tensor_bytes"] + each["python_bytes"] for each in (ours, theirs))
    return float(taken - allowed) / 1e6


def dense(entries: list[Entry]) -> Iterator[Target]:
    """The targets of the dense problems that were run: in float32, with float64 beside it."""

    def both(
        key: str,
        what: str,
        needed: float,
        measure: Callable[[Entry | None], float | None],
        *,
        at_least: bool = False,
        unit: str = "x",
    ) -> Iterator[Target]:
        if find(entries, key, "float32"):
            found, other = (measure(find(entries, key, dtype)) for dtype in ("float32", "float64"))
            yield Target(f"{key}: {what}", needed, found, at_least, unit, other)

    for key, needed in AGAINST_PEERS.items():
        yield from both(key, "best torch peer / one call", needed, lambda e: ratio(best(e, "peer"), way(e, CALLED)),
                        at_least=True)  # fmt: skip
        yield from both(key, "memory of one call, less that peer's", MORE_MEMORY, memory, unit=" MB")
    for key in AGAINST_JAX:
        yield from both(key, "compiled / JAX jitted", 1.5, lambda e: ratio(way(e, COMPILED), best(e, "jax")))
    hand, reused = "by hand: outer products", "by hand: outer products, output reused"
    yield from both("G", "one call / by hand", 1.2, lambda e: ratio(way(e, CALLED), way(e, hand)))
    yield from both("G", "dense(out=) / by hand, reused", 2.0, lambda e: ratio(way(e, REUSED), way(e, reused)))
    yield from both("G2", "one call / by hand", 3.0, lambda e: ratio(way(e, CALLED), best(e, "hand")))
    jacrev = "func.jacrev"
    yield from both("S", "one call / func.jacrev", 2.0, lambda e: ratio(way(e, CALLED), way(e, jacrev)))
    yield from both("S", "prepared / func.jacrev", 0.5, lambda e: ratio(way(e, PREPARED), way(e, jacrev)))
