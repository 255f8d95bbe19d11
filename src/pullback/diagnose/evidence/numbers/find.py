"""What the silent faults of numbers have in common: the call and the leaves behind a value, and a call as text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.tape import Call, Tape, Value
from pullback.diagnose.values import Mark

# Calls that hand the same numbers on, in another shape, dtype or memory.
SAME = frozenset({
    "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute",
    "movedim", "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type_as", "expand", "expand_as",
    "__getitem__", "detach", "requires_grad_", "swapaxes", "t", "mT", "T", "narrow", "select", "chunk", "split",
})  # fmt: skip


def origin(value: Value, through: Iterable[str] = SAME) -> Call | None:
    """The call that computed a value, behind those that only hand it on."""
    here, call = value, value.maker
    for _ in range(50):
        if call is None or call.name not in through or not call.inputs or call.inputs[0] is here:
            return call
        here = call.inputs[0]
        call = here.maker
    return call


def made_within(value: Value, names: Iterable[str], most: int = 200) -> Call | None:
    """The latest call of one of these names that a value came from."""
    for call, _ in zip(before(value), range(most), strict=False):
        if call.name in names:
            return call
    return None


def before(value: Value) -> Iterator[Call]:
    """The calls that a value came from, the latest first, each once."""
    waiting = {value.maker.number: value.maker} if value.maker is not None else {}
    while waiting:
        call = waiting.pop(max(waiting))
        yield call
        for given in call.inputs:
            if given.maker is not None and given.maker.number < call.number:
                waiting[given.maker.number] = given.maker


def leaves_behind(value: Value, most: int = 200) -> list[Value]:
    """The values without a maker that require grad: the leaves that a value came from, through calls with a graph."""
    found: dict[int, Value] = {}
    waiting, seen = [value], 0
    while waiting and seen < most:
        here = waiting.pop()
        seen += 1
        if here.leaf and here.requires_grad:
            found[here.number] = here
        elif here.requires_grad and here.maker is not None:
            waiting += [each for each in here.maker.inputs if each.requires_grad and each is not here]
    return list(found.values())


def scalar(tensor: Tensor) -> float:
    """The one number of a tensor."""
    return float(tensor.detach().item())


def is_ones(tensor: Tensor) -> bool:
    """Whether all is exactly one."""
    return bool((tensor.detach() == 1).all().item()) if tensor.numel() else False


def inside_functorch() -> bool:
    """Whether a transformation of ``torch.func`` runs, whose tensors are wrapped."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def call_at(spot: Spot, *names: str) -> ast.expr | None:
    """The expression at a spot, if it is a call of one of these functions or methods (or an operator: no names)."""
    node = spot.node
    if not names:
        return node
    if isinstance(node, ast.Call):
        func = node.func
        own = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        return node if own in names else None
    return None


def operand(spot: Spot, node: ast.expr | None) -> ast.expr | None:
    """The first tensor of a call as it is written: ``x`` in ``torch.sqrt(x)``, ``x.sqrt()`` and ``x ** 0.5``."""
    if isinstance(node, ast.BinOp):
        return node.left
    if not isinstance(node, ast.Call):
        return None
    func = node.func
    if isinstance(func, ast.Attribute):
        root: ast.expr = func.value
        while isinstance(root, ast.Attribute):
            root = root.value
        library = isinstance(root, ast.Name) and (root.id in {"torch", "F", "nn", "functional"})
        if not library:
            return func.value
    return node.args[0] if node.args else None


def walked(node: ast.AST, wanted: Callable[[ast.AST], bool]) -> ast.AST | None:
    """The first part of a tree that is wanted."""
    return next((each for each in ast.walk(node) if wanted(each)), None)


def call_of(tape: Tape, node: Node | None) -> Call | None:
    """The call that made a node, as far as the tape still has it."""
    return None if node is None else call_numbered(tape, node._sequence_nr())


def call_numbered(tape: Tape, number: int) -> Call | None:
    """The call that made the node with a sequence number."""
    if not 0 <= number < 2**63:
        return None
    for call in reversed(tape.calls):
        # a call that made no node has the number of the next one that does, which comes first here
        if call.sequence <= number and (call.writes or any(value.requires_grad for value in call.outputs)):
            return call
    return None


def mark_of(audit: Audit, node: Node | None, what: str) -> list[Mark]:
    """The line that made a node, with the expression marked if the tape knows it; none if it is not known."""
    call = call_of(audit.tape, node)
    place = audit.line_of(node)
    if call is not None and call.spot is not None and (place is None or place[:2] == call.spot.place[:2]):
        return [call.spot.mark(what)]
    return [Mark.at(place, what)] if place is not None else []
