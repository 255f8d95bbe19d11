"""PB604: the name of an input stands for another tensor now."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inputs import defined_after, root_line, unused_input
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ReboundInput(Cause):
    """The input was made after the output: its name stands for another tensor than the one that was used.

    ``x = x.detach().requires_grad_()``, ``x = x.clone()`` or ``x = nn.Parameter(x)`` gives the name to a new tensor.
    An output that was computed before depends on the old one, which has no name any more.

    Make the tensor first, and compute the output from it; or give the new one a name of its own.
    """

    code = "PB604"
    title = "A gradient was asked for by a tensor that was made after the output."
    says = ("not have been used in the graph",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = unused_input(case)
        if found is None or found.tensor.grad_fn is not None or found.written is None:
            return None
        later = defined_after(case, found.written, root_line(case))
        if later is None or not later.whole:
            return None
        name = case.text(found.written)
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        computed = definitions(case, case.root)
        if computed:
            marks.append(computed[0].mark(say("the output was computed here")))
        marks.append(later.mark(say("{name} stands for a new tensor from here", name=name)))
        return self.found(
            say(
                "{name} was made after the output had been computed: the output depends on another tensor, not on "
                "this one.", name=name,
            ),
            marks,
            Fix(say("Make {name} first, and compute the output from it.", name=name), later.text, (), "medium"),
            tensors=[case.subject(found.tensor, "input", name)],
            useless=[say("allow_unused=True: the gradient is None then")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x.sin().sum()
        x = x.detach().requires_grad_()
        torch.autograd.grad(y, x)

    @staticmethod
    def good():
        import torch

        x = torch.randn(3, requires_grad=True)
        x = x.detach().requires_grad_()
        y = x.sin().sum()
        torch.autograd.grad(y, x)
