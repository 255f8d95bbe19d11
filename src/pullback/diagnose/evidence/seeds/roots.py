"""The roots of a failed backward pass, each with its seed and both as they are written."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame


@dataclass(frozen=True)
class Pair:
    """A root and its seed.

    Attributes:
        number: Which of the roots it is, from 0.
        root: The root.
        seed: What was given as its seed; None if nothing was.
        written: The root as it is written, if it can be told.
        seed_written: The seed as it is written.
    """

    number: int
    root: Any
    seed: Any
    written: ast.expr | None
    seed_written: ast.expr | None


def pairs(case: Case) -> list[Pair]:
    """All roots of the failed pass with their seeds."""
    asked = case.asked
    if asked is None:
        return []
    node = seeds_written(case)
    found = []
    for number, root in enumerate(asked.roots):
        seed = asked.seeds[number] if number < len(asked.seeds) else None
        written = case.root if asked.method else _nth(case.root, number, len(asked.roots))
        seed_written = node if asked.method else _nth(node, number, len(asked.seeds))
        found.append(Pair(number, root, seed, written, seed_written))
    return found


def seeds_written(case: Case) -> ast.expr | None:
    """The seeds as they are written: the argument ``gradient``, ``grad_tensors`` or ``grad_outputs``."""
    asked = case.asked
    if asked is None:
        return None
    if asked.method:
        return case.argument("gradient", 0)
    return case.argument("grad_outputs", 2) if asked.verb == "grad" else case.argument("grad_tensors", 1)


def _nth(node: ast.expr | None, number: int, count: int) -> ast.expr | None:
    if isinstance(node, ast.List | ast.Tuple):
        plain = not any(isinstance(each, ast.Starred) for each in node.elts)
        return node.elts[number] if plain and number < len(node.elts) else None
    return node if count == 1 else None


def called_root(case: Case, pair: Pair) -> str:
    """What the user calls a root."""
    name = case.name_of(pair.root) if isinstance(pair.root, Tensor) else ""
    return name or " ".join(case.text(pair.written).split()) or "y"


def is_simple(node: ast.expr | None) -> bool:
    """Whether an expression can be written a second time: it is a name, or a chain of attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def owner_of(frame: Frame | None, name: str) -> ast.expr | None:
    """The ``x`` of the ``x.name`` that failed in a frame."""
    node = frame.node if frame is not None else None
    if isinstance(node, ast.Call):
        node = node.func
    return node.value if isinstance(node, ast.Attribute) and node.attr == name else None
