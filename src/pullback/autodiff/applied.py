"""Where a custom ``autograd.Function`` is applied: what its forward does inside is no part of the graph.

Where ``Function.apply`` is written in Python it has a frame of its own. Where it is written in C (torch 2.14), only
``forward`` itself is seen, or, under a transform of ``torch.func``, what torch calls on the way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction


def _code_of(function: Any) -> CodeType | None:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


# ``apply``, and what takes its place under torch.func: None where it is not written in Python.
_APPLY = _code_of(Function.apply)
_UNDER_TRANSFORMS = _code_of(getattr(torch.autograd.function, "_call_custom_function_call", None))
_JVP = _code_of(BackwardCFunction.apply_jvp)
APPLIES = frozenset(code for code in (_APPLY, _UNDER_TRANSFORMS) if code is not None)


def in_python() -> bool:
    """Whether ``apply`` is written in Python, so that it has a frame."""
    return _APPLY is not None


def functions() -> Iterator[type]:
    """All custom Functions that there are."""
    stack: list[type] = [Function]
    while stack:
        below: list[type] = type.__subclasses__(stack.pop())
        yield from below
        stack += below


def codes(kind: type) -> list[tuple[CodeType, ...]]:
    """What runs when ``apply`` calls the methods that a Function defines: each method, then the decorators around."""
    found = []
    for name in ("forward", "setup_context"):
        method, layers = vars(kind).get(name), list[CodeType]()
        while (code := _code_of(method)) is not None:
            layers.insert(0, code)
            method = getattr(getattr(method, "__func__", method), "__wrapped__", None)
        if layers:
            found.append(tuple(layers))
    return found


def caller_of_function(frame: FrameType) -> FrameType | None:
    """Who called the innermost custom Function that is running at a frame; None if none is."""
    above: FrameType | None = frame
    while above is not None:
        if above.f_code in APPLIES or above.f_code is _JVP:
            return above.f_back
        above = above.f_back
    if in_python() or torch._C._is_fwd_grad_enabled():  # ``apply`` switches that off for forward
        return None
    layers = {own[0]: own[1:] for kind in functions() for own in codes(kind)}
    above = frame
    while above is not None and above.f_code not in layers:
        above = above.f_back
    if above is None:
        return None
    decorators, above = layers[above.f_code], above.f_back
    while above is not None and above.f_code in decorators:
        above = above.f_back
    return above
