"""Derivatives asked of ``torch.func`` and ``torch.autograd.functional`` that came out as zero for want of a graph.

Neither says so: both put zeros where the output does not depend on the input. What they call to differentiate is
wrapped, from the first time that one of them is met until the program ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.recorders.tape import Call
from pullback.graph.frames import variables

ESCAPES = frozenset({"tolist", "item", "numpy", "__float__", "__int__", "detach", "__array__", "__index__"})
# So many frames above a call are looked through.
DEPTH = 12


@dataclass
class Lost:
    """A derivative that is zero because the output has no graph to the inputs: live only while it is told.

    Attributes:
        reason: ``no_grad``, ``copy``, or ``unused``.
        asked: The user's frame that asked for it.
        cut: The call that ended the graph; None for ``unused``.
        inputs: The inputs.
        functional: Whether it was ``torch.autograd.functional``, not ``torch.func``.
    """

    reason: str
    asked: Frame
    cut: Call | None
    inputs: Sequence[Tensor]
    functional: bool


@dataclass
class Jacobian:
    """A Jacobian that ``torch.autograd.functional.jacobian`` is about to return.

    Attributes:
        asked: The user's frame that asked for it.
        outputs: The outputs of the function.
        inputs: Its inputs.
        blocks: For each output the Jacobian by each input.
    """

    asked: Frame
    outputs: Sequence[Tensor]
    inputs: Sequence[Tensor]
    blocks: Sequence[Sequence[Tensor]]


class Functional:
    """Wraps what the functional interfaces call, and tells of what is lost.

    Args:
        audit: The audit.
    """

    def __init__(self, audit: Audit) -> None:
        self.lost: list[Callable[[Lost], None]] = []
        self.jacobians: list[Callable[[Jacobian], None]] = []
        self._audit = audit
        self._begun = 0
        self._undo: list[Callable[[], None]] = []

    def met(self, call: Call) -> None:
        """A ``requires_grad_`` was heard: if one of the interfaces made it, listen to it from now on."""
        if not self._called() or not any(value.requires_grad for value in call.outputs):
            return
        self._begun = call.number
        if not self._undo:
            from torch._functorch import eager_transforms  # noqa: PLC0415

            self._wrap(eager_transforms, "_autograd_grad", self._differentiated(functional=False))
            self._wrap(torch.autograd.functional, "_autograd_grad", self._differentiated(functional=True))
            self._wrap(torch.autograd.functional, "_tuple_postprocess", self._returned)

    def stop(self) -> None:
        """Take the wraps off."""
        while self._undo:
            self._undo.pop()()

    @staticmethod
    def _called() -> bool:
        frame: FrameType | None = sys._getframe(2)
        for _ in range(DEPTH):
            if frame is None:
                return False
            if frame.f_code.co_filename.endswith(("_functorch/eager_transforms.py", "autograd/functional.py")):
                return True
            frame = frame.f_back
        return False

    def _wrap(self, module: Any, name: str, told: Callable[..., None]) -> None:
        original = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                with torch._C.DisableTorchFunction():
                    told(*args)
            except Exception as problem:  # the program must go on
                self._audit.trouble.append(f"functional: {type(problem).__name__}: {problem}")
            return result

        def undo() -> None:
            if getattr(module, name) is wrapped:
                setattr(module, name, original)

        setattr(module, name, wrapped)
        self._undo.append(undo)

    def _differentiated(self, *, functional: bool) -> Callable[..., None]:
        def told(outputs: Sequence[Tensor], inputs: Sequence[Tensor], *rest: Any) -> None:
            if any(each.requires_grad for each in outputs):
                return
            frames = self._audit.frames()
            if not frames:
                return
            reason, cut = self._reason(inputs)
            if reason:
                lost = Lost(reason, frames[0], cut, inputs, functional)
                for listener in self.lost:
                    listener(lost)

        return told

    def _reason(self, inputs: Sequence[Tensor]) -> tuple[str, Call | None]:
        discrete: Call | None = None
        for call in reversed(self._audit.tape.calls):
            if call.number <= self._begun:
                break
            if not any(value.requires_grad for value in call.inputs) or call.spot is None:
                continue
            if call.name in ESCAPES and call.grad:
                return "copy", call
            if not call.grad and any(value.dtype.is_floating_point for value in call.outputs):
                return "no_grad", call
            if call.outputs and not any(value.dtype.is_floating_point for value in call.outputs):
                discrete = discrete or call
        if discrete is not None and not discrete.outputs[0].dtype.is_complex:
            return "copy", discrete
        return ("unused", None) if inputs else ("", None)

    def _returned(self, result: Any, *rest: Any) -> None:
        frame = sys._getframe(2)
        frames = self._audit.frames()
        if frame.f_code.co_name != "jacobian" or not frames or not self.jacobians:
            return
        local = variables(frame)
        seen = Jacobian(frames[0], local["outputs"], local["inputs"], result)
        for listener in self.jacobians:
            listener(seen)


_known: WeakKeyDictionary[Audit, Functional] = WeakKeyDictionary()


def functional_of(audit: Audit) -> Functional:
    """What listens to the functional interfaces of an audited program."""
    found = _known.get(audit)
    if found is None:
        found = _known[audit] = Functional(audit)
    return found
