"""PBA107: gradients are clipped while a scaler's factor is on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.amp.grad_scaler import OptState

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.training.clipping import NORMS, clipped, clipping_now
from pullback.diagnose.evidence.training.loop import Key, before, key_of, optimizer_name, scaler_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say


class ClippedScaled(Fault):
    """Gradients were clipped while they were still multiplied by the factor of ``GradScaler``.

    ``scaler.scale(loss).backward()`` leaves gradients that are, say, 65536 times too large, and ``scaler.step()``
    divides them again. Clipping in between compares the *scaled* norm with the bound: nearly every gradient is cut to
    1/65536 of what was meant, and training hardly moves.

    Call ``scaler.unscale_(optimizer)`` before ``clip_grad_norm_``; ``scaler.step`` knows then that it is done. A larger
    bound or learning rate is no cure: the factor changes during training.
    """

    code = "PBA107"
    title = "Gradients were clipped before the factor of GradScaler was taken off them."
    hears = NORMS

    def __init__(self) -> None:
        self._looks: dict[Key, int] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or audit.reported(self.code):
            return
        looks = self._looks[key_of(call.spot)] = self._looks.get(key_of(call.spot), 0) + 1
        if looks & (looks - 1):  # the search for a scaler takes time: at calls 1, 2, 4, 8, ...
            return
        local = clipping_now()
        found = scaler_of(audit) if local is not None else None
        if local is None or found is None or float(found[1].get_scale()) == 1.0:
            return
        ids = {id(each) for each in clipped(local)}
        for optimizer in list(audit.optimizers):
            if not any(id(each) in ids for group in optimizer.param_groups for each in group["params"]):
                continue
            state = found[1]._per_optimizer_states.get(id(optimizer))
            if state is not None and state["stage"] is not OptState.READY:
                return
            name = optimizer_name(audit, optimizer)
            line = f"{found[0]}.unscale_({name})"
            edits = before(call.spot, line)
            audit.report(
                self.found(
                    say(
                        "The gradients are multiplied by {scale:g} here, by {scaler}: the norm that is compared with "
                        "the bound is {scale:g} times that of the true gradient.",
                        scale=float(found[1].get_scale()),
                        scaler=found[0],
                    ),
                    [call.spot.mark(say("clips scaled gradients"))],
                    Fix(say("Take the factor off first."), line, edits, "high" if edits else "medium"),
                )
            )
            return

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(8, 4)).square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(8, 4)).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
