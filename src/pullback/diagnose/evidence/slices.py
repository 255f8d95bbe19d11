"""Where a value came from, read in the user's source: from an expression back to the statements behind it.

Nothing runs. What a name stood for is looked up in the variables that are still alive, a called function or module is
followed into its own source, and of everything else only the text is known.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.evidence.frames import Frame, Spot, attribute, item
from pullback.diagnose.evidence.source import Function, Scope, Source, source_of
from pullback.graph.recording.userfiles import user_files

# A call is followed so deep, and so many steps of a slice are told.
DEPTH = 12
STEPS = 2000
# Methods that put their arguments into the object that they belong to.
FILLS = frozenset({"append", "extend", "insert", "add", "update", "appendleft", "setdefault", "put"})
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
Key = int | str


class Body:
    """A function of the user's (or a module) while it ran, as far as that is known.

    Attributes:
        source: Its file.
        scope: Its part of the tree.
        frame: Its frame, if it is still alive.
        names: The variables of its module.
        own: What some of its own names are known to stand for.
        given: The expressions that its parameters were given, each in the body of the caller.
        came: The calls through which it was entered.
        depth: How many calls lead from the failing frame to it.
        frames: The frames of the traceback.
    """

    def __init__(
        self,
        source: Source,
        scope: Scope,
        names: Mapping[str, Any],
        frames: Sequence[Frame] = (),
        frame: Frame | None = None,
        depth: int = 0,
    ) -> None:
        self.source = source
        self.scope = scope
        self.names = names
        self.frame = frame
        self.frames = frames
        self.depth = depth
        self.own: dict[str, Any] = {}
        self.given: dict[str, tuple[Part, ...]] = {}
        self.came: tuple[Any, ...] = ()

    @classmethod
    def of(cls, frames: Sequence[Frame], number: int = -1) -> Body:
        """The body of one of the frames of a traceback, with what its caller gave it."""
        frame = frames[number]
        body = cls(frame.source, scope_of(frame), frame.module, frames, frame)
        number %= len(frames)
        if number:
            outer = frames[number - 1]
            call = outer.node
            if isinstance(call, ast.Call) and isinstance(body.scope, Function):
                caller = cls.of(frames, number - 1)
                if any(_code_of(each) is frame.code for each in caller.callees(call.func)):
                    first = frame.code.co_varnames[:1]
                    bound = bool(first) and first[0] in ("self", "cls") and not _explicit(caller, call)
                    body.given = _matched(body.scope, call, caller, bound)
        return body

    @functools.cached_property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from other bodies when the same statement is met again."""
        return self.scope, self.came, *((name, id(thing)) for name, thing in self.own.items())

    @functools.cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        """All statements that bind or fill a name (or ``self.name``), in the order of the text."""
        found: dict[str, list[Binding]] = {}
        for node in walk(self.scope):
            for key, binding in _bindings(node):
                found.setdefault(key, []).append(binding)
        for each in found.values():
            each.sort(key=lambda binding: (binding.statement.lineno, binding.statement.col_offset))
        return found

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """The names of its parameters."""
        if not isinstance(self.scope, Function):
            return frozenset()
        spec = self.scope.args
        several = [each for each in (spec.vararg, spec.kwarg) if each is not None]
        return frozenset(each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *several))

    @functools.cached_property
    def here(self) -> ast.stmt | None:
        """The statement that its frame stopped at."""
        return self.frame.statement if self.frame is not None else None

    @functools.cached_property
    def outer(self) -> Body | None:
        """What is around it: the function in which it was defined, or its module."""
        if isinstance(self.scope, ast.Module):
            return None
        scope = self.source.scope(self.scope)
        while isinstance(scope, ast.Lambda):
            scope = self.source.scope(scope)
        number = next(
            (number for number in range(len(self.frames) - 1, -1, -1)
             if self.frames[number].file == self.source.file and scope_of(self.frames[number]) is scope), None,
        )  # fmt: skip
        if number is not None:
            return Body.of(self.frames, number)
        return Body(self.source, scope, self.names, self.frames, depth=self.depth)

    def is_local(self, name: str) -> bool:
        """Whether a name is its own."""
        return name in self.bindings or name in self.parameters or name in self.own

    def live(self, name: str) -> Any:
        """What a name stood for at last; None if it is not known (or was None)."""
        if name in self.own:
            return self.own[name]
        if self.frame is not None and name in self.frame.local:
            return self.frame.local[name]
        if isinstance(self.scope, ast.Module) or not self.is_local(name):
            if self.outer is not None and not isinstance(self.outer.scope, ast.Module):
                found = self.outer.live(name)
                if found is not None:
                    return found
            if name in self.names:
                return self.names[name]
            return vars(sys.modules["builtins"]).get(name)
        return None

    def evaluated(self, node: ast.expr | None, depth: int = 0) -> Any:
        """What an expression stands for, as far as that can be told without running anything."""
        if depth > DEPTH or node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            found = self.live(node.id)
            return found if found is not None else self._static(node, depth)
        if isinstance(node, ast.Attribute):
            return attribute(self.evaluated(node.value, depth + 1), node.attr)
        if isinstance(node, ast.Subscript):
            return item(self.evaluated(node.value, depth + 1), self.evaluated(node.slice, depth + 1))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return None
        return None

    def _static(self, node: ast.Name, depth: int) -> Any:
        sources = definitions(node, self)
        if len(sources) != 1 or sources[0].path or sources[0].how:
            return None
        return sources[0].body.evaluated(sources[0].node, depth + 1)

    def callees(self, node: ast.expr) -> list[Any]:
        """The things that may have been called: one, or the items of the container that a loop went through."""
        found = self.evaluated(node)
        if found is not None:
            return [found]
        if isinstance(node, ast.Subscript):
            return _items(self.evaluated(node.value))
        if isinstance(node, ast.Call):  # Model()(x)
            kind = self.evaluated(node.func)
            name = "forward" if isinstance(kind, type) and issubclass(kind, nn.Module) else "__call__"
            call = getattr(kind, name, None) if isinstance(kind, type) else None
            return [call] if isinstance(call, types.FunctionType) else []
        if isinstance(node, ast.Name):
            things: list[Any] = []
            for part in definitions(node, self):
                if part.how == "item":
                    things += _items(part.body.evaluated(part.node))
                elif isinstance(part.node, ast.Name | ast.Attribute):
                    things += part.body.callees(part.node)
            return things
        return []


@dataclass(frozen=True)
class Part:
    """An expression, and which part of its value is meant.

    Attributes:
        node: The expression.
        body: Where it stands.
        path: The way from its value to the part: indices and keys.
        how: How the value gets from here to there: ``""`` as it is, ``item`` one of its items, ``write`` it is written
            into what is asked for, ``change`` what is asked for is changed by it.
        statement: The statement that binds it, if it is bound.
    """

    node: ast.expr
    body: Body
    path: tuple[Key, ...] = ()
    how: str = ""
    statement: ast.stmt | None = None

    @property
    def text(self) -> str:
        """As it is written."""
        return self.body.source.text(self.node)


@dataclass(frozen=True)
class Binding:
    """A statement that gives a name a value, or fills what it names."""

    statement: ast.stmt
    node: ast.expr
    path: tuple[Key, ...] = ()
    how: str = ""
    into: tuple[Key, ...] | None = None
    inside: ast.AST | None = None

    @property
    def ends(self) -> bool:
        """Whether nothing of the value before is left."""
        return self.how in ("", "item")


@dataclass
class Step:
    """One step of a slice: an expression that the value came through."""

    source: Source
    node: ast.expr
    scope: Scope
    frame: Frame | None
    part: Part = field(repr=False)


def steps_of(part: Part) -> Iterator[Step]:
    """The expressions that a value came from, the nearest first, each once."""
    waiting = [part]
    seen: set[Any] = set()
    while waiting and len(seen) < STEPS:
        here = waiting.pop(0)
        key = (here.node, here.body.identity)
        if key in seen:
            continue
        seen.add(key)
        yield Step(here.body.source, here.node, here.body.scope, here.body.frame, here)
        waiting += sources_of(here)


def sources_of(part: Part) -> list[Part]:
    """What the value of an expression is made of."""
    node, body, path = part.node, part.body, part.path

    def inner(nodes: Sequence[ast.expr | None], way: tuple[Key, ...] = ()) -> list[Part]:
        return [Part(each, body, way) for each in nodes if each is not None]

    match node:
        case ast.Name():
            return [_onward(each, path) for each in definitions(node, body)]
        case ast.Attribute():
            known = [_onward(each, path) for each in definitions(node, body)]
            return known or inner([node.value], (node.attr, *path) if path else ())
        case ast.Subscript():
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return inner([node.value], (key, *path) if isinstance(key, int | str) else ())
        case ast.Tuple() | ast.List():
            picked = _picked(node.elts, path)
            return inner(node.elts) if picked is None else inner([picked], path[1:])
        case ast.Dict():
            keys = [each.value if isinstance(each, ast.Constant) else None for each in node.keys]
            if path and path[0] in keys:
                return inner([node.values[keys.index(path[0])]], path[1:])
            return inner(node.values)
        case ast.Call():
            return called(part) or inner([_receiver(node), *node.args, *(each.value for each in node.keywords)])
        case ast.IfExp():
            return inner([node.body, node.orelse], path)
        case ast.NamedExpr() | ast.Starred() | ast.Await():
            return inner([node.value], path)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            return inner([node.elt], path[1:])
        case ast.DictComp():
            return inner([node.value], path[1:])
        case ast.BinOp():
            return inner([node.left, node.right])
        case ast.BoolOp():
            return inner(node.values)
        case ast.UnaryOp():
            return inner([node.operand])
        case ast.Compare():
            return inner([node.left, *node.comparators])
    return []


def called(part: Part) -> list[Part]:
    """What a call of the user's own function or module returns: its return expressions, in its own body."""
    found: list[Part] = []
    if isinstance(part.node, ast.Call) and part.body.depth < DEPTH:
        for thing in part.body.callees(part.node.func):
            found += returns_of(thing, part)
    return found


def returns_of(thing: Any, part: Part) -> list[Part]:
    """The return expressions of a function or module of the user's that a call was made of; none of a library's."""
    assert isinstance(part.node, ast.Call)
    body = entered(thing, part.node, part.body)
    if body is None:
        return []
    if isinstance(body.scope, ast.Lambda):
        return [Part(body.scope.body, body, part.path)]
    return [
        Part(node.value, body, part.path if isinstance(node, ast.Return) else ())
        for node in walk(body.scope)
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None
    ]


def entered(thing: Any, call: ast.Call, caller: Body) -> Body | None:
    """The body of what was called, with its parameters bound; None if it is not the user's or has no source."""
    function, owner = _function_of(thing)
    if function is None:
        return None
    source = source_of(function.__code__.co_filename)
    scope = _scope_of(source, function)
    if scope is None:
        return None
    body = Body(source, scope, function.__globals__, caller.frames, depth=caller.depth + 1)
    body.came = (call, *caller.came)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            body.own[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    bound = owner is not None or isinstance(call.func, ast.Call)  # of Model()(x) the object is not known
    if owner is not None and scope.args.posonlyargs + scope.args.args:
        body.own[(scope.args.posonlyargs + scope.args.args)[0].arg] = owner
    body.given = _matched(scope, call, caller, bound)
    for name, parts in body.given.items():  # what a parameter stood for is known where the argument is
        if len(parts) == 1 and not parts[0].path and name not in body.bindings:
            value = parts[0].body.evaluated(parts[0].node)
            if value is not None and not isinstance(value, Tensor):
                body.own[name] = value
    return body


def definitions(node: ast.Name | ast.Attribute, body: Body) -> list[Part]:
    """What a name, or an attribute of one, may have got its value from at this point, the nearest first."""
    key = node.id if isinstance(node, ast.Name) else dotted(node)
    if key is None:
        return []
    in_comprehension = _comprehended(node, body) if isinstance(node, ast.Name) else []
    if in_comprehension:
        return in_comprehension
    found, ended = reaching(key, node, body)
    if isinstance(node, ast.Attribute):
        return found if ended else found + _elsewhere(node, body)
    if not ended and key in body.parameters:
        return found + list(body.given.get(key, ()))
    if not body.is_local(key) and body.outer is not None:
        found = _outside(key, body)
    return found


def reaching(key: str, use: ast.AST | None, body: Body) -> tuple[list[Part], bool]:
    """The bindings of a name in its body that may reach a point, and whether one of them surely does."""
    bindings = body.bindings.get(key, [])
    statement = body.source.statement(use) if use is not None else None
    if statement is None:
        return [_part(each, body) for each in reversed(bindings)], any(each.ends for each in bindings)
    before = [each for each in bindings if _precedes(each.statement, statement) and not _apart(each, statement, body)]
    found: list[Binding] = []
    ended = False
    for each in reversed(before):
        found.append(each)
        if each.ends and _always(each.statement, statement, body):
            ended = True
            break
    loop = _loop(statement, body)
    if not (ended and _loop_within(found[-1].statement, statement, body)) and loop is not None:
        inside = set(ast.walk(loop))
        found = [each for each in reversed(bindings) if each.statement in inside and each not in found] + found
    return [_part(each, body) for each in found], ended


def dotted(node: ast.expr) -> str | None:
    """``self.head.weight`` of names and attributes only; None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def scope_of(spot: Spot) -> Scope:
    """The function that ran, or the module; of a comprehension, which has a code of its own, what is around it."""
    if spot.code.co_name.startswith("<") and spot.code.co_name not in ("<module>", "<lambda>"):
        node = spot.node or spot.statement
        return spot.source.scope(node) if node is not None else spot.source.tree
    return spot.scope


def walk(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions and classes in it."""
    waiting = [scope.body] if isinstance(scope, ast.Lambda) else list(getattr(scope, "body", []))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _onward(part: Part, path: tuple[Key, ...]) -> Part:
    return Part(part.node, part.body, part.path + path if part.how == "" else (), part.how, part.statement)


def _picked(elements: Sequence[ast.expr], path: tuple[Key, ...]) -> ast.expr | None:
    if not path or not isinstance(path[0], int) or any(isinstance(each, ast.Starred) for each in elements):
        return None
    return elements[path[0]] if -len(elements) <= path[0] < len(elements) else None


def _part(binding: Binding, body: Body) -> Part:
    return Part(binding.node, body, binding.path, binding.how, binding.statement)


def _bindings(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    match node:
        case ast.Assign():
            for target in node.targets:
                yield from _bound(target, node, node.value)
        case ast.AnnAssign() if node.value is not None:
            yield from _bound(node.target, node, node.value)
        case ast.AugAssign():
            key = dotted(node.target.value if isinstance(node.target, ast.Subscript) else node.target)
            if key is not None:
                yield key, Binding(node, node.value, how="change")
        case ast.For() | ast.AsyncFor():
            yield from _looped(node.target, node, node.iter)
        case ast.With() | ast.AsyncWith():
            for entry in node.items:
                if entry.optional_vars is not None:
                    yield from _bound(entry.optional_vars, node, entry.context_expr)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method), args=args) as call):
            key = dotted(owner)
            if key is not None and (method in FILLS or (method.endswith("_") and not method.startswith("_"))):
                for each in args or [call]:
                    yield key, Binding(node, each, how="write" if each is not call else "change")
        case ast.stmt():
            pass
    if isinstance(node, ast.stmt):
        for inner in _expressions(node):
            if isinstance(inner, ast.NamedExpr):
                yield inner.target.id, Binding(node, inner.value)


def _expressions(node: ast.stmt) -> Iterator[ast.AST]:
    waiting = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(each for each in ast.iter_child_nodes(here) if isinstance(each, ast.expr))


def _bound(
    target: ast.expr, statement: ast.stmt, value: ast.expr, path: tuple[Key, ...] = ()
) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Tuple | ast.List):
        for number, each in enumerate(target.elts):
            if isinstance(each, ast.Starred):
                yield from _bound(each.value, statement, value)
            else:
                yield from _bound(each, statement, value, (*path, number))
    elif isinstance(target, ast.Subscript):
        key = dotted(target.value)
        if key is not None:
            yield key, Binding(statement, value, path, how="write")
    else:
        key = dotted(target)
        if key is not None:
            yield key, Binding(statement, value, path)


def _looped(target: ast.expr, statement: ast.stmt, values: ast.expr) -> Iterator[tuple[str, Binding]]:
    """What the target of a loop gets: of ``zip`` and ``enumerate`` just its own argument."""
    if isinstance(target, ast.Tuple | ast.List):
        own: list[ast.expr | None] = [values] * len(target.elts)
        if isinstance(values, ast.Call) and isinstance(values.func, ast.Name) and values.args:
            if values.func.id == "zip" and len(values.args) == len(target.elts):
                own = list(values.args)
            elif values.func.id == "enumerate":
                own = [None, values.args[0]]
        for each, value in zip(target.elts, own, strict=False):
            if value is not None:
                yield from _looped(each, statement, value)
    else:
        key = dotted(target)
        if key is not None:
            yield key, Binding(statement, values, how="item")


def _comprehended(node: ast.Name, body: Body) -> list[Part]:
    for around in body.source.around(node):
        if isinstance(around, ast.stmt):
            break
        if not isinstance(around, COMPREHENSIONS):
            continue
        for generator in around.generators:
            holder = ast.For(target=generator.target, iter=generator.iter, body=[], orelse=[])
            for key, binding in _looped(generator.target, holder, generator.iter):
                if key == node.id and node not in ast.walk(generator.iter):
                    return [Part(binding.node, body, how="item")]
    return []


def _outside(name: str, body: Body) -> list[Part]:
    outer = body.outer
    while outer is not None:
        if outer.is_local(name):
            found, ended = reaching(name, outer.here, outer)
            if not ended and name in outer.parameters:
                found += list(outer.given.get(name, ()))
            return found
        outer = outer.outer
    return []


def _elsewhere(node: ast.Attribute, body: Body) -> list[Part]:
    """The assignments to ``self.name`` in the other methods of its class."""
    owner = body.evaluated(node.value)
    if owner is None or isinstance(owner, Tensor | types.ModuleType) or body.depth >= DEPTH:
        return []
    found: list[Part] = []
    for kind in type(owner).__mro__:
        tree = _class_of(kind)
        if tree is None:
            continue
        source, definition, names = tree
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and method is not body.scope and method.args.args:
                inner = Body(source, method, names, body.frames, depth=body.depth + 1)
                own = method.args.args[0].arg
                inner.own[own] = owner
                found += [_part(each, inner) for each in inner.bindings.get(f"{own}.{node.attr}", [])]
    return found


def _class_of(kind: type) -> tuple[Source, ast.ClassDef, Mapping[str, Any]] | None:
    function = next((each for each in vars(kind).values() if isinstance(each, types.FunctionType)), None)
    function = inspect.unwrap(function) if function is not None else None
    if function is None or not user_files(()).own_file(function.__code__.co_filename):
        return None
    source = source_of(function.__code__.co_filename)
    scope = _scope_of(source, function)
    if scope is None:
        return None
    definition = next((each for each in source.around(scope) if isinstance(each, ast.ClassDef)), None)
    return None if definition is None else (source, definition, function.__globals__)


def _function_of(thing: Any) -> tuple[types.FunctionType | None, Any]:
    """The user's function behind a callable, and the object that it is bound to."""
    owner: Any = None
    while isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, nn.Module):
        owner, thing = thing, type(thing).forward if "forward" not in vars(thing) else vars(thing)["forward"]
    elif isinstance(thing, types.MethodType):
        owner, thing = thing.__self__, thing.__func__
    elif not isinstance(thing, type | types.FunctionType):
        owner, thing = (
            thing,
            next((vars(kind)["__call__"] for kind in type(thing).__mro__ if "__call__" in vars(kind)), None),
        )
    if isinstance(thing, types.MethodType):
        owner, thing = thing.__self__, thing.__func__
    try:
        thing = inspect.unwrap(thing) if isinstance(thing, types.FunctionType) else None
    except ValueError:
        return None, None
    if not isinstance(thing, types.FunctionType) or not user_files(()).own_file(thing.__code__.co_filename):
        return None, None
    return thing, owner


def _scope_of(source: Source, function: types.FunctionType) -> Function | None:
    code = function.__code__
    name = code.co_name
    bounds = [each[0] for each in code.co_positions() if each[0] is not None]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Lambda) and name == "<lambda>":
            columns = {each[2] for each in code.co_positions() if each[0] == node.body.lineno}
            if node.lineno == code.co_firstlineno and node.body.col_offset in columns:
                return node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno and max(bounds, default=0) <= (node.end_lineno or 0):
                return node
    return None


def _code_of(thing: Any) -> types.CodeType | None:
    function, _ = _function_of(thing)
    return None if function is None else function.__code__


def _explicit(caller: Body, call: ast.Call) -> bool:
    """Whether ``self`` is written among the arguments: ``Base.forward(self, x)``."""
    return isinstance(caller.evaluated(call.func.value), type) if isinstance(call.func, ast.Attribute) else False


def _matched(scope: Function, call: ast.Call, caller: Body, bound: bool) -> dict[str, tuple[Part, ...]]:
    spec = scope.args
    positional = [each.arg for each in (*spec.posonlyargs, *spec.args)][1 if bound else 0 :]
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        everything = [*call.args, *(each.value for each in call.keywords)]
        parts = tuple(Part(each, caller) for each in everything)
        return dict.fromkeys([*positional, *(each.arg for each in (spec.vararg, spec.kwarg) if each)], parts)
    found: dict[str, tuple[Part, ...]] = {
        name: (Part(node, caller),) for name, node in zip(positional, call.args, strict=False)
    }
    if spec.vararg is not None:
        found[spec.vararg.arg] = tuple(Part(each, caller) for each in call.args[len(positional) :])
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = (Part(keyword.value, caller),)
    return found


def _items(container: Any) -> list[Any]:
    if isinstance(container, nn.ModuleDict):
        return list(container._modules.values())
    if isinstance(container, nn.Sequential | nn.ModuleList):
        return list(container._modules.values())
    if type(container) in (list, tuple):
        return list(container[:100])
    return list(container.values())[:100] if type(container) is dict else []


def _precedes(one: ast.stmt, other: ast.stmt) -> bool:
    return (one.lineno, one.col_offset) < (other.lineno, other.col_offset) and one is not other


def _apart(binding: Binding, use: ast.stmt, body: Body) -> bool:
    """Whether a binding is in the one branch of an ``if`` and the use in the other."""
    around = list(body.source.around(use))
    inner: ast.AST = binding.statement
    for each in body.source.around(binding.statement):
        if isinstance(each, ast.If) and each in around and each is not inner:
            other = each.orelse if inner in each.body else each.body
            if any(branch in around for branch in other):
                return True
        inner = each
    return False


def _always(statement: ast.stmt, use: ast.stmt, body: Body) -> bool:
    """Whether a statement before the use surely ran: nothing but ``with`` and ``try`` is between their blocks."""
    around = set(body.source.around(use))
    parent = body.source.parent(statement)
    while isinstance(parent, ast.With | ast.AsyncWith | ast.Try) and parent not in around:
        parent = body.source.parent(parent)
    return parent in around


def _loop(use: ast.stmt, body: Body) -> ast.AST | None:
    """The outermost loop around a point, in its own function."""
    found = None
    for each in body.source.around(use):
        if isinstance(each, Function | ast.ClassDef):
            break
        if isinstance(each, ast.For | ast.AsyncFor | ast.While) and each is not use:
            found = each
    return found


def _loop_within(statement: ast.stmt, use: ast.stmt, body: Body) -> bool:
    """Whether a binding is in the innermost loop around the use: then it is made anew each time round."""
    for each in body.source.around(use):
        if isinstance(each, Function | ast.ClassDef):
            return True
        if isinstance(each, ast.For | ast.AsyncFor | ast.While) and each is not use:
            return each in set(body.source.around(statement))
    return True
