"""PB101."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NotScalar(Cause):
    """A backward pass from an output with several elements needs a seed, and none was given.

    ``y.backward()`` without a seed means the seed 1.0, which only an output with one element has. For an output of
    several elements torch cannot know which combination of their gradients is meant: the seed (``grad_tensors``,
    ``gradient=``) has one weight for each element, and what arrives in ``x.grad`` is the product of the seed with the
    Jacobian.

    Reduce to a scalar (``y.mean().backward()`` is the usual loss), or pass the weights: ``y.backward(weights)``.
    """

    code = "PB101"
    title = "backward() was called on an output with more than one element, without a seed."
    says = ("grad can be implicitly created only for scalar outputs",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        asked = case.asked
        if asked is None or case.site is None:
            return None
        root = next(
            (root for root, seed in zip(asked.tensors, [*asked.seeds, *[None] * len(asked.tensors)], strict=False)
             if seed is None and root.numel() != 1),
            None,
        )  # fmt: skip
        if root is None:
            return None
        name = case.name_of(root) or case.text(case.root) or "y"
        made = case.line_of(root.grad_fn)
        marks = [case.mark(say("a seed is missing here"))]
        if made is not None:
            marks.append(case.mark_at(made, say("{name} was made here", name=name)))
        edits = (case.site.source.replaced(case.root, f"{case.text(case.root)}.mean()"),) if case.root and asked.method else ()
        return self.found(
            say(
                "{name} has shape {shape}, that is {count} elements. Only an output with one element has an obvious "
                "seed, 1.0; here torch cannot know how the {count} gradients are to be combined.",
                name=name,
                shape=tuple(root.shape),
                count=root.numel(),
            ),
            marks,
            Fix(
                say("Reduce it to a scalar first, or pass one weight for each element."),
                f"{name}.mean().backward()    # or: {name}.backward(torch.ones_like({name}))",
                edits,
                "medium",
            ),
            tensors=[case.subject(root, "root", name)],
        )

    @staticmethod
    def bad() -> None:
        import torch

        w = torch.randn(3, 2, requires_grad=True)
        y = torch.randn(4, 3) @ w
        y.backward()

    @staticmethod
    def good() -> None:
        import torch

        w = torch.randn(3, 2, requires_grad=True)
        y = torch.randn(4, 3) @ w
        y.mean().backward()
