"""PB605: an input that was used where nothing is recorded."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.freed.once_differentiable import OnceDifferentiable
from pullback.diagnose.evidence.absent.inputs import reads_values, unused_input
from pullback.diagnose.evidence.cuts.cause import left_out
from pullback.diagnose.evidence.definitions import called
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class CutInput(Cause):
    """The output was computed from the input, but by a way that autograd does not record.

    ``detach()``, ``.data``, ``.item()``, NumPy, a ``torch.no_grad()`` block, and operations without a derivative
    (``argmax``, a comparison, a cast to an integer) end the path. The value arrives, the gradient does not.

    Take the cut out, or do not ask for a gradient by this input. ``allow_unused=True`` hides the cut.
    """

    code = "PB605"
    title = "A gradient was asked for by an input that reaches the output only by a way that is not recorded."
    level = "trace"
    says = ("not have been used in the graph",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = unused_input(case)
        cut = self._cut(case)
        if found is None or cut is None or cut.spot is None or OnceDifferentiable().diagnose(case) is not None:
            return None
        name = case.text(found.written) or case.name_of(found.tensor) or say("the input")
        why = (
            say("nothing is recorded here (no_grad): {call}", call=cut.name)
            if not cut.grad
            else say("the path ends here: {call}", call=cut.name)
        )
        node = cut.spot.node
        edits: tuple[Edit, ...] = ()
        if called(node) == "detach" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            edits = left_out(cut.spot.source, node, node.func.value)
        return self.found(
            say("The output was computed from {name}, but {call} passes its value on without a path for the gradient.",
                name=name, call=cut.name),
            [case.mark(say("the gradient by {name} is asked for here", name=name)), cut.spot.mark(why)],
            Fix(
                say("Leave this line out.")
                if edits and edits[0].text is None
                else say("Leave out detach() here.")
                if edits
                else say("Compute this part with gradients: outside no_grad, without detach()."),
                cut.spot.source.code(*edits).strip() if edits else cut.spot.text,
                edits,
                "medium" if edits else "low",
            ),
            tensors=[case.subject(found.tensor, "input", name)],
            useless=[say("allow_unused=True: the gradient is None then")],
        )  # fmt: skip

    @staticmethod
    def _cut(case: Case) -> Call | None:
        """The first call on the way from the input to the root whose result does not require grad."""
        found = unused_input(case)
        if found is None or case.tape is None or not case.values:
            return None
        for call in case.tape.history(*case.values):
            used = [value for value in call.inputs if value.tensor() is found.tensor]
            ends = bool(call.outputs) and not any(value.requires_grad for value in call.outputs)
            if used and used[0].requires_grad and ends and reads_values(call, found.tensor):
                return call
        return None

    @staticmethod
    def bad():
        import torch

        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        scale = x.abs().max().detach()
        shift = x.detach()
        y = (w * shift / scale).sum()
        torch.autograd.grad(y, [w, x])

    @staticmethod
    def good():
        import torch

        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        scale = x.abs().max().detach()
        y = (w * x / scale).sum()
        torch.autograd.grad(y, [w, x])
