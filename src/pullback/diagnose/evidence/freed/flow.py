"""Which names a loop or a function reads before it writes them: what one turn takes over from the last."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.source import Scope, Source

Loop = ast.For | ast.AsyncFor | ast.While
Target = ast.Name | ast.Attribute
# What happens to a name: how (read, write, or perhaps a write), which, and where.
Event = tuple[str, str, ast.expr]


def path_of(node: ast.AST) -> str:
    """``h`` or ``self.state`` for a name or a chain of attributes; empty for all else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def events(statements: Sequence[ast.AST], *, sure: bool = True) -> Iterator[Event]:
    """What happens to names in statements, in the order in which they run."""
    for statement in statements:
        yield from _events_of(statement, sure)


def _branch(statements: Sequence[ast.AST]) -> Iterator[Event]:
    """What may happen in a block that may not run: what the block itself has written before, it does not take over."""
    written: set[str] = set()
    for kind, path, node in events(statements):
        if kind == "write":
            written.add(path)
            yield "maybe", path, node
        elif kind != "read" or path not in written:
            yield kind, path, node


def _events_of(node: ast.AST, sure: bool) -> Iterator[Event]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node, ast.AugAssign):
            yield from _reads(node.target)
        if node.value is not None:
            yield from _reads(node.value)
        for target in targets:
            yield from _writes(target, sure)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _reads(node.iter)
        yield from _writes(node.target, sure)
        yield from _branch(node.body)
        yield from _branch(node.orelse)
    elif isinstance(node, ast.While | ast.If):
        yield from _reads(node.test)
        yield from _branch(node.body)
        yield from _branch(node.orelse)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield from _reads(item.context_expr)
            if item.optional_vars is not None:
                yield from _writes(item.optional_vars, sure)
        yield from events(node.body, sure=sure)
    elif isinstance(node, ast.Try):
        yield from _branch(node.body)
        for handler in node.handlers:
            yield from _branch(handler.body)
        yield from _branch([*node.orelse, *node.finalbody])
    else:
        yield from _reads(node)


def _reads(node: ast.AST) -> Iterator[Event]:
    path = path_of(node)
    if path and isinstance(node, ast.expr):
        yield "read", path, node
        if isinstance(node, ast.Attribute):  # the reading of a method is one of its object too
            yield from _reads(node.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from _reads(child)


def _writes(target: ast.expr, sure: bool) -> Iterator[Event]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _writes(each, sure)
    elif isinstance(target, ast.Starred):
        yield from _writes(target.value, sure)
    elif path := path_of(target):
        yield ("write" if sure else "maybe"), path, target
    else:
        yield from _reads(target)


def carried(statements: Sequence[ast.AST]) -> dict[str, list[ast.expr]]:
    """The names that are read before they are surely written, and written: each with those first readings."""
    reads: dict[str, list[ast.expr]] = {}
    written: set[str] = set()
    maybe: set[str] = set()
    for kind, path, node in events(statements):
        if kind == "read" and path not in written:
            reads.setdefault(path, []).append(node)
        elif kind == "write":
            written.add(path)
        elif kind == "maybe":
            maybe.add(path)
    return {path: nodes for path, nodes in reads.items() if path in written or path in maybe}


def renewed_items(tree: ast.AST, key: object) -> list[ast.Subscript]:
    """The places that write an item of a container which the same function reads too: ``memory["h"] = ...``.

    Of an item whose key is computed, those that make it from its last value: ``states[i] = cell(x, states[i])``.
    """
    found: list[ast.Subscript] = []
    scopes = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)]
    for scope in scopes:
        items = [each for each in _own_nodes(scope) if isinstance(each, ast.Subscript) and path_of(each.value)]
        read = {ast.unparse(each) for each in items if isinstance(each.ctx, ast.Load)}
        for each in items:
            same = each.slice.value == key if isinstance(each.slice, ast.Constant) else isinstance(key, int)
            if isinstance(each.ctx, ast.Store) and same and ast.unparse(each) in read:
                found.append(each)
    return found


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def written_in(node: ast.AST) -> dict[str, list[ast.expr]]:
    """The names that a loop, function or module writes, each with its targets."""
    found: dict[str, list[ast.expr]] = {}
    body = getattr(node, "body", [])
    for kind, path, target in events(body if isinstance(body, list) else [body]):
        if kind != "read":
            found.setdefault(path, []).append(target)
    if isinstance(node, ast.For | ast.AsyncFor):
        for _, path, target in _writes(node.target, True):
            found.setdefault(path, []).append(target)
    return found


def loops_around(frame: Frame) -> list[Loop]:
    """The loops around the line where a frame is, in its own function, the innermost first."""
    statement = frame.statement
    if statement is None:
        return []
    found: list[Loop] = []
    for each in frame.source.around(statement):
        if isinstance(each, Scope) and each is not statement:
            break
        if isinstance(each, Loop):
            found.append(each)
    return found


def assignment(source: Source, target: ast.expr) -> ast.stmt | None:
    """The statement that writes to a target."""
    return source.statement(target)
