"""PB628: LBFGS without a closure."""

from __future__ import annotations

import ast
import textwrap

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class MissingClosure(Cause):
    """LBFGS evaluates the loss several times in one step, so it needs a function that does so.

    Put ``zero_grad``, the forward pass and ``backward`` into a function that returns the loss, and give it to the
    step: ``optimizer.step(closure)``.
    """

    code = "PB628"
    title = "An optimizer that evaluates the loss itself was called without a closure."
    says = ("missing 1 required positional argument: 'closure'",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        code, edits = self._fix(case)
        return self.found(
            say("The step computes the loss again and again, but was not told how."),
            [case.mark(say("there is no closure here"))],
            Fix(
                say("Write a closure that computes the loss, and pass it."), code, edits, "high" if edits else "medium"
            ),
        )

    @staticmethod
    def _fix(case: Case) -> tuple[str, tuple[Edit, ...]]:
        assert case.site is not None
        template = (
            "def closure():\n    optimizer.zero_grad()\n    loss = criterion(net(x), target)\n    loss.backward()\n"
            "    return loss\n\noptimizer.step(closure)"
        )
        source, step = case.site.source, case.site.statement
        parent = source.parent(step) if step is not None else None
        block: list[ast.stmt] = next((each for each in (getattr(parent, "body", []), getattr(parent, "orelse", []))
                                      if isinstance(each, list) and step in each), [])  # fmt: skip
        before = block[: block.index(step)] if step in block else []
        named = [called(each.value) if isinstance(each, ast.Expr) else "" for each in before]
        if "backward" not in named or not isinstance(step, ast.Expr) or not isinstance(step.value, ast.Call):
            return template, ()
        last = len(named) - 1 - named[::-1].index("backward")
        call = before[last].value  # type: ignore[attr-defined]
        root = source.text(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        first = last
        for number in range(last, -1, -1):
            bound = [each.id for each in ast.walk(before[number]) if isinstance(each, ast.Name) and
                     isinstance(each.ctx, ast.Store)]  # fmt: skip
            if root in bound or named[number] == "zero_grad":
                first = number
        if not root.isidentifier() or first == last:
            return template, ()
        owner = source.text(step.value.func)
        indent = source.indent(step.lineno)
        lines = source.lines[before[first].lineno - 1 : (before[last].end_lineno or 0)]
        inner = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")
        text = f"def closure():\n{inner}\n    return {root}\n\n{owner}(closure)"
        rest = source.lines[(before[last].end_lineno or 0) : step.lineno - 1]
        if any(line.strip() for line in rest):
            return text, ()
        return text, (Edit(source.file, before[first].lineno, step.end_lineno or step.lineno,
                           textwrap.indent(text, indent)),)  # fmt: skip

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([w])
        for _ in range(2):
            optimizer.zero_grad()
            loss = (w - 1).square().sum()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        w = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([w])

        def closure():
            optimizer.zero_grad()
            loss = (w - 1).square().sum()
            loss.backward()
            return loss.item()

        optimizer.step(closure)
