"""PBA346: a threshold that enters only by a comparison."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.cuts import LEAVES, Cut, Cuts, marks_of_cut
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch, leaves_behind, origin
from pullback.diagnose.evidence.training.loop import in_optimizers
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

COMPARES = frozenset({"gt", "lt", "ge", "le", "__gt__", "__lt__", "__ge__", "__le__", "greater", "less"})
USES = frozenset({"mul", "__mul__", "__rmul__", "where", "masked_fill"})
BETWEEN = SAME | {"type", "int", "logical_not", "__invert__", "bitwise_not", "__and__", "rsub", "__rsub__"}


class Comparison(Fault):
    """A tensor that should learn enters the formula only by a comparison, which has no gradient.

    ``x > threshold`` is boolean. What is computed from it is constant in ``threshold``, and torch treats it so: no
    error, no gradient. ``(x > threshold).float()`` makes numbers of it, not a gradient.

    Use a smooth step, ``torch.sigmoid(k * (x - threshold))``, or the straight-through estimator:
    ``soft + (hard - soft).detach()``.
    """

    code = "PBA346"
    title = "A tensor that requires grad is used only in a comparison: it gets no gradient."
    hears = COMPARES | USES

    def __init__(self) -> None:
        self._cuts = Cuts()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if inside_functorch() or call.spot is None or not call.grad:
            return
        if call.name in COMPARES:
            thresholds = [given for given in call.inputs if given.leaf and given.requires_grad]
            learned = [given for given in call.inputs if given.requires_grad and self._trained(audit, given)]
            for given in (thresholds or learned)[:1]:
                self._cuts.note(audit, call, given)
            return
        if not self._cuts.all or not isinstance(result, Tensor):
            return
        for given in call.inputs:
            maker = origin(given, BETWEEN)
            cut = self._cuts.all.get(maker.number) if maker is not None else None
            if cut is not None and cut.used is None:
                cut.used, cut.learns = call.spot, result.requires_grad

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if self._cuts.all:
            self._cuts.reach(backward)
        else:
            self._cuts.passes += 1

    def at_end(self, audit: Audit) -> None:
        for cut in self._cuts.all.values():
            if cut.used is not None and self._cuts.unreached(cut) and (self._cuts.passes or not cut.learns):
                audit.report(self._finding(cut))

    @staticmethod
    def _trained(audit: Audit, given: Value) -> bool:
        """Whether an optimizer has all leaves behind a value: what compares those of a teacher may be meant so."""
        leaves = leaves_behind(given)
        if not 0 < len(leaves) <= LEAVES:
            return False
        known = in_optimizers(audit)
        return all(id(leaf.tensor()) in known for leaf in leaves)

    def _finding(self, cut: Cut) -> Diagnosis:
        name = cut.subjects[0].name
        node = cut.spot.node
        code = "torch.sigmoid(10.0 * (x - threshold))"
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            left, right = cut.spot.source.text(node.left), cut.spot.source.text(node.comparators[0])
            if isinstance(node.ops[0], ast.Lt | ast.LtE):
                left, right = right, left
            code = f"torch.sigmoid(10.0 * ({left} - {right}))"
        return self.found(
            say(
                "{name} requires grad and enters the formula only by this comparison. Its result is boolean and has no "
                "gradient: whatever is computed from it, {name} gets none.",
                name=name,
            ),
            marks_of_cut(cut, say("compared here: the gradient ends"), say("the result is used here")),
            Fix(say("Use a smooth step instead of the comparison, or a straight-through estimator."), code),
            tensors=cut.subjects,
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Gate(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 3)
                self.level = torch.nn.Parameter(torch.zeros(3))

            def forward(self, x):
                h = self.layer(x)
                return torch.where(h > self.level, h, torch.zeros_like(h))

        net = Gate()
        net(torch.randn(5, 3)).sum().backward()

    @staticmethod
    def good():
        import torch

        class Gate(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 3)
                self.level = torch.nn.Parameter(torch.zeros(3))

            def forward(self, x):
                h = self.layer(x)
                return h * torch.sigmoid(5 * (h - self.level))

        net = Gate()
        net(torch.randn(5, 3)).sum().backward()
