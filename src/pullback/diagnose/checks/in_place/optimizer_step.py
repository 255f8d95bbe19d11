"""PB406: an optimizer that stepped between a forward pass and its backward."""

from __future__ import annotations

import textwrap

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import name_of, of_kind, sentence, subjects, why_not_data
from pullback.diagnose.evidence.overwritten.steps import computed_after, step_marks
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class StepBetween(Cause):
    """`optimizer.step()` changes the parameters in place. A graph built before the step needs the old ones.

    It happens where two losses are computed first and then treated one after the other: `loss_d.backward();
    opt_d.step(); loss_g.backward()`, when `loss_g` was computed with the weights of `d` before the step (GANs,
    actor and critic).

    Compute the second loss *after* the step, or call both `backward()` before any `step()`. If the weights of the
    stepped network are only a means for the second loss, computing it anew is the usual and the right thing.

    `retain_graph=True` cannot help: the graph is there, the weights are not. Cloning the weights would give
    gradients at stale weights.
    """

    code = "PB406"
    title = "An optimizer stepped between a forward pass and its backward: the kept weights were changed in place."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "step")
        if found is None:
            return None
        name = name_of(found)
        optimizer = found.thing[0] if found.thing else say("an optimizer")
        edits = computed_after(case, found)
        return self.found(
            sentence(found)
            + " "
            + say(
                "{name} is trained by {optimizer}, whose step() changed it between the forward "
                "pass and this backward pass.",
                name=name,
                optimizer=optimizer,
            ),
            step_marks(case, found),
            Fix(
                say("Compute this loss again after the step, with the changed weights.")
                if edits
                else say("Compute this loss after the step, or run both backward passes before any step."),
                "\n".join(textwrap.dedent(each.text or "") for each in edits)
                or "loss_a.backward()\nloss_b.backward()\noptimizer_a.step()\noptimizer_b.step()",
                edits,
                "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[
                say("retain_graph=True: the graph is there; the weights that it kept have changed."),
                why_not_data(),
            ],
            wants=""
            if found.certain or case.traced
            else say("Which line changed {name} after it was kept?", name=name),
        )

    @staticmethod
    def bad():
        import torch

        judge = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        maker = torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(judge.parameters())
        made = maker(torch.randn(5, 2))
        judged = judge(made).mean()
        own = judge(made.detach()).square().mean()
        own.backward()
        optimizer.step()
        judged.backward()

    @staticmethod
    def good():
        import torch

        judge = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        maker = torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(judge.parameters())
        made = maker(torch.randn(5, 2))
        own = judge(made.detach()).square().mean()
        own.backward()
        optimizer.step()
        optimizer.zero_grad()
        judged = judge(made).mean()
        judged.backward()
