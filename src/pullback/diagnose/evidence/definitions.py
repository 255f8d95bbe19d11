"""Where a value was defined, read from the source: assignments, arguments and returns, followed through the frames."""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, attribute, item
from pullback.diagnose.evidence.source import Scope, Source, source_of
from pullback.diagnose.values import Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

# So far back a value is followed.
DEPTH = 12
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
LOOPS = (ast.For, ast.AsyncFor, ast.While)
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# Which operations of Python make which nodes of autograd.
NODES: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub",),
    ast.Mult: ("mul",),
    ast.Div: ("div", "mul"),
    ast.Pow: ("pow",),
    ast.MatMult: ("mm", "mv", "dot", "view", "squeeze", "bmm", "matmul"),
}
MAKERS = frozenset({
    "tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "linspace", "eye",
    "zeros_like", "ones_like", "rand_like", "randn_like", "empty_like", "full_like", "Parameter", "detach",
    "from_numpy", "as_tensor", "requires_grad_", "detach_",
})  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Where an expression stands: a function of a file, up to a line, and its variables as far as they are known."""

    source: Source
    scope: Scope
    function: str
    line: int
    frame: Frame | None
    depth: int
    outside: Mapping[str, Any]

    @classmethod
    def of(cls, frame: Frame, depth: int) -> Scene:
        """The scene of a frame that is the ``depth``-th of the traceback."""
        scope = frame.scope
        if frame.code.co_name in COMPREHENSIONS and (statement := frame.source.statement_at(frame.line)) is not None:
            scope = frame.source.scope(statement)
        return cls(frame.source, scope, frame.place.function, frame.line, frame, depth, frame.module)

    def evaluated(self, node: ast.expr | None) -> Any:
        """What an expression stood for, if it can be told without running anything."""
        if self.frame is not None:
            return self.frame.evaluated(node)
        if isinstance(node, ast.Name):
            return self.outside.get(node.id)
        if isinstance(node, ast.Attribute):
            return attribute(self.evaluated(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return item(self.evaluated(node.value), node.slice.value)
        return node.value if isinstance(node, ast.Constant) else None


@dataclass(frozen=True)
class Definition:
    """One step back: a statement that gave a name its value, or handed it on."""

    scene: Scene
    statement: ast.stmt
    value: ast.expr
    whole: bool = True

    @property
    def place(self) -> Place:
        """The line."""
        return Place(self.scene.source.file, self.value.lineno, self.scene.function)

    @property
    def text(self) -> str:
        """The value as it is written."""
        return self.scene.source.text(self.value)

    def mark(self, what: str, node: ast.expr | None = None) -> Mark:
        """The line with the value, or a part of it, marked."""
        node = node or self.value
        place = Place(self.scene.source.file, node.lineno, self.scene.function)
        return Mark.at(place, what, self.scene.source.span(node))


def mark_node(source: Source, node: ast.expr | ast.stmt, what: str, function: str = "<module>") -> Mark:
    """Any node of a source, marked."""
    return Mark.at(Place(source.file, node.lineno, function), what, source.span(node))


def definitions(
    case: Case, node: ast.expr | None, frame: Frame | None = None, tensor: Tensor | None = None
) -> list[Definition]:
    """The definitions that the value of an expression came from, the latest first.

    Args:
        case: The failed program.
        node: The expression.
        frame: The frame that it stands in; the failing one by default.
        tensor: What it stood for: tells which of several assignments ran last.
    """
    frame = frame or case.site
    if frame is None or node is None:
        return []
    depth = next((number for number, each in enumerate(case.frames) if each is frame), 0)
    return list(_followed(case, Scene.of(frame, depth), node, tensor, DEPTH))


def followed(case: Case, scene: Scene, node: ast.expr, tensor: Tensor | None = None) -> list[Definition]:
    """The definitions that the value of an expression of a scene came from, the latest first."""
    return list(_followed(case, scene, node, tensor, DEPTH))


def _followed(case: Case, scene: Scene, node: ast.expr, tensor: Tensor | None, left: int) -> Iterator[Definition]:
    found: Definition | None = None
    if left <= 0:
        return
    if isinstance(node, ast.NamedExpr):
        node = node.value
    if isinstance(node, ast.Name):
        found = _assigned(scene, node.id, tensor)
        if found is None:
            handed = _handed(case, scene, node.id)
            if handed is not None:
                yield from _followed(case, *handed, tensor, left - 1)
            return
    elif isinstance(node, ast.Attribute):
        found = _kept(scene, node, tensor)
    elif isinstance(node, ast.Call):
        found = _returned(scene, node)
    if found is None:
        return
    yield found
    if found.whole and not isinstance(found.statement, ast.AugAssign):
        yield from _followed(case, found.scene, found.value, tensor, left - 1)


def _assigned(scene: Scene, name: str, tensor: Tensor | None) -> Definition | None:
    """The assignment to a name that ran last, of the function around, or of its module if it is no local name."""
    found = assignments(scene, name)
    if not found and not isinstance(scene.scope, ast.Module) and name not in parameters(scene.scope):
        outer: Scope = scene.source.scope(scene.scope)
        inner = scene.frame
        while not found:
            scene = Scene(scene.source, outer, _name(outer), 1 << 30, inner, -1, scene.outside)
            found = assignments(scene, name)
            if isinstance(outer, ast.Module):
                break
            outer = scene.source.scope(outer)
    fitting = [each for each in found if tensor is None or may_make(each, tensor)]
    return next(iter(fitting or found), None)


def _name(scope: Scope) -> str:
    return getattr(scope, "name", "<module>")


def assignments(scene: Scene, name: str) -> list[Definition]:
    """The assignments to a name in a scene, the one that most likely ran last first."""
    found = [Definition(scene, *each) for each in _bindings(scene.scope, name)]
    here = scene.source.statement_at(scene.line)
    loop = None
    if here is not None:
        loops = [each for each in scene.source.around(here) if isinstance(each, LOOPS)]
        loop = loops[-1] if loops and _inside(scene, loops[-1]) else None

    def order(each: Definition) -> tuple[int, int]:
        line = each.statement.lineno
        before = (each.statement.end_lineno or line) < scene.line or (line <= scene.line and not each.whole)
        looped = loop is not None and loop.lineno <= line <= (loop.end_lineno or line)
        return (0 if before and looped else 1 if looped else 2 if before else 3), -line

    return sorted((each for each in found if order(each)[0] < 3), key=order)


def _inside(scene: Scene, loop: ast.AST) -> bool:
    """Whether a loop is within the function of the scene."""
    return any(each is scene.scope for each in scene.source.around(loop)) or isinstance(scene.scope, ast.Module)


def own_statements(scope: Scope) -> Iterator[ast.stmt]:
    """The statements of a function or module, without those of functions and classes within."""
    if isinstance(scope, ast.Lambda):
        return
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, INNER):
            waiting.extend(each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))


def _bindings(scope: Scope, name: str) -> Iterator[tuple[ast.stmt, ast.expr, bool]]:
    for statement in own_statements(scope):
        for target, value in _targets(statement):
            yield from _bound(statement, target, value, name)
        for node in ast.walk(statement):
            if isinstance(statement, INNER):
                break
            if isinstance(node, ast.NamedExpr) and node.target.id == name:
                yield statement, node.value, True
            if isinstance(node, ast.comprehension):
                yield from _bound(statement, ast.Tuple([node.target], ast.Store()), node.iter, name)


def _targets(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield target, statement.value
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and statement.value is not None:
        yield statement.target, statement.value
    elif isinstance(statement, ast.For | ast.AsyncFor):
        yield ast.Tuple([statement.target], ast.Store()), statement.iter
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for each in statement.items:
            if each.optional_vars is not None:
                yield ast.Tuple([each.optional_vars], ast.Store()), each.context_expr


def _bound(
    statement: ast.stmt, target: ast.expr, value: ast.expr, name: str
) -> Iterator[tuple[ast.stmt, ast.expr, bool]]:
    if isinstance(target, ast.Name) and target.id == name:
        yield statement, value, True
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        for number, each in enumerate(target.elts):
            inner = each.value if isinstance(each, ast.Starred) else each
            if len(values) == len(target.elts):
                yield from _bound(statement, inner, values[number], name)
            else:
                yield from ((statement, part, False) for _, part, _ in _bound(statement, inner, value, name))


def parameters(scope: Scope) -> list[str]:
    """The names of a function's parameters, the positional ones first."""
    if isinstance(scope, ast.Module):
        return []
    of = scope.args
    return [each.arg for each in (*of.posonlyargs, *of.args, *of.kwonlyargs)]


def _handed(case: Case, scene: Scene, name: str) -> tuple[Scene, ast.expr] | None:
    """What the caller handed over for a parameter, and where it did."""
    names = parameters(scene.scope)
    if name not in names or scene.depth <= 0 or scene.frame is None:
        return None
    caller = case.frames[scene.depth - 1]
    call = caller.node
    if not isinstance(call, ast.Call):
        return None
    for keyword in call.keywords:
        if keyword.arg == name:
            return Scene.of(caller, scene.depth - 1), keyword.value
    number = names.index(name) - (1 if names and names[0] in ("self", "cls") else 0)
    if 0 <= number < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args[: number + 1]):
        return Scene.of(caller, scene.depth - 1), call.args[number]
    return None


def _kept(scene: Scene, node: ast.Attribute, tensor: Tensor | None) -> Definition | None:
    """The assignment ``self.x = ...`` in the class of an object that made its attribute."""
    owner = scene.evaluated(node.value)
    for kind in type(owner).__mro__ if owner is not None else ():
        for method in vars(kind).values():
            code = getattr(method, "__code__", None)
            if not isinstance(method, FunctionType) or code is None or not user_files(()).own_file(code.co_filename):
                continue
            source = source_of(code.co_filename)
            scope = source.function_at(code.co_firstlineno, code.co_name)
            line = 1 << 30
            outside = ChainMap(dict.fromkeys(parameters(scope)[:1], owner), method.__globals__)
            inner = Scene(source, scope, code.co_qualname.rpartition("<locals>.")[2], line, None, -1, outside)
            found = [
                Definition(inner, statement, value)
                for statement in own_statements(scope)
                for target, value in _targets(statement)
                if isinstance(target, ast.Attribute) and target.attr == node.attr
                and isinstance(target.value, ast.Name) and target.value.id in parameters(scope)[:1]
                and (tensor is None or may_make(Definition(inner, statement, value), tensor))
            ]  # fmt: skip
            if found:
                return found[-1]
    return None


def _returned(scene: Scene, call: ast.Call) -> Definition | None:
    """What a function of the user's returns, or the ``forward`` of a module of theirs."""
    thing = scene.evaluated(call.func)
    if isinstance(call.func, ast.Call):  # Model()(x)
        kind = scene.evaluated(call.func.func)
        thing = kind.forward if isinstance(kind, type) and issubclass(kind, nn.Module) else None
    function = function_of(thing)
    if function is None:
        return None
    code = function.__code__
    source = source_of(code.co_filename)
    scope = source.function_at(code.co_firstlineno, code.co_name)
    returns = [each for each in own_statements(scope) if isinstance(each, ast.Return) and each.value is not None]
    if not returns or isinstance(scope, ast.Module):
        return None
    last = returns[-1]
    name = code.co_qualname.rpartition("<locals>.")[2]
    assert last.value is not None
    outside: Mapping[str, Any] = function.__globals__
    owner = thing if isinstance(thing, nn.Module) else getattr(thing, "__self__", None)
    if owner is not None and (names := parameters(scope)):
        outside = ChainMap({names[0]: owner}, function.__globals__)
    return Definition(Scene(source, scope, name, last.lineno, None, -1, outside), last, last.value)


def function_of(thing: Any) -> FunctionType | None:
    """The function of the user's that a call of a thing runs: its own code, or a module's ``forward``."""
    if isinstance(thing, nn.Module):
        thing = type(thing).forward
    if isinstance(thing, MethodType):
        thing = thing.__func__
    for _ in range(DEPTH):
        if not isinstance(thing, FunctionType) or not isinstance(thing.__dict__.get("__wrapped__"), FunctionType):
            break
        thing = thing.__dict__["__wrapped__"]
    if not isinstance(thing, FunctionType) or not user_files(()).own_file(thing.__code__.co_filename):
        return None
    return thing


def may_make(definition: Definition, tensor: Tensor) -> bool:
    """Whether an expression can have made a tensor, by its operation and the node of autograd."""
    node = tensor.grad_fn
    value = definition.value
    if isinstance(definition.statement, ast.AugAssign):
        return True
    if node is None:
        return not (isinstance(value, ast.BinOp) and tensor.requires_grad)
    name = re.sub(r"Backward\d*$", "", node.name()).lower()
    if isinstance(value, ast.BinOp):
        return any(each in name for each in NODES.get(type(value.op), (name,)))
    if isinstance(value, ast.UnaryOp):
        return "neg" in name
    if isinstance(value, ast.Call):
        called = value.func
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) not in MAKERS
    return True


def called(node: ast.AST | None) -> str:
    """The last name of what a call calls: ``stack`` of ``torch.stack(...)``."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def calls_in(node: ast.AST, wanted: Callable[[ast.Call], bool]) -> Iterator[ast.Call]:
    """The calls within an expression that are wanted, outermost first."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Call) and wanted(each))


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """A keyword argument of a call."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def is_true(node: ast.expr | None, value: object = True) -> bool:
    """Whether an expression is this constant."""
    return isinstance(node, ast.Constant) and node.value is value


def made(case: Case, tensor: Tensor | None, node: ast.expr | None, what: str) -> list[Mark]:
    """The line that made a tensor, as recorded, or as the source has it; none if it is the failing line itself."""
    found = definitions(case, node, tensor=tensor)
    last = found[-1].mark(what) if found else None
    place = case.line_of(tensor.grad_fn) if tensor is not None else None
    value = case.tape.value_of(tensor) if case.tape is not None and tensor is not None else None
    recorded: Mark | None = None
    if place is not None:
        recorded = case.mark_at(place, what)
    elif value is not None and value.maker is not None and value.maker.spot is not None:
        recorded = value.maker.spot.mark(what)
    if recorded is None or (last is not None and last.place[:2] == recorded.place[:2]):
        recorded = last
    if recorded is None or (case.site is not None and recorded.place[:2] == (case.site.file, case.site.line)):
        return []
    return [recorded]


def operand(case: Case, node: ast.expr | None) -> str:
    """An expression as it is written, so that a method can be called on it."""
    text = case.text(node)
    plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.List | ast.Dict)
    return text if plain or not text else f"({text})"
