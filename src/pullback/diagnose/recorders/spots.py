"""Which line of the user's runs now, found by going up the frames; cheap, for it is asked at every call of torch."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from pullback.diagnose.evidence.frames import Spot
from pullback.graph.recording.userfiles import user_files

_LIBRARY: set[CodeType] = set()
_USER: set[CodeType] = set()
_MOST = 50_000


def spot_of(frame: FrameType | None) -> Spot | None:
    """The innermost point of the user's program at or above a frame; None if there is none."""
    while frame is not None:
        code = frame.f_code
        if code in _USER or (code not in _LIBRARY and _met(frame)):
            return Spot(code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def spot_here(depth: int = 1) -> Spot | None:
    """The innermost point of the user's program that is running now."""
    return spot_of(sys._getframe(depth))


def _met(frame: FrameType) -> bool:
    if len(_LIBRARY) + len(_USER) > _MOST:
        _LIBRARY.clear()
        _USER.clear()
    own = user_files(()).own(frame)
    (_USER if own else _LIBRARY).add(frame.f_code)
    return own
