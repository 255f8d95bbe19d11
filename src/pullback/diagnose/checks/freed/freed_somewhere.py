"""PB349: a freed graph, without the evidence that tells which value led into it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME, cached_by
from pullback.diagnose.evidence.freed.report import earlier_mark, entry_marks, failing_mark, not_retain, of_kind
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class FreedSomewhere(Cause):
    """A backward pass met a graph that an earlier one had freed.

    Some tensor of this computation was made before an earlier `backward()` and is part of this one too: a hidden state
    that was not detached, a value computed once outside the loop, a loss that shares a trunk with another, or the same
    root again. Which of them cannot always be told after the fact: run with `--trace`.

    Whatever it is, make that value anew for each backward pass, or detach it where its history is not wanted.
    """

    code = "PB349"
    title = "A backward pass met a part of its graph that an earlier pass had freed."
    says = SECOND_TIME
    level = "default"

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "unknown")
        if found is None or cached_by(case, found) is not None:
            return None
        made, used = entry_marks(case, found, say("a value of the freed graph"))
        marks = [
            failing_mark(case, found, say("this pass met a freed graph")),
            *made,
            *earlier_mark(found, say("this pass freed it, or a part of it")),
            *used,
        ]
        return self.found(
            say("A value that this pass goes back through was made before an earlier pass, which freed its graph."),
            marks,
            Fix(
                say("Make that value anew before each backward pass, or detach it where its history is not wanted."), ""
            ),
            confidence="medium" if made else "low",
            useless=[not_retain()],
            apart=say("Which value is shared: a state carried over, a value made outside the loop, or a common trunk."),
            wants="" if case.traced else say("Which lines made and used the freed value?"),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)

        def turns():
            value = w.exp()
            while True:
                yield (value * 2).square().sum()

        source = turns()
        for _ in range(2):
            next(source).backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)

        def turns():
            while True:
                value = w.exp()
                yield (value * 2).square().sum()

        source = turns()
        for _ in range(2):
            next(source).backward()
