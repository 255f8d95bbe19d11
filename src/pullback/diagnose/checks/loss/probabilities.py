"""PBA302: probabilities where a loss expects logits."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch, origin
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

SQUASHED = {
    "cross_entropy": frozenset({"softmax", "sigmoid"}),
    "binary_cross_entropy_with_logits": frozenset({"sigmoid", "softmax"}),
    "log_softmax": frozenset({"softmax"}),
}
BETWEEN = SAME | {"clamp", "clamp_min", "dropout"}


SHIFTS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__"})


class ProbabilitiesAsLogits(Fault):
    """A loss that expects logits got probabilities, and squashes them a second time.

    ``cross_entropy`` applies ``log_softmax`` itself, ``binary_cross_entropy_with_logits`` a ``sigmoid``. Of
    probabilities (all between 0 and 1) it makes nearly uniform ones: the loss never gets near zero, and the gradient
    of confident mistakes, which should be the largest, all but vanishes.

    Give the loss the logits, and take the softmax only where probabilities are needed (metrics, inference). If the net
    must end in a softmax, use ``nll_loss(torch.log(p))``; better ``log_softmax`` and ``nll_loss``.
    """

    code = "PBA302"
    title = "A loss that expects logits was given the result of softmax or sigmoid."
    hears = frozenset(SQUASHED)

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not call.inputs or inside_functorch() or not getattr(result, "requires_grad", False):
            return
        given = args[0] if args else kwargs.get("input")
        value = audit.tape.value_of(given) if isinstance(given, Tensor) else None
        maker = _squasher(value) if value is not None else None
        if value is None or maker is None or maker.name not in SQUASHED[call.name]:
            return
        if not value.requires_grad:
            return
        audit.report(self._finding(audit, call, maker, given))

    def _finding(self, audit: Audit, call: Call, maker: Call, given: Any) -> Diagnosis:
        assert call.spot is not None
        marks = [call.spot.mark(say("squashed once more here"))]
        if maker.spot is not None:
            marks.append(maker.spot.mark(say("made probabilities here")))
        node = maker.spot.node if maker.spot is not None else None
        edits: tuple[Edit, ...] = ()
        code = f"{call.name}(logits, target)"
        if maker.spot is not None and isinstance(node, ast.Call) and node.lineno == node.end_lineno:
            inner = _logits(node, maker.name)
            if inner is not None:
                code = maker.spot.source.text(inner)
                edits = (maker.spot.source.replaced(node, f"({code})" if isinstance(inner, ast.BinOp) else code),)
        return self.found(
            say(
                "{loss} expects logits and squashes them itself. It was given the result of {maker}, numbers between 0 "
                "and 1: squashed twice, the probabilities are nearly uniform, and the gradient of confident mistakes "
                "vanishes.",
                loss=call.name, maker=maker.name,
            ),
            marks,
            Fix(
                say("Give it the logits: leave {maker} out.", maker=maker.name),
                code,
                edits,
                "high" if edits else "medium",
            ),
            tensors=[audit.subject(given, "input", "the input")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=1))
        loss = torch.nn.CrossEntropyLoss()(net(torch.randn(6, 4)), torch.tensor([0, 1, 2, 0, 1, 2]))
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 3))
        loss = torch.nn.CrossEntropyLoss()(net(torch.randn(6, 4)), torch.tensor([0, 1, 2, 0, 1, 2]))
        loss.backward()


def _squasher(value: Value) -> Call | None:
    """What made the input of the loss, also behind a small number that was added: ``p + 1e-8``."""
    maker = origin(value, BETWEEN)
    for _ in range(3):
        if maker is None or maker.name not in SHIFTS or len(maker.inputs) != 1:
            break
        maker = origin(maker.inputs[0], BETWEEN)
    return maker


def _logits(node: ast.Call, squash: str) -> ast.expr | None:
    """What a call squashes: ``x`` in ``F.softmax(x, 1)``, ``x.softmax(1)``, ``self.softmax(x)``."""
    func = node.func
    made = func.func if isinstance(func, ast.Call) else func
    name = made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""
    if name.lower() != squash:
        return None
    named = {each.arg: each.value for each in node.keywords}
    if "input" in named:
        return named["input"]
    # a method of the tensor has the dimension at most
    first = node.args[0] if node.args else None
    if first is not None and not isinstance(first, ast.Constant | ast.UnaryOp) and ast.unparse(first) != "dim":
        return first
    return func.value if isinstance(func, ast.Attribute) else None
