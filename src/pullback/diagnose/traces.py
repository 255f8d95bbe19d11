"""Tracebacks as they would be if nobody watched: without the frames of what records."""

from __future__ import annotations

import os
from types import CodeType, TracebackType

from pullback.diagnose.recorders.callers import DISPATCH
from pullback.graph.recording.userfiles import STAND_IN

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")  # noqa: PTH100, PTH118, PTH120
_GRAPH = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "graph", "")  # noqa: PTH118, PTH120
_OURS = (_HERE, os.path.join(_GRAPH, "engine.py"), os.path.join(_GRAPH, "recording", ""))  # noqa: PTH118
_IMPORTING = frozenset({"<frozen importlib._bootstrap>", "<frozen importlib.util>"})
# So many errors that led to an error are cleaned.
_CHAIN = 20


def clean(error: BaseException) -> None:
    """Take our frames out of the traceback of an error, and of those that led to it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < _CHAIN:
        here = waiting.pop()
        if here is not None and id(here) not in seen:
            seen.add(id(here))
            here.__traceback__ = without_ours(here.__traceback__)
            waiting += [here.__cause__, here.__context__]
            waiting += here.exceptions if isinstance(here, BaseExceptionGroup) else ()


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without our frames: those of a program, as Python would have made it."""
    kept: list[TracebackType] = []
    begun = False  # the first frames are ours, and those of an import that we began
    dispatched: CodeType | None = None
    while trace is not None:
        code = trace.tb_frame.f_code
        ours = code.co_filename.startswith(_OURS) or code.co_name == STAND_IN
        if dispatched is not None and not ours:
            # torch asked who listens, and called the same function again: the second call stands for both
            if len(kept) > 1 and kept[-1].tb_frame.f_code is DISPATCH and kept[-2].tb_frame.f_code is code:
                del kept[-2:]
            dispatched = None
        if ours:
            dispatched = code
        elif begun or code.co_filename not in _IMPORTING:
            kept.append(trace)
            begun = True
        trace = trace.tb_next
    made: TracebackType | None = None
    for each in reversed(kept):
        made = each if each.tb_next is made else TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
