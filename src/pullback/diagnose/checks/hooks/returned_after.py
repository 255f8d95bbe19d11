"""PB736: a post-accumulate hook that returns something."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.hooks import registered
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ReturnedAfter(Cause):
    """A post-accumulate hook returned something.

    ``register_post_accumulate_grad_hook`` calls its hook with the tensor after ``.grad`` was added to. There is nothing
    left to replace, so it must return ``None``. To change the gradient, assign or write ``tensor.grad``; to replace it
    before it is added, use ``register_hook``.
    """

    code = "PB736"
    title = "A post-accumulate hook returned something, and must return None."
    says = ("post accumulate grad hooks should return None",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = registered(case, {"register_post_accumulate_grad_hook"})
        found = [each for each in found if each.hook is None or each.hook.returns]
        marks = [case.mark(say("the backward pass failed here"))]
        marks += [each.mark(say("the hook is registered here")) for each in found[:3]]
        edits: tuple[Edit, ...] = ()
        for each in found[:3]:
            for value in each.hook.returns if each.hook is not None else ():
                assert each.hook is not None
                marks.append(each.hook.mark(value, say("returned here")))
                plain = isinstance(value, ast.Name | ast.Attribute)
                if len(found) == 1 and len(each.hook.returns) == 1 and each.hook.own and plain:
                    edits = each.hook.rewrite().replace(value, "None").edits()
        return self.found(
            say("The gradient was added to .grad before the hook ran: what it returns would have no meaning."),
            marks,
            Fix(
                say("Return nothing."),
                found[0].source.code(*edits) if edits else "return None",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if len(found) == 1 else "medium",
        )

    @staticmethod
    def bad():
        import torch

        def clip(parameter):
            parameter.grad.clamp_(-1, 1)
            return parameter.grad

        net = torch.nn.Linear(3, 1)
        net.weight.register_post_accumulate_grad_hook(clip)
        net(torch.randn(2, 3)).sum().backward()

    @staticmethod
    def good():
        import torch

        def clip(parameter):
            parameter.grad.clamp_(-1, 1)

        net = torch.nn.Linear(3, 1)
        net.weight.register_post_accumulate_grad_hook(clip)
        net(torch.randn(2, 3)).sum().backward()
