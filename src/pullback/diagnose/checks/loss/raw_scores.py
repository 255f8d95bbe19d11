"""PBA303: nll_loss or kl_div of what are no log-probabilities."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, origin
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Confidence, Edit, Fix
from pullback.language import say

LOOKS = 3


class RawScores(Fault):
    """``nll_loss`` and ``kl_div`` expect log-probabilities, and take whatever they get.

    ``nll_loss`` only picks the element of the target and negates it. Of probabilities or logits that is no likelihood:
    with logits it falls without bound, with probabilities it ends at -1, with a gradient that fades where they are
    wrong. ``F.kl_div(input, target)`` wants the logarithms of the probabilities that learn as its first argument (the
    target as probabilities, unless ``log_target=True``).

    Put ``log_softmax`` before it, or, in place of ``nll_loss``, use ``cross_entropy``, which is both in one.
    """

    code = "PBA303"
    title = "nll_loss or kl_div was given numbers that are not log-probabilities."
    hears = frozenset({"nll_loss", "kl_div"})

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int], int] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if call.spot is None or not isinstance(given, Tensor) or not result.requires_grad or inside_functorch():
            return
        if call.name == "kl_div" and not given.requires_grad:
            return
        key = call.spot.file, call.spot.line
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] > LOOKS or given.dim() < 1:
            return
        largest = float(given.detach().max().item())
        if _may_be_logarithms(call.name, given.detach().float(), largest):
            return
        value = audit.tape.value_of(given)
        maker = origin(value) if value is not None else None
        if maker is not None and maker.name == "log_softmax":
            return  # over another dimension than the classes: the concern of PBA304
        marks = [call.spot.mark(say("log-probabilities are expected here"))]
        if maker is not None and maker.spot is not None:
            marks.append(maker.spot.mark(say("the input is made here")))
        audit.report(
            self.found(
                say(
                    "Log-probabilities are at most 0, and their exponentials sum to 1 for each sample. The input of "
                    "{loss} reaches {largest:.3g}: it holds probabilities or logits.",
                    loss=call.name, largest=largest,
                ),
                marks,
                self._fix(call, maker),
                tensors=[audit.subject(given, "input", "the input")],
            )
        )  # fmt: skip

    @staticmethod
    def _fix(call: Call, maker: Call | None) -> Fix:
        edits: tuple[Edit, ...] = ()
        node = maker.spot.node if maker is not None and maker.spot is not None else None
        if maker is not None and maker.spot is not None and maker.name == "softmax" and isinstance(node, ast.Call):
            func = node.func
            one_line = func.lineno == func.end_lineno
            if isinstance(func, ast.Attribute) and func.attr == "softmax" and one_line and maker.spot is not call.spot:
                edits = (maker.spot.source.replaced(func, f"{maker.spot.source.text(func.value)}.log_softmax"),)
        confidence: Confidence = "high" if edits else "medium"
        if call.name == "kl_div":
            text = say("Give it log-probabilities: log_softmax of the logits.")
            code = "F.kl_div(F.log_softmax(logits, dim=1), target, reduction='batchmean')"
        else:
            text = say("Use cross_entropy for logits; take the logarithm of probabilities.")
            code = "F.cross_entropy(logits, target)    # or: F.nll_loss(torch.log_softmax(logits, 1), target)"
        if edits and maker is not None and maker.spot is not None:
            code = maker.spot.source.code(*edits).strip()
        return Fix(text, code, edits, confidence)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(5, 3)
        probability = torch.nn.functional.softmax(net(torch.randn(4, 5)), dim=1)
        torch.nn.NLLLoss()(probability, torch.tensor([0, 2, 1, 1])).backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(5, 3)
        probability = torch.nn.functional.log_softmax(net(torch.randn(4, 5)), dim=1)
        torch.nn.NLLLoss()(probability, torch.tensor([0, 2, 1, 1])).backward()


def _may_be_logarithms(loss: str, given: Tensor, largest: float) -> bool:
    """Whether these may be log-probabilities, perhaps of some of the classes only."""
    if loss == "kl_div":  # which dimension is that of the classes is not known
        return largest <= 1e-3
    total = given.logsumexp(1 if given.dim() > 1 else 0)
    if float(total.abs().max().item()) < 0.05:
        return True
    return largest <= 0 and float(total.min().item()) < -0.05
