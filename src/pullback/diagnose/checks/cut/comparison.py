"""PB214: a comparison on the way to the root."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class Comparison(RootWithoutGraph):
    """A comparison is on the only way to the root: true or false has no gradient.

    ``(x > 0.5)`` is a step: flat everywhere but at the threshold, where it jumps. Its result is boolean and does not
    require grad, and ``.float()`` does not change that. An accuracy is made of comparisons and is no loss.

    Use something smooth: ``torch.sigmoid((x - 0.5) / temperature)`` for a soft threshold, ``torch.relu(x - 0.5)`` for
    what is above it, the cross entropy instead of the accuracy. A straight-through estimator keeps the hard value and
    takes the gradient of the soft one: ``soft + (hard - soft).detach()``.
    """

    code = "PB214"
    title = "A comparison is on the only way to the root, and true or false has no gradient."
    kinds = ("comparison",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) is true or false, a step without a gradient; all of {root} comes from it.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("true or false from here on")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        code = ""
        node = cut.node
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Lt | ast.LtE):
            left, right = cut.source.text(node.left), cut.source.text(node.comparators[0])
            sign = "" if isinstance(node.ops[0], ast.Gt | ast.GtE) else "-"
            code = f"torch.sigmoid({sign}({left} - {right}) / temperature)    # a soft threshold"
        return Fix(say("Use a smooth function instead, such as a sigmoid; keep the comparison for reporting."), code)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        p = torch.sigmoid(net(torch.randn(8, 4))).squeeze(1)
        accuracy = ((p > 0.5) == (torch.rand(8) > 0.5)).float().mean()
        (1 - accuracy).backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        p = torch.sigmoid(net(torch.randn(8, 4))).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy(p, (torch.rand(8) > 0.5).float())
        loss.backward()
