"""Gradient scaling in a failed program: the scaler and the optimizer of torch's frames, and the user's calls."""

from __future__ import annotations

import ast
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.values import Mark
from pullback.graph.frames import variables
from pullback.graph.values import Place


def optimizer_of(case: Case) -> Optimizer | None:
    """The optimizer that the scaler was given."""
    found = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_filename.replace("\\", "/").endswith("amp/grad_scaler.py"):
            given = variables(frame).get("optimizer")
            found = given if isinstance(given, Optimizer) else found
    return found


def within(case: Case) -> bool:
    """Whether the error comes from a scaler."""
    return any(
        isinstance(variables(frame).get("self"), GradScaler)
        for frame, _, _ in frames_of(case.error.__traceback__)
        if frame.f_code.co_filename.replace("\\", "/").endswith("amp/grad_scaler.py")
    )


def parameters_of(case: Case, optimizer: Optimizer) -> list[tuple[str, Any]]:
    """What an optimizer trains, each with what the user calls it."""
    found = [each for group in optimizer.param_groups for each in group["params"]]
    return [(case.name_of(each, f"params[{number}]"), each) for number, each in enumerate(found)]


def earlier(case: Case, method: str) -> list[tuple[ast.Call, Mark]]:
    """The calls of a method of the scaler in the failing function, above the failing line or in the same loop."""
    site, call = case.site, case.call
    if site is None or call is None or not isinstance(call.func, ast.Attribute):
        return []
    owner = site.source.text(call.func.value)
    found = []
    for node in ast.walk(site.scope):
        if isinstance(node, ast.Call) and site.source.text(node.func) == f"{owner}.{method}" and node is not call:
            place = site.place._replace(line=node.lineno)
            found.append((node, Mark.at(place, "", site.source.span(node))))
    return found


def elsewhere(case: Case, method: str) -> list[tuple[ast.Call, Mark]]:
    """The calls of a method of the scaler in the other functions of the files that ran."""
    site, call = case.site, case.call
    if site is None or call is None or not isinstance(call.func, ast.Attribute):
        return []
    owner = site.source.text(call.func.value).rpartition(".")[2]
    found = []
    for source in {frame.file: frame.source for frame in case.frames}.values():
        for node in ast.walk(source.tree):
            func = node.func if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or not isinstance(func, ast.Attribute) or func.attr != method:
                continue
            scope = source.scope(node)
            if scope is not site.scope and source.text(func.value).rpartition(".")[2] == owner:
                place = Place(source.file, node.lineno, getattr(scope, "name", "<module>"))
                found.append((node, Mark.at(place, "", source.span(node))))
    return found
