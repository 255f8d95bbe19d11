"""PBA206: the gradient of a sum taken for a Jacobian."""

from __future__ import annotations

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, is_ones
from pullback.diagnose.evidence.numbers.seed import given_seeds, is_method, root_node
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

MOST = 64


class SumNotJacobian(Fault):
    """``torch.autograd.grad`` of a vector with a seed of ones is the sum of the Jacobian's rows, not the Jacobian.

    With a seed u it returns uᵀJ: one number for each input. With ones that is the gradient of the sum of the outputs.
    For a function that treats each sample on its own (a batch) this is the gradient of each; for a vector-valued
    function it adds up what belongs to different outputs.

    The Jacobian has one row for each output: ``torch.func.jacrev(f)(x)``, ``torch.autograd.functional.jacobian(f, x)``,
    or one pass for each row of the identity.
    """

    code = "PBA206"
    title = "A vector was differentiated with a seed of ones: the result is the sum of the Jacobian's rows."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is None or inside_functorch() or is_method(backward) or len(backward.inputs) != 1:
            return
        given = backward.inputs[0]
        if not isinstance(given, Tensor) or given.dim() != 1 or isinstance(given, nn.Parameter) or given.numel() > MOST:
            return
        for root, seed in given_seeds(backward):
            if root.dim() == 1 and 1 < root.numel() <= MOST and is_ones(seed) and self._mixes(root, given):
                audit.report(self._finding(audit, backward, root, given))

    @staticmethod
    def _mixes(root: Tensor, given: Tensor) -> bool:
        """Whether the outputs are components of one vector rather than one for each sample."""
        node = root.grad_fn
        stacked = (
            node is not None
            and node.name().startswith(("StackBackward", "CatBackward"))
            and len(node.next_functions) == len(root)
        )
        return stacked or len(root) != len(given)

    def _finding(self, audit: Audit, backward: Backward, root: Tensor, given: Tensor) -> Diagnosis:
        assert backward.spot is not None
        node = root_node(backward)
        out = backward.spot.source.text(node) if node is not None else "y"
        name = audit.name_of(given, "x")
        return self.found(
            say(
                "{out} has {rows} elements and {name} has {columns}: the Jacobian has shape ({rows}, {columns}). With "
                "a seed of ones this call returns the sum of its {rows} rows.",
                out=out, name=name, rows=len(root), columns=len(given),
            ),
            [backward.spot.mark(say("differentiated with a seed of ones here"))],
            Fix(
                say("Take the Jacobian; if the gradient of the sum is meant, differentiate the sum."),
                f"torch.func.jacrev(f)({name})    # or: torch.autograd.grad({out}.sum(), {name})",
            ),
            tensors=[audit.subject(root, "root", out), audit.subject(given, "input", name)],
            confidence="medium",
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = torch.randn(5, 3) @ x
        (jacobian,) = torch.autograd.grad(y, x, grad_outputs=torch.ones(5))

    @staticmethod
    def good():
        import torch

        x = torch.randn(6, 1, requires_grad=True)
        y = torch.tanh(x * 2)
        (slope,) = torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True)
