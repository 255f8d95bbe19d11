"""PBA305: the prediction and the target of a loss, swapped."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.language import say

LOSSES = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"})


class SwappedArguments(Fault):
    """The prediction was given as the target of a loss, and the labels as its input.

    ``F.binary_cross_entropy(input, target)``, the version with logits and ``F.cross_entropy`` are not symmetric: the
    prediction comes first. The other way around they still run, and even give the prediction a gradient, through the
    target; but of labels 0 and 1 the logarithm is taken, which is clamped to -100 or infinite.

    Write ``loss(prediction, target)``, or name the arguments: ``loss(input=prediction, target=labels)``. Detaching the
    prediction, or a small number added to the labels, only hides it.
    """

    code = "PBA305"
    title = "The prediction and the target of a loss are swapped."
    hears = LOSSES

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if call.spot is None or inside_functorch() or not (isinstance(given, Tensor) and isinstance(target, Tensor)):
            return
        if given.requires_grad or not target.requires_grad or not given.numel():
            return
        if not bool(((given == 0) | (given == 1)).all().item()) or _only_labels(target.detach()):
            return
        edits = self._edits(call.spot)
        audit.report(
            self.found(
                say(
                    "The first argument of {loss} holds only zeros and ones and does not require grad: these are the "
                    "labels. The second requires grad: this is the prediction.",
                    loss=call.name,
                ),
                [call.spot.mark(say("the labels are the first argument here"))],
                Fix(
                    say("The prediction comes first."),
                    call.spot.source.code(*edits).strip() if edits else "loss(prediction, target)",
                    edits,
                    "high" if edits else "medium",
                ),
                tensors=[audit.subject(given, "input", "the input"), audit.subject(target, "target", "the target")],
            )
        )  # fmt: skip

    @staticmethod
    def _edits(spot: Spot) -> tuple[Edit, ...]:
        node = spot.node
        if not isinstance(node, ast.Call) or len(node.args) < 2 or node.lineno != node.end_lineno:
            return ()
        first, second = node.args[0], node.args[1]
        if any(isinstance(each, ast.Starred) for each in (first, second)):
            return ()
        texts = spot.source.text(first), spot.source.text(second)
        rest = [spot.source.text(each) for each in node.args[2:]]
        rest += [spot.source.text(each) for each in node.keywords]
        whole = ", ".join([texts[1], texts[0], *rest])
        return (spot.source.replaced(node, f"{spot.source.text(node.func)}({whole})"),)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        label = torch.tensor([[0.0], [1.0], [1.0]])
        prediction = torch.sigmoid(net(torch.randn(3, 4)))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(label, prediction)
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        label = torch.tensor([[0.0], [1.0], [1.0]])
        prediction = net(torch.randn(3, 4))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(prediction, label)
        loss.backward()


def _only_labels(target: Tensor) -> bool:
    """Whether a target is itself only zeros and ones."""
    return target.dtype == torch.bool or bool(((target == 0) | (target == 1)).all().item())
