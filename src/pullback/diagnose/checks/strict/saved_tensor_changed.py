"""PBA901: a saved tensor was changed behind autograd's back."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Frame, Spot
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.recorders.checksums import Checksums, Noted, Sum
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Confidence, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

# So many writes and exports are remembered.
WRITES = 1 << 12
EXPORTS = frozenset({"numpy", "__array__", "__dlpack__", "to_dlpack"})


class SavedTensorChanged(Fault):
    """A tensor that a node had kept for its backward was changed before the backward ran, and torch cannot know.

    torch counts the in-place operations on a tensor and refuses a backward whose saved tensors were changed. The count
    is not kept for what is changed through ``.data``, through numpy (``x.detach().numpy()[:] = ...``, the array behind
    ``torch.from_numpy``), nor for tensors that a saved-tensors hook packed (``saved_tensors_hooks``, ``save_on_cpu`` on
    CPU tensors). The gradient is then computed with the new values, without a word.

    * numpy: copy, ``x.detach().numpy().copy()``, ``torch.tensor(buffer)`` instead of ``torch.from_numpy(buffer)``.
    * hooks: pack a copy, ``lambda t: t.clone()``, or do not edit in place.
    * ``.data``: call backward first, or write out of place.

    ``retain_graph``, ``detach()`` and ``no_grad`` do not copy anything.
    Only the strict level looks for this: it reads the bytes of every saved tensor twice.
    """

    code = "PBA901"
    title = "A tensor saved for backward was changed in a way that autograd does not see."
    level = "strict"
    hears = frozenset({"*"})

    def __init__(self) -> None:
        self._sums = Checksums()
        self._writes: deque[tuple[int, int, Spot | None, str]] = deque(maxlen=WRITES)

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if audit.level != "strict":
            return
        if call.writes or call.name in EXPORTS:
            for value in [each for each, _, _ in call.writes] or call.inputs:
                tensor = value.tensor()
                if tensor is not None and (address := _address(tensor)):
                    self._writes.append((address, call.number, call.spot, call.name))
        if call.grad:
            given = [each for value in (*call.inputs, *call.outputs) if (each := value.tensor()) is not None]
            self._sums.note([each.grad_fn for each in given if each.requires_grad], call.spot, call.number)

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if audit.level != "strict":
            return
        for noted, old, tensor in self._sums.changed(backward.nodes):
            self._tell(audit, backward, noted, old, tensor)

    def _tell(self, audit: Audit, backward: Backward, noted: Noted, old: Sum, tensor: Tensor) -> None:
        writer = self._writer(tensor, noted)
        array = None if writer is not None and writer[1] not in EXPORTS else _array(audit, tensor)
        name = audit.name_of(tensor, "")
        mark, fix = _from_writer(writer, name) if writer is not None else (None, Fix(""))
        if array is not None:
            found = _array_written(array, noted, backward)
            mark = found or mark or Mark.at(array[1].place, say("{name} shares its memory", name=array[0]))
            if writer is None:
                fix = _from_array(array)
        marks = [mark] if mark is not None else []
        if noted.spot is not None:
            marks.append(noted.spot.mark(say("it was saved here, by {node}", node=noted.name)))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("backward uses the new values here")))
        shown = name or (say("the memory of {array}", array=array[0]) if array is not None else say("a saved tensor"))
        audit.report(
            self.found(
                say(
                    "{name} ({shape}) was saved by {node} for its backward and has other values now. {why}",
                    name=shown, shape=tuple(tensor.shape), node=noted.name,
                    why=say("A saved-tensors hook packed it, which switches off torch's check.") if old.packed
                    else say("Its version did not change: it was edited through .data, numpy or other shared memory."),
                ),
                marks,
                fix if fix.text else Fix(say("Copy before editing, or call backward first.")),
                tensors=[audit.subject(tensor, "saved", shown)],
                useless=[say("retain_graph=True or detach(): neither copies.")],
            )
        )  # fmt: skip

    def _writer(self, tensor: Tensor, noted: Noted) -> tuple[Spot, str] | None:
        """The last write to this memory after it was saved; else where it was handed to numpy."""
        address = _address(tensor)
        mine = [each for each in self._writes if each[0] == address and each[2] is not None]
        for _, number, spot, name in reversed(mine):
            if name not in EXPORTS and number > noted.call and spot is not None:
                return spot, name
        for _, _, spot, name in reversed(mine):
            if name in EXPORTS and spot is not None:
                return spot, name
        return None

    @staticmethod
    def bad():
        import torch

        a = torch.tensor([3.0], requires_grad=True)
        b = a * 2
        c = b.square()
        b.data.add_(1)
        c.backward()
        print(a.grad)

    @staticmethod
    def good():
        import torch

        a = torch.tensor([3.0], requires_grad=True)
        b = a * 2
        c = b.square()
        c.backward()
        b = b.detach() + 1
        print(a.grad, b)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _from_writer(writer: tuple[Spot, str], name: str) -> tuple[Mark, Fix]:
    """The line that wrote, or that handed the memory to numpy, and what to write instead."""
    spot, call = writer
    node, source = spot.node, spot.source
    if call in EXPORTS:
        edits = (source.replaced(node, f"{source.text(node)}.copy()"),) if isinstance(node, ast.Call) else ()
        text = say("Copy the array: what is written to it then no longer changes the tensor.")
        return spot.mark(say("its memory is handed to numpy here")), _fix(text, edits, "medium")
    return spot.mark(say("changed here")), _fix(
        say("Write out of place, or call backward first."), *_out_of_place(spot)
    )


def _fix(text: str, edits: tuple[Edit, ...], confidence: Confidence) -> Fix:
    return Fix(text, "\n".join(each.text.strip() for each in edits if each.text), edits, confidence)


def _out_of_place(spot: Spot) -> tuple[tuple[Edit, ...], Confidence]:
    """``h.mul_(5)`` as ``h = h.mul(5)``, where it is a statement of its own."""
    node, statement, source = spot.node, spot.statement, spot.source
    if not isinstance(statement, ast.Expr) or statement.value is not node or not isinstance(node, ast.Call):
        return (), "medium"
    if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
        return (), "medium"
    name, method = node.func.value.id, node.func.attr
    if not method.endswith("_") or method.endswith("__"):
        return (), "medium"
    rest = source.text(node)[len(source.text(node.func)) :]
    return (source.replaced(statement, f"{name} = {name}.{method[:-1]}{rest}"),), "high"


def _array(audit: Audit, tensor: Tensor) -> tuple[str, Frame] | None:
    """The user's numpy array that is this memory, with the frame that holds it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    first = tensor.data_ptr()
    for frame in audit.frames():
        for name, thing in {**frame.module, **frame.local}.items():
            if type(thing) is numpy.ndarray and thing.nbytes:
                start = thing.__array_interface__["data"][0]
                if start <= first < start + thing.nbytes:
                    return name, frame
    return None


def _array_written(array: tuple[str, Frame], noted: Noted, backward: Backward) -> Mark | None:
    """Where the array is written, between the line that saved it and the one that asks for the backward."""
    name, frame = array
    source = frame.source
    lines = [
        spot.line if spot is not None and spot.file == frame.file else None for spot in (noted.spot, backward.spot)
    ]
    found = list(_stores(source, frame.scope, name))
    between = [each for each in found if (lines[0] or 0) <= each.lineno <= (lines[1] or sys.maxsize)]
    if not found:
        return None
    chosen = (between or found)[-1]
    return Mark.at(
        Place(frame.file, chosen.lineno, frame.place.function),
        say("{name} is written here", name=name),
        source.span(chosen),
    )


def _stores(source: Source, scope: ast.AST, name: str) -> Iterator[ast.stmt]:
    """The statements that write into an array: ``a[...] = b``, ``a += b``, ``a.fill(0)``, ``np.copyto(a, b)``."""
    for node in ast.walk(scope):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        if any(isinstance(each, ast.Subscript) and source.text(each.value) == name for each in targets):
            yield node  # type: ignore[misc]
        elif isinstance(node, ast.AugAssign) and source.text(node.target) == name:
            yield node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            named = [
                source.text(each) for each in (*call.args, *(each.value for each in call.keywords if each.arg == "out"))
            ]
            method = isinstance(call.func, ast.Attribute) and source.text(call.func.value) == name
            if method or name in named:
                yield node


def _from_array(array: tuple[str, Frame]) -> Fix:
    """``torch.from_numpy(a)`` as ``torch.tensor(a)``."""
    name, frame = array
    source = frame.source
    found = [
        node for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"from_numpy", "as_tensor"} and [source.text(each) for each in node.args] == [name]
    ]  # fmt: skip
    edits = tuple(source.replaced(node, f"{source.text(node.func.value)}.tensor({name})") for node in found[:1]
                  if isinstance(node.func, ast.Attribute))  # fmt: skip
    return _fix(
        say("Copy the array: torch.tensor(...) has memory of its own."), edits, "high" if len(found) == 1 else "medium"
    )
