"""What the variables of a running function hold, read without a trace."""

from __future__ import annotations

import ctypes
import inspect
import sys
import types
from typing import Any


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's variables that leaves nothing behind.

    Up to Python 3.12 ``f_locals`` of a function is a snapshot that the frame keeps, and with it every tensor that
    the function then lets go; so it is emptied again, unless the program holds it itself (it called ``locals()``).
    Under a trace function the next event would fill it once more: writing nothing back calls that off.
    """
    values = frame.f_locals
    copy = dict(values)
    is_snapshot = isinstance(values, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_snapshot and sys.getrefcount(values) <= _OWN_REFERENCES:
        values.clear()
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return copy


def _count_own_references() -> int:
    """How many references a snapshot has that nobody but the frame and the one who looks holds."""
    values = sys._getframe(1).f_locals
    return sys.getrefcount(values)


def _calibrate() -> int:
    unused = 0  # a function with a variable, so that there is a snapshot
    return _count_own_references() + unused


_OWN_REFERENCES = _calibrate()
