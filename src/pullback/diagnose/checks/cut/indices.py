"""PB213: indices (argmax, topk, sort) on the way to the root."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, name_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class Indices(RootWithoutGraph):
    """Indices are on the only way to the root: the result of ``argmax``, ``argsort``, ``topk`` or ``multinomial``.

    An index is an integer that jumps: there is no gradient of ``argmax``. ``x.max(1)``, ``x.sort()`` and
    ``x.topk(k)`` give values, which have a gradient, and indices, which have none.

    Train with something smooth instead: the cross entropy of the scores rather than the predicted class,
    ``softmax`` or ``torch.nn.functional.gumbel_softmax(scores, hard=True)`` for a choice that has to be made,
    or a score-function estimator (REINFORCE) with the ``log_prob`` of the choice. Use the argmax for the
    accuracy only.
    """

    code = "PB213"
    title = "Indices are on the only way to the root, and an index has no gradient."
    kinds = ("index",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) gives indices, whole numbers that jump: no gradient goes through them, and all "
            "of {root} "
            "comes from them.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("indices from here on")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        name = name_of(cut.operand)
        return Fix(
            say("Train with the scores, or make the choice with gumbel_softmax."),
            f"choice = torch.nn.functional.gumbel_softmax({name}, hard=True)    # one-hot, with a gradient",
            (),
            "medium",
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 3)
        scores = net(torch.randn(8, 4))
        _, predicted = scores.max(1)
        wrong = (predicted - torch.randint(3, (8,))).abs().float()
        wrong.mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 3)
        scores = net(torch.randn(8, 4))
        loss = torch.nn.functional.cross_entropy(scores, torch.randint(3, (8,)))
        loss.backward()
