"""The user's source as a tree: the expression that ran, the statement around it, and the edits that change them."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from functools import cached_property, lru_cache

from pullback.diagnose.values import Edit

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Bounds = tuple[int, int, int | None, int | None]
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source:
    """One file of the user's, parsed.

    Args:
        file: Its name, as code objects give it.
        text: What it reads.

    Attributes:
        file: Its name.
        lines: Its lines, without their ends; line n is ``lines[n - 1]``.
        tree: Its syntax tree; an empty one if it is no Python.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.split("\n")
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self.tree = ast.Module([], [])
        self._parents = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node."""
        return self._parents.get(node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """A node and all around it, from the inside out."""
        here: ast.AST | None = node
        while here is not None:
            yield here
            here = self._parents.get(here)

    def scope(self, node: ast.AST) -> Scope:
        """The function around a node, or the module; a function itself is in what is around it."""
        for each in self.around(node):
            if each is not node and isinstance(each, Scope):
                return each
        return self.tree

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement with a node."""
        return next((each for each in self.around(node) if isinstance(each, ast.stmt)), None)

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that a line is part of."""
        inner: ast.stmt | None = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
                inner = node
        return inner

    def statement_of(self, line: int, column: int, end_line: int, end_column: int) -> ast.stmt | None:
        """The statement with just these bounds (columns in bytes), where several share a line."""
        return self._by_bounds[1].get((line, column, end_line, end_column))

    def expression_at(self, line: int, column: int, end_line: int, end_column: int) -> ast.expr | None:
        """The outermost expression with just these bounds (columns in bytes, as Python has them)."""
        return self._by_bounds[0].get((line, column, end_line, end_column))

    @cached_property
    def _by_bounds(self) -> tuple[dict[Bounds, ast.expr], dict[Bounds, ast.stmt]]:
        expressions: dict[Bounds, ast.expr] = {}
        statements: dict[Bounds, ast.stmt] = {}
        for node in ast.walk(self.tree):  # from the outside in
            if isinstance(node, ast.expr):
                expressions.setdefault((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset), node)
                if (bounds := _from_name(node)) is not None:
                    expressions.setdefault(bounds, node)
            elif isinstance(node, ast.stmt):
                statements.setdefault((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset), node)
        return expressions, statements

    def function_at(self, line: int, name: str) -> Scope:
        """The innermost function of this name around a line, or the module."""
        found: Scope = self.tree
        for node in ast.walk(self.tree):
            if not isinstance(node, Function):
                continue
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            own = node.name if not isinstance(node, ast.Lambda) else "<lambda>"
            if first <= line <= (node.end_lineno or node.lineno) and own == name:
                found = node
        return found

    def text(self, node: ast.AST) -> str:
        """A node as it is written."""
        return ast.get_source_segment("\n".join(self.lines), node) or ""

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The columns of a node in its first line, in characters."""
        line = self.lines[node.lineno - 1]
        raw = line.encode()
        start = len(raw[: node.col_offset].decode(errors="replace"))
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return start, len(line.rstrip())
        return start, len(raw[: node.end_col_offset].decode(errors="replace"))

    def indent(self, line: int) -> str:
        """The white space before a line."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts a text where a node stands; the lines around it stay."""
        first, last = node.lineno, node.end_lineno or node.lineno
        before = self.lines[first - 1].encode()[: node.col_offset].decode()
        after = self.lines[last - 1].encode()[node.end_col_offset :].decode()
        return Edit(self.file, first, last, before + text + after)

    def inserted_before(self, node: ast.stmt | int, text: str) -> Edit:
        """The edit that puts lines before a statement (or a line), indented as it is."""
        line = node if isinstance(node, int) else node.lineno
        return Edit(self.file, line, line - 1, textwrap.indent(text, self.indent(line)))

    def inserted_after(self, node: ast.stmt, text: str) -> Edit:
        """The edit that puts lines after a statement, indented as it is."""
        line = (node.end_lineno or node.lineno) + 1
        return Edit(self.file, line, line - 1, textwrap.indent(text, self.indent(node.lineno)))

    def wrapped(self, node: ast.stmt, opening: str) -> Edit:
        """The edit that puts a statement into a block: ``with torch.no_grad():``."""
        first, last = node.lineno, node.end_lineno or node.lineno
        indent = self.indent(first)
        inner = "\n".join(f"    {line}" if line.strip() else line for line in self.lines[first - 1 : last])
        return Edit(self.file, first, last, f"{indent}{opening}\n{inner}")

    def code(self, *edits: Edit) -> str:
        """The lines of edits as they should read, for a reader."""
        blocks: list[list[str]] = []
        last = -1
        for edit in edits:
            if edit.text is None:
                continue
            if blocks and 0 <= edit.first - last <= 1:  # it follows: what is indented below the other stays so
                blocks[-1].append(edit.text)
            else:
                blocks.append([edit.text])
            last = edit.last
        return "\n".join(textwrap.dedent("\n".join(block)) for block in blocks)


def _from_name(node: ast.expr) -> Bounds | None:
    """The bounds that Python gives a method call or an attribute whose name is on a later line: from the name on."""
    named = node.func if isinstance(node, ast.Call) else node
    if not isinstance(named, ast.Attribute) or named.end_lineno == node.lineno:
        return None
    assert named.end_lineno is not None
    assert named.end_col_offset is not None
    return named.end_lineno, named.end_col_offset - len(named.attr), node.end_lineno, node.end_col_offset


def source_of(file: str) -> Source:
    """The source of a file, as Python's traceback would read it (notebook cells included); parsed once."""
    return _parsed(file, "".join(linecache.getlines(file)))


@lru_cache(256)
def _parsed(file: str, text: str) -> Source:
    return Source(file, text)
