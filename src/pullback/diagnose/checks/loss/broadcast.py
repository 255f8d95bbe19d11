"""PBA301: predictions (N, 1) against targets (N,)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import SAME, inside_functorch, made_within, origin
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
DIFFERENCES = frozenset({"sub", "rsub", "__rsub__", "__sub__"})
COMPARISONS = frozenset({"eq", "__eq__", "ne", "__ne__"})
OTHERS = frozenset({"mul", "add", "__mul__", "__add__", "__rmul__", "__radd__", "div", "true_divide"})
# Who writes one of these means the shape that comes of it.
MEANT = frozenset(
    {"unsqueeze", "view", "reshape", "expand", "unflatten", "view_as", "reshape_as", "as_strided", "outer"}
)
PRODUCTS = frozenset({"mul", "__mul__", "__rmul__"})
# One number for each sample, whatever else the program does.
CHOSEN = frozenset({"gather", "cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy"})
GRIDS = frozenset({"linspace", "arange", "logspace"})
SIGNS = SAME | {"neg", "__neg__", "exp", "clamp"}
LAYERS = frozenset({
    "linear", "addmm", "mm", "matmul", "__matmul__", "conv1d", "conv2d", "bilinear", "baddbmm", "bmm", "embedding",
    "lstm",
})  # fmt: skip
CHOICES = frozenset({"argmax", "topk", "max", "round", "gt", "ge", "__gt__", "__ge__"})


class BroadcastLoss(Fault):
    """A difference of shapes (N, 1) and (N,) is an (N, N) matrix of all pairs.

    Predictions of shape (N, 1) minus targets of shape (N,) broadcast to all N² pairs. The mean of their squares runs
    and decreases, but fits the mean of the targets rather than each target. ``F.mse_loss`` and its kin do the same and
    warn; an accuracy ``(pred == target)`` of these shapes counts N² comparisons, and can exceed 100 %.

    Give both the same shape, best where the predictions are made: ``net(x).squeeze(1)``. Plain ``squeeze()`` also
    removes a batch dimension of size 1.
    """

    code = "PBA301"
    title = "Two operands of shapes (N, 1) and (N,) broadcast to a matrix of all pairs."
    hears = LOSSES | DIFFERENCES | COMPARISONS | OTHERS

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or len(call.inputs) < 2 or not isinstance(result, Tensor) or inside_functorch():
            return
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if len(given) != 2 or abs(given[0].dim() - given[1].dim()) != 1:
            return
        first = 0 if given[0].dim() > given[1].dim() else 1
        column, flat = given[first], given[1 - first]
        axis = _extra_axis(column, flat)
        if axis is None or self._meant(call, call.inputs[first], call.inputs[1 - first], result):
            return
        audit.report(self._finding(audit, call, column, flat, first, axis))

    @staticmethod
    def _meant(call: Call, column: Value, flat: Value, result: Tensor) -> bool:
        """Whether someone wants all pairs: distances, kernels, outer products."""
        if call.name in LOSSES:
            return False
        if any(_shaped(value) for value in (column, flat)):
            return True
        learned = made_within(column, LAYERS, 50) is not None
        if call.name in COMPARISONS:
            maker = origin(column)
            return not (learned or (maker is not None and maker.name in CHOICES))
        if not result.requires_grad or _grid(call, column, flat):
            return True
        if call.name in PRODUCTS and learned and _each_sample(flat):
            return False
        if call.name in DIFFERENCES:
            maker = column.maker
            return maker is not None and maker.name in {"sum", "norm", "mean", "linalg_vector_norm"}
        return not learned or flat.requires_grad

    def _finding(self, audit: Audit, call: Call, column: Tensor, flat: Tensor, first: int, axis: int) -> Diagnosis:
        assert call.spot is not None
        written = _operand(call, first)
        text = call.spot.source.text(written) if written is not None else ""
        name = text or audit.name_of(column, "the first")
        atom = written is None or isinstance(written, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        code = f"{name}.squeeze({axis})" if atom else f"({name}).squeeze({axis})"
        edits: tuple[Edit, ...] = ()
        if written is not None and written.lineno == written.end_lineno:
            edits = (call.spot.source.replaced(written, code),)
        marks = [call.spot.mark(say("broadcast here"))]
        maker = origin(call.inputs[first])
        if maker is not None and maker.spot is not None and maker is not call:
            marks.append(maker.spot.mark(say("the operand of shape {shape} is made here", shape=tuple(column.shape))))
        return self.found(
            say(
                "One operand has shape {column}, the other {flat}: they broadcast to {result}, each element of the one "
                "with each of the other.",
                column=tuple(column.shape), flat=tuple(flat.shape),
                result=tuple(torch.broadcast_shapes(column.shape, flat.shape)),
            ),
            marks,
            Fix(say("Give both the same shape."), code, edits, "high" if edits else "medium"),
            tensors=[audit.subject(column, "operand", name), audit.subject(flat, "operand")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x, target = torch.randn(8, 1), torch.randn(8)
        net = torch.nn.Linear(1, 1)
        loss = ((net(x) - target) ** 2).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        x, target = torch.randn(8, 1), torch.randn(8)
        net = torch.nn.Linear(1, 1)
        loss = ((net(x).squeeze(1) - target) ** 2).mean()
        loss.backward()


def _extra_axis(column: Tensor, flat: Tensor) -> int | None:
    """The dimension of size 1 that the one has and the other lacks, if it makes them broadcast to more than either."""
    for axis in range(1, column.dim()):
        if column.shape[axis] == 1 and column.shape[:axis] + column.shape[axis + 1 :] == flat.shape:
            try:
                whole = torch.broadcast_shapes(column.shape, flat.shape)
            except RuntimeError:
                return None
            return axis if whole.numel() > column.numel() else None
    return None


def _grid(call: Call, column: Value, flat: Value) -> bool:
    """Whether the one are points for all of the other: centres that learn, bins, frequencies."""
    if any(value.leaf and value.requires_grad for value in (column, flat)):
        return True
    maker = origin(flat)
    if maker is not None and maker.name in GRIDS:
        return True
    return call.name not in DIFFERENCES and made_within(flat, GRIDS, 20) is not None


def _each_sample(flat: Value) -> bool:
    """Whether these are the log-probabilities of what was chosen for each sample, or the losses of each."""
    maker = origin(flat, SIGNS)
    return maker is not None and maker.name in CHOSEN


def _shaped(value: Value) -> bool:
    """Whether the shape of a value was made by hand."""
    call = value.maker
    for _ in range(20):
        if call is None:
            return False
        if call.name in MEANT or (call.name == "__getitem__" and _new_axis(call)):
            return True
        if call.name not in SAME or not call.inputs:
            return False
        call = call.inputs[0].maker if call.inputs[0].maker is not call else None
    return False


def _new_axis(call: Call) -> bool:
    """Whether an indexing gives a dimension of its own: ``x[:, None]``, ``x[:, 0:1]``; not a slice, ``x[8:16]``."""
    if not call.inputs or not call.outputs:
        return False
    before, after = call.inputs[0].shape, call.outputs[0].shape
    return len(after) > len(before) or (len(after) == len(before) and after.count(1) > before.count(1))


def _operand(call: Call, first: int) -> ast.expr | None:
    """An operand as it is written."""
    node = call.spot.node if call.spot is not None else None
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[first]
    if isinstance(node, ast.Compare) and len(node.comparators) == 1:
        return (node.left, node.comparators[0])[first]
    if isinstance(node, ast.Call) and len(node.args) >= 2 and call.name in LOSSES:
        return node.args[first]
    return None
