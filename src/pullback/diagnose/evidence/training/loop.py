"""What faults of training loops ask of the program: its optimizers and scalers by name, and its statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Scope, Source, source_of
from pullback.diagnose.values import Edit

if TYPE_CHECKING:
    from pullback.diagnose.audit import Audit, Backward

Kind = TypeVar("Kind")
Key = tuple[int, int]
# So many attributes and items are looked at for one question.
LOOKED_AT = 5_000


def key_of(spot: Spot) -> Key:
    """What tells one point of the program from another."""
    return id(spot.code), spot.instruction


def scopes(audit: Audit) -> list[Mapping[str, Any]]:
    """The variables that the program has now, the innermost first."""
    return [scope for frame in audit.frames() for scope in (frame.local, frame.module)] or [dict(audit.variables)]


def held(audit: Audit, kind: type[Kind]) -> list[tuple[str, Kind]]:
    """The things of a kind that the program's variables hold now, or the attributes of these, by name."""
    found: dict[int, tuple[str, Kind]] = {}
    left = LOOKED_AT
    for scope in scopes(audit):
        for name, thing in list(scope.items()):
            left -= 1
            if left < 0:
                break
            if issubclass(type(thing), kind):
                found.setdefault(id(thing), (name, thing))
            elif type(getattr(thing, "__dict__", None)) is dict and not isinstance(thing, type | type(ast)):
                for inner, part in list(thing.__dict__.items())[:200]:
                    if issubclass(type(part), kind):
                        found.setdefault(id(part), (f"{name}.{inner}", part))
    return list(found.values())


def optimizer_name(audit: Audit, optimizer: Optimizer, otherwise: str = "optimizer") -> str:
    """What the program calls an optimizer now."""
    return next((name for name, each in held(audit, Optimizer) if each is optimizer), otherwise)


def scaler_of(audit: Audit) -> tuple[str, torch.amp.GradScaler] | None:
    """A gradient scaler that is in use, with its name."""
    for name, each in held(audit, torch.amp.GradScaler):
        if each.is_enabled() and each._scale is not None:
            return name, each
    return None


def in_optimizers(audit: Audit) -> set[int]:
    """The ids of all that the optimizers train."""
    return {id(each) for one in list(audit.optimizers) for group in one.param_groups for each in group["params"]}


def root_numbers(backward: Backward) -> tuple[int, ...]:
    """The numbers of the nodes where a pass begins."""
    return tuple(number for number in backward.record.roots if number >= 0)


def loop_around(source: Source, node: ast.AST) -> ast.For | ast.While | None:
    """The innermost loop around a node, within its function."""
    for each in source.around(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(each, ast.For | ast.While) and each is not node:
            return each
    return None


def assignments(source: Source, scope: Scope, name: str) -> Iterator[ast.Assign | ast.AugAssign | ast.AnnAssign]:
    """The statements of a function that assign to a name, in the order of the source."""
    for node in ast.walk(scope):
        if source.scope(node) is not scope:
            continue
        if (isinstance(node, ast.Assign) and any(source.text(target) == name for target in node.targets)) or (
            isinstance(node, ast.AugAssign | ast.AnnAssign) and source.text(node.target) == name
        ):
            yield node


def own_line(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement stands on lines of its own, so that other lines may be put before and after it."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    parent = source.parent(statement)
    if isinstance(parent, ast.stmt | ast.ExceptHandler) and parent.lineno == first:
        return False
    return all(
        not (first <= each.lineno <= last) or each is statement
        for each in getattr(parent, "body", [])
        if isinstance(each, ast.stmt)
    )


def before(spot: Spot, text: str) -> tuple[Edit, ...]:
    """The edit that puts a line before the statement at a spot, or before its line where it shares that."""
    statement, source = spot.statement, spot.source
    if statement is None or _with_header(source, statement):
        return ()
    indent = source.indent(statement.lineno)
    return (Edit(source.file, statement.lineno, statement.lineno - 1, indent + text),)


def after(spot: Spot, text: str) -> tuple[Edit, ...]:
    """The edit that puts a line after the statement at a spot, or after its line where it shares that."""
    statement, source = spot.statement, spot.source
    if statement is None or _with_header(source, statement):
        return ()
    line = (statement.end_lineno or statement.lineno) + 1
    return (Edit(source.file, line, line - 1, source.indent(statement.lineno) + text),)


def moved(line: Spot, beside: Spot, *, after: bool) -> tuple[Edit, ...]:
    """The edits that put the line at one spot behind that of a later one, or before that of an earlier one.

    None if either shares its lines with others, or they are not in that order in one function.
    """
    source, moving, staying = line.source, line.statement, beside.statement
    if moving is None or staying is None or line.code is not beside.code or moving.lineno == staying.lineno:
        return ()
    if (moving.lineno < staying.lineno) != after or not own_line(source, moving) or not own_line(source, staying):
        return ()
    gone = Edit(source.file, moving.lineno, moving.end_lineno or moving.lineno, None)
    text = source.text(moving)
    return (gone, source.inserted_after(staying, text)) if after else (source.inserted_before(staying, text), gone)


def _with_header(source: Source, statement: ast.stmt) -> bool:
    """Whether it stands on the line of the loop or block that it is in."""
    parent = source.parent(statement)
    return isinstance(parent, ast.stmt | ast.ExceptHandler) and parent.lineno == statement.lineno


def calls_named(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """The calls of functions or methods of these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                yield node


def user_sources(spots: Iterable[Spot | None]) -> list[Source]:
    """The files of spots, each once."""
    return [source_of(file) for file in dict.fromkeys(spot.file for spot in spots if spot is not None)]


def consumed(node: Any, most: int = 300) -> bool | None:
    """Whether a pass has gone through a graph and freed it; None if its nodes keep nothing that would tell."""
    seen, stack = {node}, [node]
    while stack and len(seen) < most:
        here = stack.pop()
        for name in dir(type(here)):
            # A slot that is empty, such as that of a weight that was not given, is so before and after.
            if name.startswith("_raw_saved_") and (saves := _saves(here, name.replace("_raw", "", 1))) is not None:
                return not saves
        for child, _ in here.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return None


def _saves(node: Any, name: str) -> bool | None:
    try:
        raw = getattr(node, name.replace("_saved", "_raw_saved", 1))
        if getattr(raw, "unpack_hook", None) is not None:  # it is the user's, and not to run now
            return None
        return isinstance(getattr(node, name), Tensor) or None
    except RuntimeError as problem:
        return False if "freed" in str(problem) or "second time" in str(problem) else None
    except Exception:  # of another kind than expected: it tells nothing
        return None
