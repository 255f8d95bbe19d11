"""PB201: the forward pass ran in a block under torch.no_grad()."""

from __future__ import annotations

import ast
import textwrap

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, without_block
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class NoGradBlock(RootWithoutGraph):
    """The forward pass ran in a block under ``torch.no_grad()``, so no graph was recorded.

    Under ``torch.no_grad()`` every operation gives a tensor that does not require grad, whatever went in. What
    is computed from it afterwards has no graph either, and ``backward()`` has nothing to go back through.

    Take the forward pass out of the block and leave in it only what needs no gradient: evaluation, updates of
    parameters by hand, statistics. If just one part is to be left out of the gradient, put only this part into
    the block.

    Setting ``loss.requires_grad = True`` silences the error, but the parameters then never get a gradient.
    """

    code = "PB201"
    title = "The forward pass ran under torch.no_grad(), so the root has no graph."
    kinds = ("no_grad",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        if _yields(cut):
            return say(
                "The block that turns the recording off has a yield in it: what runs between two values of the "
                "generator is not recorded either. {text} (line {line}) ran so, and {root} has no graph.",
                text=cut.text,
                line=cut.node.lineno,
                root=root,
            )
        return say(
            "{text} (line {line}) ran in a block that turns the recording off, so its result does not require "
            "grad, and "
            "neither does {root}, which is computed from it.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this ran without being recorded")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        block = cut.region[1] if cut.region is not None else None
        source = cut.region[2].source if cut.region is not None else cut.source
        edits = without_block(source, block) if isinstance(block, ast.With | ast.AsyncWith) else ()
        if (handed := _yields(cut)) and cut.region is not None and isinstance(block, ast.With | ast.AsyncWith):
            return _leaving_first(cut, source, block, handed)
        whole = {id(each.region[1]) for each in cuts if each.region is not None}
        return fix_of(
            cut,
            say("Run it outside of the block."),
            edits,
            "high" if edits and len(whole) == 1 else "medium",
            cut.source.text(cut.statement) if cut.statement is not None and not edits else "",
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 2)

        def features(x):
            with torch.no_grad():
                h = net(x)
            return h

        loss = features(torch.randn(3, 4)).square().mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 2)

        def features(x):
            return net(x)

        loss = features(torch.randn(3, 4)).square().mean()
        loss.backward()


def _yields(cut: Cut) -> list[ast.Yield]:
    """The yields in the block that turned the recording off."""
    block = cut.region[1] if cut.region is not None else None
    if not isinstance(block, ast.With | ast.AsyncWith):
        return []
    return [each for part in block.body for each in ast.walk(part) if isinstance(each, ast.Yield)]


def _leaving_first(cut: Cut, source: Source, block: ast.With | ast.AsyncWith, handed: list[ast.Yield]) -> Fix:
    """The cure for a yield in the block: leave the block before it."""
    text = say("Leave the block before each yield.")
    context = source.text(block.items[0].context_expr)
    statement = source.statement(handed[0])
    value = handed[0].value
    if len(handed) > 1 or not isinstance(statement, ast.Expr) or statement.value is not handed[0] or value is None:
        return Fix(text, f"with {context}:\n    item = ...\nyield item")
    (whole,) = without_block(source, block) or (None,)
    code = f"with {context}:\n    item = {source.text(value)}\nyield item"
    if whole is None or whole.text is None or whole.text.count(source.text(statement)) != 1:
        return Fix(text, code)
    line = next(each for each in whole.text.split("\n") if source.text(statement) in each)
    indent = line[: len(line) - len(line.lstrip())]
    edit = Edit(whole.file, whole.first, whole.last, whole.text.replace(line, textwrap.indent(code, indent)))
    return Fix(text, code, (edit,), "high" if cut.sure else "medium")
