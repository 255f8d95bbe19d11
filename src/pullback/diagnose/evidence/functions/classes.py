"""The custom Functions of a failed program: their classes, their methods in the source, and the nodes they made."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import BuiltinMethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.autodiff.applied import APPLIES, codes, functions, in_python
from pullback.autodiff.deep import free_gently
from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, frames_of
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

# A graph is walked so far.
NODES = 20_000
CONTEXTS = frozenset({"ctx", "context", "_ctx", "c", "self"})


@dataclass(frozen=True)
class Method:
    """A function as it stands in the source.

    Attributes:
        source: Its file.
        node: Its definition.
        name: How it is called: ``Scale.backward``.
    """

    source: Source
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    name: str

    @property
    def own(self) -> bool:
        """Whether the file is the user's."""
        return user_files(()).own_file(self.source.file)

    @property
    def arguments(self) -> list[ast.arg]:
        """Its positional parameters."""
        return [*self.node.args.posonlyargs, *self.node.args.args]

    @property
    def names(self) -> list[str]:
        """The names of its positional parameters."""
        return [each.arg for each in self.arguments]

    @property
    def first(self) -> str:
        """The name of what it is called with first: of a method not ``self``."""
        given = self.names[1:] if self.names[:1] in (["self"], ["cls"]) else self.names
        return given[0] if given else ""

    @property
    def context(self) -> str:
        """What it calls its context."""
        return self.names[0] if self.names else "ctx"

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements, without a docstring; none for a lambda."""
        if isinstance(self.node, ast.Lambda):
            return []
        body = self.node.body
        first = body[0].value if isinstance(body[0], ast.Expr) else None
        return body[1:] if isinstance(first, ast.Constant) and isinstance(first.value, str) else body

    @cached_property
    def inner(self) -> list[ast.AST]:
        """All nodes of its body, in the order of the text, but for those of functions in it."""
        start = [self.node.body] if isinstance(self.node, ast.Lambda) else self.node.body
        return [each for node in start for each in _inside(node)]

    @property
    def returns(self) -> list[ast.expr]:
        """What it returns, as written, one for each ``return`` with a value; of a lambda its expression."""
        if isinstance(self.node, ast.Lambda):
            return [self.node.body]
        return [each.value for each in self.inner if isinstance(each, ast.Return) and each.value is not None]

    def calls(self, method: str) -> list[ast.Call]:
        """The calls of a method by name, such as ``save_for_backward``."""
        found = [each for each in self.inner if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)]
        return [each for each in found if each.func.attr == method]  # type: ignore[attr-defined]

    def assigned(self, name: str) -> ast.Assign | None:
        """The last plain assignment of a name."""
        found = None
        for each in self.inner:
            if isinstance(each, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in each.targets):
                found = each
        return found

    def assigned_attribute(self, name: str) -> ast.Assign | None:
        """The last assignment of an attribute of its context: ``ctx.k = ...``."""
        found = None
        for each in self.inner:
            if isinstance(each, ast.Assign):
                for to in each.targets:
                    if isinstance(to, ast.Attribute) and to.attr == name and self.text(to.value) == self.context:
                        found = each
        return found

    def mark(self, node: ast.AST, what: str) -> Mark:
        """A line of it, with a part marked."""
        line = getattr(node, "lineno", self.node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return Mark.at(Place(self.source.file, line, self.name), what)
        assert isinstance(node, ast.expr | ast.stmt)
        return Mark.at(Place(self.source.file, line, self.name), what, self.source.span(node))

    def text(self, node: ast.AST) -> str:
        """A part of it as it is written."""
        return self.source.text(node)

    def rewrite(self) -> Rewrite:
        """Changes of its file."""
        return Rewrite(self.source)


def method_of(kind: type, name: str) -> Method | None:
    """A method of a Function in the source; None if the class does not define it in Python."""
    found = inspect.getattr_static(kind, name, None)
    return method_behind(getattr(found, "__func__", found), f"{kind.__name__}.{name}")


def method_behind(function: Any, name: str = "") -> Method | None:
    """A Python function, behind its decorators, in the source; None if there is none, or it is torch's."""
    function = getattr(inspect.unwrap(function) if callable(function) else None, "__func__", function)
    function = inspect.unwrap(function) if callable(function) else None
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(_TORCH):
        return None
    source = source_of(code.co_filename)
    line = code.co_firstlineno
    if code.co_name == "<lambda>":
        node: ast.AST | None = lambda_at(source, code)
    else:
        node = next((each for each in ast.walk(source.tree) if _is_function(each, line, code.co_name)), None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return None
    return Method(source, node, name or code.co_qualname.rpartition("<locals>.")[2])


_TORCH = torch.__file__.removesuffix("__init__.py")


def lambda_at(source: Source, code: Any) -> ast.Lambda | None:
    """The lambda that a code object is compiled from."""
    spans = [each for each in code.co_positions() if None not in each]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            body = node.body
            inside = ((body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset))
            spread = [((a, c), (b, d)) for a, b, c, d in spans if (a, c) != (b, d) and d]
            if any(each == inside for each in spread):
                return node
    return None


def class_of(method: Method) -> ast.ClassDef | None:
    """The class around a method."""
    return next((each for each in method.source.around(method.node) if isinstance(each, ast.ClassDef)), None)


def behind(case: Case) -> list[Any]:
    """The nodes of autograd behind the roots, each once."""
    roots = case.asked.tensors if case.asked is not None else []
    stack = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    seen: dict[Any, None] = dict.fromkeys(stack)
    while stack and len(seen) < NODES:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in seen:
                seen[child] = None
                stack.append(child)
    order = list(seen)
    free_gently(order)
    return order


def nodes_of_functions(case: Case) -> list[Any]:
    """The nodes behind the roots that a custom Function made, torch's own Functions left out."""
    found = []
    for node in behind(case):
        kind = getattr(node, "_forward_cls", None)
        if isinstance(kind, type) and not kind.__module__.startswith("torch."):
            found.append(node)
    return found


def named(case: Case) -> tuple[type, Any] | None:
    """The Function that the message names (``Function MatBackward returned ...``), and its node if it is known."""
    match = re.search(r"[Ff]unction (\w+)Backward returned", case.message)
    if match is None:
        return None
    for node in nodes_of_functions(case):
        if node.name() == f"{match[1]}Backward":
            return node._forward_cls, node
    kinds = [each for each in functions() if each.__name__ == match[1]]
    return (kinds[0], None) if len(kinds) == 1 else None


def running(case: Case) -> tuple[Any, Frame] | None:
    """The node and the frame of a user's ``backward`` that was running, the innermost."""
    node: Any = None
    found = None
    for frame, instruction, line in frames_of(case.error.__traceback__):
        if frame.f_code.co_name in ("apply", "apply_boxed") and "autograd/function.py" in frame.f_code.co_filename:
            local = variables(frame).get("self")
            node = local if isinstance(local, BackwardCFunction) else None
        elif node is not None:
            method = _backward(node._forward_cls)
            code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
            if code is frame.f_code:
                found = node, Frame(frame, instruction, line)
    return found


def started(case: Case) -> tuple[Any, tuple[Any, ...]] | None:
    """The node whose ``backward`` was being called, and the gradients it was called with."""
    found = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code is BackwardCFunction.apply.__code__:
            local = variables(frame)
            found = local["self"], tuple(local.get("args", ()))
    return found


def called(case: Case) -> tuple[type, tuple[Any, ...]] | None:
    """The Function whose ``apply`` was running, and its arguments; the innermost."""
    found = None
    inside = {} if in_python() else {own[0]: kind for kind in functions() for own in codes(kind)}
    for frame, instruction, line in frames_of(case.error.__traceback__):
        if frame.f_code in APPLIES:
            local = variables(frame)
            found = local["cls"], tuple(local.get("args", ()))
        elif not in_python() and (call := _applied_at(Frame(frame, instruction, line))) is not None:
            found = call
        elif found is None and frame.f_code in inside:
            found = inside[frame.f_code], tuple(variables(frame).values())
    return found


def _applied_at(frame: Frame) -> tuple[type, tuple[Any, ...]] | None:
    """The Function that a frame applies, and what it gives it, as it is written."""
    call = frame.node
    apply = frame.evaluated(call.func) if isinstance(call, ast.Call) else None
    kind = apply.__self__ if isinstance(apply, BuiltinMethodType) and apply.__name__ == "apply" else None
    if not isinstance(call, ast.Call) or not isinstance(kind, type) or not issubclass(kind, torch.autograd.Function):
        return None
    given: list[Any] = []
    for each in call.args:
        several = frame.evaluated(each.value) if isinstance(each, ast.Starred) else None
        given += several if isinstance(several, list | tuple) else [frame.evaluated(each)]
    return kind, tuple(given)


def backward_of(kind: type) -> Method | None:
    """The ``backward`` (or ``vjp``) of a Function in the source."""
    return method_of(kind, "backward") or method_of(kind, "vjp")


def has_setup(kind: type) -> bool:
    """Whether a Function has a ``setup_context`` of its own."""
    return kind.setup_context is not torch.autograd.Function.setup_context  # type: ignore[attr-defined]


def saver_of(kind: type) -> Method | None:
    """The method that keeps things for the backward pass: ``setup_context`` if there is one, or ``forward``."""
    return method_of(kind, "setup_context") if has_setup(kind) else method_of(kind, "forward")


def inputs_of(kind: type) -> list[str]:
    """The names of the inputs of a Function, without the context."""
    forward = method_of(kind, "forward")
    if forward is None:
        return []
    return forward.names if has_setup(kind) else forward.names[1:]


def position(node: Any, index: int) -> int | None:
    """Which argument of ``apply`` the gradient ``index`` is of, as the engine counts: tensors only."""
    edges = node.next_functions
    if index >= len(edges) or edges[index][0] is None:
        return None
    rank = sum(child is not None for child, _ in edges[:index])
    needed = [place for place, needs in enumerate(node.needs_input_grad) if needs]
    return needed[rank] if rank < len(needed) else None


def elements(value: ast.expr) -> list[ast.expr]:
    """The gradients of a ``return``, one for each."""
    return list(value.elts) if isinstance(value, ast.Tuple | ast.List) else [value]


def returned(method: Method, count: int | None = None) -> list[ast.expr]:
    """The values returned that can be meant: those of so many gradients, if there are any."""
    fitting = [each for each in method.returns if count is None or len(elements(each)) == count]
    return fitting or method.returns


def asked_frame(case: Case) -> Frame | None:
    """The user's frame that asked for the backward pass which failed: the innermost above the engine."""
    engine = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_name == "_engine_run_backward":
            engine = frame
    if engine is None:
        return None
    found = None
    above = engine.f_back
    lines = {id(frame): (instruction, line) for frame, instruction, line in frames_of(case.error.__traceback__)}
    while above is not None and found is None:
        if user_files(()).own(above) and id(above) in lines:
            found = Frame(above, *lines[id(above)])
        above = above.f_back
    return found


def asked_marks(case: Case) -> list[Mark]:
    """The line that asked for the backward pass, if it is not the failing one."""
    frame = asked_frame(case)
    if frame is None or (case.site is not None and frame.place == case.site.place):
        return []
    return [frame.mark(say("the backward pass was asked for here"))]


def applied_marks(case: Case, kind: type, node: Any) -> list[Mark]:
    """The line that applied a Function: as it was recorded, or the only one in the files of the program."""
    what = say("{name} was applied here", name=kind.__name__)
    place = case.line_of(node)
    if place is not None:
        return [Mark.at(place, what)]
    found = []
    method = method_of(kind, "forward")
    sources = {
        each.file: each for each in [*(frame.source for frame in case.frames), *([method.source] if method else [])]
    }
    for source in sources.values():
        for call in ast.walk(source.tree):
            if isinstance(call, ast.Call) and source.text(call.func) == f"{kind.__name__}.apply":
                found.append(Mark.at(Place(source.file, call.lineno, ""), what, source.span(call)))
    return found if len(found) == 1 else []


def _backward(kind: type) -> Any:
    own = kind.backward is not torch.autograd.Function.backward  # type: ignore[attr-defined]
    return kind.backward if own else kind.vjp  # type: ignore[attr-defined]


def _is_function(node: ast.AST, line: int, name: str) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
        return False
    return min([node.lineno, *(each.lineno for each in node.decorator_list)]) == line


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(node):
        yield from _inside(child)
