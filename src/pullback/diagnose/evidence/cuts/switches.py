"""Lines that switch grad mode, or freeze parameters."""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.found import marked
from pullback.diagnose.evidence.cuts.regions import sets_grad_mode
from pullback.diagnose.evidence.slices import (
    dotted,
)
from pullback.diagnose.evidence.source import Function, Source, source_of
from pullback.diagnose.values import Mark
from pullback.graph.recording.userfiles import user_files


@dataclass(eq=False)
class Switch:
    """A statement that switches recording, or ``requires_grad``, off.

    Attributes:
        node: The expression.
        source: Its file.
        outermost: The statement with it; of a loop around it, the loop.
    """

    node: ast.expr
    source: Source
    outermost: ast.stmt | None = None

    def mark(self, what: str) -> Mark:
        """Its line."""
        return marked(self.source, self.node, what)


def sources_at(case: Case) -> list[Source]:
    """The files that the traceback leads through, and the user's modules that they see."""
    found: dict[str, Source] = {}
    for frame in reversed(case.frames):
        found.setdefault(frame.file, frame.source)
        for thing in list(frame.module.values()):
            file = getattr(thing, "__file__", None) if isinstance(thing, types.ModuleType) else None
            code = getattr(getattr(thing, "__init__", None) if isinstance(thing, type) else thing, "__code__", None)
            file = file or getattr(code, "co_filename", None)
            if isinstance(file, str) and file not in found and user_files(()).own_file(file):
                found[file] = source_of(file)
    return list(found.values())


def switches_of(case: Case) -> list[Switch]:
    """The plain calls ``torch.set_grad_enabled(False)`` in the user's files."""
    return [
        Switch(node.value, source, node)
        for source in sources_at(case)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and sets_grad_mode(node.value)
        and node.value.args and isinstance(node.value.args[0], ast.Constant) and node.value.args[0].value is False
    ]  # fmt: skip


def leaking(case: Case) -> list[Switch]:
    """The blocks under ``torch.no_grad()`` with an ``await`` or a ``yield`` in them: others run while they are open."""
    return [
        Switch(node.items[0].context_expr, source, node)
        for source in sources_at(case)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.With)
        and any((dotted(getattr(item.context_expr, "func", item.context_expr)) or "").endswith(
            ("no_grad", "inference_mode", "set_grad_enabled")) for item in node.items)
        and any(isinstance(each, ast.Await | ast.Yield) for part in node.body for each in ast.walk(part))
    ]  # fmt: skip


def freezes_of(case: Case) -> list[Switch]:
    """The lines that switched ``requires_grad`` off: those that ran, if there is a tape, or all of the user's."""
    recorded = [
        call.spot for call in (case.tape.calls if case.tape is not None else ())
        if call.name in ("requires_grad_", "set requires_grad") and call.spot is not None
        and not any(each.requires_grad for each in call.outputs or [value for value, _, _ in call.writes])
    ]  # fmt: skip
    lines = {(spot.file, spot.line) for spot in recorded}
    found = []
    for source in sources_at(case):
        for node in ast.walk(source.tree):
            line = getattr(node, "lineno", 0)
            made = isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Parameter")
            if _freezes(node) and (not lines or made or (source.file, line) in lines):
                target = node.targets[0] if isinstance(node, ast.Assign) else node
                assert isinstance(target, ast.expr)
                found.append(Switch(target, source, _outermost(source, node)))
    return found


def _freezes(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        return (
            isinstance(target, ast.Attribute) and target.attr == "requires_grad"
            and isinstance(value, ast.Constant) and value.value is False
        )  # fmt: skip
    if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Parameter"):
        words = [each.value for each in node.keywords if each.arg == "requires_grad"]
        return bool(words) and isinstance(words[0], ast.Constant) and words[0].value is False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        given = [*node.args, *(each.value for each in node.keywords)]
        return bool(given) and isinstance(given[0], ast.Constant) and given[0].value is False
    return False


def _outermost(source: Source, node: ast.AST) -> ast.stmt | None:
    found = None
    for each in source.around(node):
        if isinstance(each, Function | ast.ClassDef):
            break
        if isinstance(each, ast.For | ast.While) or (isinstance(each, ast.stmt) and found is None):
            found = each
    return found


# What the tape tells.
