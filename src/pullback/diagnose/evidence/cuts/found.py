"""Cuts: where the way from the parameters to a root ends, and what is known of each."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from pullback.diagnose.evidence.slices import (
    Body,
    Part,
)
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Mark
from pullback.graph.values import Place

Answer = bool | None
Region = tuple[str, ast.AST, "Body"]


@dataclass(eq=False)
class Cut:
    """A place where the way from the parameters to the root ends.

    Attributes:
        kind: What cut it: ``detach``, ``no_grad``, ``numpy``, ...
        node: The expression whose value has no graph any more.
        body: The function of the user's in which it stands.
        operand: The expression whose graph is lost.
        sure: Whether the operand is known to have required grad.
        region: What turned the recording off, if that is the cause: a ``with``, a decorator, a call; and its file.
        exact: Whether it was recorded while it ran.
        name: The name of the operation.
        shape: The shape of the operand; None if it is not known.
    """

    kind: str
    node: ast.expr
    body: Body
    operand: ast.expr | None = None
    sure: bool = True
    region: Region | None = None
    exact: bool = False
    name: str = ""
    shape: tuple[int, ...] | None = None

    @property
    def source(self) -> Source:
        """Its file."""
        return self.body.source

    @property
    def statement(self) -> ast.stmt | None:
        """The statement with it."""
        return self.source.statement(self.node)

    @property
    def text(self) -> str:
        """The expression as it is written; the middle of a long one is left out."""
        return _short(self.source.text(self.node))

    @property
    def operand_text(self) -> str:
        """The operand as it is written."""
        return _short(self.source.text(self.operand)) if self.operand is not None else ""

    def mark(self, what: str) -> Mark:
        """Its line."""
        return marked(self.source, self.node, what)

    def region_mark(self, what: str) -> Mark | None:
        """The line that turned the recording off."""
        if self.region is None:
            return None
        return marked(self.region[2].source, self.region[1], what)


@dataclass(eq=False)
class Leaf:
    """Where the way back ends without anything that requires grad; ``sure`` if all that it was made from is known."""

    node: ast.expr
    body: Body
    thing: Any
    sure: bool = True


@dataclass(eq=False)
class Found:
    """All that was found of one root.

    Attributes:
        cuts: The cuts, the likeliest first.
        leaves: Where the other ways end.
        root: The root as it is written.
        answer: Whether something behind the root ought to require grad; None if that cannot be told.
        off: Whether recording is off in the end, with no block around it that would say so.
        unknown: The names of which one cannot tell.
    """

    cuts: list[Cut] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    root: Part | None = None
    answer: Answer = None
    off: bool = False
    suspects: list[Cut] = field(default_factory=list)


def _short(text: str, most: int = 80) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else f"{plain[: most // 2]} ... {plain[-most // 4 :]}"


def marked(source: Source, node: ast.AST, what: str) -> Mark:
    """A line of the user's with an expression of it marked; of a block, its first line; of a function, its name."""
    scope = source.scope(node)
    name = scope.name if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) else (
        "<lambda>" if isinstance(scope, ast.Lambda) else "<module>"
    )  # fmt: skip
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.With | ast.AsyncWith):
        node = node.items[0].context_expr
    span = source.span(node) if isinstance(node, ast.expr | ast.Expr) and line else None
    return Mark.at(Place(source.file, getattr(node, "lineno", line), name), what, span)
