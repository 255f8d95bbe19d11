"""PB641: gradients of a module were to be clipped."""

from __future__ import annotations

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ModuleClipped(Cause):
    """A function that works on parameters was given the module.

    ``torch.nn.utils.clip_grad_norm_``, ``clip_grad_value_``, ``get_total_norm`` and ``parameters_to_vector``
    take tensors: one, or several. A module is not a list of its parameters. Write
    ``clip_grad_norm_(net.parameters(), 1.0)``.
    """

    code = "PB641"
    title = "A module was passed where its parameters are wanted."
    says = ("object is not iterable",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        node = case.argument("parameters", 0)
        value = case.site.evaluated(node) if case.site is not None else None
        name = case.text(case.call.func).rpartition(".")[2] if case.call is not None else ""
        if case.site is None or node is None or not isinstance(value, torch.nn.Module) or name not in TAKING:
            return None
        edits = (case.site.source.replaced(node, f"{case.text(node)}.parameters()"),)
        return self.found(
            say("{name} is a module; {function} takes its parameters.", name=case.text(node), function=name),
            [case.mark(say("the module is passed here"))],
            Fix(say("Pass the parameters."), case.site.source.code(*edits), edits, "high"),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        net(torch.randn(3, 2)).mean().backward()
        torch.nn.utils.clip_grad_norm_(net, 1.0)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        net(torch.randn(3, 2)).mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


TAKING = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "parameters_to_vector"})
