"""Several changes of one file at once, also where they fall on the same line."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit

Point = tuple[int, int]


class Rewrite:
    """Collects changes of a file; those that share lines become one edit.

    Args:
        source: The file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._changes: list[tuple[Point, Point, str]] = []

    def replace(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword, text: str) -> Rewrite:
        """Put a text where a node stands."""
        self._changes.append((_start(node), _end(node), text))
        return self

    def before(self, statement: ast.stmt, text: str) -> Rewrite:
        """Put statements before a statement: on lines of their own if it begins its line."""
        start = _start(statement)
        join = f"\n{self.source.indent(start[0])}" if self._begins(statement) else "; "
        self._changes.append((start, start, join.join(text.split("\n")) + join))
        return self

    def after(self, statement: ast.stmt, text: str) -> Rewrite:
        """Put statements after a statement: on lines of their own if it begins its line and ends it."""
        end = _end(statement)
        alone = self._begins(statement) and self._ends(statement)
        join = f"\n{self.source.indent(statement.lineno)}" if alone else "; "
        self._changes.append((end, end, join + join.join(text.split("\n"))))
        return self

    def remove(self, statement: ast.stmt) -> Rewrite:
        """Leave a statement out; a block keeps at least one."""
        block = self._block(statement)
        index = block.index(statement)
        if len(block) == 1:
            return self.replace(statement, "pass")
        if index + 1 < len(block):
            self._changes.append((_start(statement), _start(block[index + 1]), ""))
        else:
            self._changes.append((_end(block[index - 1]), _end(statement), ""))
        return self

    def edits(self) -> tuple[Edit, ...]:
        """The edits, each of whole lines."""
        groups: list[list[tuple[Point, Point, str]]] = []
        last = 0
        for change in sorted(self._changes, key=lambda each: each[:2]):
            if groups and change[0][0] <= last:
                groups[-1].append(change)
            else:
                groups.append([change])
            last = max(last, change[1][0])
        return tuple(map(self._edit, groups))

    def _edit(self, changes: list[tuple[Point, Point, str]]) -> Edit:
        first, last = changes[0][0][0], max(end[0] for _, end, _ in changes)
        text, at = "", (first, 0)
        for start, end, new in changes:
            text += self._between(at, start) + new
            at = end
        text += self._between(at, (last, len(self.source.lines[last - 1].encode())))
        return Edit(self.source.file, first, last, text)

    def _between(self, start: Point, end: Point) -> str:
        lines = [line.encode() for line in self.source.lines[start[0] - 1 : end[0]]]
        if start[0] == end[0]:
            return lines[0][start[1] : end[1]].decode()
        return b"\n".join([lines[0][start[1] :], *lines[1:-1], lines[-1][: end[1]]]).decode()

    def _begins(self, statement: ast.stmt) -> bool:
        return not self.source.lines[statement.lineno - 1].encode()[: statement.col_offset].strip()

    def _ends(self, statement: ast.stmt) -> bool:
        line, column = _end(statement)
        rest = self.source.lines[line - 1].encode()[column:].decode().strip()
        return not rest or rest.startswith("#")

    def _block(self, statement: ast.stmt) -> list[ast.stmt]:
        around = self.source.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(around, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]


def as_new(source: Source, node: ast.AST | None) -> str:
    """The line that makes a new tensor: ``h = h.add(1)`` for ``h.add_(1)`` and ``h.data.add_(1)``; else nothing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    of, plain = source.text(node.func.value).removesuffix(".data"), node.func.attr.removesuffix("_")
    if plain == node.func.attr or not hasattr(Tensor, plain):
        return ""
    return f"{of} = {of}.{plain}({', '.join(map(source.text, [*node.args, *node.keywords]))})"


def _start(node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Point:
    decorators = getattr(node, "decorator_list", None)
    return (decorators[0].lineno, decorators[0].col_offset - 1) if decorators else (node.lineno, node.col_offset)


def _end(node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Point:
    return node.end_lineno or node.lineno, node.end_col_offset or 0
