"""PBA306: classes brought to dimension 1 by view, which scrambles them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

KEEPS = frozenset({"clone", "contiguous", "float", "double", "to", "log_softmax", "softmax"})


class ScrambledClasses(Fault):
    """``view`` and ``reshape`` do not swap dimensions: they cut the same row of numbers into other pieces.

    ``cross_entropy`` wants the classes in dimension 1: (N, classes, length). A ``view`` of (N, length, classes) to that
    shape runs, but each column of it is a mixture of the scores of several positions: the loss compares nothing that
    belongs together, and the net learns only the frequencies of the classes.

    Swap the dimensions, ``logits.transpose(1, 2)``, or flatten both: ``cross_entropy(logits.reshape(-1, classes),
    target.reshape(-1))``. ``contiguous()`` before the ``view`` changes nothing about it.
    """

    code = "PBA306"
    title = "The classes were brought to dimension 1 by view or reshape, which mixes the scores of several positions."
    hears = frozenset({"cross_entropy", "nll_loss"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if call.spot is None or not isinstance(given, Tensor) or given.dim() < 2 or inside_functorch():
            return
        if not given.requires_grad:
            return
        value = audit.tape.value_of(given)
        maker = _reshaped(value) if value is not None else None
        if maker is None or maker.spot is None:
            return
        if given.dim() == 2:
            audit.report(self._flat(audit, call, maker, given))
            return
        audit.report(self._finding(audit, call, maker, given))

    def _finding(self, audit: Audit, call: Call, maker: Call, given: Tensor) -> Diagnosis:
        assert call.spot is not None
        assert maker.spot is not None
        before, after = maker.inputs[0].shape, maker.outputs[0].shape
        last = len(before) - 1
        turn = ("transpose(1, 2)") if last == 2 else f"movedim({last}, 1)"
        node = maker.spot.node
        edits: tuple[Edit, ...] = ()
        code = f"logits.{turn}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.lineno == node.end_lineno:
            library = ast.unparse(node.func.value) == "torch"
            inner = (node.args[0] if node.args else None) if library else node.func.value
            if inner is not None:
                code = f"{maker.spot.source.text(inner)}.{turn}"
                edits = (maker.spot.source.replaced(node, code),)
        return self.found(
            say(
                "{operation} made {after} of {before}: it does not swap dimensions, but cuts the same numbers into "
                "other pieces. The scores of a position are no longer in one column, and the loss compares numbers "
                "that do not belong together.",
                operation=maker.name, after=after, before=before,
            ),
            [
                maker.spot.mark(say("the numbers are cut into other pieces here")),
                call.spot.mark(say("the classes are expected in dimension 1 here")),
            ],
            Fix(say("Swap the dimensions instead."), code, edits, "high" if edits else "medium"),
            tensors=[audit.subject(given, "input", "the input")],
        )  # fmt: skip

    def _flat(self, audit: Audit, call: Call, maker: Call, given: Tensor) -> Diagnosis:
        """The classes were in dimension 1, and became the last by a view."""
        assert call.spot is not None
        assert maker.spot is not None
        before, after = maker.inputs[0].shape, maker.outputs[0].shape
        node, source = maker.spot.node, maker.spot.source
        turn = "transpose(1, 2)" if len(before) == 3 else "movedim(1, -1)"
        edits: tuple[Edit, ...] = ()
        code = f"logits.{turn}.reshape(-1, {after[1]})"
        own = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.lineno == node.end_lineno
        if own and ast.unparse(node.func.value) != "torch":  # type: ignore[union-attr]
            sizes = ", ".join(source.text(each) for each in node.args)  # type: ignore[union-attr]
            code = f"{source.text(node.func.value)}.{turn}.reshape({sizes})"  # type: ignore[union-attr]
            edits = (source.replaced(node, code),)  # type: ignore[arg-type]
        return self.found(
            say(
                "{operation} made {after} of {before}, where the classes are dimension 1: it cuts the same numbers "
                "into other pieces. A row holds numbers of several positions, and the loss takes them for one.",
                operation=maker.name, after=after, before=before,
            ),
            [
                maker.spot.mark(say("the numbers are cut into other pieces here")),
                call.spot.mark(say("the scores of one position are expected in a row here")),
            ],
            Fix(say("Bring the classes to the end first."), code, edits, "high" if edits else "medium"),
            tensors=[audit.subject(given, "input", "the input")],
            title=say("Logits with the classes in dimension 1 were flattened by view or reshape, which mixes them."),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        tags = torch.nn.Linear(6, 4)
        scores = tags(torch.randn(2, 5, 6))
        labels = torch.randint(0, 4, (2, 5))
        torch.nn.CrossEntropyLoss()(scores.reshape(2, 4, 5), labels).backward()

    @staticmethod
    def good():
        import torch

        tags = torch.nn.Linear(6, 4)
        scores = tags(torch.randn(2, 5, 6))
        labels = torch.randint(0, 4, (2, 5))
        torch.nn.CrossEntropyLoss()(scores.permute(0, 2, 1), labels).backward()


def _reshaped(value: Value) -> Call | None:
    """The view that moved the last dimension to place 1, as its shapes say, if one did."""
    call = value.maker
    for _ in range(5):
        if call is None or not call.inputs or not call.outputs:
            return None
        if call.name in {"view", "reshape"}:
            before, after = call.inputs[0].shape, call.outputs[0].shape
            if len(after) == 2:
                return call if _mixed(before, after) else None
            moved = (before[0], before[-1], *before[1:-1]) if len(before) > 2 else before
            # equal lengths would tell nothing, and a dimension of size 1 is not mixed with another
            if after == moved and before != after and sum(size > 1 for size in before[1:]) > 1:
                return call
            return None
        if call.name not in KEEPS:
            return None
        call = call.inputs[0].maker
    return None


def _mixed(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether (N, C, ...) became (..., C), where the last dimensions cannot be the classes."""
    count, last, inner = after[1], 1, set()
    for size in reversed(before):
        last *= size
        inner.add(last)
    return len(before) > 2 and before[1] == count > 1 and count not in inner
