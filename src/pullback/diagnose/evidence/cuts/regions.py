"""Blocks, decorators and switches under which nothing is recorded."""

from __future__ import annotations

import ast

from pullback.diagnose.evidence.cuts.found import Region
from pullback.diagnose.evidence.cuts.questions import flag
from pullback.diagnose.evidence.slices import (
    Body,
    dotted,
    walk,
)
from pullback.diagnose.evidence.source import Function


def region_of(node: ast.AST, body: Body) -> Region | None:
    """What turned recording off around a point of the program, if anything: the innermost that says so."""
    inner: ast.AST = node
    for each in body.source.around(node):
        if isinstance(each, ast.With | ast.AsyncWith) and inner in each.body:
            for context in reversed(each.items):
                mode = _mode(context.context_expr, body)
                if mode is not None:
                    return (mode, each, body) if mode != "on" else None
        if isinstance(each, Function):
            switched = _switched(node, body)
            if switched is not None:
                return switched if switched[0] != "on" else None
            for decorator in getattr(each, "decorator_list", []):
                mode = _mode(decorator, body)
                if mode is not None:
                    return (f"decorator_{mode}", decorator, body) if mode != "on" else None
            return _from_caller(body)
        inner = each
    switched = _switched(node, body)
    return switched if switched is not None and switched[0] != "on" else None


def _mode(node: ast.expr, body: Body) -> str | None:
    """``no_grad``, ``inference``, ``set_grad`` or ``on`` of a context or decorator; None if it is another."""
    func = node.func if isinstance(node, ast.Call) else node
    thing = body.evaluated(func)
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if isinstance(thing, type):
        name = thing.__name__
    if name == "no_grad":
        return "no_grad"
    if name == "inference_mode":
        off = isinstance(node, ast.Call) and flag(node, "mode", 0, body) is False
        return None if off else "inference"
    if name == "enable_grad":
        return "on"
    if name == "set_grad_enabled" and isinstance(node, ast.Call):
        on = flag(node, "mode", 0, body)
        return None if on is None else ("on" if on else "set_grad")
    return None


def _switched(node: ast.AST, body: Body) -> Region | None:
    """A plain call of ``torch.set_grad_enabled`` before a point, in its function or in what is around that."""
    here: Body | None = body
    use = body.source.statement(node)
    while here is not None:
        last: tuple[int, ast.Expr, str] | None = None
        for each in walk(here.scope):
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and sets_grad_mode(each.value):
                mode = _mode(each.value, here)
                before = use is None or each.lineno < use.lineno
                if mode is not None and before and (last is None or each.lineno > last[0]):
                    last = each.lineno, each, mode
        if last is not None:
            return last[2], last[1], here
        here = here.outer
        use = here.here if here is not None else None
        if here is not None and use is None:
            return None
    return None


def sets_grad_mode(call: ast.Call) -> bool:
    """Whether it is a call of ``torch.set_grad_enabled``, under any name of its module."""
    return (dotted(call.func) or "").rpartition(".")[2] == "set_grad_enabled"


def _from_caller(body: Body) -> Region | None:
    """A block around the call of a function that is still running."""
    frames = body.frames
    number = next((number for number, each in enumerate(frames) if each is body.frame), 0)
    if body.frame is None or number == 0 or frames[number - 1].node is None:
        return None
    node = frames[number - 1].node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
        return None  # an optimizer's step turns recording on for its closure
    assert node is not None
    return region_of(node, Body.of(frames, number - 1))
