"""PBA511: no_grad inside of a function that is differentiated."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.numbers.functional import Lost
from pullback.diagnose.evidence.numbers.functional_check import FunctionalFault
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoGradInside(FunctionalFault):
    """Inside the function ``torch.no_grad()`` was on, so that it is taken for a constant: its derivative is zero.

    ``loss.backward()`` would raise "does not require grad"; ``torch.func.grad``, ``vjp`` and
    ``torch.autograd.functional`` return zeros instead. ``no_grad`` *around* ``torch.func.grad`` does no harm, inside of
    the function it does: also as a decorator on something that the function calls.

    Take ``no_grad`` off the parts that should be differentiated; wrap only targets and metrics in it.
    """

    code = "PBA511"
    title = "A derivative is zero because the function computes under torch.no_grad()."

    def tell(self, audit: Audit, seen: Lost) -> Diagnosis | None:
        if seen.reason != "no_grad" or seen.cut is None or seen.cut.spot is None:
            return None
        return self.found(
            say(
                "{operation} ran under torch.no_grad(), and after it nothing of the function has a graph to its "
                "inputs: it counts as constant, and the derivative is returned as zeros, without an error.",
                operation=seen.cut.name,
            ),
            [
                seen.cut.spot.mark(say("computed under no_grad here: the graph ends")),
                seen.asked.mark(say("differentiated here")),
            ],
            Fix(say("Take no_grad off what should be differentiated.")),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def energy(x):
            with torch.no_grad():
                distance = x.square().sum()
            return distance * 2.0

        force = torch.func.grad(energy)(torch.ones(3))

    @staticmethod
    def good():
        import torch

        def energy(x):
            with torch.no_grad():
                scale = x.abs().max()
            return x.square().sum() * 2.0 / scale

        force = torch.func.grad(energy)(torch.ones(3))
