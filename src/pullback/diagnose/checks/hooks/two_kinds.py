"""PB738: old and full backward hooks on one module."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import registered
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

OLD = {"register_backward_hook": "register_full_backward_hook"}


class TwoKinds(Cause):
    """A module has a hook of register_backward_hook and one of register_full_backward_hook.

    ``register_backward_hook`` is the old kind: it hooks the last operation of the module, so its ``grad_input`` is that
    of this operation and not of the module. It is deprecated. Use ``register_full_backward_hook`` for all.

    One of the two may have been registered by a library (a profiler, a pruning tool, a visualiser).
    """

    code = "PB738"
    title = "A module has both an old and a full backward hook."
    says = ("Cannot use both regular backward hooks and full backward hooks",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site, call = case.site, case.call
        if site is None:
            return None
        old = [each for each in registered(case, OLD) if each.source.file == site.source.file or call is None]
        at_site = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in OLD
        marks = [case.mark(say("this is the second kind"))]
        edits: tuple[Edit, ...] = ()
        if at_site and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner = site.source.text(call.func.value)
            marks += [each.mark(say("a full hook was registered here")) for each in registered(case, OLD.values())[:3]]
            edits = Rewrite(site.source).replace(call.func, f"{owner}.{OLD[call.func.attr]}").edits()
        else:
            marks += [each.mark(say("an old hook was registered here")) for each in old[:3]]
            rewrite = Rewrite(old[0].source) if old else None
            for each in old:
                if rewrite is not None and each.source is rewrite.source and isinstance(each.call.func, ast.Attribute):
                    rewrite.replace(each.call.func, f"{each.owner}.{OLD[each.call.func.attr]}")
            edits = rewrite.edits() if rewrite is not None else ()
        return self.found(
            say("Old and full backward hooks see different gradients, so a module takes only one kind."),
            marks,
            Fix(
                say("Register all of them with register_full_backward_hook."),
                site.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        net = torch.nn.Linear(3, 2)
        net.register_full_backward_hook(lambda module, grad_input, grad_output: None)
        net.register_backward_hook(lambda module, grad_input, grad_output: None)
        net(torch.randn(4, 3, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 2)
        net.register_full_backward_hook(lambda module, grad_input, grad_output: None)
        net.register_full_backward_hook(lambda module, grad_input, grad_output: print(len(grad_input)))
        net(torch.randn(4, 3, requires_grad=True)).sum().backward()
