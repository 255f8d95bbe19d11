"""The hooks of a failed program: where each was registered, and which function it is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from torch.utils.hooks import BackwardHook

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, frames_of
from pullback.diagnose.evidence.functions.classes import Method, method_behind
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

TENSOR = frozenset({"register_hook"})
MODULE = frozenset({"register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook"})
# So many of the user's modules are read.
MODULES = 300


@dataclass(frozen=True)
class Registered:
    """A call that registered a hook, as it is written.

    Attributes:
        source: Its file.
        call: The call: ``h.register_hook(clip)``.
        hook: The hook, if its definition was found.
        name: The name that torch gives it: that of the function, or ``<lambda>``.
    """

    source: Source
    call: ast.Call
    hook: Method | None
    name: str

    @property
    def method(self) -> str:
        """The method that registered it: ``register_hook``."""
        return _called(self.call)

    @property
    def owner(self) -> str:
        """What it was registered on, as written."""
        func = self.call.func
        return self.source.text(func.value) if isinstance(func, ast.Attribute) else ""

    def mark(self, what: str) -> Mark:
        """The line that registered it."""
        return Mark.at(Place(self.source.file, self.call.lineno, ""), what, self.source.span(self.call))


def sources(case: Case) -> list[Source]:
    """The files of the program: those of its frames, then those of the user's modules that they use, and so on."""
    found = {frame.source.file: frame.source for frame in reversed(case.frames)}
    files = user_files(())
    waiting = [frame.module for frame in reversed(case.frames)]
    while waiting and len(found) <= MODULES:
        for thing in list(waiting.pop(0).values()):
            module = _module_of(thing)
            name = getattr(module, "__file__", None)
            if isinstance(name, str) and name.endswith(".py") and name not in found and files.own_file(name):
                found[name] = source_of(name)
                waiting.append(vars(module))
    return list(found.values())


def _module_of(thing: Any) -> ModuleType | None:
    """A module itself, or that of a function, of a class, or of an object's class."""
    kind = type(thing)
    if kind is ModuleType:
        return thing  # type: ignore[no-any-return]
    named = thing if issubclass(kind, type | FunctionType) else kind
    name = getattr(named, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def calls_of(case: Case, names: Iterable[str]) -> list[tuple[Source, ast.Call]]:
    """The calls of functions or methods of these names in the files of the program."""
    wanted = frozenset(names)
    found = []
    for source in sources(case):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and _called(node) in wanted:
                found.append((source, node))
    return found


def registered(case: Case, methods: Iterable[str]) -> list[Registered]:
    """The calls that register hooks with one of these methods."""
    found = []
    for source, call in calls_of(case, methods):
        given = [*call.args, *(each.value for each in call.keywords if each.arg == "hook")]
        if given and isinstance(call.func, ast.Attribute):
            hook, name = function_of(source, given[0])
            found.append(Registered(source, call, hook, name))
    return found


def function_of(source: Source, value: ast.expr) -> tuple[Method | None, str]:
    """The function that an expression is, if it is defined in the same file, and its name."""
    if isinstance(value, ast.Lambda):
        return Method(source, value, "<lambda>"), "<lambda>"
    if isinstance(value, ast.Call):
        return _made_by(source, value)
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    found = _definition(source, name)
    if found is None and isinstance(value, ast.Name):
        for node in ast.walk(source.tree):  # clip = lambda g: ...
            lambda_ = node.value if isinstance(node, ast.Assign) else None
            if isinstance(lambda_, ast.Lambda) and name in _targets(node):
                return Method(source, lambda_, "<lambda>"), "<lambda>"
    return (Method(source, found, name) if found else None), name


def named_hook(case: Case) -> str:
    """The name of the hook in the message: ``hook 'clip' has changed ...``."""
    said = re.search(r"hook '([^']*)'", case.message)
    return said[1] if said else ""


def hook_frame(case: Case) -> Frame | None:
    """The user's frame that the engine (or torch's wrapper of module hooks) called: a hook that was running."""
    found, before = None, None
    files = user_files(())
    for frame, instruction, line in frames_of(case.error.__traceback__):
        if before is not None and files.own(frame):
            file, name = before.f_code.co_filename.replace("\\", "/"), before.f_code.co_name
            if name == "_engine_run_backward" or file.endswith(("torch/utils/hooks.py", "torch/autograd/graph.py")):
                found = Frame(frame, instruction, line)
        before = frame
    return found


def module_hook(case: Case) -> tuple[Any, Any] | None:
    """The module and the hook of it that was running or had just returned."""
    found = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/hooks.py"):
            local = variables(frame)
            owner = local.get("self")
            hook = next(
                (local[key] for key in ("user_pre_hook", "user_hook", "hook") if callable(local.get(key))), None
            )
            if isinstance(owner, BackwardHook) and hook is not None:
                found = owner.module, hook
    return found


def method_of_hook(hook: Any) -> Method | None:
    """A hook in the source."""
    return method_behind(getattr(hook, "func", hook))


def _targets(node: ast.AST) -> list[str]:
    return [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _definition(source: Source, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None


def _made_by(source: Source, call: ast.Call) -> tuple[Method | None, str]:
    """What a call makes: ``partial(clip, most=1)``, or a function that a function returns."""
    name = _called(call)
    if name == "partial" and call.args:
        return function_of(source, call.args[0])[0], "partial"
    factory = _definition(source, name)
    if factory is None:
        return None, "?"
    inner = {each.name: each for each in ast.walk(factory) if isinstance(each, ast.FunctionDef) and each is not factory}
    for each in ast.walk(factory):
        if isinstance(each, ast.Return):
            if isinstance(each.value, ast.Lambda):
                return Method(source, each.value, "<lambda>"), "<lambda>"
            if isinstance(each.value, ast.Name) and each.value.id in inner:
                return Method(source, inner[each.value.id], each.value.id), each.value.id
    return None, "?"
