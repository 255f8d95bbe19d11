"""Which statements of a program put something into a holder, and how each would read if it kept no graph."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pullback.graph.leaks.holders import Holder
from pullback.graph.values import Place

ADDING = {"append": 0, "appendleft": 0, "add": 0, "insert": 1, "setdefault": 1, "extend": 0, "update": 0, "put": 0}


@dataclass(frozen=True, slots=True)
class Keep:
    """A statement that changes a holder.

    Attributes:
        place: Where it is.
        fix: The same with the graph left out, or empty where that cannot be written mechanically.
        carries: Whether the new value is made from the old one.
        in_class: Whether it is in the class that the holder is an attribute of.
    """

    place: Place
    fix: str
    carries: bool
    in_class: bool = False


def keeps_of(holder: Holder, files: tuple[str, ...]) -> tuple[Keep, ...]:
    """The statements that put a value into a holder, in the order of the source.

    Args:
        holder: The holder.
        files: Other files to look into for what can be reached from anywhere: a global or an attribute.
    """
    if holder.where == "gradient":
        return ()
    everywhere = holder.where in {"global", "attribute"}
    found: list[Keep] = []
    for file in dict.fromkeys((holder.file, *files)) if everywhere else (holder.file,):
        tree = _parse(file)
        if tree is None:
            continue
        scope = (None if everywhere else _scope(tree, holder)) or tree
        lines = _lines_of_class(tree, holder)
        for statement, function in _statements(scope, "<module>" if scope is tree else holder.owner.split(".")[-1]):
            if (keep := _keep(statement, holder, Place(file, statement.lineno, function))) is not None:
                found.append(replace(keep, in_class=statement.lineno in lines))
    own = [keep for keep in found if keep.place.file == holder.file and keep.in_class]
    carrying = [keep for keep in own or found if keep.carries]
    return tuple(carrying or own or found)


def hook_places(holder: Holder) -> tuple[Place, ...]:
    """Where the function that closes over a tensor is registered as a hook."""
    tree = _parse(holder.file)
    name = holder.owner.split(".")[-1]
    if tree is not None:
        for call, function in _calls(tree):
            hooked = isinstance(call.func, ast.Attribute) and call.func.attr.startswith("register_")
            for value in call.args if hooked else ():
                if (isinstance(value, ast.Name) and value.id == name) or value.lineno == holder.line:
                    return (Place(holder.file, call.lineno, function),)
    return ()


def _parse(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _lines_of_class(tree: ast.Module, holder: Holder) -> range:
    """The lines of the class that the holder is an attribute of; none if it is not."""
    if holder.where == "attribute":
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == holder.owner.split(".")[-1]:
                return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def _scope(tree: ast.Module, holder: Holder) -> ast.AST | None:
    """The function a variable belongs to; the outermost around it for one that an inner function closes over."""
    for node in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            closed_over = holder.where == "closure" and first <= holder.line <= (node.end_lineno or 0)
            if first == holder.line or closed_over:
                return node
    return None


def _statements(scope: ast.AST, function: str) -> Iterator[tuple[ast.stmt, str]]:
    for child in ast.iter_child_nodes(scope):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(child, ast.stmt):
            yield child, inner
        yield from _statements(child, inner)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for statement, function in _statements(tree, "<module>"):
        if isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AnnAssign):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call):
                    yield node, function


def _keep(statement: ast.stmt, holder: Holder, place: Place) -> Keep | None:
    match statement:
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() | ast.Mult() | ast.MatMult(), value=value):
            if _is_holder(target, holder) or _is_part(target, holder):
                operator = ast.unparse(statement)[len(ast.unparse(target)) :].split("=")[0].strip()
                return Keep(place, f"{ast.unparse(target)} {operator}= {_detached(value)}", True)
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            return _keep_assigned(target, value, holder, place)
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            return _keep_called(call, holder, place)
    return None


def _keep_assigned(target: ast.expr, value: ast.expr, holder: Holder, place: Place) -> Keep | None:
    if _is_part(target, holder):
        return Keep(place, f"{ast.unparse(target)} = {_detached(value)}", True)
    if isinstance(target, ast.Tuple | ast.List):
        names = [ast.unparse(part) for part in target.elts if _is_holder(part, holder)]
        if names:
            return Keep(place, "; ".join(f"{name} = {name}.detach()" for name in names), _mentions(value, holder))
        return None
    if not _is_holder(target, holder) or _is_empty(value):
        return None
    name = ast.unparse(target)
    accumulates = isinstance(value, ast.BinOp) and not isinstance(value.right, ast.List | ast.Tuple)
    fix = f"{name} = {_detached(value)}" if accumulates else f"{name} = {name}.detach()"
    if isinstance(value, ast.BinOp) and not accumulates:
        fix = ""
    return Keep(place, fix, _mentions(value, holder))


def _keep_called(call: ast.Call, holder: Holder, place: Place) -> Keep | None:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in ADDING:
        return None
    if not (_is_holder(function.value, holder) or _is_part(function.value, holder)):
        return None
    where = ADDING[function.attr]
    fix = ""
    if len(call.args) > where and function.attr not in {"extend", "update"}:
        words = [ast.unparse(argument) for argument in call.args]
        words[where] = _detached(call.args[where])
        fix = f"{ast.unparse(function)}({', '.join(words)})"
    return Keep(place, fix, True)


def _is_holder(target: ast.expr, holder: Holder) -> bool:
    match target:
        case ast.Name(id=name):
            return holder.where != "attribute" and name == holder.bare
        case ast.Attribute(attr=name):
            return holder.where in {"attribute", "global"} and name == holder.bare
    return False


def _is_part(target: ast.expr, holder: Holder) -> bool:
    """Whether the target is an element of the holder, such as ``cache["h"]``, or of one of its elements."""
    while isinstance(target, ast.Subscript):
        target = target.value
        if _is_holder(target, holder):
            return True
    return False


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(args=[], func=ast.Name(id="list" | "dict" | "set" | "deque" | "defaultdict")):
            return True
    return False


def _mentions(value: ast.expr, holder: Holder) -> bool:
    return any(isinstance(node, ast.expr) and _is_holder(node, holder) for node in ast.walk(value))


def _detached(value: ast.expr) -> str:
    """The expression with its tensors detached: each element of a tuple, list or dict, else the whole."""
    match value:
        case ast.Tuple(elts=elements):
            return f"({', '.join(map(_detached, elements))}{',' if len(elements) == 1 else ''})"
        case ast.List(elts=elements):
            return f"[{', '.join(map(_detached, elements))}]"
        case ast.Dict(keys=keys, values=values) if None not in keys:
            parts = (f"{ast.unparse(key)}: {_detached(part)}" for key, part in zip(keys, values, strict=True) if key)
            return f"{{{', '.join(parts)}}}"
        case ast.Constant():
            return ast.unparse(value)
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
            return f"{ast.unparse(value)}.detach()"
    return f"({ast.unparse(value)}).detach()"
