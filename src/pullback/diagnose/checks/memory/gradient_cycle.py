"""PBA163: a pass that is recorded itself leaves a cycle in ``.grad``."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import told
from pullback.diagnose.values import Fix, Mark
from pullback.language import say


class GradientCycle(Fault):
    """``backward(create_graph=True)`` put a gradient with a graph into ``.grad``: that graph holds the parameter.

    The parameter holds its gradient, the gradient its graph, and the graph the parameter. Such a cycle is only freed
    by the garbage collector, which does not know how much memory hangs on it: memory grows from step to step.

    Use ``torch.autograd.grad(loss, params, create_graph=True)``, which returns the gradients and leaves ``.grad``
    alone. If ``.grad`` is needed, set it to ``None`` after use (``zero_grad(set_to_none=True)``). ``empty_cache()``
    frees nothing here.
    """

    code = "PBA163"
    title = "backward(create_graph=True) left gradients whose graph holds their parameters: a reference cycle."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "backward() with create_graph=True will create a reference cycle" not in message:
            return
        audit.report(
            self.found(
                say("Each parameter now holds a gradient with a graph, and that graph holds the parameter."),
                [told(mark, say("the gradients keep their graph"))],
                Fix(
                    say("Ask for the gradients instead of having them put into .grad."),
                    "grads = torch.autograd.grad(loss, params, create_graph=True)",
                ),
                useless=[say("torch.cuda.empty_cache(): the memory is in use")],
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        loss = net(torch.randn(8, 4)).square().mean()
        loss.backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in net.parameters())

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        loss = net(torch.randn(8, 4)).square().mean()
        grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        penalty = sum(g.square().sum() for g in grads)
