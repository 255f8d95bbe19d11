"""Where an optimizer stepped between a forward pass and its backward: by the record, or by reading the source."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.find import Overwritten
from pullback.diagnose.evidence.overwritten.report import all_marks
from pullback.diagnose.values import Mark
from pullback.language import say


def step_marks(case: Case, found: Overwritten) -> list[Mark]:
    """The failing line, the one that kept the weight, and the one that stepped."""
    what = say("this step changed it in place")
    marks = all_marks(case, found, what)
    if found.spot is None:
        marks += _stepping(case, found, what)
    return marks


def _stepping(case: Case, found: Overwritten, what: str) -> list[Mark]:
    """The calls of ``step`` of that optimizer in the functions that ran: before the failing line, else the last."""
    name = found.thing[0] if found.thing is not None else ""
    frames = [found.asking] if found.asking is not None else []
    for frame in [*frames, *(each for each in reversed(case.frames) if each not in frames)]:
        calls = _calls(frame, name) or _calls(frame, "")
        before = [each for each in calls if each.lineno < frame.line]
        if chosen := (before or calls)[-1:]:
            return [marked(frame.source, chosen[0], what, frame.place.function)]
    return []


def _calls(frame: Frame, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(frame.scope)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and (not name or path_of(node.func.value) == name)
    ]
