"""PB823: torch.autograd.functional needs a vector v, and none was given."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import added, shape_of, tensors_of, transform_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class VectorMissing(Cause):
    """A product with the Jacobian or the Hessian was asked for without the vector to multiply with.

    ``vjp(f, x, v)`` needs one weight for each element of the *output*; ``jvp(f, x, v)``, ``hvp`` and ``vhp`` need a
    direction with the shape of the *input*. Only where this is one number may ``v`` be left out: it is 1 then.

    ``v = torch.ones_like(...)`` gives the gradient of the sum (``vjp``), or the derivative along the diagonal
    (``jvp``). For the whole matrix take ``jacobian`` or ``hessian``.
    """

    code = "PB823"
    title = "A product with the Jacobian or Hessian was asked for without the vector v."
    says = ("The vector v can only be None if",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transform = transform_in(case, "autograd/functional.py")
        if transform is None or case.site is None:
            return None
        of = "outputs" if transform.name == "vjp" else "inputs"
        tensors = tensors_of(transform.local.get(of))
        shapes = [shape_of(each) for each in tensors]
        alone = not transform.local.get("is_outputs_tuple" if of == "outputs" else "is_inputs_tuple", False)
        made = [
            f"torch.ones({', '.join(map(str, shape))})" if shape else "torch.tensor(1.0)"
            for shape in shapes
            if shape is not None
        ]
        text = made[0] if alone and len(made) == 1 else f"({', '.join(made)},)"
        edits: tuple[Edit, ...] = ()
        if case.call is not None and made and "torch" in case.site.module and _plain(tensors):
            edits = added(case.site, case.call, f"v={text}")
        shown = ", ".join(map(str, shapes))
        return self.found(
            say("{name} multiplies with a vector v of the shape of the {of}, {shapes}, and none was given.",
                name=transform.name, of=of, shapes=shown),
            [case.mark(say("v is missing here"))],
            Fix(
                say("Pass v: a weight for each output element (vjp), or a direction in the inputs (jvp, hvp, vhp)."),
                f"v={text}",
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        torch.autograd.functional.jvp(torch.exp, torch.zeros(3))

    @staticmethod
    def good():
        import torch

        torch.autograd.functional.jvp(torch.exp, torch.zeros(3), torch.ones(3))


def _plain(tensors: list[Tensor]) -> bool:
    """Whether a tensor of ones as torch makes it by default has their dtype and device."""
    return all(each.dtype == torch.get_default_dtype() and each.device.type == "cpu" for each in tensors)
