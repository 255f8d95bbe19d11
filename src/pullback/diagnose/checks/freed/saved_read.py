"""PB310: what a node saved was read after a backward pass had freed it."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME
from pullback.diagnose.evidence.freed.report import retaining
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SavedRead(Cause):
    """A tensor that a node had saved (`grad_fn._saved_self`) was read after a backward pass had freed it.

    What a node saves for its backward is there from the forward pass until the first `backward()` over the graph. No
    second pass was started here; torch's message speaks of one because the two look the same to it.

    Read it before the backward pass, or keep the graph with `backward(retain_graph=True)`.
    """

    code = "PB310"
    title = "A saved tensor of a node was read after a backward pass had freed it."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.asked is not None or case.site is None:
            return None
        node = case.site.node
        if not isinstance(node, ast.Attribute) or not node.attr.startswith(("_saved_", "saved_")):
            return None
        marks = [case.mark(say("{name} was freed by then", name=node.attr))]
        last = next((each for each in reversed(case.passes) if not each.retain_graph and each.spot is not None), None)
        if last is not None and last.spot is not None:
            marks.append(last.spot.mark(say("this pass freed it")))
        kept = retaining(last.spot) if last is not None else ()
        return self.found(
            say("{text} is kept for the backward pass only, which has been and freed it.", text=case.text(node)),
            marks,
            Fix(
                say("Read it before the backward pass, or let that pass keep the graph."),
                last.spot.source.code(*kept).strip()
                if last is not None and last.spot is not None and kept
                else "loss.backward(retain_graph=True)",
                kept,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        y.sum().backward()
        print(y.grad_fn._saved_result)

    @staticmethod
    def good():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        print(y.grad_fn._saved_result)
        y.sum().backward()
