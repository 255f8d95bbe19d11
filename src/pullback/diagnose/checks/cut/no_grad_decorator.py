"""PB202: the forward pass ran in a function under @torch.no_grad()."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class NoGradDecorator(RootWithoutGraph):
    """The forward pass ran in a function that is decorated with ``@torch.no_grad()``, so no graph was recorded.

    The decorator turns the recording off for the whole function, and for all that it calls. What such a
    function returns does not require grad: an evaluation or validation step is not a loss to train with.
    Generators count too: each of their steps runs with the recording off.

    Take the decorator away, or compute the training loss in a function without one and keep this one for
    evaluation. ``loss.requires_grad = True`` silences the error, but the parameters then never get a gradient.
    """

    code = "PB202"
    title = "The forward pass ran in a function decorated with torch.no_grad(), so the root has no graph."
    kinds = ("decorator_no_grad", "decorator_set_grad")

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        scope = cut.body.scope if cut.region is None else cut.region[2].scope
        return say(
            "{function} is decorated so that nothing in it is recorded; {text} (line {line}) ran in it, so "
            "{root} has no "
            "graph.",
            function=f"{scope.name}()" if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else "<lambda>",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this ran without being recorded")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        edits: tuple[Edit, ...] = ()
        if cut.region is not None:
            node = cut.region[1]
            assert isinstance(node, ast.expr)
            edits = (Edit(cut.region[2].source.file, node.lineno, node.end_lineno or node.lineno, None),)
        return fix_of(
            cut,
            say("Take the decorator away, or compute the loss to train with in a function without it."),
            edits,
            "high" if edits else "medium",
        )

    @staticmethod
    def bad():
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head = torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.head(x)

            @torch.no_grad()
            def validation_step(self, x):
                return self(x).pow(2).mean()

        model = Model()
        model.validation_step(torch.randn(3, 4)).backward()

    @staticmethod
    def good():
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head = torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.head(x)

            def training_step(self, x):
                return self(x).pow(2).mean()

        model = Model()
        model.training_step(torch.randn(3, 4)).backward()
