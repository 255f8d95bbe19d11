"""PB101: an output of several elements, and no seed."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.roots import called_root
from pullback.diagnose.evidence.seeds.vectors import is_unreduced, unseeded, vector_of_losses
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NotScalar(Cause):
    """A backward pass from an output with several elements needs a seed, and none was given.

    ``y.backward()`` without a seed means the seed 1.0, which only an output with one element has. For an output of
    several elements torch cannot know which combination of their gradients is meant: the seed (``grad_tensors``,
    ``gradient=``) has one weight for each element, and what arrives in ``x.grad`` is the product of the seed with the
    Jacobian.

    Reduce to a scalar (``y.mean().backward()`` is the usual loss), or pass the weights: ``y.backward(weights)``.
    ``torch.autograd.grad`` does not return a Jacobian either: it sums over the outputs with the weights of
    ``grad_outputs``. For the whole Jacobian use ``torch.func.jacrev``.

    ``retain_graph=True`` or ``loss.requires_grad = True`` change nothing here.
    """

    code = "PB101"
    title = "backward() was called on an output with more than one element, without a seed."
    says = ("grad can be implicitly created only for scalar outputs",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = unseeded(case)
        if pair is None or case.site is None or not isinstance(pair.root, Tensor):
            return None
        if is_unreduced(case, pair) or vector_of_losses(pair.root):
            return None
        root, name = pair.root, called_root(case, pair)
        marks = [case.mark(say("a seed is missing here"))]
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        backward = case.asked is not None and case.asked.verb == "backward"
        short = operand(case, pair.written) or name
        reduced = f"{short}.mean()" if backward else f"{short}.sum()"
        edits = (case.site.source.replaced(pair.written, reduced),) if pair.written is not None else ()
        code = f"{reduced}.backward()" if case.asked and case.asked.method else case.site.source.code(*edits)
        return self.found(
            say(
                "{name} has shape {shape}, that is {count} elements. Only an output with one element has an obvious "
                "seed, 1.0; here torch cannot know how the {count} gradients are to be combined.",
                name=name,
                shape=tuple(root.shape),
                count=root.numel(),
            ),
            marks,
            Fix(say("Reduce it to a scalar first, or pass one weight for each element."), code, edits, "medium"),
            tensors=[case.subject(root, "root", name)],
            useless=[say("retain_graph=True: it says how long the graph lives, not which elements are meant")],
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, 2, requires_grad=True)
        y = torch.randn(4, 3) @ w
        y.backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, 2, requires_grad=True)
        y = torch.randn(4, 3) @ w
        y.mean().backward()
