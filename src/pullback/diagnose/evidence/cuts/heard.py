"""The cuts that the tape heard."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts import names
from pullback.diagnose.evidence.cuts.found import Cut, Region
from pullback.diagnose.evidence.cuts.questions import flag, rebinds
from pullback.diagnose.evidence.cuts.regions import region_of
from pullback.diagnose.evidence.cuts.switches import switches_of
from pullback.diagnose.evidence.cuts.walker import MOST, Walker
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.slices import (
    Body,
    Part,
    dotted,
    scope_of,
)
from pullback.diagnose.recorders.tape import Call, Value


def from_tape(case: Case, walker: Walker) -> list[Cut]:
    """The recorded calls on the way to the root that had an input with a graph and gave a value without."""
    if case.tape is None:
        return []
    found: list[Cut] = []
    for call, given in _cutting_calls(case.values):
        cut = _as_cut(case, call, given, walker)
        if cut is not None and all((cut.kind, cut.node) != (each.kind, each.node) for each in found):
            found.append(cut)
    return found


def _cutting_calls(roots: list[Value]) -> Iterator[tuple[Call, Value]]:
    waiting = {
        value.maker.number: value.maker for value in roots if value.maker is not None and not value.requires_grad
    }
    seen = 0
    while waiting and seen < MOST:
        seen += 1
        call = waiting.pop(max(waiting))
        given = next((value for value in call.inputs if value.requires_grad), None)
        if given is not None:
            yield call, given
            continue
        for value in call.inputs:
            if value.maker is not None and value.maker.number < call.number:
                waiting[value.maker.number] = value.maker


def _as_cut(case: Case, call: Call, given: Value, walker: Walker) -> Cut | None:
    spot = call.spot
    if spot is None or call.name in ("requires_grad_", "set requires_grad") or _in_function(spot):
        return None
    near = [cut for cut in walker.cuts if _same_line(cut, spot)]
    near = [cut for cut in near if cut.node is spot.node] or [cut for cut in near if cut.kind == kind_of(call)] or near
    if len(near) == 1:
        near[0].exact, near[0].sure, near[0].shape = True, True, given.shape
        near[0].name = near[0].name or call.name
        return near[0]
    node = spot.node
    if node is None:
        return None
    body = next((Body.of(case.frames, n) for n, each in enumerate(case.frames) if each.code is spot.code), None)
    body = body or Body(spot.source, scope_of(spot), _globals_of(case, spot), case.frames)
    kind, region = kind_of(call), None
    if call.name == "grad" and isinstance(node, ast.Call):
        kind = "linear" if flag(node, "create_graph", 4, body) is True else "create_graph"
    if kind == "off":
        region = region_of(node, body)
        regions = [cut for cut in walker.cuts if cut.region is not None]
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if region is None and regions:
            region = regions[0].region
        if region is None and name not in ("sample", "sample_n"):
            region = _left_off(case)
        kind = region[0] if region is not None else ("sample" if name in ("sample", "sample_n") else "set_grad")
        if kind == "no_grad" and rebinds(Part(node, body)):
            kind = "rebinding"
    return Cut(kind, node, body, _operand(node), True, region, True, call.name, given.shape)


def _left_off(case: Case) -> Region | None:
    """The one call that turned recording off for all that came after."""
    switches = switches_of(case)
    if len(switches) != 1:
        return None
    source = switches[0].source
    return "set_grad", switches[0].node, Body(source, source.scope(switches[0].node), {}, case.frames)


def kind_of(call: Call) -> str:
    """What a recorded call that cuts is: by its name and by what it gave."""
    made = [*call.outputs, *(value for value, _, _ in call.writes)]
    integer = bool(made) and not (made[0].dtype.is_floating_point or made[0].dtype.is_complex)
    if call.name == "get data":
        return "data"
    if call.name in ("detach", "detach_"):
        return "detach"
    if call.name in ("tensor", "as_tensor", "asarray", "new_tensor"):
        return "tensor"
    if integer and call.writes:
        return "int_buffer"
    if integer and call.name in names.INDICES | names.PAIRS:
        return "index"
    if integer and (call.name in names.CASTS or call.name in ("to", "type", "type_as")):
        return "integer"
    if integer and made[0].dtype is torch.bool:
        return "comparison"
    if not call.grad:
        return "off"
    return "index" if integer else "no_derivative"


def _operand(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not (isinstance(node.func.value, ast.Name) and node.args):
            return node.func.value
        return node.args[0] if node.args else None
    return node.value if isinstance(node, ast.Attribute) else node


def _in_function(spot: Spot) -> bool:
    """Whether it is in a custom Function, where nothing is recorded anyway."""
    scope = scope_of(spot)
    around = [each for each in spot.source.around(scope) if isinstance(each, ast.ClassDef)]
    own = isinstance(scope, ast.FunctionDef) and scope.name in ("forward", "backward", "setup_context", "vjp", "jvp")
    return own and bool(around) and any((dotted(each) or "").endswith("Function") for each in around[0].bases)


def _same_line(cut: Cut, spot: Spot) -> bool:
    node = cut.node
    return cut.source.file == spot.file and node.lineno <= spot.line <= (node.end_lineno or node.lineno)


def _globals_of(case: Case, spot: Spot) -> Mapping[str, Any]:
    import sys  # noqa: PLC0415

    for frame in case.frames:
        if frame.file == spot.file:
            return frame.module
    return next((vars(each) for each in list(sys.modules.values()) if getattr(each, "__file__", None) == spot.file), {})


def confirmed(case: Case, cuts: list[Cut]) -> list[Cut]:
    """The cuts at whose lines a call was recorded that had an input with a graph; all, if that is so of none."""
    assert case.tape is not None
    lines: set[tuple[str, int]] = set()
    for call in case.tape.calls:
        if call.spot is not None and any(value.requires_grad for value in call.inputs):
            lines.add((call.spot.file, call.spot.line))
    kept = [
        cut for cut in cuts
        if any((cut.source.file, line) in lines for line in range(cut.node.lineno, (cut.node.end_lineno or 0) + 1))
    ]  # fmt: skip
    for cut in kept:
        cut.sure = True
    return kept or cuts
