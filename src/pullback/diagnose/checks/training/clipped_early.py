"""PBA122: gradients that are clipped before there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.clipping import NOTHING, between, clipped, clipping_now
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class ClippedEarly(Fault):
    """Gradients were clipped between ``zero_grad()`` and ``backward()``, when there were none.

    ``clip_grad_norm_`` changes the ``.grad`` that is there, and says nothing if there is none. What the pass after it
    computes reaches ``optimizer.step()`` as it is.

    The order is ``loss.backward()``, ``clip_grad_norm_(...)``, ``optimizer.step()``. A smaller ``max_norm`` changes
    nothing as long as the clipping comes too early.
    """

    code = "PBA122"
    title = "The gradients were clipped before the backward pass, when there were none."
    hears = frozenset({NOTHING})

    def __init__(self) -> None:
        self._waiting: dict[Key, Spot] = {}
        self._times: dict[Key, int] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or (local := clipping_now()) is None:
            return
        parameters = clipped(local)
        if parameters and all(each.grad is None for each in parameters):
            self._waiting[key_of(call.spot)] = call.spot

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        for key, spot in self._waiting.items():
            self._times[key] = self._times.get(key, 0) + 1
            if self._times[key] == 2 and backward.spot is not None:  # it is so in each turn
                audit.report(self._finding(spot, backward.spot))
        self._waiting.clear()

    def _finding(self, spot: Spot, after: Spot) -> Diagnosis:
        return self.found(
            say("None of these parameters had a gradient when they were clipped; the pass that follows computes them."),
            [spot.mark(say("clipped too early")), after.mark(say("the gradients are computed here"))],
            between(spot, after, after=True),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 4)).square().mean()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 4)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
