"""Saved tensors in an older torch, whose ``SavedTensor`` cannot be looked into: they are read through their node."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

_CHANGED = ("modified by an inplace operation", "detached in-place")


@dataclass(frozen=True)
class Slot:
    """What a newer torch tells of one saved tensor.

    Attributes:
        data: The tensor, what a hook packed instead, or None.
        error: The text of the error that unpacking it raises, if it does.
        unpack_hook: Whether a hook unpacks it, None if not.
    """

    data: Any
    error: str = ""
    unpack_hook: bool | None = None

    def unpack(self) -> Any:
        """The tensor as a backward pass gets it, or the error that the pass gets."""
        if self.error:
            raise RuntimeError(self.error)
        return self.data


def slots(node: Node, name: str, raw: Sequence[Any]) -> list[Slot]:
    """The saved tensors that a node has under a name, one or a list, without running a hook of theirs."""
    before = sys.getprofile()
    if not (before is None or isinstance(before, FunctionType)):  # a profiler of C could not be put back
        return [Slot(None) for _ in raw]
    stop, collects = _Stop(), gc.isenabled()
    gc.disable()  # no function of Python is to be called but a hook
    sys.setprofile(stop)
    try:
        value = getattr(node, name)
    except _Hooked:
        return _packed(stop.given, len(raw))
    except RuntimeError as error:
        sys.setprofile(before)
        return _refused(raw, str(error))
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return [Slot(each) for each in (value if isinstance(value, tuple | list) else [value])]


def is_told(tensor: Tensor, message: str) -> bool:
    """Whether torch's message can be of a tensor, by the shape and the version in it."""
    shape = re.search(r"Tensor \[([\d, ]*)\]\]", message)
    version = re.search(r"is at version (\d+)", message)
    sizes = ", ".join(str(int(size)) for size in tensor.shape)
    return (shape is None or shape.group(1) == sizes) and (version is None or int(version.group(1)) == tensor._version)


class _Hooked(BaseException):
    """A hook was about to run."""


class _Stop:
    """Ends the first call of a Python function before its first line, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: Any = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code: CodeType = frame.f_code
            names = [name for name in code.co_varnames[: code.co_argcount] if name not in {"self", "cls"}]
            self.given = frame.f_locals.get(names[0]) if names else None
            raise _Hooked


def _packed(given: Any, count: int) -> list[Slot]:
    """The slots of a node of which a hook would have unpacked one: of a list, it is not known which."""
    if isinstance(given, _Refused):
        return given.slots()
    return [Slot(() if given is None else given, unpack_hook=True)] * count


class _Refused:
    """The tensors of a node that torch refuses to unpack for good, as one of them was changed in place."""

    def __init__(self, error: str) -> None:
        self.tensors: list[Tensor] = []
        self.error = error

    def pack(self, tensor: Tensor) -> _Refused:
        self.tensors.append(tensor)
        return self

    def unpack(self, packed: _Refused) -> Tensor:
        raise RuntimeError(self.error)

    def slots(self) -> list[Slot]:
        told = [each for each in self.tensors if is_told(each, self.error)] or self.tensors
        return [Slot(each, self.error if any(each is one for one in told) else "") for each in self.tensors]


def _refused(raw: Sequence[Any], error: str) -> list[Slot]:
    """The slots of a node that torch refuses to unpack.

    If it refuses as a tensor was changed, then it does so for good, and the tensor is had by packing it: what unpacks
    it raises the same error as before.
    """
    refused = _Refused(error)
    try:
        for each in raw if any(text in error for text in _CHANGED) else ():
            each.register_hooks(refused.pack, refused.unpack)
    except RuntimeError:  # one of them has hooks already, or is none
        pass
    found = refused.slots()
    return found + [Slot(None, error)] * (len(raw) - len(found))
