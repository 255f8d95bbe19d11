"""Changes in place as they are written: which expression changes which variable, directly, by a view, by an alias."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.source import Source

Way = Literal["whole", "index", "view", "detached"]
VIEWS = frozenset({
    "view", "reshape", "t", "squeeze", "unsqueeze", "transpose", "narrow", "select", "flatten", "expand", "permute",
    "diagonal", "unfold", "view_as", "ravel", "movedim", "swapaxes", "unflatten", "chunk", "split", "unbind",
    "contiguous",    "expand_as", "as_strided", "real", "imag", "T", "mT", "H", "mH",
})  # fmt: skip
ALIASES = frozenset({"detach", "data", "numpy"})
# Methods that end with an underscore and do not change what the tensor holds.
HARMLESS = frozenset({"requires_grad_", "share_memory_", "detach_", "retain_grad", "rename_"})


@dataclass(frozen=True)
class Form:
    """One change in place, as it is written.

    Attributes:
        source: The file.
        node: The expression or statement that makes it.
        base: The variable that is changed: ``h`` in ``h[:2].zero_()``.
        way: Whether it is changed as a whole, by an index, through a view or through a detached alias.
        operation: ``zero_``, ``+=``, ``[...] =``.
    """

    source: Source
    node: ast.expr | ast.stmt
    base: ast.expr
    way: Way
    operation: str

    @property
    def path(self) -> str:
        """The variable as it is written."""
        return path_of(self.base)

    @property
    def statement(self) -> ast.stmt | None:
        """The statement that it is in."""
        return self.source.statement(self.node)


def base_of(node: ast.expr) -> tuple[ast.expr, Way]:
    """The variable that an expression is a view or an alias of, and which of the two."""
    way: Way = "whole"
    while True:
        if isinstance(node, ast.Subscript):
            way = "view" if way == "whole" else way
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS | ALIASES:
            way = "detached" if node.func.attr in ALIASES else "view" if way == "whole" else way
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in {"T", "mT", "H", "mH", "data", "real", "imag"}:
            way = "detached" if node.attr == "data" else "view" if way == "whole" else way
            node = node.value
        else:
            return node, way


def forms(source: Source, around: ast.AST) -> Iterator[Form]:
    """All changes in place that are written in a part of a file."""
    for node in ast.walk(around):
        if isinstance(node, ast.AugAssign):
            base, way = base_of(node.target)
            indexed = isinstance(node.target, ast.Subscript) and way == "view"
            yield Form(source, node, base, "index" if indexed else way, "+=")
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    base, way = base_of(target)
                    yield Form(source, node, base, "index" if way == "view" else way, "[...] =")
        elif isinstance(node, ast.Call):
            yield from _of_call(source, node)


def _of_call(source: Source, node: ast.Call) -> Iterator[Form]:
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    inplace = name.endswith("_") and not name.endswith("__") and name not in HARMLESS
    if (
        inplace
        and isinstance(func, ast.Attribute)
        and path_of(func.value)
        not in {"torch", "F", "init", "nn.init", "torch.nn.init", "torch.nn.functional", "nn.functional"}
    ):
        base, way = base_of(func.value)
        yield Form(source, node, base, way, name)
    elif inplace and node.args:
        base, way = base_of(node.args[0])
        yield Form(source, node, base, way, name)
    for keyword in node.keywords:
        told = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        if keyword.arg == "inplace" and told and node.args:
            base, way = base_of(node.args[0])
            yield Form(source, node, base, way, name)
        elif keyword.arg == "out":
            base, way = base_of(keyword.value)
            yield Form(source, node, base, way, f"{name}(out=)")


def aliases(source: Source, around: ast.AST, names: Iterable[str]) -> dict[str, tuple[Way, ast.Assign | None]]:
    """Variables that are views or aliases of others by how they are assigned, each with the way and the statement."""
    found: dict[str, tuple[Way, ast.Assign | None]] = {name: ("whole", None) for name in names if name}
    for _ in range(3):
        for node in ast.walk(around):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            path = path_of(node.targets[0])
            base, way = base_of(node.value)
            of = path_of(base)
            if path and path not in found and of in found and (way != "whole" or base is node.value):
                before = found[of][0]
                found[path] = (before if before != "whole" else way, node)
    return found
