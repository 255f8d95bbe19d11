"""PBA104: a root whose graph contains an earlier root."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import assignments, key_of, own_line, root_numbers
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class CountedAgain(Fault):
    """A backward pass went again through a loss that had been differentiated before, so its gradient was added twice.

    In a loop of ``total = total + loss; total.backward(retain_graph=True)`` the first loss is differentiated in every
    pass: after ``n`` passes it counts ``n`` times. Without ``retain_graph=True`` the second pass would have raised
    "Trying to backward through the graph a second time"; the option only silences that. Time grows with the square of
    the number of terms, and no graph is freed.

    Run ``backward()`` on each term by itself (its gradients add up in ``.grad``), or once on the total after the loop.
    Keep a total for printing as a number: ``total += loss.item()``.
    """

    code = "PBA104"
    title = "A loss that had been differentiated before was differentiated again as a part of a sum."

    def __init__(self) -> None:
        self._roots: dict[int, Spot | None] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        spot = backward.spot
        if not backward.record.accumulates or not backward.had_grad or not self._roots or spot is None:
            return
        mine = set(root_numbers(backward))
        for node in backward.nodes:
            number = node._sequence_nr()
            if number in mine or number not in self._roots:
                continue
            first = self._roots[number]
            if first is None:
                continue
            edits = self._edits(spot) if key_of(first) == key_of(spot) else ()
            marks = [spot.mark(say("goes through an earlier root again"))]
            if key_of(first) != key_of(spot):
                marks.append(first.mark(say("this had been the root of a pass before")))
            audit.report(
                self.found(
                    say(
                        "The graph of this pass contains the root of an earlier one, whose gradients are in .grad "
                        "already: they are added once more."
                    ),
                    marks,
                    Fix(
                        say("Differentiate each term once: by itself, or all of them in one pass after the loop."),
                        spot.source.code(*edits) or "loss.backward()\ntotal += loss.item()",
                        edits,
                        "high" if edits else "medium",
                    ),
                    useless=[say("retain_graph=True: it only silences the error that would have told of this")],
                )
            )
            return

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.accumulates:
            if len(self._roots) > 10_000:
                self._roots.clear()
            self._roots.update(dict.fromkeys(root_numbers(backward), backward.spot))

    @staticmethod
    def _edits(spot: Spot) -> tuple[Edit, ...]:
        """``total = total + x`` and ``total.backward(...)`` become a pass of the term alone."""
        node, source = spot.node, spot.source
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and spot.statement is not None):
            return ()
        name = source.text(node.func.value)
        made = [each for each in assignments(source, spot.scope, name) if each.lineno < node.lineno]
        if not made or not own_line(source, made[-1]) or not own_line(source, spot.statement):
            return ()
        last = made[-1]
        if isinstance(last, ast.AugAssign) and isinstance(last.op, ast.Add):
            term = source.text(last.value)
        elif isinstance(last, ast.Assign) and isinstance(last.value, ast.BinOp) and isinstance(last.value.op, ast.Add):
            sides = last.value.left, last.value.right
            others = [side for side in sides if source.text(side) != name]
            if len(others) != 1:
                return ()
            term = source.text(others[0])
        else:
            return ()
        own = "term" if "term" not in "\n".join(source.lines) else "new_term"
        return (
            source.replaced(last, f"{own} = {term}"),
            source.replaced(spot.statement, f"{own}.backward()"),
            source.inserted_after(spot.statement, f"{name} = {name} + {own}.detach()"),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        total = 0
        for _ in range(3):
            total = total + net(torch.randn(8, 4)).square().mean()
            total.backward(retain_graph=True)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        total = 0
        for _ in range(3):
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            total = total + loss.item()
