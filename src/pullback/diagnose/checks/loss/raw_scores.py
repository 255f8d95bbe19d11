"""PBA303: nll_loss of what are no log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, origin
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

LOOKS = 3


class RawScores(Fault):
    """``nll_loss`` expects log-probabilities, and takes whatever it gets.

    It only picks the element of the target and negates it. Of probabilities or logits that is no loss with a minimum:
    with logits it falls without bound, with probabilities it ends at -1 and its gradient is not that of a likelihood.

    Put ``log_softmax`` before it, or use ``cross_entropy``, which is both in one.
    """

    code = "PBA303"
    title = "nll_loss was given numbers that are not log-probabilities."
    hears = frozenset({"nll_loss"})

    def __init__(self) -> None:
        self._looks: dict[tuple[str, int], int] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if call.spot is None or not isinstance(given, Tensor) or not result.requires_grad or inside_functorch():
            return
        key = call.spot.file, call.spot.line
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] > LOOKS or given.dim() < 1:
            return
        total = given.detach().float().logsumexp(1 if given.dim() > 1 else 0)
        largest = float(given.detach().max().item())
        if float(total.abs().max().item()) < 0.05 or (largest <= 0 and float(total.min().item()) < -0.05):
            return  # log-probabilities, perhaps of some of the classes only
        value = audit.tape.value_of(given)
        maker = origin(value) if value is not None else None
        marks = [call.spot.mark(say("log-probabilities are expected here"))]
        if maker is not None and maker.spot is not None:
            marks.append(maker.spot.mark(say("the input is made here")))
        audit.report(
            self.found(
                say(
                    "Log-probabilities are at most 0, and their exponentials sum to 1 for each sample. The input of "
                    "nll_loss reaches {largest:.3g}: it holds probabilities or logits.",
                    largest=largest,
                ),
                marks,
                Fix(
                    say("Use cross_entropy for logits; take the logarithm of probabilities."),
                    "F.cross_entropy(logits, target)    # or: F.nll_loss(torch.log_softmax(logits, 1), target)",
                ),
                tensors=[audit.subject(given, "input", "the input")],
            )
        )

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
