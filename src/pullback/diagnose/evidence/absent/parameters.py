"""What was handed to an optimizer, as it is written and as it was."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.absent.values import strictly
from pullback.diagnose.evidence.definitions import Definition, Scene, followed
from pullback.diagnose.evidence.source import Source, source_of
from pullback.graph.recording.userfiles import user_files

ADD = ("optim/optimizer.py", "add_param_group")
INIT = ("optim/optimizer.py", "__init__")


def parameters_written(case: Case) -> ast.expr | None:
    """The argument with the parameters."""
    return case.argument("params", 0)


def parts(case: Case, node: ast.expr | None, depth: int = 3) -> Iterator[tuple[Scene, ast.expr]]:
    """The expressions within an argument, and within what its names were defined as."""
    if node is None or case.site is None:
        return
    waiting: list[tuple[Scene, ast.expr, int]] = [(Scene.of(case.site, len(case.frames) - 1), node, depth)]
    while waiting:
        scene, here, left = waiting.pop(0)
        for each in ast.walk(here):
            if isinstance(each, ast.expr):
                yield scene, each
            if left and isinstance(each, ast.Name):
                waiting += [(step.scene, step.value, left - 1) for step in followed(case, scene, each)[:1]]


def written_as(case: Case, node: ast.expr | None, tensor: Tensor) -> tuple[Scene, ast.expr] | None:
    """The name by which a tensor stands in an argument."""
    for scene, each in parts(case, node):
        if scene.frame is None or not isinstance(each, ast.Name | ast.Attribute | ast.Subscript):
            continue
        if strictly(scene.frame, each) is tensor:
            return scene, each
    return None


def modules_in(case: Case, node: ast.expr | None) -> list[tuple[Scene, ast.expr, nn.Module]]:
    """The modules that an argument names."""
    found: dict[int, tuple[Scene, ast.expr, nn.Module]] = {}
    for scene, each in parts(case, node):
        if isinstance(each, ast.Name | ast.Attribute):
            thing = scene.evaluated(each)
            if isinstance(thing, nn.Module):
                found.setdefault(id(thing), (scene, each, thing))
    return list(found.values())


def definition_of(case: Case, scene: Scene, node: ast.expr, tensor: Tensor | None = None) -> Definition | None:
    """The last step back from an expression."""
    found = followed(case, scene, node, tensor)
    return found[-1] if found else None


def sources_of(case: Case) -> list[Source]:
    """The user's sources that take part: those of the frames, and of the classes of their modules."""
    found = {frame.file: frame.source for frame in reversed(case.frames)}
    for _, module in case.holds(nn.Module):
        for part in module.modules():
            code = getattr(type(part).__init__, "__code__", None)
            if code is not None and code.co_filename not in found and user_files(()).own_file(code.co_filename):
                found[code.co_filename] = source_of(code.co_filename)
    return list(found.values())


def hidden_in(module: nn.Module) -> tuple[str, str, str] | None:
    """A plain list, tuple or dict of modules or tensors in a module: its owner, its name, and what should hold it."""
    for path, part in module.named_modules():
        for name, thing in part.__dict__.items():
            items: list[Any] = list(thing.values()) if isinstance(thing, dict) else thing
            if not isinstance(items, list | tuple) or not items:
                continue
            if all(isinstance(each, nn.Module) for each in items):
                return path, name, "ModuleDict" if isinstance(thing, dict) else "ModuleList"
            if all(isinstance(each, Tensor) and each.requires_grad for each in items):
                return path, name, "ParameterDict" if isinstance(thing, dict) else "ParameterList"
    return None
