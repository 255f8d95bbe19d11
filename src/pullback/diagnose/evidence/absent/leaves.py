"""Leaves that got lost: a tensor was made to require grad, and then computed with before it had its name."""

from __future__ import annotations

import ast

from pullback.diagnose.evidence.definitions import called, is_true, keyword_of
from pullback.diagnose.evidence.source import Source


def fresh_leaf_inside(node: ast.expr) -> ast.Call | None:
    """A call within an expression that makes a leaf that nothing else has: ``requires_grad=True``, ``Parameter``."""
    for each in ast.walk(node):
        if each is node or not isinstance(each, ast.Call):
            continue
        if is_true(keyword_of(each, "requires_grad")) or called(each) in ("Parameter", "requires_grad_"):
            return each
    return None


def as_leaf(source: Source, node: ast.expr) -> str:
    """The expression so that its result is the leaf."""
    inner = fresh_leaf_inside(node)
    text = source.text(node)
    if inner is not None:
        written = source.text(inner)
        new = _plain(source, inner)
        if text.count(written) == 1 and new:
            text = text.replace(written, new)
            wrapped = text if isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript) else f"({text})"
            if called(inner) == "Parameter":
                return f"{source.text(inner.func)}({text})"
            return f"{wrapped}.requires_grad_()"
    wrapped = text if isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript) else f"({text})"
    return f"{wrapped}.detach().requires_grad_()"


def _plain(source: Source, call: ast.Call) -> str:
    """The call without what makes a leaf of its result."""
    if called(call) == "requires_grad_" and isinstance(call.func, ast.Attribute):
        return source.text(call.func.value)
    if called(call) == "Parameter":
        return source.text(call.args[0]) if len(call.args) == 1 and not call.keywords else ""
    kept = [source.text(each) for each in call.args]
    kept += [source.text(each) for each in call.keywords if each.arg != "requires_grad"]
    return f"{source.text(call.func)}({', '.join(kept)})"
