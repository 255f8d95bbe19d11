"""Calls of torch from a frame that stands in for its caller's, so that its warnings are those of the caller's line.

Torch warns at the innermost frame of Python's, or so many frames above its own function; where the tape hears a call,
that is the tape's. What Python does with a warning depends on the frame: the filters on the name of its module, and
"once for each line" on what the module remembers. So the tape calls torch from a frame that has the file, the line and
the globals of who called it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch.overrides

from pullback.graph.recording.userfiles import STAND_IN

DISPATCH: CodeType = torch.overrides.handle_torch_function.__code__
# So many places are remembered.
PLACES = 20_000
_CALL = (lambda func, args, kwargs: func(*args, **kwargs)).__code__.replace(co_name=STAND_IN, co_qualname=STAND_IN)
_made: dict[tuple[int, int], CodeType] = {}
_kept: list[CodeType] = []


def as_caller(frame: FrameType) -> Callable[[Callable[..., Any], Any, Any], Any]:
    """What calls a function as if this frame did; if the frame is where torch asks who listens, as its caller."""
    if frame.f_code is DISPATCH:
        asks = frame.f_back
        frame = (asks and asks.f_back) or frame
    code = _made.get((id(frame.f_code), frame.f_lasti))
    return FunctionType(_standing_in(frame) if code is None else code, frame.f_globals)


def _standing_in(frame: FrameType) -> CodeType:
    if len(_kept) >= PLACES:
        _made.clear()
        _kept.clear()
    code = frame.f_code
    _kept.append(code)  # so that its id stays its own
    made = _CALL.replace(co_filename=code.co_filename, co_firstlineno=frame.f_lineno or code.co_firstlineno)
    _made[id(code), frame.f_lasti] = made
    return made
