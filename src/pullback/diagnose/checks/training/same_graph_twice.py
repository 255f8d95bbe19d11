"""PBA105: two passes over one graph that keeps nothing."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import own_line, root_numbers
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class SameGraphTwice(Fault):
    """The same loss was differentiated twice, and its gradient added twice, without an error.

    Torch notices a second pass only by the tensors that the first one has freed. A graph of operations that keep none
    (additions, sums, views) can be walked again, and ``.grad`` is then twice the gradient.

    Call ``backward()`` once for each forward pass. If two passes are meant, compute the loss again, or clear ``.grad``
    in between.
    """

    code = "PBA105"
    title = "The same graph was differentiated twice; torch did not notice, and the gradients are doubled."

    def __init__(self) -> None:
        self._roots: dict[tuple[int, int], Spot | None] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        spot = backward.spot
        if not backward.record.accumulates or not backward.had_grad or spot is None or _is_tried(spot):
            return
        for number in root_numbers(backward):
            first = self._roots.get((backward.record.thread, number))
            if first is None:
                continue
            statement = spot.statement
            edits: tuple[Edit, ...] = ()
            if statement is not None and own_line(spot.source, statement) and first.line != spot.line:
                edits = (Edit(spot.file, statement.lineno, statement.end_lineno or statement.lineno, None),)
            audit.report(
                self.found(
                    say(
                        "This graph keeps no tensors that a pass would free, so a second pass runs and adds the same "
                        "again."
                    ),
                    [spot.mark(say("differentiated again here")), first.mark(say("differentiated here before"))],
                    Fix(say("Leave the second pass out, or compute the loss again."), "", edits, "medium"),
                )
            )

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.accumulates and not backward.record.retain_graph:
            if len(self._roots) > 10_000:
                self._roots.clear()
            for number in root_numbers(backward):
                self._roots[backward.record.thread, number] = backward.spot

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(2, 2, requires_grad=True)
        loss = (w.t() + 3).sum()
        loss.backward()
        loss.backward()

    @staticmethod
    def good():
        import torch

        w = torch.zeros(2, 2, requires_grad=True)
        loss = (w.t() + 3).sum()
        loss.backward()


def _is_tried(spot: Spot) -> bool:
    """Whether the program expects that it may fail."""
    node = spot.node or spot.statement
    return node is not None and any(isinstance(each, ast.Try) for each in spot.source.around(node))
