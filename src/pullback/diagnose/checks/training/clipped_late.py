"""PBA117: gradients that are clipped after the step that used them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch import Tensor

from pullback.diagnose.audit import Audit, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.clipping import NORMS, between, clipped, clipping_now
from pullback.diagnose.evidence.training.loop import key_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class ClippedLate(Fault):
    """Gradients were clipped after ``optimizer.step()`` had used them.

    ``clip_grad_norm_`` changes ``.grad`` in place, and only the next ``step()`` would see that. Between ``step()`` and
    the next ``backward()`` the gradients are cleared, so that the clipping has no effect: large gradients move the
    parameters as they are.

    The order is ``loss.backward()``, ``clip_grad_norm_(...)``, ``optimizer.step()``. A smaller ``max_norm`` changes
    nothing as long as the clipping comes too late.
    """

    code = "PBA117"
    title = "The gradients were clipped after the step that used them, which has no effect on it."
    hears = NORMS

    def __init__(self) -> None:
        self._used: dict[int, tuple[ref[Tensor], ref[Tensor], int, Spot]] = {}
        self._late: dict[Any, int] = {}

    def after_step(self, audit: Audit, step: Step) -> None:
        if step.spot is not None:
            self._used = {
                id(each): (ref(each), ref(each.grad), each.grad._version, step.spot)
                for each in step.parameters
                if each.grad is not None
            }

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not self._used or audit.reported(self.code):
            return
        local = clipping_now()
        if local is None or local.get("max_norm") == float("inf"):  # that only measures the norm
            return
        parameters = [each for each in clipped(local) if each.grad is not None]
        first = self._spot_of(parameters)
        if first is None:
            return
        key = key_of(call.spot)
        self._late[key] = self._late.get(key, 0) + 1
        if self._late[key] > len(parameters):  # at more than one step, though a norm is taken of each
            audit.report(self._finding(call.spot, first))

    def _spot_of(self, parameters: list[Tensor]) -> Spot | None:
        """The step that has used all of these gradients as they are."""
        spot = None
        for each in parameters:
            used = self._used.get(id(each))
            if used is None or used[0]() is not each or used[1]() is not each.grad:
                return None
            if each.grad is None or used[2] != each.grad._version:
                return None
            spot = used[3]
        return spot

    def _finding(self, spot: Spot, first: Spot) -> Diagnosis:
        return self.found(
            say("The step before has used these gradients already; no pass has computed them anew since."),
            [spot.mark(say("clipped too late")), first.mark(say("used here, as they were"))],
            between(spot, first, after=False),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
