"""Which expression was None when it should have been a gradient, and whose gradient it was."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.definitions import (
    Definition,
    Scene,
    called,
    followed,
    is_true,
    keyword_of,
    own_statements,
)
from pullback.diagnose.evidence.frames import Frame, item
from pullback.diagnose.recorders.passes import Pass

NODES = 20_000
_MISSING = object()


@dataclass(frozen=True)
class NoneGradient:
    """A gradient that was None.

    Attributes:
        written: The expression that was None.
        owner: The tensor whose ``.grad`` it was, as it is written; None for a result of ``torch.autograd.grad``.
        tensor: That tensor.
        asked: For a result of ``torch.autograd.grad``: the call.
        taken: Where the value got its name, if it was not used right away.
    """

    written: ast.expr
    owner: ast.expr | None = None
    tensor: Tensor | None = None
    asked: Definition | None = None
    taken: Definition | None = None


def none_gradient(case: Case) -> NoneGradient | None:
    """The gradient that was None in the failing expression, if it was one."""
    if case.site is None or not case.says("NoneType") or not isinstance(case.error, TypeError | AttributeError):
        return None
    node = case.site.node or case.site.statement
    if node is None:
        return None
    for each in _candidates(node):
        found = _judged(case, each)
        if found is not None:
            return found
    return None


def _candidates(node: ast.AST) -> Iterator[ast.expr]:
    """The names, attributes and items in an expression, the outermost first."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Load):
            yield each


def strictly(frame: Frame, node: ast.expr) -> Any:
    """What an expression stands for; ``_MISSING`` if that cannot be told."""
    if isinstance(node, ast.Name):
        try:
            return frame.value(node.id)
        except NameError:
            return _MISSING
    if isinstance(node, ast.Attribute):
        owner = strictly(frame, node.value)
        if issubclass(type(owner), Tensor):
            if node.attr != "grad":
                return _MISSING
            with torch._C.DisableTorchFunction():
                return owner.grad if owner.is_leaf or owner.retains_grad else None  # others would warn
        inside = getattr(owner, "__dict__", {}) if owner is not _MISSING else {}
        if isinstance(owner, nn.Module):
            inside = {**owner._modules, **owner._buffers, **owner._parameters, **inside}
        return inside.get(node.attr, _MISSING)
    if isinstance(node, ast.Subscript):
        owner = strictly(frame, node.value)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else strictly(frame, node.slice)
        if isinstance(owner, dict | list | tuple | nn.Module) and isinstance(key, str | int):
            return item(owner, key)
    if isinstance(node, ast.Constant):
        return node.value
    return _MISSING


def _judged(case: Case, node: ast.expr) -> NoneGradient | None:
    assert case.site is not None
    if strictly(case.site, node) is not None:
        return None
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        owner = strictly(case.site, node.value)
        return NoneGradient(node, node.value, owner) if issubclass(type(owner), Tensor) else None
    scene = Scene.of(case.site, len(case.frames) - 1)
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    for each in _reached(case, scene, base):
        if isinstance(each.value, ast.Attribute) and each.value.attr == "grad" and each.scene.frame is not None:
            owner = strictly(each.scene.frame, each.value.value)
            if issubclass(type(owner), Tensor):
                return NoneGradient(node, each.value.value, owner, None, each)
        if _allows_unused(each.value):
            return NoneGradient(node, None, None, each, None)
    return None


def _reached(case: Case, scene: Scene, node: ast.expr) -> Iterator[Definition]:
    """The definitions behind an expression, through containers that are gone through too."""
    waiting = followed(case, scene, node)
    seen = 0
    while waiting and seen < 20:
        seen += 1
        here = waiting.pop(0)
        yield here
        if not here.whole:
            for each in ast.walk(here.value):
                if isinstance(each, ast.Name):
                    waiting += followed(case, here.scene, each)


def _allows_unused(node: ast.expr) -> bool:
    inner = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(inner, ast.Call) and called(inner) == "grad" and is_true(keyword_of(inner, "allow_unused"))


def reached(roots: list[Tensor]) -> set[Any]:
    """The nodes behind roots, and the ids of the leaves that they reach."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    found: set[Any] = set(waiting) | {id(root) for root in roots if root.is_leaf}
    while waiting and len(found) < NODES:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for child, number in node.next_functions:
            if child is None:
                continue
            found.add((child, number))
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def last_pass(case: Case) -> Pass | None:
    """The last backward pass that added to ``.grad``."""
    return next((each for each in reversed(case.passes) if each.accumulates and each.ended), None)


def root_alive(case: Case, made: Pass) -> Tensor | None:
    """The root of a backward pass, if a variable still holds it."""
    numbers = [each for each in made.roots if each >= 0]
    for frame in reversed(case.frames):
        for thing in {**frame.local, **frame.module}.values():
            if not issubclass(type(thing), Tensor) or thing.grad_fn is None:
                continue
            if thing.grad_fn._sequence_nr() in numbers:
                return thing  # type: ignore[no-any-return]
    return None


def cleared(case: Case) -> tuple[Frame | None, ast.stmt | None]:
    """A ``zero_grad()`` between the last backward and the failing line, or the call that leads to it, in one function.

    It is told as the source has it, with the frame of that function.
    """
    for depth, frame in reversed(list(enumerate(case.frames))):
        before = [each for each in own_statements(Scene.of(frame, depth).scope) if each.lineno < frame.line]
        named = [(each, called(each.value)) for each in before if isinstance(each, ast.Expr)]
        last = max((each.lineno for each, name in named if name == "backward"), default=None)
        if last is None:
            continue
        found = next((each for each, name in named if name == "zero_grad" and each.lineno > last), None)
        return frame, found
    return None, None


def setting_none(case: Case, statement: ast.stmt) -> bool:
    """Whether a ``zero_grad`` sets to None: all do, unless ``set_to_none=False``."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return not (isinstance(value, ast.Call) and is_true(keyword_of(value, "set_to_none"), False))
