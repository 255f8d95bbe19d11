"""PB637: a learning rate below zero."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NegativeRate(Cause):
    """An optimizer was given a learning rate below zero.

    The rate is the length of a step *against* the gradient. To climb, say ``maximize=True``, or minimize the
    negative: ``(-objective).backward()``. If the number was computed, look at where it became negative: a decay
    that goes on too long, a wrong order of arguments.
    """

    code = "PB637"
    title = "An optimizer was given a negative learning rate."
    says = ("Invalid learning rate: -",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        rate = case.argument("lr", 1)
        site = case.site
        if site is None:
            return None
        edits: tuple[Edit, ...] = ()
        value = rate.operand if isinstance(rate, ast.UnaryOp) and isinstance(rate.op, ast.USub) else None
        name = case.text(case.call.func).rpartition(".")[2] if case.call is not None else ""
        if rate is not None and value is not None and name in CLIMBING:
            edits = (site.source.replaced(rate, f"{case.text(value)}, maximize=True"),) if _keyword(case) else ()
        return self.found(
            say(
                "The learning rate is {rate}: the steps would go up the gradient.",
                rate=case.message.rpartition(": ")[2],
            ),
            [case.mark(say("the optimizer is made here"))],
            Fix(
                say("To climb, say maximize=True with a positive rate."),
                site.source.code(*edits) or "torch.optim.SGD(params, lr=0.1, maximize=True)",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        torch.optim.SGD(net.parameters(), lr=-0.1)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        torch.optim.SGD(net.parameters(), lr=0.1, maximize=True)


CLIMBING = frozenset({"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD"})


def _keyword(case: Case) -> bool:
    """Whether the rate is given by its name, and the direction is not said."""
    names = {each.arg for each in case.call.keywords} if case.call is not None else set()
    return "lr" in names and "maximize" not in names
