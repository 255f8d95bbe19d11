"""The calls of the user's autograd Functions, heard by a wrapper around ``Function.apply`` while an audit runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.gradchecks import method_of
from pullback.diagnose.recorders.spots import spot_here

# So many elements of arguments are copied for a call.
MOST = 1 << 18
# So many calls of each class are looked at.
CALLS = 2

Called = Callable[[type, "Application"], None]


class Application:
    """One call of ``Function.apply``: the arguments as they were before, and what it returned.

    Attributes:
        kind: The class.
        given: The arguments themselves.
        before: The same with copies of the tensors, as they were before the call.
        versions: The versions of the tensors before the call.
        result: What it returned.
        spot: The user's line.
    """

    def __init__(self, kind: type, given: tuple[Any, ...], spot: Spot | None) -> None:
        self.kind = kind
        self.given = given
        self.before = tuple(each.detach().clone() if isinstance(each, Tensor) else each for each in given)
        self.versions = [each._version if isinstance(each, Tensor) else 0 for each in given]
        self.result: Any = None
        self.spot = spot

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that it returned."""
        results = self.result if isinstance(self.result, tuple) else (self.result,)
        return [each for each in results if isinstance(each, Tensor)]


class Functions:
    """Hears of the first calls of each of the user's Functions between ``start`` and ``stop``.

    Args:
        called: Told of each such call after it.
    """

    def __init__(self, called: Called) -> None:
        self.called = called
        self.counts: dict[type, int] = {}

    def start(self) -> None:
        """Hear of calls from now on."""
        if not _hearing:
            Function.apply = classmethod(_apply)  # type: ignore[assignment, method-assign]
        _hearing.append(self)

    def stop(self) -> None:
        """Hear no more."""
        if self in _hearing:
            _hearing.remove(self)
            if not _hearing:
                Function.apply = _ORIGINAL  # type: ignore[method-assign]

    def wants(self, kind: type) -> bool:
        """Whether the next call of a class is to be told."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.counts[kind] <= CALLS


_ORIGINAL: Any = vars(Function)["apply"]
_hearing: list[Functions] = []
_busy = threading.local()


def _apply(kind: type, *args: Any, **kwargs: Any) -> Any:
    call = _ORIGINAL.__get__(None, kind)
    if kwargs or getattr(_busy, "now", False) or torch.compiler.is_compiling() or not _suits(kind, args):
        return call(*args, **kwargs)
    told = [each for each in _hearing if each.wants(kind)]
    if not told:
        return call(*args)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        application = Application(kind, args, spot_here(2))
    application.result = call(*args)
    _busy.now = True
    try:
        with torch._C.DisableTorchFunction():
            for each in told:
                each.called(kind, application)
    finally:
        _busy.now = False
    return application.result


def _suits(kind: type, args: tuple[Any, ...]) -> bool:
    """Whether a call can be looked at: of a Function of the user's, with plain tensors of no great size."""
    tensors = [each for each in args if isinstance(each, Tensor)]
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors):
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled():
        return False
    plain = all(type(each) in {Tensor, torch.nn.Parameter} and each.layout is torch.strided for each in tensors)
    if not plain or sum(each.numel() for each in tensors) > MOST or any(each.is_inference() for each in tensors):
        return False
    return method_of(kind, "forward") is not None
