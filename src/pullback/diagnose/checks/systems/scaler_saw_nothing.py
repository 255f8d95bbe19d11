"""PB913: a scaler asked to step, and no gradient that it scaled."""

from __future__ import annotations

import ast
from dataclasses import replace

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.report import call_of
from pullback.diagnose.evidence.functions.scaler import earlier, optimizer_of, parameters_of, within
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ScalerSawNothing(Cause):
    """A GradScaler was to step or to update, but no gradient of that optimizer had come by it.

    ``scaler.step(optimizer)`` unscales the ``.grad`` of the optimizer's parameters and looks for infinities. With no
    ``.grad`` at all there is nothing to look at. Usual reasons:

    - ``backward()`` was not called, or was called on the plain loss instead of ``scaler.scale(loss)``;
    - the optimizer has other parameters than the loss depends on (those of an old model, frozen ones);
    - ``optimizer.zero_grad()`` stands between ``backward()`` and ``step``;
    - ``scaler.update()`` is called without a ``scaler.step``.
    """

    code = "PB913"
    title = "A GradScaler was to step or to update, but no scaled gradient had come by it."
    says = ("No inf checks were recorded", "_scale is None")
    raises = (AssertionError, RuntimeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if not within(case):
            return None
        optimizer = optimizer_of(case)
        listed = parameters_of(case, optimizer) if optimizer is not None else []
        without = [name for name, each in listed if each.grad is None]
        scaled = earlier(case, "scale")
        marks = [case.mark(say("no scaled gradient is there"))]
        marks += [replace(mark, what=say("a loss is scaled here")) for _, mark in scaled[:2]]
        if case.says("_scale is None"):
            cause = say("The scaler has not scaled anything yet: the loss went to backward() without scaler.scale().")
            fix = say("Call scaler.scale(loss).backward().")
        elif listed and len(without) == len(listed):
            cause = say(
                "None of the parameters of this optimizer ({count}) has a gradient ({names} ...).",
                count=len(listed),
                names=", ".join(without[:3]),
            )
            fix = say(
                "Call scaler.scale(loss).backward() before, on a loss that depends on the parameters of this optimizer."
            )
        else:
            cause = say("The scaler was updated, but no optimizer has stepped through it since the last time.")
            fix = say("Call scaler.step(optimizer) before scaler.update(), and both in the same iterations.")
        return self.found(cause, marks, Fix(fix, self._code(case), (), "medium"))

    @staticmethod
    def _code(case: Case) -> str:
        """The last pass with its loss scaled; where it is scaled already, the step that is missing."""
        func = case.call.func if case.call is not None else None
        scaler = case.text(func.value) if isinstance(func, ast.Attribute) else "scaler"
        call = call_of(case.passes[-1].spot) if case.passes else None
        root = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
        text = case.passes[-1].spot.source.text(root) if root is not None and case.passes[-1].spot is not None else ""
        if text.startswith(f"{scaler}.scale("):
            return f"{text}.backward()\n{scaler}.step(optimizer)\n{scaler}.update()"
        return f"{scaler}.scale({text or 'loss'}).backward()"

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        loss = net(torch.randn(4, 3)).mean()
        scaler.scale(loss).backward()
        optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        optimizer.zero_grad()
        loss = net(torch.randn(4, 3)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
