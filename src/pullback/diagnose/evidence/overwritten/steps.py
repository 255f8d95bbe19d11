"""Where an optimizer stepped between a forward pass and its backward: by the record, or by reading the source."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import alone, marked
from pullback.diagnose.evidence.overwritten.find import Overwritten
from pullback.diagnose.evidence.overwritten.report import all_marks
from pullback.diagnose.values import Edit, Mark
from pullback.language import say


def step_marks(case: Case, found: Overwritten) -> list[Mark]:
    """The failing line, the one that kept the weight, and the one that stepped."""
    what = say("this step changed it in place")
    marks = all_marks(case, found, what)
    if found.spot is None:
        marks += _stepping(case, found, what)
    return marks


def _stepping(case: Case, found: Overwritten, what: str) -> list[Mark]:
    """The calls of ``step`` of that optimizer in the functions that ran: before the failing line, else the last."""
    name = found.thing[0] if found.thing is not None else ""
    frames = [found.asking] if found.asking is not None else []
    for frame in [*frames, *(each for each in reversed(case.frames) if each not in frames)]:
        calls = _calls(frame, name) or _calls(frame, "")
        before = [each for each in calls if each.lineno < frame.line]
        if chosen := (before or calls)[-1:]:
            return [marked(frame.source, chosen[0], what, frame.place.function)]
    return []


def _calls(frame: Frame, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(frame.scope)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and (not name or path_of(node.func.value) == name)
    ]


def computed_after(case: Case, found: Overwritten) -> tuple[Edit, ...]:
    """The edit that computes the failing root anew after the step: what comes from the stepped module, and no more."""
    frame = found.asking
    call = frame.node if frame is not None else None
    if frame is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    root, step = path_of(call.func.value), _step_before(frame, found)
    if not root or step is None:
        return ()
    source = frame.source
    block = getattr(source.parent(step), "body", [])
    before = [each for each in block if isinstance(each, ast.Assign) and each.lineno < step.lineno]
    wanted, chain = {root}, []
    for each in reversed(before):
        if _targets(each) & wanted:
            chain.append(each)
            wanted |= {path for node in ast.walk(each.value) if (path := path_of(node))}
    again: list[ast.Assign] = []
    made: set[str] = set()
    for each in reversed(chain):
        reads = {path for node in ast.walk(each.value) if (path := path_of(node))}
        if reads & made or any(_is_of(path, found.name) for path in _longest(frame, each.value)):
            again.append(each)
            made |= _targets(each)
    if root not in made or not all(alone(source, each) for each in again) or source.parent(call) is None:
        return ()
    lines = [textwrap.dedent("\n".join(source.lines[each.lineno - 1 : each.end_lineno])) for each in again]
    return (source.inserted_after(step, "\n".join(lines)),)


def _step_before(frame: Frame, found: Overwritten) -> ast.stmt | None:
    """The statement of the step, if it stands in the block of the failing statement and before it."""
    name = found.thing[0].replace("'", '"') if found.thing is not None else ""
    own = frame.statement
    calls = [
        each
        for each in _calls(frame, "")
        if isinstance(each.func, ast.Attribute)
        and (not name or frame.source.text(each.func.value).replace("'", '"') == name)
    ]
    for each in reversed(calls):
        statement = frame.source.statement(each)
        if statement is not None and own is not None and statement.lineno < own.lineno:
            same = frame.source.parent(statement) is frame.source.parent(own)
            return statement if same and alone(frame.source, statement) else None
    return None


def _targets(statement: ast.Assign) -> set[str]:
    return {path for each in statement.targets for node in ast.walk(each) if (path := path_of(node))}


def _longest(frame: Frame, node: ast.AST) -> Iterator[str]:
    """The chains of attributes in an expression, as far as they lead to modules: ``net`` of ``net.encode(x)``."""
    if isinstance(node, ast.Attribute | ast.Name) and path_of(node):
        module = isinstance(frame.evaluated(node), nn.Module)
        yield path_of(node) if module or isinstance(node, ast.Name) else path_of(node.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from _longest(frame, child)


def _is_of(path: str, parameter: str) -> bool:
    """Whether a path is a module that a parameter is of, by its name: ``self.judge`` of ``self.judge[0].weight``."""
    plain = parameter.replace("[", ".")
    return path not in {"self", "cls"} and plain.startswith(f"{path}.")
