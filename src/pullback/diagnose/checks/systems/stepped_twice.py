"""PB914: two steps of an optimizer through a scaler without an update."""

from __future__ import annotations

import ast
from dataclasses import replace

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.scaler import earlier, within
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SteppedTwice(Cause):
    """An optimizer stepped twice through a GradScaler without an update of the scaler in between.

    ``scaler.update()`` ends an iteration: it adapts the scale and forgets what was found about the gradients. Without
    it the scaler takes the next ``step`` for a second one with the same gradients. With several optimizers, step each
    once and update the scaler once, at the end.
    """

    code = "PB914"
    title = "An optimizer stepped twice through a GradScaler without an update in between."
    says = ("step() has already been called since the last update()",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        if site is None or not within(case):
            return None
        updates = earlier(case, "update")
        marks = [case.mark(say("the second step without an update"))]
        marks += [replace(mark, what=say("the step before")) for _, mark in earlier(case, "step")[:2]]
        statement, call = site.statement, case.call
        edits: tuple[Edit, ...] = ()
        alone = len(marks) == 1 and not updates and isinstance(statement, ast.Expr)
        if alone and isinstance(statement, ast.Expr) and call is not None and isinstance(call.func, ast.Attribute):
            edits = (site.source.inserted_after(statement, f"{case.text(call.func.value)}.update()"),)
        return self.found(
            say("The scaler was not updated since this optimizer stepped last."),
            marks,
            Fix(
                say("Call scaler.update() after each step."),
                site.source.code(*edits) or "scaler.update()",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(4, 3)).mean()).backward()
            scaler.step(optimizer)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(net(torch.randn(4, 3)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
