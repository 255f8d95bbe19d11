"""PBA201: a seed of whole numbers."""

from __future__ import annotations

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.evidence.numbers.seed import given_seeds, root_node, seed_node
from pullback.diagnose.values import Fix
from pullback.language import say
from pullback.words import dtype_name


class IntegerSeed(Fault):
    """A seed of an integer or boolean dtype is cast to the output's dtype without a word.

    The seed has the role of a gradient: it is one weight for each element of the output, and has its dtype. torch
    refuses a complex seed for a real output, but casts an integer one in silence, so that a mask, a vector of labels
    or counts passed by mistake is taken for weights.

    If weights are meant, make them in the output's dtype: ``torch.ones_like(y)``, ``mask.to(y.dtype)``.
    """

    code = "PBA201"
    title = "The seed of a backward pass has an integer dtype, and was cast silently."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is None or inside_functorch():
            return
        for root, seed in given_seeds(backward):
            if seed.is_floating_point() or seed.is_complex():
                continue
            root_text, node = root_node(backward), seed_node(backward)
            source = backward.spot.source
            out = source.text(root_text) if root_text is not None else "y"
            code = f"({source.text(node)}).to({out}.dtype)" if node is not None else f"torch.ones_like({out})"
            simple = root_text is not None and out.isidentifier()
            edits = (source.replaced(node, code),) if node is not None and simple else ()
            audit.report(
                self.found(
                    say(
                        "The seed has dtype {seed}, the output {root}: the engine casts it without a word. If it is a "
                        "mask or a vector of labels, the gradient is weighted by it.",
                        seed=dtype_name(seed.dtype),
                        root=dtype_name(root.dtype),
                    ),
                    [backward.spot.mark(say("the seed is passed here"))],
                    Fix(say("Make the seed in the dtype of the output."), code, edits, "high"),
                    tensors=[audit.subject(seed, "seed", "the seed"), audit.subject(root, "root", out)],
                )
            )

    @staticmethod
    def bad():
        import torch

        weight = torch.randn(4, requires_grad=True)
        scores = weight * torch.arange(4.0)
        counts = torch.tensor([1, 0, 2, 5])
        scores.backward(gradient=counts)

    @staticmethod
    def good():
        import torch

        weight = torch.randn(4, requires_grad=True)
        scores = weight * torch.arange(4.0)
        counts = torch.tensor([1, 0, 2, 5])
        scores.backward(gradient=counts.to(scores.dtype))
