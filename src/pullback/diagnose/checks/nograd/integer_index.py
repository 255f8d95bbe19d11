"""PBA349: a tensor that should learn, cast to an integer index."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.cuts import Cut, Cuts, marks_of_cut
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch, operand, origin
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

CASTS = frozenset({"long", "int", "short", "to", "type", "argmax", "argmin"})
USES = frozenset({"__getitem__", "embedding", "gather", "index_select", "take", "one_hot", "take_along_dim"})
BETWEEN = SAME | {"clamp", "add", "sub"}


class IntegerIndex(Fault):
    """A tensor that should learn was cast to an integer and used as an index, which has no gradient.

    ``table[position.long()]`` has a gradient for the table, none for the position: integers cannot have one, and the
    cast ends the graph without a word. The same holds for ``argmax``.

    Interpolate between the neighbours, ``(1 - t) * table[low] + t * table[low + 1]`` with ``t = position - low``
    (``grid_sample`` does it for images), or use a soft choice: ``softmax(scores) @ table``.
    """

    code = "PBA349"
    title = "A tensor that requires grad is used only as an integer index: it gets no gradient."
    hears = CASTS | USES

    def __init__(self) -> None:
        self._cuts = Cuts()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if inside_functorch() or call.spot is None or not isinstance(result, Tensor) or not call.inputs:
            return
        if call.name in CASTS:
            if call.inputs[0].requires_grad and not (result.is_floating_point() or result.is_complex()):
                self._cuts.note(audit, call, call.inputs[0])
            return
        if not self._cuts.all:
            return
        for given in call.inputs:
            if given.dtype.is_floating_point:
                continue
            maker = origin(given, BETWEEN)
            cut = self._cuts.all.get(maker.number) if maker is not None else None
            cut = cut or (self._cuts.all.get(given.maker.number) if given.maker is not None else None)
            if cut is not None and cut.used is None:
                cut.used = call.spot

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if self._cuts.all:
            self._cuts.reach(backward)

    def at_end(self, audit: Audit) -> None:
        for cut in self._cuts.all.values():
            if cut.used is None or not self._cuts.passes or not self._cuts.unreached(cut):
                continue
            audit.report(self._chosen(cut) if _written(cut) else self._finding(cut))

    def _finding(self, cut: Cut) -> Diagnosis:
        name = cut.subjects[0].name
        return self.found(
            say(
                "{name} requires grad, is made an integer here and used as an index. Integers have no gradient: "
                "{name} gets none by this way, and there is no other.",
                name=name,
            ),
            marks_of_cut(cut, say("made an integer here: the gradient ends"), say("used as an index here")),
            Fix(
                say("Interpolate between the neighbours, or use a soft choice."),
                f"low = {name}.detach().floor().long()\nt = {name} - low\n"
                "value = (1 - t) * table[low] + t * table[low + 1]",
            ),
            tensors=cut.subjects,
        )

    def _chosen(self, cut: Cut) -> Diagnosis:
        """The place of the largest, used as an index."""
        operation, scores = _written(cut) or ("", "")
        sign = "-" if operation == "argmin" else ""
        return self.found(
            say(
                "{operation} makes integers of {scores}, and integers have no gradient. {name} is behind {scores} and "
                "gets no gradient by this way, and there is no other.",
                operation=operation, scores=scores, name=cut.subjects[0].name,
            ),
            marks_of_cut(cut, say("made an integer here: the gradient ends"), say("used as an index here")),
            Fix(
                say("Weight with a soft choice, or with a hard one that has the gradient of the soft one."),
                f"weights = torch.softmax({sign}{scores}, dim=-1)\n"
                f"# or one-hot: torch.nn.functional.gumbel_softmax({sign}{scores}, hard=True)",
            ),
            tensors=cut.subjects,
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        shift = torch.nn.Parameter(torch.tensor([2.4]))
        kernel = torch.nn.Parameter(torch.randn(6))
        picked = torch.index_select(kernel, 0, shift.round().to(torch.int64))
        picked.pow(2).sum().backward()

    @staticmethod
    def good():
        import torch

        shift = torch.nn.Parameter(torch.tensor([2.4]))
        kernel = torch.nn.Parameter(torch.randn(6))
        low = shift.detach().floor().long()
        t = shift - low
        picked = (1 - t) * kernel[low] + t * kernel[low + 1]
        picked.pow(2).sum().backward()


def _written(cut: Cut) -> tuple[str, str] | None:
    """The choice of the largest or smallest, and the scores that it is made of, as they are written."""
    node = cut.spot.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    given = operand(cut.spot, node)
    if node.func.attr not in {"argmax", "argmin"} or given is None or given.lineno != given.end_lineno:
        return None
    return node.func.attr, cut.spot.source.text(given)
