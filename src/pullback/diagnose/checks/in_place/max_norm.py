"""PB409: an embedding with max_norm, which changes its weight in each forward."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    name_of,
    of_kind,
    sentence,
    subjects,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class MaxNorm(Cause):
    """`nn.Embedding(..., max_norm=...)` rescales the rows that are looked up, in place, in every forward pass.

    If the same weight was used by another operation before (tied weights: `hidden @ emb.weight.T`), what that operation
    kept is changed by the lookup.

    Use a clone of the weight in the other operation, `hidden @ emb.weight.clone().T`, as torch's documentation
    says, or look up first. Without `max_norm` there is no such change.
    """

    code = "PB409"
    title = "An Embedding with max_norm changed its weight in place after another operation had kept that weight."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "max_norm")
        if found is None:
            return None
        module = found.thing[0] if found.thing else say("the embedding")
        name = name_of(found)
        edits = _cloned(case, name)
        marks = all_marks(case, found, say("this lookup rescaled rows of {name} in place", name=name))
        if found.spot is None:
            marks += _lookups(case, module)
        return self.found(
            sentence(found)
            + " "
            + say(
                "{module} has a max_norm: its forward rescales the rows of {name} in place.", module=module, name=name
            ),
            marks,
            Fix(
                say("Use a clone of the weight in the other operation, or look up first."),
                "\n".join((edit.text or "").strip() for edit in edits) or f"{name}.clone()",
                edits,
                "high" if edits and found.certain else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain()],
        )

    @staticmethod
    def bad():
        import torch

        table = torch.nn.Embedding(6, 2, max_norm=0.5)
        hidden = torch.randn(3, 2, requires_grad=True)
        scores = hidden @ table.weight.T
        vectors = table(torch.tensor([0, 3]))
        (scores.sum() + vectors.sum()).backward()

    @staticmethod
    def good():
        import torch

        table = torch.nn.Embedding(6, 2, max_norm=0.5)
        hidden = torch.randn(3, 2, requires_grad=True)
        scores = hidden @ table.weight.clone().T
        vectors = table(torch.tensor([0, 3]))
        (scores.sum() + vectors.sum()).backward()


def _cloned(case: Case, name: str) -> tuple[Edit, ...]:
    """The edits that clone the weight wherever the functions that ran read it."""
    edits: dict[int, Edit] = {}
    for frame in case.frames:
        for node in ast.walk(frame.scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and path_of(node) == name:
                if node.lineno in edits or node.lineno > frame.line:
                    return ()
                edits[node.lineno] = frame.source.replaced(node, f"{name}.clone()")
        if edits:
            return tuple(edits.values())
    return ()


def _lookups(case: Case, module: str) -> list[Mark]:
    """The calls of the embedding in the functions that ran."""
    for frame in reversed(case.frames):
        for node in ast.walk(frame.scope):
            if isinstance(node, ast.Call) and path_of(node.func) == module:
                place = Place(frame.file, node.lineno, frame.place.function)
                return [Mark.at(place, say("this lookup rescaled rows in place"), frame.source.span(node))]
    attribute = module.rpartition(".")[2]
    for source in {frame.file: frame.source for frame in case.frames}.values():
        calls = [
            each
            for each in ast.walk(source.tree)
            if isinstance(each, ast.Call) and path_of(each.func) == f"self.{attribute}"
        ]
        if len(calls) == 1:  # in a method that has returned since
            place = Place(source.file, calls[0].lineno, "")
            return [Mark.at(place, say("this lookup rescaled rows in place"), source.span(calls[0]))]
    return []
