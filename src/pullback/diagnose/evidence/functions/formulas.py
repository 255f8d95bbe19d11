"""Plain mistakes in a formula that can be mended from what its names held: a key, or the sides of a product."""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.values import Fix
from pullback.language import say

# So many keys are told.
KEYS = 8
PRODUCTS = ("shapes cannot be multiplied", "size mismatch", "dimensionality mismatch", "batch1 must be")
Shape = tuple[int, ...]


def key_fix(case: Case) -> Fix | None:
    """What to write instead of a look-up that found nothing in a dictionary."""
    site, error = case.site, case.error
    node = site.node if site is not None else None
    if site is None or not isinstance(error, KeyError) or not isinstance(node, ast.Subscript) or not error.args:
        return None
    kept, source = site.evaluated(node.value), site.source
    name, slot, wanted = source.text(node.value), source.text(node.slice), error.args[0]
    keys = [each for each in dict.keys(kept) if isinstance(each, str | int)] if isinstance(kept, dict) else []
    near = difflib.get_close_matches(str(wanted), [each for each in keys if isinstance(each, str)], 1, 0.6)
    if near and isinstance(node.slice, ast.Constant):
        edits = (source.replaced(node.slice, repr(near[0])),)
        text = say("{name} has no key {key}, but it has {near}.", name=name, key=repr(wanted), near=repr(near[0]))
        return Fix(text, source.code(*edits).strip(), edits, "medium")
    outer = source.parent(node)
    statement = source.statement(node)
    if isinstance(outer, ast.Attribute) and outer.attr in {"append", "extend"}:
        edits = (source.replaced(node, f"{name}.setdefault({slot}, [])"),)
        text = say("{name} has no key {key} yet: begin with an empty list.", name=name, key=repr(wanted))
        return Fix(text, source.code(*edits).strip(), edits, "medium")
    if isinstance(statement, ast.AugAssign) and statement.target is node:
        edits = (source.inserted_before(statement, f"{name}.setdefault({slot}, 0)"),)
        text = say("{name} has no key {key} yet: give it its first value.", name=name, key=repr(wanted))
        return Fix(text, source.code(*edits).strip(), edits, "medium")
    if not isinstance(kept, dict):
        return None
    told = ", ".join(repr(each) for each in keys[:KEYS]) or say("none")
    return Fix(say("{name} has no key {key}. Its keys: {keys}.", name=name, key=repr(wanted), keys=told), "", (), "low")


def product_fix(case: Case, frame: Frame, wanted: Sequence[Shape]) -> Fix | None:
    """The product of two matrices turned so that it fits, and gives the shape that is wanted where that is known.

    Args:
        case: The failed program.
        frame: The frame of the formula.
        wanted: The shape of the input whose gradient the product is; empty if it is not known.
    """
    node = frame.node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.MatMult) or not case.says(*PRODUCTS):
        return None
    sides = [list(_turns(frame, each)) for each in (node.left, node.right)]
    fitting: list[str] = []
    for order in (sides, sides[::-1]):
        for (one, first), (two, second) in itertools.product(*order):
            product = (first[0], second[1])
            if first[1] == second[0] and (not wanted or product in wanted):
                fitting.append(f"{one} @ {two}")
        if fitting:
            break
    if not fitting:
        return None
    edits = (frame.source.replaced(node, fitting[0]),)
    shapes = ", ".join(f"{text} {shape}" for each in sides for text, shape in each[:1])
    text = say(
        "The shapes ({shapes}) do not fit in this order: transpose one of them, or exchange them.", shapes=shapes
    )
    sure = len(fitting) == 1 and len(wanted) == 1
    return Fix(text, frame.source.code(*edits).strip(), edits, "high" if sure else "medium")


def _turns(frame: Frame, node: ast.expr) -> Iterator[tuple[str, Shape]]:
    """A matrix as it is written, and transposed, each with its shape."""
    base = node
    turned = isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}
    if isinstance(node, ast.Attribute) and turned:
        base = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"t", "transpose"}:
        base, turned = node.func.value, True
    value = frame.evaluated(base)
    if not isinstance(value, Tensor) or value.dim() != 2:
        return
    plain, shape = frame.source.text(base), (value.shape[0], value.shape[1])
    both = [(plain, shape), (f"{plain}.T", shape[::-1])]
    yield from both[::-1] if turned else both
