"""Distributed data parallel models of a failed program."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of, sources
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Edit, Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


def wrapped(case: Case) -> Any:
    """The parallel model: that of torch's frames, or the only one that the user's names lead to."""
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_filename.replace("\\", "/").endswith("nn/parallel/distributed.py"):
            owner = variables(frame).get("self")
            if isinstance(owner, DistributedDataParallel):
                return owner
    found = [module for _, module in case.holds(DistributedDataParallel)]
    for _, holder in case.holds(nn.Module):
        found += [each for each in nn.Module.modules(holder) if isinstance(each, DistributedDataParallel)]
    return found[0] if len(set(map(id, found))) == 1 else None


def constructions(case: Case) -> list[tuple[Source, ast.Call]]:
    """The calls that made parallel models, other names of the class included."""
    names = {"DistributedDataParallel", "DDP"}
    for source in sources(case):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom):
                names |= {each.asname for each in node.names if each.asname and each.name == "DistributedDataParallel"}
    return [each for each in calls_of(case, names) if each[1].args or each[1].keywords]


def marks_of(calls: list[tuple[Source, ast.Call]], what: str) -> list[Mark]:
    """Their lines."""
    return [Mark.at(Place(source.file, call.lineno, ""), what, source.span(call)) for source, call in calls[:3]]


def with_option(calls: list[tuple[Source, ast.Call]], name: str, value: str) -> tuple[Edit, ...]:
    """The edits that give them an option."""
    edits: list[Edit] = []
    for source, call in calls:
        if not user_files(()).own_file(source.file):
            return ()
        said = next((each.value for each in call.keywords if each.arg == name), None)
        text = source.text(call)
        rewrite = Rewrite(source)
        if said is not None:
            rewrite.replace(said, value)
        else:
            rewrite.replace(call, f"{text[:-1].rstrip().rstrip(',')}, {name}={value})")
        edits += rewrite.edits()
    return tuple(edits)


def made_in(module: nn.Module, parameters: Iterable[str]) -> list[Mark]:
    """The lines of a model's classes that made what some parameters, given by their paths, belong to."""
    marks: dict[tuple[str, int], Mark] = {}
    for path in parameters:
        layer = path.rpartition(".")[0]
        owner, _, name = (layer or path).rpartition(".")
        kind = type(module.get_submodule(owner))
        file = inspect.getsourcefile(kind) if kind.__module__ != "builtins" else None
        if file is None or not user_files(()).own_file(file):
            continue
        source = source_of(file)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                for statement in ast.walk(node):
                    if isinstance(statement, ast.Assign) and name in _attributes(statement):
                        place = Place(file, statement.lineno, f"{kind.__name__}.__init__")
                        what = say("{name} is made here", name=layer or path)
                        marks.setdefault(place[:2], Mark.at(place, what, source.span(statement)))
    return list(marks.values())


def _attributes(statement: ast.Assign) -> set[str]:
    inside = (node for target in statement.targets for node in ast.walk(target))
    return {node.attr for node in inside if isinstance(node, ast.Attribute)}
