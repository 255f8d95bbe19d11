"""The step of an optimizer that runs now, found among the frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files


def _given() -> Iterator[Any]:
    """What ``step()`` was given beside the optimizer."""
    here: FrameType | None = sys._getframe(1)
    depth = 0
    while here is not None and depth < 30:
        if here.f_code.co_name == "wrapper" and here.f_code.co_filename.endswith("optimizer.py"):
            local = variables(here)
            yield from list(local.get("args") or ())[1:]
            yield from dict(local.get("kwargs") or {}).values()
            return
        here, depth = here.f_back, depth + 1


def has_closure() -> bool:
    """Whether the step that runs now was given a closure, or anything else."""
    return any(each is not None for each in _given())


def closure_now() -> CodeType | None:
    """The code of the user's closure with which an optimizer steps now."""
    for each in _given():
        code = getattr(each, "__code__", None)
        if isinstance(code, CodeType) and user_files(()).own_file(code.co_filename):
            return code
    return None
