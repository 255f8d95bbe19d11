"""Why a root has several elements: a loss that was not reduced, or several losses in one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.definitions import Definition, Scene, followed, is_true, keyword_of
from pullback.diagnose.evidence.seeds.roots import Pair, pairs

# So many nodes behind a root are looked at, and so many definitions.
NODES = 60
MOST = 40


def unseeded(case: Case) -> Pair | None:
    """The first root without a seed that has not just one element."""
    for pair in pairs(case):
        if pair.seed is None and isinstance(pair.root, Tensor) and pair.root.requires_grad and pair.root.numel() != 1:
            return pair
    return None


@dataclass(frozen=True)
class Unreduced:
    """The loss that was not reduced, as it is written, and who made its criterion."""

    definition: Definition
    call: ast.expr
    criterion: Definition | None = None
    keyword: ast.expr | None = None


def is_unreduced(case: Case, pair: Pair) -> bool:
    """Whether a root has several elements because a loss was not reduced."""
    return node_unreduced(pair.root) is not None or unreduced(case, pair) is not None


def node_unreduced(root: Tensor) -> Any:
    """A node of a loss function with ``reduction="none"`` behind a root, with nothing reduced in between."""
    waiting = [root.grad_fn]
    seen = 0
    while waiting and seen < NODES:
        node = waiting.pop(0)
        seen += 1
        if node is None or any(word in node.name() for word in ("Mean", "Sum", "Mm", "Convolution")):
            continue
        is_loss = any(word in node.name() for word in ("Loss", "CrossEntropy", "KlDiv"))
        if is_loss and getattr(node, "_saved_reduction", None) == 0:
            return node
        waiting.extend(each for each, _ in node.next_functions)
    return None


def unreduced(case: Case, pair: Pair) -> Unreduced | None:
    """The call with ``reduction="none"`` in the source that a root came from."""
    return next(
        (found for scene, node, definition in _reach(case, pair.written) if (found := _none(scene, node, definition))),
        None,
    )


def _reach(case: Case, node: ast.expr | None) -> Iterator[tuple[Scene, ast.expr, Definition | None]]:
    """The expressions that a value came from, through the names in them too."""
    if node is None or case.site is None:
        return
    start = Scene.of(case.site, len(case.frames) - 1)
    yield start, node, None
    seen: set[tuple[str, int, int]] = set()
    waiting = [*_names(case, start, node)]
    while waiting and len(seen) < MOST:
        definition = waiting.pop(0)
        key = (definition.scene.source.file, definition.value.lineno, definition.value.col_offset)
        if key in seen:
            continue
        seen.add(key)
        yield definition.scene, definition.value, definition
        waiting.extend(_names(case, definition.scene, definition.value))


def _names(case: Case, scene: Scene, node: ast.expr) -> Iterator[Definition]:
    """The definitions of the names in an expression that stands for a number of its elements."""
    stopped = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("mean", "sum")
    if stopped:
        return
    for part in _operands(node):
        yield from followed(case, scene, part)


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _operands(node.left)
        yield from _operands(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from _operands(node.operand)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        yield node
        yield from _operands(node.func.value)
    elif isinstance(node, ast.Subscript):
        yield from _operands(node.value)
    else:
        yield node


def _none(scene: Scene, node: ast.expr, definition: Definition | None) -> Unreduced | None:
    for part in _operands(node):
        if not isinstance(part, ast.Call):
            continue
        statement = definition.statement if definition else scene.source.statement(node)
        assert statement is not None
        here = definition or Definition(scene, statement, node)
        reduction = keyword_of(part, "reduction")
        if is_word(reduction, "none") or is_true(keyword_of(part, "reduce"), False):
            return Unreduced(here, part, None, reduction)
        if isinstance(part.func, ast.Call) and is_word(keyword_of(part.func, "reduction"), "none"):
            return Unreduced(here, part, here, keyword_of(part.func, "reduction"))
        criterion = scene.evaluated(part.func)
        if isinstance(criterion, nn.Module) and criterion.__dict__.get("reduction") == "none":
            return Unreduced(here, part, None, None)
    return None


def is_word(node: ast.expr | None, word: str) -> bool:
    """Whether an expression is this string."""
    return isinstance(node, ast.Constant) and node.value == word


def vector_of_losses(root: Tensor) -> int:
    """How many scalar losses a root consists of; 0 if it does not."""
    node = root.grad_fn
    if node is None or root.dim() != 1 or not node.name().startswith(("Stack", "Cat", "Gather")):
        return 0
    parts = [each for each, _ in node.next_functions]
    if len(parts) != root.numel() or len(parts) < 2 or any(each is None for each in parts):
        return 0
    metadata = [getattr(each, "_input_metadata", None) for each in parts]
    sizes = [tuple(each[number].shape) for each, (_, number) in zip(metadata, node.next_functions, strict=True) if each]
    return len(parts) if len(sizes) == len(parts) and all(size in ((), (1,)) for size in sizes) else 0


def criterion_made(case: Case, found: Unreduced) -> Definition | None:
    """Where the criterion of an unreduced loss was made."""
    if found.criterion is not None or not isinstance(found.call, ast.Call):
        return found.criterion
    made = followed(case, found.definition.scene, found.call.func)
    return made[-1] if made else None
