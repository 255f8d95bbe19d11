"""PB226: the root has no graph, and only its neighbourhood is known."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, root_name, useless
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class UnknownCut(RootWithoutGraph):
    """The root has no graph, and what cut it could not be told from the source.

    Somewhere between the parameters and the root the history was lost: a library detached it or computed
    without recording, values were copied, or nothing on the way required grad. Run the program once more with
    ``--trace``: then every call of torch is noted, and the first whose input has a graph and whose output has
    none is shown.

    By hand: print ``requires_grad`` of each value from the parameters to the loss; the first that says False is
    behind the cut. ``loss.requires_grad = True`` silences the error, but no parameter ever gets a gradient.
    """

    code = "PB226"
    title = "The root has no graph: somewhere on the way from the parameters it was cut."

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = found_in(case)
        if found.cuts or found.off or (found.answer is False and (found.leaves or found.root is not None)):
            return None
        root = root_name(case, found) if found.root is not None else say("the root")
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += [each.mark(say("its value has no graph any more")) for each in found.suspects[-2:]]
        return self.found(
            say("{root} does not require grad, though something that it is computed from may.", root=root),
            marks,
            Fix(say("Look at requires_grad of each value on the way; the first that says False is behind the cut.")),
            tensors=[case.subject(case.asked.tensors[0], "root", root)] if case.asked and case.asked.tensors else (),
            confidence="medium" if found.suspects else "low",
            useless=useless(root),
            apart=say("Which call on the way had an input that requires grad and gave a value that does not."),
            wants="" if case.tape is not None else say("Which call of torch lost the graph?"),
        )

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        """Not asked for."""
        return ""

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        """Not asked for."""
        return Fix("")

    @staticmethod
    def bad():
        import torch

        space = {}
        exec("def head(x):\n    return x.detach() * 2", space)
        net = torch.nn.Linear(3, 1)
        out = space["head"](net(torch.randn(2, 3)))
        loss = out.mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(2, 3)).mean()
        loss.backward()
