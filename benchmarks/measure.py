"""Contestants: each is held against a reference first, then takes turns with the others, and its memory is measured.

Memory is what a call takes beyond what was there before it, at its peak: the tensors' bytes, as the profiler of PyTorch
sees them allocated and freed, compiled code included; plus what tracemalloc sees of Python and NumPy. JAX: what XLA
says of its result and its temporaries. Work space that a library keeps to itself is not counted for anyone.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from benchmarks.jax_peer import Peer
from benchmarks.timing import once, turns

Kind = Literal["ours", "peer", "hand", "jax", "floor"]
Status = Literal["right", "wrong", "raises", "missing"]
# The greatest error of an entry, over the greatest entry.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
REPEATS, BUDGET = 40, 0.8
# Who takes so many seconds has had its turn when it was checked.
SLOW = 2.0


class Contestant(Protocol):
    """Who takes part.

    Attributes:
        name: What it is called in a table.
        kind: Ours, a library on PyTorch, written by hand for this function, JAX, or what none can do without.
    """

    name: str
    kind: Kind

    def entries(self) -> Any:
        """The numbers that it finds; called once, first."""

    def seconds(self) -> float:
        """The seconds of one call."""

    def bytes(self) -> tuple[int, int]:
        """The bytes of tensors, and of Python and NumPy, that one call takes."""


@dataclass
class Here:
    """A contestant in this process.

    Attributes:
        name: What it is called in a table.
        kind: What it is.
        make: Makes what is called.
    """

    name: str
    kind: Kind
    make: Callable[[], Callable[[], Any]]
    call: Callable[[], Any] | None = None

    def entries(self) -> Any:
        self.call = self.make()
        return self.call()

    def seconds(self) -> float:
        assert self.call is not None
        return once(self.call)

    def bytes(self) -> tuple[int, int]:
        assert self.call is not None
        return peak(self.call)


@dataclass
class Jax:
    """A contestant that is JAX."""

    name: str
    peer: Peer
    way: str
    kind: Kind = "jax"
    taken: int = 0

    def entries(self) -> Tensor:
        self.taken = self.peer.ask("dense.compile", way=self.way)["bytes"]
        with TemporaryDirectory() as folder:
            path = str(Path(folder) / "entries.npy")
            self.peer.ask("dense.entries", way=self.way, path=path)
            return torch.from_numpy(np.load(path))

    def seconds(self) -> float:
        return self.peer.seconds("dense.time", self.way)

    def bytes(self) -> tuple[int, int]:
        return self.taken, 0


@dataclass
class Result:
    """What was found of one contestant.

    Attributes:
        name: What it is called.
        kind: What it is.
        status: Whether its numbers are right; only then it is timed.
        error: The greatest error of an entry, over the greatest entry.
        why: What it raised.
        seconds: Of each of its turns.
        tensor_bytes: The bytes of tensors at the peak of a call.
        python_bytes: The same of Python and NumPy.
    """

    name: str
    kind: Kind
    status: Status
    error: float | None = None
    why: str = ""
    seconds: list[float] = field(default_factory=list)
    tensor_bytes: int | None = None
    python_bytes: int | None = None

    def told(self) -> dict[str, Any]:
        """What JSON is to hold of it."""
        timed = bool(self.seconds)
        return {
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "error": self.error,
            "why": self.why,
            "min": min(self.seconds) if timed else None,
            "median": statistics.median(self.seconds) if timed else None,
            "turns": len(self.seconds),
            "tensor_bytes": self.tensor_bytes,
            "python_bytes": self.python_bytes,
        }


def peak(call: Callable[[], Any]) -> tuple[int, int]:
    """The bytes of tensors, and of Python and NumPy, that a call has alive at its peak beyond those there before."""
    gc.collect()
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        warnings.simplefilter("ignore")
        tracemalloc.start()
        try:
            result = call()
            python = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    del result
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most, python


@contextmanager
def nothing_to_collect() -> Iterator[None]:
    """What is there stays, so that collecting garbage, which is done before each measuring of memory, is soon done."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def matrix_of(found: Any, shape: Sequence[int]) -> Tensor:
    """A contestant's numbers in the shape of the reference, the blocks of several parameters side by side."""
    leaves = [leaf.detach() for leaf in pytree.tree_leaves(found)]
    if len(leaves) == 1:
        return leaves[0].reshape(shape)
    return torch.cat([leaf.reshape(shape[0], -1) for leaf in leaves], 1)


def greatest_error(found: Tensor, reference: Tensor) -> float:
    """The greatest error of an entry over the greatest entry; NaN where a number is none."""
    rows = range(0, len(reference), 64)  # in parts, for there may be much of it
    errors = [(found[i : i + 64].double() - reference[i : i + 64]).abs().max() for i in rows]
    return float(torch.stack(errors).max() / reference.abs().max())


def check(contestant: Contestant, reference: Tensor, dtype: torch.dtype) -> Result:
    """Let a contestant go first, and hold what it finds against the reference."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = contestant.entries()
        taken = time.perf_counter() - began
        error = greatest_error(matrix_of(found, reference.shape), reference)
    except Exception as problem:
        why = f"{type(problem).__name__}: {str(problem).strip()}".splitlines()[0][:200]
        return Result(contestant.name, contestant.kind, "raises", why=why)
    right = error <= TOLERANCE[dtype]  # a NaN is not
    result = Result(contestant.name, contestant.kind, "right" if right else "wrong", error if error == error else None)
    if right and taken > SLOW and contestant.kind in {"peer", "hand"}:
        result.seconds.append(taken)
    return result


def measure(
    contestants: Sequence[Contestant],
    reference: Tensor,
    dtype: torch.dtype,
    results: list[Result],
    *,
    repeats: int = REPEATS,
    budget: float = BUDGET,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Check the contestants, measure the memory of those that are right, and let them take turns.

    Args:
        contestants: Who takes part.
        reference: The right numbers.
        dtype: What they compute in.
        results: Where what is found is put, at once, so that a run that is cut short leaves what it had.
        repeats: The most rounds.
        budget: The seconds after which a contestant has had enough turns.
        say: Told what is being done.
    """
    for contestant in contestants:
        say(f"checking {contestant.name}")
        results.append(check(contestant, reference, dtype))
    right = [(each, result) for each, result in zip(contestants, results, strict=True) if result.status == "right"]
    with nothing_to_collect():
        for contestant, result in right:
            say(f"measuring the memory of {contestant.name}")
            try:
                result.tensor_bytes, result.python_bytes = contestant.bytes()
            except Exception as problem:
                result.status, result.why = "raises", f"at the second call: {problem}"[:200]
    running = [each for each, result in right if result.status == "right" and not result.seconds]
    into = {result.name: result.seconds for result in results}
    say("taking turns")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = {contestant.name: contestant.seconds for contestant in running}
        turns(told, repeats=repeats, budget=budget, into=into)
