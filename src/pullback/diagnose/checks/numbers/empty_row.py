"""PBA328: the softmax of a row that is masked as a whole."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import BirthFault, marks_of, names_of, operation_of, subjects_of
from pullback.diagnose.evidence.numbers.find import call_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class EmptyRow(BirthFault):
    """A softmax was taken of a row that is ``-inf`` throughout: all of it was masked, and the result is NaN.

    ``softmax`` divides the exponentials by their sum, which is zero for such a row: 0/0. Even if these rows are left
    out of the loss later, the backward multiplies their zeros by NaN, and what they were to weigh gets NaN.

    Mask with the smallest finite number in place of ``-inf``, ``scores.masked_fill(mask,
    torch.finfo(scores.dtype).min)``; such a row becomes uniform, and can be left out later by ``torch.where`` or by
    an index. Or see to it that each row keeps one position. ``torch.nan_to_num`` behind the softmax mends the value,
    not always the gradient.
    """

    code = "PBA328"
    title = "A gradient is NaN: the softmax was taken of a row that is masked as a whole."
    kinds = frozenset({"empty"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        child = birth.node.next_functions[0][0] if birth.node.next_functions else None
        added = child is None or child.name().startswith("Add")
        marks = marks_of(audit, backward, birth)
        masked = call_of(audit.tape, child)
        if masked is not None and masked.spot is not None:
            marks.insert(1, masked.spot.mark(say("masked here")))
        return self.found(
            say(
                "The result of {operation} is NaN where a whole row of its input is -inf: all its positions are "
                "masked. From there {name} gets a gradient with NaN elements.",
                operation=operation_of(birth.node), name=names_of(audit, birth),
            ),
            marks,
            self._fix(audit, birth),
            tensors=subjects_of(audit, birth),
            confidence="medium" if added else "high",
        )  # fmt: skip

    @staticmethod
    def _fix(audit: Audit, birth: Birth) -> Fix:
        text = say("Mask with the smallest finite number in place of -inf.")
        masked = call_of(audit.tape, birth.node.next_functions[0][0] if birth.node.next_functions else None)
        node = masked.spot.node if masked is not None and masked.spot is not None else None
        if masked is None or masked.spot is None or not isinstance(node, ast.Call) or masked.name != "masked_fill":
            return Fix(text, "scores.masked_fill(mask, torch.finfo(scores.dtype).min)")
        own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "torch"
        source = masked.spot.source
        if not own or len(node.args) != 2 or node.args[1].lineno != node.args[1].end_lineno:
            return Fix(text, "scores.masked_fill(mask, torch.finfo(scores.dtype).min)")
        assert isinstance(node.func, ast.Attribute)
        scores = node.func.value
        dtype = f"{source.text(scores)}.dtype" if isinstance(scores, ast.Name) else "torch.float32"
        edits: tuple[Edit, ...] = (source.replaced(node.args[1], f"torch.finfo({dtype}).min"),)
        return Fix(text, source.code(*edits).strip(), edits, "high" if isinstance(scores, ast.Name) else "medium")

    @staticmethod
    def bad():
        import torch

        query = torch.nn.Linear(4, 4)
        keys = torch.randn(3, 4)
        hidden = torch.tensor([[False, True, False], [True, True, True]])
        scores = query(torch.randn(2, 4)) @ keys.t()
        mask = torch.zeros(2, 3).masked_fill(hidden, float("-inf"))
        weights = (scores + mask).softmax(-1)
        (weights @ keys).sum().backward()

    @staticmethod
    def good():
        import torch

        query = torch.nn.Linear(4, 4)
        keys = torch.randn(3, 4)
        hidden = torch.tensor([[False, True, False], [True, True, True]])
        scores = query(torch.randn(2, 4)) @ keys.t()
        mask = torch.zeros(2, 3).masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = (scores + mask).softmax(-1)
        (weights @ keys).sum().backward()
