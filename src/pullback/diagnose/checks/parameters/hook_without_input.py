"""PBA141: a full backward hook of a module none of whose inputs requires grad."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import calls_at, told
from pullback.diagnose.values import Fix, Mark
from pullback.language import say


class HookWithoutInput(Fault):
    """A full backward hook was called with ``grad_input = (None,)``: no input of the module requires grad.

    The gradient by the input is only computed if somebody needs it. The first module of a network gets data, which
    does not require grad, so its hook sees no gradient by the input, and runs earlier than otherwise: with the
    gradients of the output.

    If the gradient by the input is wanted, ask for it: ``x.requires_grad_()`` before the forward pass. If only
    ``grad_output`` is used, ``register_full_backward_pre_hook`` is the plain way. ``retain_graph=True`` does not
    help.
    """

    code = "PBA141"
    title = "A module's backward hook got no gradient by its input: no input requires grad."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "Full backward hook is firing" not in message:
            return
        marks = [told(mark, say("it was called for this"))]
        for source, call in calls_at(mark, "register_full_backward_hook"):
            place = mark.place._replace(line=call.lineno, function="")
            marks.append(Mark.at(place, say("registered here"), source.span(call)))
        audit.report(
            self.found(
                say("None of the module's inputs requires grad, so the gradient by the input is None."),
                marks,
                Fix(
                    say("Let the input require grad, or use only grad_output."), "x.requires_grad_()    # before net(x)"
                ),
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        seen = []
        net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(grad_input))
        net(torch.randn(2, 4)).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        seen = []
        net.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append(None))
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()
