"""A failed program under diagnosis: the error, and all the evidence that is at hand, read when it is asked for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from pullback.diagnose.evidence.asked import Asked, asked_in
from pullback.diagnose.evidence.frames import Frame, frames_of, user_frames
from pullback.diagnose.recorders.passes import Pass
from pullback.diagnose.recorders.tape import Tape, Value
from pullback.diagnose.values import Mark, Subject
from pullback.graph.names import Names
from pullback.graph.recording.record import origin_of
from pullback.graph.saved import pieces
from pullback.graph.values import Place

T = TypeVar("T")


def message_of(error: BaseException) -> str:
    """What an exception says; nothing, if its own ``__str__`` fails."""
    try:
        return str(error)
    except Exception:
        return ""


class Case:
    """One exception, and what can be known of how it came about.

    Args:
        error: The exception, with its traceback.
        passes: The backward passes before it, the oldest first, if they were recorded.
        tape: The tape of torch's calls, if there is one.
        traced: Whether the lines of nodes were recorded.

    Attributes:
        error: The exception.
        message: Its text.
        frames: The user's frames, outermost first; the last is where it failed. May be empty.
        passes: The backward passes before it; the last may be the one that failed.
        tape: The tape, or None.
        traced: Whether the lines of nodes were recorded (``--trace`` and above).
    """

    def __init__(
        self,
        error: BaseException,
        passes: Sequence[Pass] = (),
        tape: Tape | None = None,
        *,
        traced: bool = False,
    ) -> None:
        self.error = error
        self.message = message_of(error)
        self.frames: list[Frame] = user_frames(error.__traceback__)
        self.passes = tuple(passes)
        self.tape = tape
        self.traced = traced
        self._lower = self.message.lower()
        self._made: dict[str, Any] = {}

    def says(self, *fragments: str) -> bool:
        """Whether any of these is in the message; upper and lower case are the same."""
        return any(fragment.lower() in self._lower for fragment in fragments)

    @property
    def site(self) -> Frame | None:
        """The user's line that failed."""
        return self.frames[-1] if self.frames else None

    @cached_property
    def asked(self) -> Asked | None:
        """What autograd was asked for, if it failed on that."""
        return asked_in(self.error.__traceback__)

    @cached_property
    def call(self) -> ast.Call | None:
        """The call that failed, as it is written: the innermost one at the failing expression."""
        node = self.site.node if self.site else None
        return node if isinstance(node, ast.Call) else None

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """An argument of the failing call as it is written; None if it was not given."""
        if self.call is None:
            return None
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None and position < len(self.call.args):
            before = self.call.args[: position + 1]  # behind *args, places are not known
            return None if any(isinstance(each, ast.Starred) for each in before) else before[-1]
        return None

    @cached_property
    def root(self) -> ast.expr | None:
        """What was differentiated, as it is written: ``loss`` in ``loss.backward()``."""
        if self.call is None:
            return None
        if isinstance(self.call.func, ast.Attribute) and self.asked is not None and self.asked.method:
            return self.call.func.value
        return self.argument("outputs" if self.asked and self.asked.verb == "grad" else "tensors", 0)

    def text(self, node: ast.AST | None) -> str:
        """A part of the failing file as it is written."""
        return self.site.source.text(node) if self.site is not None and node is not None else ""

    @cached_property
    def names(self) -> Names:
        """What the user calls tensors and modules: by the innermost frame first."""
        names = Names()
        for frame in reversed(self.frames):
            for name, thing in {**frame.local, **frame.module}.items():
                if name.isidentifier() and not name.startswith("_"):
                    names.add(name, thing)
        return names

    def name_of(self, tensor: Tensor, otherwise: str = "") -> str:
        """What the user calls a tensor; of one without a name, what the user calls the memory that it shares."""
        known = self.names.name_of(tensor)
        if known is None:
            known = next((owner for key, _, _ in pieces(tensor) if (owner := self.names.owners.get(key))), None)
        return known or otherwise

    def subject(self, tensor: Tensor, role: str = "", otherwise: str = "") -> Subject:
        """A tensor as a diagnosis shows it."""
        return Subject.of(tensor, self.name_of(tensor, otherwise or role or "a tensor"), role)

    def holds(self, kind: type) -> list[tuple[str, Any]]:
        """The things of a kind that the user's variables hold, by name, the innermost frame first: all modules, say."""
        found: dict[int, tuple[str, Any]] = {}
        for frame in reversed(self.frames):
            for name, thing in {**frame.local, **frame.module}.items():
                if isinstance(thing, kind) and not isinstance(thing, type):
                    found.setdefault(id(thing), (name, thing))
        return list(found.values())

    def line_of(self, node: Any) -> Place | None:
        """The user's line that made a node of autograd, if it was recorded."""
        if node is None:
            return None
        number = node._sequence_nr()
        origin = origin_of(number) if number < 2**63 else None
        return origin.place if origin is not None else None

    def mark(self, what: str) -> Mark:
        """The failing line, with the failing expression marked."""
        if self.site is None:
            return Mark(Place("", 0, ""), what)
        return self.site.mark(what)

    @staticmethod
    def mark_at(place: Place, what: str) -> Mark:
        """Another line of the program."""
        return Mark.at(place, what)

    def library_frame(self, file_end: str, function: str) -> dict[str, Any] | None:
        """The variables of the innermost frame of a function of a library: ``("optim/sgd.py", "step")``."""
        found = None
        for frame, _, _ in frames_of(self.error.__traceback__):
            if frame.f_code.co_filename.endswith(file_end) and frame.f_code.co_name == function:
                found = frame
        return None if found is None else dict(found.f_locals)

    def once(self, make: Callable[[Case], T]) -> T:
        """What a function finds out about this case, found out once; it must not hold the case."""
        key = f"{make.__module__}.{make.__qualname__}"
        if key not in self._made:
            self._made[key] = make(self)
        found: T = self._made[key]
        return found

    @cached_property
    def values(self) -> list[Value]:
        """What the tape knows of the roots."""
        tensors = self.asked.tensors if self.asked else []
        found = [self.tape.value_of(tensor) for tensor in tensors] if self.tape is not None else []
        return [value for value in found if value is not None]


def is_tensor(thing: Any) -> bool:
    """Whether it is a tensor (a proxy is not asked)."""
    return issubclass(type(thing), torch.Tensor)
