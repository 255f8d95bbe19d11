"""The registries of causes and behaviours: one file added to their folders is one thing added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pullback.check.evidence import Cause, Evidence
from pullback.check.subject import Problem, Subject
from pullback.registry import Registry

Recognise = Callable[[Evidence], "Cause | None"]
Behave = Callable[[Subject], Iterable[Problem]]


@dataclass(frozen=True)
class Ranked:
    """A way to recognise a cause, and when its turn is: those of lower priority are asked first."""

    recognise: Recognise
    priority: float


CAUSES: Registry[Ranked] = Registry("cause", "pullback.check.causes")
BEHAVIOURS: Registry[Behave] = Registry("behaviour", "pullback.check.behaviours")


def cause(name: str, *, priority: float) -> Callable[[Recognise], Recognise]:
    """Register a function that recognises a cause; the first that answers is right.

    Args:
        name: The name of the cause.
        priority: Lower ones are asked first.
    """

    def register(function: Recognise) -> Recognise:
        CAUSES.add(name, Ranked(function, priority))
        return function

    return register


def behaviour(name: str) -> Callable[[Behave], Behave]:
    """Register a function that looks for problems other than a wrong number.

    Args:
        name: What it looks at.
    """

    def register(function: Behave) -> Behave:
        BEHAVIOURS.add(name, function)
        return function

    return register


def causes() -> list[Recognise]:
    """The ways to recognise a cause, in the order in which they are asked."""
    ranked = CAUSES.all().items()
    return [each.recognise for _, each in sorted(ranked, key=lambda item: (item[1].priority, item[0]))]
