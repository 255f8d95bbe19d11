"""PB911: the gradients of an optimizer unscaled twice in one step."""

from __future__ import annotations

import ast
from dataclasses import replace

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.scaler import earlier, elsewhere
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class UnscaledTwice(Cause):
    """GradScaler.unscale_ was called twice for one step of an optimizer, or after it.

    One iteration is ``scaler.scale(loss).backward()``, then, if the gradients are to be clipped or looked at,
    ``scaler.unscale_(optimizer)`` once, then ``scaler.step(optimizer)`` (which unscales if that was not done), and at
    the end ``scaler.update()``, which opens the next one. With gradient accumulation, unscale only in the iteration
    that steps.

    A forgotten or skipped ``scaler.update()`` shows as this error in the next iteration.
    """

    code = "PB911"
    title = "GradScaler.unscale_ was called a second time for one step of an optimizer."
    says = ("unscale_() has already been called on this optimizer", "unscale_() is being called after step()")

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        if site is None:
            return None
        after = case.says("after step()")
        before = [each for each in earlier(case, "step" if after else "unscale_") if each[0].lineno <= site.line]
        others = [] if before else elsewhere(case, "step" if after else "unscale_")
        updates = earlier(case, "update") or elsewhere(case, "update")
        what = say("the step was taken here") if after else say("unscaled here already")
        marks = [case.mark(say("unscaled here, for the same step"))]
        marks += [replace(mark, what=what) for _, mark in (before or others)[:2]]
        edits: tuple[Edit, ...] = ()
        statement = site.statement
        if before and isinstance(statement, ast.Expr) and statement.value is site.node:
            edits = Rewrite(site.source).remove(statement).edits()
        elif not before and not others and not updates:
            marks[0] = case.mark(say("unscaled in the iteration before as well, and no update() in between"))
        no_update = not before and not others and not updates
        return self.found(
            say("The scaler was not updated since the last step: scaler.update() has to end every iteration.")
            if no_update
            else say(
                "The gradients of this optimizer were divided by the scale already, and are not to be divided again."
            ),
            marks,
            Fix(
                say("Call scaler.update() at the end of every iteration.")
                if no_update
                else say("Unscale once, before step()."),
                "scaler.update()"
                if no_update
                else site.source.code(*edits) or (case.text(case.call) if others else ""),
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

        scaler.scale(net(torch.randn(4, 3)).mean()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        scaler.scale(net(torch.randn(4, 3)).mean()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
