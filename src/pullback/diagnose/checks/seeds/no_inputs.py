"""PB120: nothing to differentiate by."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoInputs(Cause):
    """A gradient was asked for by an empty list of inputs.

    Usually a filter left nothing (all parameters are frozen), or a generator such as ``net.parameters()`` was gone
    through before: it gives its items once. Keep a list: ``params = list(net.parameters())``.
    """

    code = "PB120"
    title = "autograd was asked for a gradient by an empty list of inputs."
    says = (
        "argument to `grad()` cannot be empty",
        "argument to `backward()` cannot be empty",
        "grad requires non-empty inputs",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None or case.asked is None:
            return None
        node = case.argument("inputs", 1 if case.asked.verb == "grad" else None)
        found = definitions(case, node)
        marks = [case.mark(say("there are no inputs here"))]
        edits = ()
        generator = False
        if found:
            last = found[-1]
            marks.append(last.mark(say("the inputs were chosen here")))
            value = last.value
            name = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
            generator = name in ("parameters", "buffers") or isinstance(value, ast.GeneratorExp)
            if generator:
                edits = (last.scene.source.replaced(value, f"list({last.text})"),)  # type: ignore[assignment]
        cause = (
            say("{name} is a generator: it gives its items once, and had been gone through.", name=case.text(node))
            if generator
            else say("{name} holds no tensor.", name=case.text(node) or "inputs")
        )
        return self.found(
            cause,
            marks,
            Fix(
                say("Keep the parameters in a list.") if generator else say("Choose the inputs anew."),
                f"list({found[-1].text})" if generator else "inputs = [p for p in net.parameters() if p.requires_grad]",
                edits,
                "high" if generator else "low",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        params = net.parameters()
        size = sum(p.numel() for p in params)
        loss = net(torch.randn(4, 3)).square().mean() / size
        torch.autograd.grad(loss, params)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        params = list(net.parameters())
        size = sum(p.numel() for p in params)
        loss = net(torch.randn(4, 3)).square().mean() / size
        torch.autograd.grad(loss, params)
