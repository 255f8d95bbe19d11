"""PBA350: a Python number taken from a tensor, used in a formula."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.cuts import Cut, Cuts, enters, marks_of_cut
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

NUMBERS = frozenset({"item", "__float__", "tolist"})
USES = frozenset({
    "mul", "add", "sub", "div", "pow", "rsub", "true_divide", "__mul__", "__add__", "__sub__", "__pow__", "__rmul__",
    "__radd__", "__rsub__", "__rdiv__", "__rtruediv__", "__rpow__", "__truediv__", "tensor", "as_tensor", "matmul",
})  # fmt: skip
MATH = frozenset({
    "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin",
    "acos", "atan", "erf", "lgamma", "floor", "ceil",
})  # fmt: skip


class NumberCopy(Fault):
    """``item()``, ``float(x)``, ``math.exp(x)`` and ``tolist()`` give Python numbers, which have no graph.

    A formula with such a number is constant in x there: ``y = x * x.item()`` has the derivative ``x.item()``, half of
    the true one. torch warns for ``float(x)``, once; not for ``item()``.

    Stay with tensors: ``x * x``, ``torch.exp(x)``, ``torch.stack([...])`` in place of
    ``torch.tensor([a.item(), b.item()])``. Numbers are for printing. If a constant is meant, ``x.detach()`` says so.
    """

    code = "PBA350"
    title = "A number taken out of a tensor that requires grad is used in a formula: this part has no gradient."
    hears = NUMBERS | USES

    def __init__(self) -> None:
        self._cuts = Cuts()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if inside_functorch() or call.spot is None or not call.grad:
            return
        if call.name in NUMBERS:
            if call.inputs and call.inputs[0].requires_grad:
                self._cuts.note(audit, call, call.inputs[0], result)
            return
        if self._cuts.all and isinstance(result, Tensor):
            self._use(call, args)

    def _use(self, call: Call, args: tuple[Any, ...]) -> None:
        copies = call.name in {"tensor", "as_tensor"}
        for cut in self._cuts.all.values():
            if cut.used is not None or call.spot is None or cut.spot.code is not call.spot.code:
                continue
            if not copies and all(isinstance(each, Tensor) for each in args):
                continue
            if enters(cut.spot, call.spot):
                cut.used = call.spot
                tensors = {id(tensor) for given in call.inputs if (tensor := given.tensor()) is not None}
                cut.partial = any(
                    leaf is not None and id(leaf) in tensors for leaf in (each() for each in cut.leaves)
                ) or (not copies and _beside_itself(cut, call.spot))

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if self._cuts.all:
            self._cuts.reach(backward)

    def at_end(self, audit: Audit) -> None:
        for cut in self._cuts.all.values():
            if cut.used is None or not self._cuts.passes:
                continue
            if cut.partial or self._cuts.unreached(cut):
                audit.report(self._finding(cut))

    def _finding(self, cut: Cut) -> Diagnosis:
        name = cut.subjects[0].name
        if cut.partial:
            cause = say(
                "The formula contains {name} itself and a Python number made of it. The number is a constant: the "
                "gradient of {name} lacks this part.",
                name=name,
            )
        else:
            cause = say(
                "{name} requires grad, and enters the formula only as a Python number made of it. The number is a "
                "constant: {name} gets no gradient.",
                name=name,
            )  # fmt: skip
        code, edits = _stay_in_torch(cut)
        return self.found(
            cause,
            marks_of_cut(cut, say("made a Python number here: the gradient ends"), say("used in a formula here")),
            Fix(
                say("Stay with tensors; if a constant is meant, write detach()."),
                code,
                edits,
                "high" if edits else "medium",
            ),
            tensors=cut.subjects,
        )

    @staticmethod
    def bad():
        import torch

        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
                self.temperature = torch.nn.Parameter(torch.tensor(2.0))

            def forward(self, x):
                factor = self.temperature.item()
                return self.layer(x) / factor

        Scaled()(torch.randn(3, 2)).pow(2).mean().backward()

    @staticmethod
    def good():
        import torch

        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
                self.temperature = torch.nn.Parameter(torch.tensor(2.0))

            def forward(self, x):
                self.last = self.temperature.item()
                return self.layer(x) / self.temperature

        Scaled()(torch.randn(3, 2)).pow(2).mean().backward()


def _beside_itself(cut: Cut, formula: Spot) -> bool:
    """Whether a formula has a variable and a function of ``math`` of it: ``x / sigma + math.log(float(sigma))``."""
    node, statement = cut.spot.node, formula.statement
    if not isinstance(node, ast.Call) or statement is None:
        return False
    number = node.args[0] if node.args else getattr(node.func, "value", None)
    if not isinstance(number, ast.Name | ast.Attribute):
        return False
    inside = {id(each) for each in ast.walk(node)}
    name = ast.unparse(number)
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in MATH
        and ast.unparse(each.func.value) == "math"
        for each in islice(cut.spot.source.around(node), 2)
    ) and any(
        isinstance(each, ast.Name | ast.Attribute) and id(each) not in inside and ast.unparse(each) == name
        for each in ast.walk(statement)
    )


def _stay_in_torch(cut: Cut) -> tuple[str, tuple[Edit, ...]]:
    node, source = cut.spot.node, cut.spot.source
    if not isinstance(node, ast.Call) or node.lineno != node.end_lineno:
        return "", ()
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr == "item":
        code = source.text(func.value)
    elif isinstance(func, ast.Attribute) and func.attr in MATH and len(node.args) == 1:
        code = f"torch.{func.attr}({source.text(node.args[0])})"
    elif isinstance(func, ast.Name) and func.id == "float" and len(node.args) == 1:
        code = f"({source.text(node.args[0])})"
    else:
        return "", ()
    return code, (source.replaced(node, code),)
