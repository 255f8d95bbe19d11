"""What is asked of single things on the way back from a root."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from pullback.diagnose.evidence.cuts import names
from pullback.diagnose.evidence.cuts.found import Answer
from pullback.diagnose.evidence.slices import (
    Body,
    Part,
    called,
    dotted,
    steps_of,
    walk,
)


def holds_grad(thing: Any, depth: int = 0) -> bool:
    """Whether something that is alive requires grad, or has it inside."""
    if isinstance(thing, Tensor):
        return thing.requires_grad
    if depth > 3:
        return False
    if type(thing) in (list, tuple, set):
        return any(holds_grad(each, depth + 1) for each in list(thing)[:1000])
    if isinstance(thing, tuple):
        return any(holds_grad(each, depth + 1) for each in thing)
    if type(thing) is dict:
        return any(holds_grad(each, depth + 1) for each in list(thing.values())[:1000])
    if isinstance(thing, Distribution):
        return any(holds_grad(each, depth + 1) for each in vars(thing).values() if not isinstance(each, type))
    return False


def once_behind(part: Part) -> str | None:
    """The name of a custom Function behind a value whose backward can be differentiated once only."""
    for step in steps_of(part):
        func = step.node.func if isinstance(step.node, ast.Call) else None
        if not isinstance(func, ast.Attribute) or func.attr != "apply":
            continue
        kind = step.part.body.evaluated(func.value)
        if isinstance(kind, type) and issubclass(kind, torch.autograd.Function) and _is_once(kind.backward):
            return kind.__name__
    return None


def _is_once(backward: Any) -> bool:
    code = getattr(backward, "__code__", None)
    return code is not None and "once_differentiable" in code.co_qualname


def is_linear(part: Part, status: Callable[[Part], Answer]) -> bool:
    """Whether nothing but linear operations can be seen behind a value; ``status`` tells what ought to require grad."""
    for step in steps_of(part):
        node = step.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult | ast.Div):
            sides = [node.right] if isinstance(node.op, ast.Div) else [node.left, node.right]
            carrying = [side for side in sides if status(Part(side, step.part.body)) is not False]
            if len(carrying) > (0 if isinstance(node.op, ast.Div) else 1):
                return False
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
            return False
        elif isinstance(node, ast.Call) and not called(step.part):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            thing = step.part.body.evaluated(node.func)
            known = name in names.LINEAR or name in names.NEW or isinstance(thing, nn.Linear | nn.Conv2d | nn.Conv1d)
            if not known and status(Part(node, step.part.body)) is not False:
                return False
    return True


def values_behind(part: Part) -> Part:
    """What is left of ``x.detach().cpu()`` before ``.numpy()``: ``x``."""
    node = part.node
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names.CARRIED:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return Part(node, part.body)


def flag(call: ast.Call, name: str, position: int, body: Body) -> bool | None:
    """A flag of a call: as it was given, False if it was not, None if it cannot be told."""
    given = next((each.value for each in call.keywords if each.arg == name), None)
    if given is None and position < len(call.args):
        given = call.args[position]
    if given is None:
        return None if any(each.arg is None for each in call.keywords) else (name in ("mode", "requires_grad")) and (
            position < 99
        )  # fmt: skip
    value = body.evaluated(given)
    return value if isinstance(value, bool) else None


def may_be_tensor(thing: Any) -> bool:
    """Whether it is a tensor, or nothing is known of it."""
    return thing is None or isinstance(thing, Tensor)


def is_integer(thing: Any) -> bool:
    """Whether it is a tensor of integers or booleans."""
    return isinstance(thing, Tensor) and not (thing.dtype.is_floating_point or thing.dtype.is_complex)


def has(thing: Any, key: Any) -> bool:
    """Whether a dict, or a sequence, has something at a key or an index."""
    return key in thing if type(thing) is dict else isinstance(key, int) and -len(thing) <= key < len(thing)


def rebinds(part: Part) -> bool:
    """Whether it is the new value of a name that it was computed from: ``w = w - lr * w.grad``."""
    statement = part.body.source.statement(part.node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    key = dotted(statement.targets[0])
    inside = list(ast.walk(statement.value))
    mentions = any(isinstance(each, ast.Name | ast.Attribute) and dotted(each) == key for each in inside)
    updates = isinstance(statement.value, ast.BinOp) or any(
        isinstance(each, ast.Attribute) and dotted(each) == f"{key}.grad" for each in inside
    )
    return key is not None and mentions and updates


def unmarked(kind: type) -> bool:
    """Whether the forward of a custom Function says that its outputs have no gradient."""
    forward = getattr(kind, "forward", None)
    both = [forward, getattr(kind, "setup_context", None)]
    return any(
        "mark_non_differentiable" in code.co_names
        for each in both
        if (code := getattr(each, "__code__", None)) is not None
    )


def backward_before(part: Part) -> ast.Call | None:
    """The backward call before a ``.grad``, in the same function or module."""
    line = part.node.lineno
    found = None
    for node in walk(part.body.scope):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "backward":
            continue
        if node.lineno < line and (found is None or node.lineno > found.lineno):
            found = node
    return found
