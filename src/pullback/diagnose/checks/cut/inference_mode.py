"""PB204: the forward pass ran under torch.inference_mode()."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, without_block
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class InferenceMode(RootWithoutGraph):
    """The forward pass ran under ``torch.inference_mode()``, so no graph was recorded.

    Inference mode records nothing and makes tensors that can never take part in a graph again; it is for
    predictions only. Run the forward pass of the training outside of it. Where tensors of an inference pass are
    needed as inputs of a training pass, use ``torch.no_grad()`` for them, or ``clone()`` them outside of
    inference mode.

    ``loss.requires_grad = True`` is refused for such tensors outside of inference mode, and mends nothing
    inside.
    """

    code = "PB204"
    title = "The forward pass ran under torch.inference_mode(), so the root has no graph."
    kinds = ("inference", "decorator_inference")

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) ran in inference mode, in which nothing is recorded, so {root} has no graph.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this ran in inference mode")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        edits: tuple[Edit, ...] = ()
        if cut.region is not None:
            source, node = cut.region[2].source, cut.region[1]
            if isinstance(node, ast.With | ast.AsyncWith):
                edits = without_block(source, node)
            elif isinstance(node, ast.expr):
                edits = (Edit(source.file, node.lineno, node.end_lineno or node.lineno, None),)
        return fix_of(cut, say("Run the forward pass outside of inference mode."), edits, "high" if edits else "medium")

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        with torch.inference_mode():
            out = net(torch.randn(3, 4))
            loss = out.mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        out = net(torch.randn(3, 4))
        loss = out.mean()
        loss.backward()
