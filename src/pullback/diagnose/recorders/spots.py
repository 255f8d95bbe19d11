"""Which line of the user's runs now, found by going up the frames; cheap, for it is asked at every call of torch."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from pullback.diagnose.evidence.frames import Spot
from pullback.graph.recording.userfiles import user_files

# Of so many functions is remembered whose they are: by identity, for a code object takes long to hash.
FUNCTIONS = 50_000
_own: dict[int, bool] = {}
_kept: list[CodeType] = []


def spot_of(frame: FrameType | None) -> Spot | None:
    """The innermost point of the user's program at or above a frame; None if there is none."""
    while frame is not None:
        code = frame.f_code
        own = _own.get(id(code))
        if own is None:
            own = _met(frame)
        if own:
            return Spot(code, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return None


def spot_here(depth: int = 1) -> Spot | None:
    """The innermost point of the user's program that is running now."""
    return spot_of(sys._getframe(depth))


def _met(frame: FrameType) -> bool:
    if len(_kept) >= FUNCTIONS:
        _own.clear()
        _kept.clear()
    _kept.append(frame.f_code)
    own = _own[id(frame.f_code)] = user_files(()).own(frame)
    return own
