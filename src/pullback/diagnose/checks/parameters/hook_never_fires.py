"""PBA138: a hook on a tensor that no pass goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say


@dataclass
class _Hook:
    """A line that registers hooks."""

    spot: Spot
    name: str
    waiting: dict[int, ref[Tensor]]
    fired: bool = False
    passes: int = 0


class HookNeverFires(Fault):
    """A hook was registered on a tensor that no backward pass went through, so it never ran.

    A hook belongs to one tensor, not to a name. A ``clone()``, ``detach()``, ``* 1`` or ``reshape()`` makes a new
    tensor: if the loss was computed from the old one, the new one is not on the way, and nothing says so.

    Register the hook on the very tensor that the loss is computed from, and before the pass.
    ``retain_grad()`` or ``retain_graph=True`` do not bring the pass to it.
    """

    code = "PBA138"
    title = "A tensor's hook never ran: the tensor is not on the way of any backward pass."
    hears = frozenset({"register_hook"})

    def __init__(self) -> None:
        self._hooks: dict[Key, _Hook] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        tensor = args[0] if args else None
        if call.spot is None or not isinstance(tensor, Tensor) or tensor.grad_fn is None or len(self._hooks) > 200:
            return
        hook = self._hooks.get(key_of(call.spot))
        if hook is None:
            hook = self._hooks[key_of(call.spot)] = _Hook(call.spot, audit.name_of(tensor, "the tensor"), {})
        if not hook.fired and len(hook.waiting) < 100:
            hook.waiting[tensor.grad_fn._sequence_nr()] = ref(tensor)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        waiting = [hook for hook in self._hooks.values() if not hook.fired]
        if not waiting:
            return
        numbers = {node._sequence_nr() for node in backward.nodes}
        for hook in waiting:
            hook.passes += 1
            hook.fired = any(number in numbers for number in hook.waiting)

    def at_end(self, audit: Audit) -> None:
        for hook in self._hooks.values():
            alive = [tensor for each in hook.waiting.values() if (tensor := each()) is not None]
            if hook.fired or not hook.passes or not alive or audit.crashed:
                continue
            name = audit.name_of(alive[0], hook.name)
            audit.report(
                self.found(
                    say(
                        "{name} is not on the way of any pass that ran since ({count} of them): the loss was not "
                        "computed "
                        "from it.",
                        name=name,
                        count=hook.passes,
                    ),
                    [hook.spot.mark(say("this hook never ran"))],
                    Fix(say("Register the hook on the tensor that the loss is computed from.")),
                    tensors=[audit.subject(alive[0], "hooked", name)],
                    confidence="medium",
                )
            )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        output = net(torch.randn(3, 4))
        watched = output.reshape(3)
        watched.register_hook(print)
        output.square().mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        output = net(torch.randn(3, 4))
        watched = output.reshape(3)
        watched.register_hook(lambda g: None)
        watched.square().mean().backward()
