"""What a check is: a cause of an error, or a silent fault; one class, in one file, for each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from pullback.diagnose.values import Confidence, Diagnosis, Fix, Mark, Subject
from pullback.language import say

if TYPE_CHECKING:
    from torch import nn

    from pullback.diagnose.audit import Audit, Backward, Step
    from pullback.diagnose.case import Case
    from pullback.diagnose.evidence.frames import Spot
    from pullback.diagnose.recorders.tape import Call

CHECKS = "pullback.diagnose.checks"


class Check(ABC):
    """A cause, or a fault. Its docstring is its page; ``bad`` and ``good`` are its test.

    Attributes:
        code: Its code, which never changes: ``PB201``.
        title: One sentence that says what happened, without a fix: English, looked up in the catalogue when shown.
        level: The lowest level at which it is found: ``default``, ``trace``, ``audit`` or ``strict``.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    level: ClassVar[str] = "default"

    @staticmethod
    @abstractmethod
    def bad() -> None:
        """A program with this fault."""

    @staticmethod
    @abstractmethod
    def good() -> None:
        """The same program done right."""

    def found(
        self,
        cause: str,
        marks: Sequence[Mark],
        fix: Fix,
        *,
        tensors: Sequence[Subject] = (),
        confidence: Confidence = "high",
        useless: Sequence[str] = (),
        notes: Sequence[str] = (),
        apart: str = "",
        wants: str = "",
        title: str = "",
    ) -> Diagnosis:
        """A diagnosis of this check; ``cause`` and the other texts are in the reader's language already."""
        return Diagnosis(
            code=self.code,
            title=title or say(self.title),
            cause=cause,
            marks=tuple(marks),
            fix=fix,
            tensors=tuple(tensors),
            confidence=confidence,
            useless=tuple(useless),
            notes=tuple(notes),
            apart=apart,
            wants=wants,
        )

    @classmethod
    def page(cls) -> str:
        """The docstring without its indentation, in the reader's language."""
        return say(inspect.cleandoc(cls.__doc__ or ""))


class Cause(Check):
    """A cause of an exception.

    Attributes:
        says: Stable fragments of torch's texts, any of which is in the message; empty to be asked of every message.
        raises: The exceptions that it can be.
    """

    says: ClassVar[tuple[str, ...]] = ()
    raises: ClassVar[tuple[type[BaseException], ...]] = (Exception,)

    def fits(self, case: Case) -> bool:
        """Whether it comes into question at all."""
        return isinstance(case.error, self.raises) and (not self.says or case.says(*self.says))

    @abstractmethod
    def diagnose(self, case: Case) -> Diagnosis | None:
        """The diagnosis, if this is the cause; None if it is another."""


class Fault(Check):
    """A fault that raises nothing: it listens while the program runs, and reports to the audit.

    One object is made for each program; what it remembers it keeps in attributes of its own, without any tensor
    (weak references, or ``audit.name``). Override what is needed; nothing may be raised or changed.

    Attributes:
        hears: The names of the calls of torch that ``after_call`` is told of; ``{"*"}`` for all.
    """

    level = "audit"
    hears: ClassVar[frozenset[str]] = frozenset()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """After a call of torch that it hears of."""

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        """Before a backward pass (``torch.autograd.grad`` too)."""

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        """After a backward pass that did not fail."""

    def before_step(self, audit: Audit, step: Step) -> None:
        """Before ``optimizer.step()`` does anything."""

    def after_step(self, audit: Audit, step: Step) -> None:
        """After ``optimizer.step()``."""

    def after_zero_grad(self, audit: Audit, step: Step) -> None:
        """After ``optimizer.zero_grad()``."""

    def before_load(self, audit: Audit, module: nn.Module, state: Any, spot: Spot) -> None:
        """Before ``module.load_state_dict(state)``, at a line of the user's."""

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        """A warning was shown, at a line of the user's."""

    def at_end(self, audit: Audit) -> None:
        """The program has ended."""


@cache
def checks() -> tuple[type[Check], ...]:
    """All checks of the folder, by code."""
    found: dict[str, type[Check]] = {}
    package = importlib.import_module(CHECKS)
    for each in pkgutil.walk_packages(package.__path__, f"{CHECKS}."):
        module = importlib.import_module(each.name)
        for thing in vars(module).values():
            if inspect.isclass(thing) and issubclass(thing, Check) and thing.__module__ == module.__name__:
                if inspect.isabstract(thing) or not hasattr(thing, "code"):
                    continue
                other = found.setdefault(thing.code, thing)
                assert other is thing, f"{thing.code} is both {other.__qualname__} and {thing.__qualname__}"
    return tuple(found[code] for code in sorted(found))


def causes() -> tuple[Cause, ...]:
    """One of each cause."""
    return tuple(kind() for kind in checks() if issubclass(kind, Cause))


def faults(level: str) -> tuple[Fault, ...]:
    """One of each fault that is looked for at a level, new: they remember."""
    return tuple(
        kind() for kind in checks() if issubclass(kind, Fault) and (kind.level != "strict" or level == "strict")
    )
