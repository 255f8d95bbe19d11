"""PB223: the loss of an optimizer was computed outside of its closure."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.slices import definitions
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class LossOutsideClosure(RootWithoutGraph):
    """The closure of an optimizer differentiates a loss that was computed outside of it, without a graph.

    ``optimizer.step(closure)`` of LBFGS calls the closure several times, each time with other parameters: the
    closure has to clear the gradients, compute the loss anew, call ``backward()`` and return the loss. A loss
    from outside belongs to the old parameters, and its graph serves one pass at best; computed under
    ``no_grad`` it has none.

    Move the forward pass into the closure. The step turns recording on for the closure by itself.
    ``retain_graph=True`` would make a loss from outside run, with the same gradient at each call.
    """

    code = "PB223"
    title = "The closure of an optimizer differentiates a loss that was computed outside of it, without a graph."
    kinds = ("closure",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{root} is not computed in the closure: {text} (line {line}) made it before, with the recording off. The "
            "optimizer calls the closure to have it computed anew.",
            root=root,
            text=cut.text,
            line=cut.node.lineno,
        )

    def what(self, cut: Cut) -> str:
        return say("computed outside of the closure, without being recorded")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Compute the loss in the closure, before backward().")
        statement = self._made(case)
        if statement is None or case.site is None or case.site.statement is None:
            return Fix(text)
        source = case.site.source
        new = source.text(statement)
        edits: tuple[Edit, ...] = (source.inserted_before(case.site.statement, new),)
        alone = all(each.statement is statement for each in cuts) and not isinstance(statement, ast.With)
        return fix_of(cut, text, edits if alone else (), "high" if alone else "medium", new)

    @staticmethod
    def _made(case: Case) -> ast.stmt | None:
        """The statement that makes the root, in the file of the closure."""
        root = found_in(case).root
        if root is None or not isinstance(root.node, ast.Name):
            return None
        parts = definitions(root.node, root.body)
        if len(parts) != 1 or parts[0].body.source is not root.body.source:
            return None
        return parts[0].statement

    @staticmethod
    def bad():
        import torch

        w = torch.zeros(2, requires_grad=True)
        x, y = torch.randn(6, 2), torch.randn(6)
        optimizer = torch.optim.LBFGS([w], max_iter=3)

        def fit():
            with torch.no_grad():
                value = (x @ w - y).pow(2).mean()

            def closure():
                optimizer.zero_grad()
                value.backward()
                return value

            optimizer.step(closure)

        fit()

    @staticmethod
    def good():
        import torch

        w = torch.zeros(2, requires_grad=True)
        x, y = torch.randn(6, 2), torch.randn(6)
        optimizer = torch.optim.LBFGS([w], max_iter=3)

        def fit():
            def closure():
                optimizer.zero_grad()
                value = (x @ w - y).pow(2).mean()
                value.backward()
                return value

            optimizer.step(closure)

        fit()
