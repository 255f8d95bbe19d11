"""PB843: gradcheck at a point where the function has no derivative."""

from __future__ import annotations

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, entries
from pullback.diagnose.evidence.transforms import assigned, title_of
from pullback.diagnose.evidence.verdicts import verdict
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class Kink(Cause):
    """gradcheck was run exactly at a point where the function has a kink, a tie, or no finite derivative.

    At 0 ``relu`` has the slope 0 on one side and 1 on the other: its backward takes one of them, a central difference
    the mean, 0.5. The same happens at the bounds of ``clamp``, at ties of ``max`` and ``sort``, and, with infinite
    values, for ``sqrt`` and ``norm`` at 0. Neither is wrong: there is no derivative at that point.

    Check at points off the kink: random inputs, or inputs shifted by more than ``eps``. Do not change the backward to
    0.5, and do not raise ``atol`` to 0.5.
    """

    code = "PB843"
    title = "gradcheck was run at a point where the function has no derivative."
    says = ("Jacobian mismatch", "Jacobian computed with forward mode mismatch")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or verdict(case, comparison) != "kink" or comparison.differing is None:
            return None
        about = comparison.differing
        with torch._C.DisableTorchFunction(), torch.no_grad():
            flat = about.detach().reshape(-1)
            values = ", ".join(
                f"{flat[row].item():g}" for row in list(dict.fromkeys(w[0] for w in comparison.wrong))[:3]
            )
        name = case.name_of(about) or say("the input")
        marks = [case.mark(say("gradcheck is called here"))]
        edits: tuple[Edit, ...] = ()
        if case.site is not None and name.isidentifier():
            marks += [
                case.mark_at(place, say("{name} gets its values here", name=name))
                for place in assigned(case.site, name)
            ]
            edits = _moved(case, name)
        return self.found(
            say(
                "At {name} = {values} {function} has a kink or no finite derivative (backward / differences: "
                "{entries}).",
                name=name, values=values, entries=entries(comparison),
                function=title_of(comparison.defined, case.text(case.argument("func", 0))),
            ),
            marks,
            Fix(
                say("Check at inputs off the kink."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
            tensors=[case.subject(about, "input", name)],
            useless=[
                say("a larger atol: it would hide real mistakes of this size."),
                say("another backward: both slopes are right."),
            ],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.tensor([0.3, 1.0], dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(lambda t: t.clamp(0, 1), x)

    @staticmethod
    def good():
        import torch

        x = torch.tensor([0.3, 0.9], dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(lambda t: t.clamp(0, 1), x)


def _moved(case: Case, name: str) -> tuple[Edit, ...]:
    """The edit that moves the inputs off the kink before the check, in place and without a trace in the graph."""
    site = case.site
    statement = site.statement if site is not None else None
    if site is None or statement is None or "torch" not in site.module:
        return ()
    about = site.local.get(name, site.module.get(name))
    if not isinstance(about, torch.Tensor) or not about.is_leaf:
        return ()
    text = f"{name} = ({name} + 0.1 * torch.rand_like({name}) + 0.05).detach().requires_grad_()"
    return (site.source.inserted_before(statement, text),)
