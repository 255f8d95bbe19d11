"""What ``pullback run`` costs a program at each level, beside PyTorch's anomaly mode.

A program is watched from its first step; what is timed is the later steps, when it runs as it will for hours. The first
steps, in which the levels ``trace`` and ``audit`` hear every call of torch, are timed apart; and so is all of a longer
run under ``audit``, which comes back to hear some steps now and then.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from rich.table import Table

from benchmarks.record_cost import PROGRAMS, SMALL, Step
from benchmarks.timing import console, one_thread, turns, verdict
from pullback.diagnose.session import Level, Session

FIRST, EARLY, STEPS, REPEATS = 50, 6, 10, 12
ALL, QUICK_ALL = 20.0, 1.0  # seconds
BUDGET, QUICK_BUDGET = 0.5, 0.005  # seconds of single steps
TRANSFORMER = "transformer, 4 layers of 64"
PLAIN, ANOMALY = "plain", "anomaly mode"
LEVELS: tuple[Level, ...] = ("default", "trace", "audit")
TARGETS = {(TRANSFORMER, "default"): 1.02, (TRANSFORMER, "trace"): 1.15, (SMALL, "trace"): 1.4}
AUDIT = 2.0
BACKWARD = 15.0  # microseconds


@contextmanager
def watched(level: Level) -> Iterator[None]:
    """Inside, a program is watched as ``pullback run`` does it."""
    session = Session(level)
    session.start()
    try:
        yield
    finally:
        session.stop()


@contextmanager
def unwatched() -> Iterator[None]:
    yield


def later(context: Callable[[], object], step: Step) -> float:
    """The seconds of a step after the first ones."""
    with context():  # type: ignore[attr-defined]
        for _ in range(FIRST):
            step()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - began) / STEPS


def first(context: Callable[[], object], step: Step) -> float:
    """The seconds of one of the first steps."""
    with context():  # type: ignore[attr-defined]
        began = time.perf_counter()
        for _ in range(EARLY):
            step()
        return (time.perf_counter() - began) / EARLY


def mean(context: Callable[[], object], step: Step, seconds: float) -> float:
    """The seconds of one step of a run of some length, its first steps included."""
    with context():  # type: ignore[attr-defined]
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            step()
            count += 1
        return (time.perf_counter() - began) / count


def altogether(step: Step, seconds: float) -> float:
    """How many times as long a step takes on the mean of a run under audit, beside plain runs before and after."""
    before = mean(unwatched, step, seconds / 4)
    audited = mean(partial(watched, "audit"), step, seconds)
    return 2 * audited / (before + mean(unwatched, step, seconds / 4))


def ways() -> dict[str, Callable[[], object]]:
    """The ways to run a program."""
    return {
        PLAIN: unwatched,
        **{level: partial(watched, level) for level in LEVELS},
        ANOMALY: partial(torch.autograd.detect_anomaly),
    }


def backward_microseconds(*, quick: bool) -> float:
    """What the light record adds to one backward pass."""
    x = torch.ones(3, requires_grad=True)
    loss = x.sum()

    def passes(context: Callable[[], object]) -> float:
        with context():  # type: ignore[attr-defined]
            began = time.perf_counter()
            for _ in range(500):
                loss.backward()
            return (time.perf_counter() - began) / 500

    contestants = {PLAIN: partial(passes, unwatched), "light": partial(passes, partial(watched, "default"))}
    seconds = turns(contestants, repeats=5 if quick else 40)
    return (min(seconds["light"]) - min(seconds[PLAIN])) * 1e6


def main(*, quick: bool = False) -> None:
    title = "A program under pullback run, times itself without (minima; in all: means)"
    table = Table(title=title, title_justify="left")
    table.add_column("program")
    for header in (
        "plain, µs",
        *LEVELS,
        f"audit, {ALL:.0f} s in all",
        ANOMALY,
        f"first {EARLY} steps, trace",
        "targets",
    ):
        table.add_column(header, justify="right")
    budget = QUICK_BUDGET if quick else BUDGET
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        for name, make in PROGRAMS.items():
            step = make()
            step()
            seconds = turns(
                {way: partial(later, each, step) for way, each in ways().items()}, repeats=REPEATS, budget=budget
            )
            early = turns(
                {way: partial(first, ways()[way], step) for way in (PLAIN, "trace")}, repeats=REPEATS, budget=budget / 4
            )
            whole = altogether(step, QUICK_ALL if quick else ALL)
            least = {way: min(found) for way, found in seconds.items()}
            ratios = {way: least[way] / least[PLAIN] for way in least}
            targets = {**{level: TARGETS.get((name, level)) for level in LEVELS}, "audit": AUDIT}
            ratios["audit in all"], targets["audit in all"] = whole, AUDIT
            told = " ".join(f"{way} {verdict(ratios[way] <= most)}" for way, most in targets.items() if most)
            table.add_row(
                name,
                f"{least[PLAIN] * 1e6:.0f}",
                *(f"{ratios[way]:.2f}" for way in LEVELS),
                f"{whole:.2f}",
                f"{ratios[ANOMALY]:.2f}",
                f"{min(early['trace']) / min(early[PLAIN]):.2f}",
                told,
            )
        added = backward_microseconds(quick=quick)
    console().print(table)
    console().print(f"the light record adds {added:.1f} µs to a backward pass: {verdict(added < BACKWARD)}")


if __name__ == "__main__":
    main()
