"""PB211: nothing that the root depends on requires grad."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, root_name, useless
from pullback.diagnose.evidence.cuts.found import Cut, Leaf
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.slices import definitions
from pullback.diagnose.values import Diagnosis, Edit, Fix, Subject
from pullback.language import say


class PlainInputs(RootWithoutGraph):
    """Nothing that the root is computed from requires grad: it is made of plain tensors only.

    Tensors do not require grad unless one asks for it: ``torch.randn(3)`` is data. Only parameters of modules
    (``nn.Parameter``), tensors made with ``requires_grad=True``, and what is computed from these require grad.

    Say which tensor the gradient is wanted by: ``w = torch.zeros(3, requires_grad=True)``, or
    ``x.requires_grad_()`` before it is used. Often the wrong thing was differentiated: the targets, or the
    output of something that is no model. Setting it on the result instead is no cure: nothing behind the result
    has been recorded.
    """

    code = "PB211"
    title = "Nothing that the root is computed from requires grad."

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = found_in(case)
        if found.cuts or found.root is None or found.answer is not False:
            return None
        if any(isinstance(leaf.thing, nn.Module | nn.Parameter) for leaf in found.leaves):
            return None
        leaves = [leaf for leaf in found.leaves if isinstance(leaf.thing, Tensor)]
        root = root_name(case, found)
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += [self._cut(leaf).mark(say("does not require grad")) for leaf in leaves[:3]]
        subjects = [
            Subject.of(leaf.thing, case.name_of(leaf.thing, leaf.body.source.text(leaf.node)), "input")
            for leaf in leaves
        ]
        names = list(dict.fromkeys(leaf.body.source.text(leaf.node) for leaf in leaves))
        return self.found(
            say(
                "{root} is computed from {names} only, and no tensor among them requires grad.",
                root=root,
                names=", ".join(names[:4]),
            )
            if names
            else say("{root} is computed from new tensors only, and none of them requires grad.", root=root),
            marks,
            Fix(
                say("Make the tensor that the gradient is wanted by require grad before it is used."),
                f"{names[0] if names else 'x'}.requires_grad_()",
                self._edits(case, leaves),
                "medium",
            ),
            tensors=subjects[:4],
            confidence="medium" if found.off or not leaves else "high",
            useless=useless(root),
        )

    @staticmethod
    def _cut(leaf: Leaf) -> Cut:
        parts = definitions(leaf.node, leaf.body) if isinstance(leaf.node, ast.Name | ast.Attribute) else []
        if len(parts) == 1 and not parts[0].how:
            return Cut("plain", parts[0].node, parts[0].body)
        return Cut("plain", leaf.node, leaf.body)

    @staticmethod
    def _edits(case: Case, leaves: list[Leaf]) -> tuple[Edit, ...]:
        """Where the gradient is wanted by just one tensor: it is to require grad where it is made."""
        wanted = case.asked.inputs if case.asked is not None and case.asked.inputs else []
        mine = [leaf for leaf in leaves if any(leaf.thing is each for each in wanted)] or leaves
        if len({id(leaf.thing) for leaf in mine}) != 1 or not isinstance(mine[0].node, ast.Name):
            return ()
        parts = definitions(mine[0].node, mine[0].body)
        if len(parts) != 1 or parts[0].statement is None or parts[0].how:
            return ()
        return (parts[0].body.source.inserted_after(parts[0].statement, f"{mine[0].node.id}.requires_grad_()"),)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return ""

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        return Fix("")

    @staticmethod
    def bad():
        import torch

        x = torch.randn(5)
        y = (x * 3).sin().sum()
        y.backward()

    @staticmethod
    def good():
        import torch

        x = torch.randn(5, requires_grad=True)
        y = (x * 3).sin().sum()
        y.backward()
