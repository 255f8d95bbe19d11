"""The line whose change in place is refused at once: what it changes, and how to write it instead."""

from __future__ import annotations

import ast
import sys
from typing import Any

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, frames_of
from pullback.diagnose.evidence.overwritten.forms import Form, forms
from pullback.diagnose.values import Edit
from pullback.graph.frames import variables

LEAF = ("a leaf variable that requires grad", "a view of a leaf variable that requires grad")


def form_at(case: Case) -> Form | None:
    """The change in place that the failing line makes, as it is written."""
    site = case.site
    statement = site.statement if site is not None else None
    if site is None or statement is None:
        return None
    found = list(forms(site.source, _header(statement)))
    node = site.node
    exact = [each for each in found if each.node is node or (node is not None and node in ast.walk(each.node))]
    return next(iter(exact or found), None)


def _header(statement: ast.stmt) -> ast.AST:
    """A statement without the statements in it."""
    return statement if not hasattr(statement, "body") else ast.Module([], [])


def changed_tensor(case: Case, form: Form | None) -> Tensor | None:
    """The tensor that the failing line changes."""
    if case.site is None or form is None:
        return None
    found = case.site.evaluated(form.base)
    return found if isinstance(found, Tensor) else None


def by_gradient(form: Form) -> bool:
    """Whether the change is by a gradient: ``w -= lr * w.grad``."""
    statement = form.statement
    if statement is None:
        return False
    names = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(statement)
        if isinstance(each, ast.Attribute | ast.Name) and each is not form.base
    ]
    return any(
        name == "grad" or name.startswith(("grad", "g_")) or name.endswith(("_grad", "grads")) or name == "g"
        for name in names
    )


def is_given(case: Case, form: Form) -> bool:
    """Whether the changed variable is an argument of the function that changes it."""
    scope = case.site.scope if case.site is not None else None
    arguments = getattr(scope, "args", None)
    return arguments is not None and form.path in {each.arg for each in arguments.args}


def torch_name(frame: Frame) -> str:
    """What the program calls torch there; empty if it does not."""
    for name in ("torch", "th"):
        try:
            if frame.value(name) is torch:
                return name
        except NameError:
            continue
    return ""


def without_grad(case: Case, form: Form) -> tuple[Edit, ...]:
    """The edit that puts the change into ``with torch.no_grad():``."""
    statement, site = form.statement, case.site
    if statement is None or site is None or not (name := torch_name(site)):
        return ()
    source = form.source
    line = source.lines[statement.lineno - 1]
    before = line.encode()[: statement.col_offset].decode()
    after = source.lines[(statement.end_lineno or statement.lineno) - 1].encode()[statement.end_col_offset :].decode()
    if before.strip() or after.split("#")[0].strip():
        return ()
    return (source.wrapped(statement, f"with {name}.no_grad():"),)


def module_at(case: Case) -> nn.Module | None:
    """The module of torch with ``inplace=True`` that was running when the program failed."""
    found: nn.Module | None = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_name == "forward" and isinstance(module := variables(frame).get("self"), nn.Module):
            found = module if getattr(module, "inplace", None) is True else found
    return found


def class_named(case: Case, name: str) -> Any:
    """The class of a Function by its name."""
    for frame in reversed(case.frames):
        for thing in [*frame.local.values(), *frame.module.values()]:
            if isinstance(thing, type) and thing.__name__ == name and issubclass(thing, torch.autograd.Function):
                return thing
    found = [each for each in torch.autograd.Function.__subclasses__() if each.__name__ == name]
    return found[-1] if found and found[-1].__module__ in sys.modules else None
