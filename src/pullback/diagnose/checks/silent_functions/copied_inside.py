"""PBA513: a copy of the numbers inside of a function that is differentiated."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.numbers.functional import ESCAPES, Lost
from pullback.diagnose.evidence.numbers.functional_check import FunctionalFault
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class CopiedInside(FunctionalFault):
    """Inside the function the numbers leave torch, so that the function counts as constant and its derivative as zero.

    ``torch.autograd.functional.jacobian`` (``vjp``, ``hessian``) with ``strict=False``, the default, and ``torch.func``
    return zeros where the output has no graph to the input. A ``tolist()``, ``item()``, ``numpy()`` or ``detach()`` in
    the function is enough, and so is a comparison or an ``argmax``, whose result is not a continuous number.

    Stay with torch's operations. While developing, pass ``strict=True``: it raises instead.
    """

    code = "PBA513"
    title = "A derivative is zero because the function leaves the graph inside."

    def tell(self, audit: Audit, seen: Lost) -> Diagnosis | None:
        if seen.reason != "copy" or seen.cut is None or seen.cut.spot is None:
            return None
        strict = [say("strict=True makes this an error.")] if seen.functional else []
        return self.found(
            say(
                "{operation} ends the graph inside of the function: the output does not depend on the input as far as "
                "torch can see, and the derivative is returned as zeros, without an error.",
                operation=seen.cut.name,
            ),
            [seen.cut.spot.mark(say("the graph ends here")), seen.asked.mark(say("differentiated here"))],
            Fix(
                say("Stay with torch's operations inside of the function.")
                if seen.cut.name in ESCAPES
                else say("Put a smooth function in the place of {operation}.", operation=seen.cut.name)
            ),
            notes=strict,
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def model(x):
            return torch.from_numpy(x.detach().numpy()) * 3

        _, product = torch.autograd.functional.vjp(model, torch.ones(4), torch.ones(4))

    @staticmethod
    def good():
        import torch

        def model(x):
            return x / x.detach().norm()

        _, product = torch.autograd.functional.vjp(model, torch.ones(4), torch.ones(4))
