"""Timing that a busy machine disturbs little: contestants take turns, and the best of many turns counts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from rich.console import Console

WIDTH = 110


def once(call: Callable[[], Any], calls: int = 1) -> float:
    """The seconds of one call, as a mean of ``calls`` in a row."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def in_turns(
    contestants: dict[str, Callable[[], Any]], *, repeats: int, calls: int = 1, budget: float = math.inf
) -> dict[str, list[float]]:
    """The seconds of each contestant's turns, each a mean of ``calls`` calls; see :func:`turns`."""
    told = {name: partial(once, call, calls) for name, call in contestants.items()}
    return turns(told, repeats=repeats, budget=budget / calls)


def turns(
    contestants: dict[str, Callable[[], float]],
    *,
    repeats: int,
    budget: float = math.inf,
    into: dict[str, list[float]] | None = None,
) -> dict[str, list[float]]:
    """The seconds that contestants say their turns took; every other round goes the other way round.

    Args:
        contestants: What says how long it took, by name.
        repeats: The most rounds.
        budget: The seconds after which a contestant has had enough turns, be it one.
        into: Lists to append to, so that a run that is cut short leaves what it had.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants} if into is None else into
    for turn in range(repeats):
        for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
            if not seconds[name] or sum(seconds[name]) < budget:
                seconds[name].append(contestants[name]())
    return seconds


def differences(seconds: dict[str, list[float]], one: str, other: str) -> tuple[float, float]:
    """How much more ``one`` takes than ``other``: by their minima, and the median over the rounds."""
    pairs = zip(seconds[one], seconds[other], strict=True)
    return min(seconds[one]) - min(seconds[other]), statistics.median(a - b for a, b in pairs)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, and as it was after that."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def console() -> Console:
    """Where tables are printed: wide enough for them, whatever stands behind stdout."""
    wide = Console()
    return wide if wide.is_terminal else Console(width=WIDTH)


def verdict(met: bool) -> str:
    """Whether a target is met, in colour."""
    return "[green]met[/]" if met else "[red]missed[/]"
