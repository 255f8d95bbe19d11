"""Every exception and warning that Pullback raises.

    PullbackError
    ├── ArgumentError      (TypeError)     an argument of the wrong kind
    ├── ValueMismatch      (ValueError)    an argument of the right kind with a wrong value, shape or name
    ├── SeedError          (RuntimeError)  a seed that does not fit its output
    ├── GraphError         (RuntimeError)  the autograd graph that was needed is not there
    ├── StrategyError      (RuntimeError)  the way that was asked for cannot be taken here
    ├── GuardError         (RuntimeError)  what was prepared does not hold here
    ├── VerificationError  (RuntimeError)  two ways to the same numbers disagree
    └── MemoryLimitError   (MemoryError)   the result itself does not fit

Each says what happened, what was got, and what to write instead.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path


class PullbackError(Exception):
    """The base of all errors of Pullback.

    Args:
        what: What happened, in one sentence.
        got: The offending value: its shape, dtype, device or name.
        fix: What to write instead.
    """

    def __init__(self, what: str, *, got: str, fix: str) -> None:
        self.what = what
        self.got = got
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.what}\n  got: {self.got}\n  fix: {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.got, self.fix)


def _rebuild(kind: type[PullbackError], what: str, got: str, fix: str) -> PullbackError:
    """Unpickle an error: exceptions with keyword-only arguments cannot do it themselves."""
    return kind(what, got=got, fix=fix)


class ArgumentError(PullbackError, TypeError):
    """An argument of the wrong kind: a float where a tensor is needed, say."""


class ValueMismatch(PullbackError, ValueError):
    """An argument of the right kind whose value, shape or name does not fit."""


class SeedError(PullbackError, RuntimeError):
    """A seed (grad_tensors) that does not fit the output it is meant for."""


class GraphError(PullbackError, RuntimeError):
    """The autograd graph that a backward pass needs is missing, freed, or leads elsewhere."""


class StrategyError(PullbackError, RuntimeError):
    """The strategy or structure that was asked for is not available for this function."""


class GuardError(PullbackError, RuntimeError):
    """What a Jacobian was prepared for does not hold at this call; ``got`` is a ticked list of what was checked."""


class VerificationError(PullbackError, RuntimeError):
    """A Jacobian disagrees with a plain reverse pass, and ``strict=True`` asked to hear of it."""


class MemoryLimitError(PullbackError, MemoryError):
    """The result alone is larger than the memory limit."""


class PullbackWarning(UserWarning):
    """Something was substituted on the way to a right number; ``J.plan()`` has the details."""


def warn(text: str) -> None:
    """Warn at the line of the user's program that called into Pullback."""
    package = str(Path(__file__).parent) + os.sep
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PullbackWarning, stacklevel=level)
