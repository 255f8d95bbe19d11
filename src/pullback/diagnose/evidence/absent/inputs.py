"""Inputs that an output does not depend on: which, and how the program came to ask for them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.absent.values import reached
from pullback.diagnose.evidence.definitions import (
    Definition,
    Scene,
    called,
    calls_in,
    definitions,
    followed,
    function_of,
    mark_node,
    own_statements,
)
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Mark

MOST = 60
# What a call takes of a tensor here is its shape, dtype or device; of the last ones, that of the second argument.
LIKE = frozenset({
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "new_tensor", "new_empty_strided",
})  # fmt: skip
AS = frozenset({"expand_as", "view_as", "reshape_as", "type_as", "to", "resize_as_"})
SWITCHES = frozenset({"set requires_grad", "requires_grad_"})


@dataclass(frozen=True)
class Unused:
    """An input without a gradient.

    Attributes:
        number: Its position among the inputs.
        tensor: It.
        written: How it is written; None if it is in a collection.
        alone: Whether it is the only input.
        after: Whether it was computed from what the output does depend on.
        nodes: What the output depends on: nodes, and ids of leaves.
    """

    number: int
    tensor: Tensor
    written: ast.expr | None
    alone: bool
    after: bool
    nodes: set[Any]


def unused_input(case: Case) -> Unused | None:
    """The first input that the output does not depend on."""
    asked = case.asked
    if asked is None or not asked.inputs or not case.says("not have been used in the graph"):
        return None
    nodes = reached(asked.tensors)
    node = case.argument("inputs", 1 if asked.verb == "grad" else None)
    for number, each in enumerate(asked.inputs):
        if not isinstance(each, Tensor) or is_reached(each, nodes):
            continue
        written = node
        if isinstance(node, ast.List | ast.Tuple):
            written = node.elts[number] if number < len(node.elts) else None
        elif len(asked.inputs) > 1:
            written = None
        after = each.grad_fn is not None and bool(_sources(each) & nodes)
        return Unused(number, each, written, len(asked.inputs) == 1, after, nodes)
    return None


def _sources(tensor: Tensor) -> set[Any]:
    """The leaves and results behind a tensor, but for itself."""
    found = reached([tensor])
    own = tensor.grad_fn
    return {
        each for each in found if isinstance(each, int | tuple) and (not isinstance(each, tuple) or each[0] is not own)
    }


def is_reached(tensor: Tensor, nodes: set[Any]) -> bool:
    """Whether a tensor is among what the nodes lead to."""
    if tensor.grad_fn is None:
        return id(tensor) in nodes
    return (tensor.grad_fn, tensor.output_nr) in nodes or tensor.grad_fn in nodes


def root_line(case: Case) -> int:
    """The line of the failing function in which the output was computed; 0 if it is computed elsewhere."""
    site, root = case.site, case.root
    if site is None or root is None:
        return 0
    parts = [root] if definitions(case, root) else [each for each in ast.walk(root) if isinstance(each, ast.Name)]
    firsts = [found[0] for each in parts if (found := definitions(case, each))]
    lines = [each.value.lineno for each in firsts if each.scene.source.file == site.file and each.scene.frame]
    return max(lines, default=0)


def mentions(case: Case, name: str) -> bool | None:
    """Whether the computation of the root, as the source has it, reads a name; None if it cannot all be followed."""
    if case.site is None or case.root is None:
        return None
    waiting: list[tuple[Scene, ast.expr]] = [(Scene.of(case.site, len(case.frames) - 1), case.root)]
    seen: set[tuple[str, int, int]] = set()
    whole = True
    while waiting:
        scene, node = waiting.pop()
        key = (scene.source.file, node.lineno, node.col_offset)
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > MOST:
            return None
        for each in ast.walk(node):
            text = scene.source.text(each) if isinstance(each, ast.Name | ast.Attribute) else ""
            if text == name and scene.frame is not None:
                return True
            if isinstance(each, ast.Name | ast.Call | ast.Attribute):
                waiting += [(step.scene, step.value) for step in followed(case, scene, each)]
            if isinstance(each, ast.Call) and _opaque(scene, each):
                whole = False
    return False if whole else None


def _opaque(scene: Scene, call: ast.Call) -> bool:
    """Whether a call runs code of the user's with more than its return expression."""
    thing = scene.evaluated(call.func)
    function = function_of(thing)
    if function is None:
        return isinstance(thing, nn.Module) and not type(thing).__module__.startswith("torch.")
    source = source_of(function.__code__.co_filename)
    scope = source.function_at(function.__code__.co_firstlineno, function.__code__.co_name)
    return len(list(own_statements(scope))) > 2


def switched_on(case: Case, name: str, line: int) -> ast.stmt | None:
    """The statement after a line, and before the failing one, that makes a tensor of this name require grad."""
    if case.site is None or not line:
        return None
    scene = Scene.of(case.site, len(case.frames) - 1)
    for statement in own_statements(scene.scope):
        if line < statement.lineno < case.site.line and name in names_switched(partial(scene.source.text), statement):
            return statement
    return None


def names_switched(text: Any, statement: ast.stmt) -> list[str]:
    """The names that a statement makes require grad."""
    if isinstance(statement, ast.Assign):
        found = [text(each.value) for each in statement.targets
                 if isinstance(each, ast.Attribute) and each.attr == "requires_grad"]  # fmt: skip
        value: ast.expr | None = statement.value
    else:
        found, value = [], getattr(statement, "value", None)
    named = called(value) in ("requires_grad_", "requires_grad")
    if named and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        found.append(text(value.func.value))
    return found


def defined_after(case: Case, node: ast.expr | None, line: int) -> Definition | None:
    """The definition of a name in the failing function after a line."""
    found = definitions(case, node)
    if not found or case.site is None or not line:
        return None
    first = found[0]
    here = first.scene.source.file == case.site.file and first.scene.frame is case.site
    return first if here and first.statement.lineno > line else None


def reads_values(call: Call, tensor: Tensor) -> bool:
    """Whether a call takes the values of a tensor, rather than its shape or a flag of it."""
    if call.name in LIKE or call.name in SWITCHES:
        return False
    return not (call.name in AS and call.inputs and call.inputs[0].tensor() is not tensor)


def derivative_mark(case: Case, found: Unused, what: str) -> Mark | None:
    """The line of the earlier ``torch.autograd.grad`` by the same input that the output was computed from.

    The tape knows it. Without one it is read in the source, and whether it was by the same input is not known.
    """
    if case.tape is not None and case.values:
        for call in case.tape.history(*case.values):
            mine = any(value.tensor() is found.tensor and value.requires_grad for value in call.inputs)
            if call.name == "grad" and call.spot is not None and mine:
                return call.spot.mark(what) if any(value.requires_grad for value in call.outputs) else None
        return None
    if case.site is None or case.root is None or not any(each.create_graph for each in case.passes[:-1]):
        return None
    waiting: list[tuple[Scene, ast.expr]] = [(Scene.of(case.site, len(case.frames) - 1), case.root)]
    seen: set[tuple[str, int, int]] = set()
    while waiting and len(seen) <= MOST:
        scene, node = waiting.pop(0)
        key = (scene.source.file, node.lineno, node.col_offset)
        if key in seen:
            continue
        seen.add(key)
        asking = next(calls_in(node, lambda each: called(each) == "grad"), None)
        if asking is not None and asking.args:
            return mark_node(scene.source, asking, what, scene.function)
        for each in ast.walk(node):
            if isinstance(each, ast.Name | ast.Call):
                waiting += [(step.scene, step.value) for step in followed(case, scene, each)]
    return None
