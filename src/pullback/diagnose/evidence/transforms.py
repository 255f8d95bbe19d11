"""Which transform of torch a program failed in, which function it transforms, and how that function is written."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame, Spot, frames_of
from pullback.diagnose.evidence.source import Scope, Source, source_of
from pullback.diagnose.values import Edit, Mark
from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

# The functions of torch that are transforms, by the end of the name of their file, with what the user calls them.
NAMES = {
    "_functorch/eager_transforms.py": {
        "grad_impl": "grad",
        "grad_and_value_impl": "grad_and_value",
        "vjp": "vjp",
        "_vjp_with_argnums": "vjp",
        "wrapper": "vjp_fn",
        "jvp": "jvp",
        "_jvp_with_argnums": "jvp",
        "wrapper_fn": "jacobian",
        "linearize": "linearize",
        "jvp_fn": "jvp_fn",
    },
    "_functorch/vmap.py": {"vmap_impl": "vmap", "_flat_vmap": "vmap"},
    "_functorch/functional_call.py": {"functional_call": "functional_call"},
    "autograd/functional.py": {
        name: name for name in ("jacobian", "hessian", "vjp", "jvp", "hvp", "vhp", "_jacfwd")
    },
    "autograd/gradcheck.py": {
        name: name.lstrip("_")
        for name in (
            "gradcheck", "gradgradcheck", "_gradcheck_helper", "_gradcheck_real_imag", "_slow_gradcheck",
            "_fast_gradcheck", "_check_analytical_numerical_equal",
        )
    },
}  # fmt: skip
FUNC = ("_functorch/eager_transforms.py", "_functorch/vmap.py")


@dataclass(frozen=True)
class Defined:
    """A function of the user's, as it is written.

    Attributes:
        code: Its code.
        source: Its file, parsed.
        scope: The ``def`` or the ``lambda``.
    """

    code: CodeType
    source: Source
    scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

    @property
    def name(self) -> str:
        """What it is called."""
        return self.code.co_name

    @property
    def returns(self) -> list[ast.expr]:
        """The expressions that it returns, its last one last."""
        if isinstance(self.scope, ast.Lambda):
            return [self.scope.body]
        inner = [each for each in ast.walk(self.scope) if isinstance(each, ast.Return) and each.value is not None]
        return [each.value for each in inner if self.source.scope(each) is self.scope and each.value is not None]

    @property
    def result(self) -> ast.expr | None:
        """What it returns, if that is written in one place."""
        return self.returns[0] if len(self.returns) == 1 else None

    @property
    def parameters(self) -> list[str]:
        """The names of its positional parameters."""
        return list(self.code.co_varnames[: self.code.co_argcount])

    def mark(self, node: ast.expr | ast.stmt, what: str) -> Mark:
        """A line of it, with an expression marked."""
        place = Place(self.source.file, node.lineno, self.code.co_qualname.rpartition("<locals>.")[2])
        return Mark.at(place, what, self.source.span(node))

    def marks(self, what: str) -> list[Mark]:
        """The lines where it returns; that of its head if it returns nothing."""
        if not self.returns:
            place = Place(self.source.file, self.scope.lineno, self.code.co_qualname.rpartition("<locals>.")[2])
            return [Mark.at(place, what)]
        return [self.mark(each, what) for each in self.returns]

    def text(self, node: ast.AST) -> str:
        """A part of it as it is written."""
        return self.source.text(node)


@dataclass(frozen=True)
class Transform:
    """A call of a transform that had not returned when the program failed.

    Attributes:
        name: What it is: ``grad``, ``vmap``, ``jacobian`` ...
        function: The name of torch's own function.
        local: The variables of torch's frame.
        caller: The user's frame that called it, or None.
    """

    name: str
    function: str
    local: Mapping[str, Any]
    caller: Frame | None

    @property
    def transformed(self) -> Any:
        """What it was to transform."""
        return self.local.get("func", self.local.get("module"))

    @property
    def defined(self) -> Defined | None:
        """The same as it is written, if it is the user's."""
        return defined(self.transformed)


def transforms_in(case: Case, *files: str) -> list[Transform]:
    """The transforms that a program failed in, outermost first; only those of some files, if they are given."""
    users = {id(frame._frame): frame for frame in case.frames}
    caller: Frame | None = None
    found = []
    for frame, _, _ in frames_of(case.error.__traceback__):
        if id(frame) in users:
            caller = users[id(frame)]
            continue
        name = frame.f_code.co_filename.replace("\\", "/")
        for end, names in NAMES.items():
            if name.endswith("torch/" + end) and frame.f_code.co_name in names and (not files or end in files):
                kind = names[frame.f_code.co_name]
                found.append(Transform(kind, frame.f_code.co_name, variables(frame), caller))
    return found


def transform_in(case: Case, *files: str) -> Transform | None:
    """The innermost transform that a program failed in."""
    found = transforms_in(case, *files)
    return found[-1] if found else None


def defined(function: Any) -> Defined | None:
    """Where a function of the user's is written; None if it is none of his, or is not to be found."""
    for _ in range(10):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            inner = getattr(function.__self__, "__func__", None)
            function = inner or function.__func__
        elif isinstance(function, nn.Module):
            function = type(function).forward
        elif isinstance(function, FunctionType) and "__wrapped__" in vars(function):
            function = vars(function)["__wrapped__"]
        elif not isinstance(function, FunctionType | type) and isinstance(type(function).__call__, FunctionType):
            function = type(function).__call__
        else:
            break
    if not isinstance(function, FunctionType) or not user_files(()).own_file(function.__code__.co_filename):
        return None
    return written(function.__code__)


def written(code: CodeType) -> Defined | None:
    """Where a code object is written."""
    source = source_of(code.co_filename)
    kinds = (ast.Lambda,) if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    bounds = [each for each in code.co_positions() if None not in each and (each[0], each[2]) != (each[1], each[3])]
    found: list[Scope] = []
    for node in ast.walk(source.tree):
        if not isinstance(node, kinds) or getattr(node, "name", "<lambda>") != code.co_name:
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        if code.co_firstlineno in (node.lineno, first) and _holds(node, bounds):
            found.append(node)
    scope = found[0] if found else None
    return (
        Defined(code, source, scope) if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else None
    )


def _holds(node: ast.AST, bounds: list[Any]) -> bool:
    """Whether all that a lambda's code runs is written within it: several may stand on one line."""
    if not isinstance(node, ast.Lambda):
        return True
    first, last = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return all(first <= (line, column) and (end, end_column) <= last for line, end, column, end_column in bounds)


def replaced(where: Defined, node: ast.expr, text: str) -> tuple[Edit, ...]:
    """The edit that puts a text in place of an expression of a function."""
    return (where.source.replaced(node, text),)


def wrapped_text(text: str, node: ast.expr) -> str:
    """An expression as something that a method can be called on."""
    plain = ast.Name | ast.Attribute | ast.Call | ast.Subscript
    return text if isinstance(node, plain) else f"({text})"


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nest of Python's containers, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for part in value.values() for each in tensors_of(part)]
    if isinstance(value, list | tuple):
        return [each for part in value for each in tensors_of(part)]
    return []


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The shape of a tensor, also of one whose transform is over; None if it does not tell."""
    try:
        with torch._C.DisableTorchFunction():
            return tuple(int(size) for size in tensor.shape)
    except RuntimeError:
        return None


def keyworded(case: Case, text: str) -> tuple[Edit, ...]:
    """The edit that adds an argument to the end of the failing call: ``randomness="different"``."""
    call = case.call
    return added(case.site, call, text) if case.site is not None and call is not None else ()


def added(frame: Frame, call: ast.Call, text: str) -> tuple[Edit, ...]:
    """The edit that adds an argument to the end of a call."""
    source = frame.source
    written_call = source.text(call)
    inner = written_call[:-1].rstrip()
    comma = "" if inner.endswith(("(", ",")) else ","
    gap = " " if comma or inner.endswith(",") else ""
    return (source.replaced(call, f"{inner}{comma}{gap}{text})"),)


def maker_of(frame: Frame, names: tuple[str, ...]) -> ast.Call | None:
    """The call that made the transformed function which failed: ``vmap(f)`` in ``vmap(f)(x)``, or in ``g = vmap(f)``.

    It is looked for at the failing call, and by the name that was called, in the function and in the module.
    """
    node = frame.node
    if not isinstance(node, ast.Call):
        return None
    if (made := _named(node.func, names)) is not None:
        return made
    called = frame.source.text(node.func)
    scopes = [frame.scope, frame.source.tree]
    for scope in scopes:
        made_at = [
            found
            for each in ast.walk(scope)
            if isinstance(each, ast.Assign) and any(frame.source.text(target) == called for target in each.targets)
            if (found := _named(each.value, names)) is not None
        ]
        if len(made_at) == 1:
            return made_at[0]
    return None


def _named(node: ast.AST, names: tuple[str, ...]) -> ast.Call | None:
    if isinstance(node, ast.Call):
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in names:
            return node
    return None


def only_call(frame: Frame, names: tuple[str, ...]) -> ast.Call | None:
    """The call of a transform behind a failing call; by default the only call of this name in the file."""
    made = maker_of(frame, names)
    if made is None:
        found = [each for node in ast.walk(frame.source.tree) if (each := _named(node, names)) is not None]
        made = found[0] if len(found) == 1 else None
    return made


def keyword_of(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument of a call as it is written."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position is not None and position < len(call.args) else None


def set_keyword(frame: Frame, call: ast.Call, name: str, text: str, position: int | None = None) -> tuple[Edit, ...]:
    """The edit that gives an argument of a call a value, whether it was given before or not."""
    given = keyword_of(call, name, position)
    if given is not None:
        return (frame.source.replaced(given, text),)
    return added(frame, call, f"{name}={text}")


def without_keyword(frame: Spot, call: ast.Call, name: str) -> tuple[Edit, ...]:
    """The edit that leaves a keyword argument out of a call that is written on lines of its own."""
    source = frame.source
    kept = [source.text(each) for each in call.args]
    kept += [f"{each.arg}={source.text(each.value)}" if each.arg else f"**{source.text(each.value)}"
             for each in call.keywords if each.arg != name]  # fmt: skip
    return (source.replaced(call, f"{source.text(call.func)}({', '.join(kept)})"),)


def removed(source: Source, statement: ast.stmt) -> Edit:
    """The edit that leaves a statement out, also one that shares its line with others."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    before = source.lines[first - 1].encode()[: statement.col_offset].decode()
    after = source.lines[last - 1].encode()[statement.end_col_offset or 0 :].decode().lstrip("; \t")
    if not before.strip() and (not after or after.startswith("#")):
        parent = source.parent(statement)
        alone = parent is not None and getattr(parent, "body", None) == [statement]
        return Edit(source.file, first, last, f"{before}pass" if alone else None)
    rest = before + after
    if not after:
        rest = before.rstrip().removesuffix(";")
        if rest.endswith(":"):
            rest += " pass"
    return Edit(source.file, first, last, rest)


def stripped(node: ast.expr) -> ast.expr:
    """An expression without the calls at its end that lead out of torch: ``.item()``, ``float(...)``, ``.numpy()``."""
    leaving = {"item", "numpy", "tolist", "detach", "cpu", "float64"}
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in leaving and not node.args:
            node = node.func.value
        elif isinstance(node.func, ast.Name) and node.func.id in {"float", "int", "bool"} and len(node.args) == 1:
            node = node.args[0]
        else:
            break
    return node


def assigned(frame: Frame, name: str) -> list[Place]:
    """Where a variable of a frame got its value: the last assignment before the line it was at, if there is one."""
    found = [
        (each.lineno, scope)
        for scope in dict.fromkeys((frame.scope, frame.source.tree))
        for each in ast.walk(scope)
        if isinstance(each, ast.Assign)
        and any(frame.source.text(target) == name for target in each.targets)
        and (each.lineno <= frame.line or scope is frame.source.tree)
    ]
    lines = [line for line, scope in found if scope is frame.scope and line <= frame.line] or [
        line for line, _ in found
    ]
    return [Place(frame.file, max(lines), frame.place.function)] if lines else []


def title_of(where: Defined | None, otherwise: str = "") -> str:
    """What a transformed function is called in a sentence: its name, or how the lambda is written."""
    if where is None:
        return otherwise or "f"
    if isinstance(where.scope, ast.Lambda):
        text = " ".join(where.text(where.scope).split())
        return text if len(text) <= 60 else "lambda"
    return where.name


def batch_norm_of(case: Case) -> nn.Module | None:
    """The layer of batch normalization that was running, if any."""
    found = None
    for frame, _, _ in frames_of(case.error.__traceback__):
        owner = variables(frame).get("self")
        found = owner if isinstance(owner, _BatchNorm) else found
    return found
