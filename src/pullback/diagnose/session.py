"""One program under watch: the recorders of its level, and what they say when it fails or ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pullback.diagnose.audit import Audit
from pullback.diagnose.case import Case
from pullback.diagnose.check import causes, faults
from pullback.diagnose.children import handed_back, text_of
from pullback.diagnose.recorders.focus import AUDIT, TRACE, Focus
from pullback.diagnose.recorders.passes import Passes
from pullback.diagnose.recorders.tape import Tape
from pullback.diagnose.values import ORDER, Diagnosis, Report
from pullback.errors import ValueMismatch
from pullback.graph.recording.record import Recording

Level = Literal["default", "trace", "audit", "strict"]
LEVELS: tuple[Level, ...] = ("default", "trace", "audit", "strict")
# So many errors that led to an error are looked at.
CHAIN = 10


class Session:
    """Watches the program that runs between ``start`` and ``stop``.

    Args:
        level: What is recorded: ``default``, ``trace``, ``audit`` or ``strict``, each more than the one before.

    Raises:
        ValueMismatch: If there is no such level.
    """

    def __init__(self, level: Level = "default") -> None:
        if level not in LEVELS:
            raise ValueMismatch(
                "There is no such level of diagnosis.", got=f"level={level!r}", fix=f"one of {', '.join(LEVELS)}"
            )
        self.level = level
        self.passes = Passes(self._passed)
        self.audit: Audit | None = None
        self.tape: Tape | None = None
        self._focus: Focus | None = None
        self._recording: Recording | None = None
        self._trouble: list[str] = []
        if level in ("audit", "strict"):
            self.audit = Audit(faults(level), self.passes)
            self.audit.level = level
            self.tape = self.audit.tape
            self._focus = Focus(self.tape, AUDIT, self.audit.turned)
        elif level == "trace":
            self.tape = Tape()
            self._focus = Focus(self.tape, TRACE)

    def start(self) -> None:
        """Begin to watch, in this thread."""
        self.passes.start()
        if self._focus is not None:
            self._recording = Recording(modules=False, met=self._focus.new)
            self._recording.__enter__()
            if self.audit is not None:
                self.audit.start()
            self._focus.start()

    def stop(self) -> None:
        """Watch no more; what was recorded can still be asked."""
        if self._focus is not None:
            self._focus.stop()
        if self.audit is not None:
            self.audit.stop()
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None
        self.passes.stop()

    def _passed(self) -> None:
        if self._focus is not None:
            self._focus.passed()

    def report(self, error: BaseException | None, variables: Mapping[str, Any] | None = None) -> Report:
        """What there is to say, now that the program has failed, or ended.

        Args:
            error: What it raised, or None.
            variables: Those of its main module.
        """
        if self.audit is not None:
            self.audit.finish(variables or {}, crashed=error is not None)
        return Report(
            diagnoses=self.diagnoses(error) if error is not None else (),
            findings=self.audit.findings if self.audit is not None else (),
            level=self.level,
            trouble=(
                *self._trouble,
                *(self.audit.trouble if self.audit else ()),
                *(self.tape.trouble if self.tape else ()),
            ),
        )

    def diagnoses(self, error: BaseException) -> tuple[Diagnosis, ...]:
        """The causes of an error that come into question: one, if it is certain."""
        for each in _chain(error):
            if text := text_of(each):  # its evidence is where it happened
                return handed_back(text)
            case = Case(each, self.passes.all, self.tape, traced=self.level != "default")
            if found := self._asked(case):
                return found
        return ()

    def _asked(self, case: Case) -> tuple[Diagnosis, ...]:
        found: list[Diagnosis] = []
        for cause in causes():
            try:
                diagnosis = cause.diagnose(case) if cause.fits(case) else None
            except Exception as problem:  # a check that fails must not hide the user's own error
                self._trouble.append(f"{cause.code}: {type(problem).__name__}: {problem}")
                continue
            if diagnosis is not None:
                found.append(diagnosis)
        found.sort(key=lambda each: (ORDER[each.confidence], each.code))
        certain = [each for each in found if each.confidence == "high"]
        return tuple(certain[:1] or found)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, those that led to it, and those in its group."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < CHAIN:
        here = waiting.pop(0)
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        if isinstance(here, BaseExceptionGroup):
            waiting += here.exceptions
        waiting.append(here.__cause__ or (None if here.__suppress_context__ else here.__context__))


def explain(error: BaseException | None = None) -> Report:
    """The diagnosis of an exception in hand: what happened, which line, why, and what to write instead.

    What only a recorder knows (``pullback run --trace``, or ``with explain_errors(level="trace")``) is not in it.

    Args:
        error: The exception, with its traceback; None for the one that is being handled, or was raised last.

    Returns:
        A report; it is false if nothing is known about this error.

    Example:
        >>> import torch
        >>> try:
        ...     torch.ones(3, requires_grad=True).mul(2).backward()
        ... except RuntimeError as error:
        ...     report = explain(error)
    """
    if error is None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return Session().report(error)
