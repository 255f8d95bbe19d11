"""PBA145: parameters of an optimizer that are cut off from every loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.cuts.cause import without_block
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.lost import (
    CutAt,
    Lost,
    LostParameters,
    behind,
    is_cut,
    leaves_of,
    marked_at,
    switched_off,
)
from pullback.diagnose.evidence.training.samples import is_sample
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say

LAYERS = frozenset({
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "embedding", "bilinear", "matmul",
    "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "einsum", "layer_norm", "batch_norm", "group_norm", "lstm",
    "gru", "multi_head_attention_forward", "mul", "__mul__", "__rmul__", "add", "__add__", "__radd__", "sub", "div",
    "scaled_dot_product_attention", "softmax", "exp", "index_select", "__getitem__",
})  # fmt: skip
NUMBERS = frozenset({"item", "numpy", "tolist", "__float__", "__array__"})
# One number in a formula is told by another check.
SINGLE = frozenset({"item", "__float__"})
COPIES = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
DETACHES = frozenset({"detach", "detach_", "get data"})
# Who takes a number to show or to keep it.
SHOWS = frozenset({
    "print", "append", "format", "info", "debug", "warning", "write", "log", "add_scalar", "add_scalars",
    "add_histogram", "set_postfix", "set_description", "update", "extend", "round", "savetxt", "save", "dump", "plot",
    "hist", "imshow", "scatter", "isfinite", "isnan", "allclose", "str", "len",
})  # fmt: skip


class CutOff(Fault):
    """An optimizer steps parameters that get no gradient, because the program cuts them off from the loss.

    The parameters are used in the forward pass, but under ``torch.no_grad()``, through ``.detach()``, ``.data``,
    ``.numpy()``, ``.item()`` or ``torch.tensor(x)``. What comes of that is a constant. As long as something else behind
    the loss requires grad, ``backward()`` runs without an error, ``.grad`` of these parameters stays ``None``, and
    ``optimizer.step()`` passes over them.

    Use the tensors themselves, without the cut. If the parameters are to stay as they are, a frozen backbone say,
    nothing is wrong with the result, but the optimizer does nothing with them: leave them out of it, and say
    ``requires_grad_(False)``. More steps, another learning rate or ``retain_graph=True`` do not help.
    """

    code = "PBA145"
    title = "Parameters that the optimizer steps never get a gradient: they are cut off from the loss."
    hears = LAYERS

    def __init__(self) -> None:
        self._lost = LostParameters(_cuts)
        self._last = -1

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if not call.grad:
            self._lost.hears(call)

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._lost.passes_now(audit, backward)
        if missing := self._lost.missing(audit):
            self._as_numbers(audit, missing)
        self._last = audit.tape.calls[-1].number if audit.tape.calls else -1

    def before_step(self, audit: Audit, step: Step) -> None:
        self._lost.steps_now(step)

    def at_end(self, audit: Audit) -> None:
        if audit.reported("PBA106") or audit.reported("PBA133"):  # the root is cut off; another module is meant
            return
        told = {(each.marks[0].place.file, each.marks[0].place.line) for each in audit.findings if each.marks}
        for lost in self._lost.at_end(audit):
            if (lost.cut.spot.file, lost.cut.spot.line) not in told:
                audit.report(self._finding(lost))

    def _as_numbers(self, audit: Audit, missing: dict[int, Tensor]) -> None:
        """Look for parameters that left torch as numbers since the pass before."""
        for call in reversed(audit.tape.calls):
            if call.number <= self._last:
                break
            if not call.escaped or call.name not in NUMBERS or call.spot is None or not is_used(call.spot):
                continue
            found = dict.fromkeys(leaves_of(list(call.inputs)), call) if call.name not in SINGLE else {}
            for earlier in behind(audit.tape, list(call.inputs)):
                if is_cut(earlier) and earlier.spot is not None:
                    found.update(dict.fromkeys(leaves_of(list(earlier.inputs)), earlier))
            for key, where in found.items():
                if key in missing and where.spot is not None:
                    cut = CutAt(where.name, where.spot, not where.grad, direct=False, number=True)
                    self._lost.note(audit, missing.pop(key), cut)

    def _finding(self, lost: Lost) -> Diagnosis:
        cut = lost.cut
        region = switched_off(cut) if cut.off and cut.name not in COPIES | DETACHES | NUMBERS else None
        marks: list[Mark] = []
        if region is not None:
            marks.append(marked_at(*region, say("nothing is recorded from here")))
        what = say("the result has no graph") if region is None else say("computed here without a graph")
        marks.append(cut.spot.mark(what))
        if lost.made is not None:
            marks.append(lost.made.mark(say("this optimizer steps them")))
        sure = cut.direct and region is None and cut.name in COPIES | DETACHES
        return self.found(
            say(
                "{names}: the optimizer steps these, and they require grad, but on their way to the loss {operation} "
                "drops the graph. Their .grad is None, and step() does nothing with them.",
                names=lost.names,
                operation=self._operation(cut, region),
            ),
            marks,
            self._fix(cut, region),
            tensors=lost.subjects[:4],
            confidence="high" if sure else "medium",
            notes=[
                say("If they are meant to be frozen, leave them out of the optimizer and say requires_grad_(False).")
            ],
            useless=[say("requires_grad = True on them: they have it, it is the graph that is missing")],
        )

    @staticmethod
    def _operation(cut: CutAt, region: tuple[Spot, ast.AST] | None) -> str:
        if region is not None:
            spot, node = region
            return spot.source.text(node.items[0].context_expr if isinstance(node, ast.With | ast.AsyncWith) else node)
        return " ".join(cut.spot.text.split())

    @staticmethod
    def _fix(cut: CutAt, region: tuple[Spot, ast.AST] | None) -> Fix:
        edits: tuple[Edit, ...] = ()
        if cut.number:
            return Fix(say("Compute it with torch's functions, from the tensor itself."))
        if region is not None:
            spot, node = region
            if isinstance(node, ast.With):
                edits = without_block(spot.source, node)
            text = say("Compute it where the graph is recorded.")
            return Fix(text, spot.source.code(*edits), edits, "medium")
        written, source = cut.spot.node, cut.spot.source
        if isinstance(written, ast.Call) and isinstance(written.func, ast.Attribute) and cut.name == "detach":
            edits = (source.replaced(written, source.text(written.func.value)),) if not written.args else ()
        elif isinstance(written, ast.Attribute) and cut.name == "get data":
            edits = (source.replaced(written, source.text(written.value)),)
        elif isinstance(written, ast.Call) and cut.name in COPIES and len(written.args) == 1 and not written.keywords:
            given = written.args[0]
            text = source.text(given)
            if cut.operands > 1:
                edits = (source.replaced(written, f"torch.stack({text})"),)
            elif isinstance(given, ast.Name | ast.Attribute):
                edits = (source.replaced(written, f"{text}.clone()"),)
        text = say("Use the tensor itself, so that the graph goes on.")
        return Fix(text, source.code(*edits), edits, "medium")

    @staticmethod
    def bad():
        import torch

        body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(3):
            features = torch.tanh(body(torch.randn(6, 4)))
            loss = head(features.detach()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(3):
            features = torch.tanh(body(torch.randn(6, 4)))
            loss = head(features).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _cuts(audit: Audit, call: Call) -> bool:
    return is_cut(call) and call.spot is not None and not is_sample(call.spot)


def is_used(spot: Spot) -> bool:
    """Whether a number that was taken from a tensor is computed with: not shown or kept."""
    node = spot.node
    if node is None:
        return False
    for each in _around(spot, node):
        if isinstance(each, ast.JoinedStr | ast.FormattedValue | ast.Assert | ast.Dict | ast.Compare | ast.AugAssign):
            return False
        if isinstance(each, ast.Call) and each is not node:
            name = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if name in SHOWS:
                return False
        if isinstance(each, ast.Assign) and any(isinstance(target, ast.Subscript) for target in each.targets):
            return False
        if isinstance(each, ast.stmt):
            return isinstance(each, ast.Assign | ast.AnnAssign | ast.Return)
    return False


def _around(spot: Spot, node: ast.AST) -> Iterator[ast.AST]:
    yield from spot.source.around(node)
