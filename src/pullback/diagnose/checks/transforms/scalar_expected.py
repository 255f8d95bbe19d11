"""PB801: torch.func.grad of a function whose result is no scalar."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, shape_of, title_of, transform_in, wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ScalarExpected(Cause):
    """``torch.func.grad`` differentiates a function that returns one number, and this one returns a tensor.

    The gradient is defined for a function to the real numbers. Of a function with several results there is a gradient
    for each of them: together they are the Jacobian.

    * One loss is meant: reduce it in the function, ``return loss.mean()``.
    * All derivatives are meant: ``torch.func.jacrev(f)`` (or ``jacfwd``, if there are more results than inputs).
    * One gradient for each sample is meant: ``vmap(grad(f), in_dims=...)`` with an ``f`` of one sample.
    * A weighted sum is meant: ``out, vjp_fn = torch.func.vjp(f, x); vjp_fn(weights)``.

    A tensor of shape ``(1,)`` is no scalar either: take ``.squeeze()`` or index it.
    """

    code = "PB801"
    title = "torch.func.grad was used on a function that does not return a scalar."
    says = ("to return a scalar Tensor, got tensor with",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transform = transform_in(case, *FUNC)
        if transform is None:
            return None
        where, output = transform.defined, transform.local.get("output")
        shape = shape_of(output) if output is not None else None
        marks = [case.mark(say("the gradient is asked for here"))]
        edits: tuple[Edit, ...] = ()
        code = "torch.func.jacrev(f)(x)    # or: return result.sum()"
        if where is not None:
            marks += where.marks(say("this is returned, with shape {shape}", shape=shape))
            if (result := where.result) is not None:
                code = f"{wrapped_text(where.text(result), result)}.sum()"
                edits = (where.source.replaced(result, code),)
        return self.found(
            say(
                "{function} returns a tensor of shape {shape}. grad() needs one number, a tensor without dimensions: "
                "several results have no gradient but a Jacobian.",
                function=title_of(where), shape=shape,
            ),
            marks,
            Fix(
                say("Reduce the result to a scalar, or take torch.func.jacrev for all derivatives."),
                code,
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def residual(w):
            return torch.ones(4, 2) @ w - 1

        torch.func.grad(residual)(torch.zeros(2))

    @staticmethod
    def good():
        import torch

        def residual(w):
            return (torch.ones(4, 2) @ w - 1).pow(2).mean()

        torch.func.grad(residual)(torch.zeros(2))
