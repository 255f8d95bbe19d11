"""Tail: the operations behind the contractions, which only move, scale and add elements, seen backwards.

Each says which tensors its result is made of: for each of them a view of the result (where its elements go), and what
they are multiplied by; or None where it does more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.outer.contraction import Layout, unchanged
from pullback.outer.rule import Around, named

Moved = list[tuple[View, Layout, float | Tensor]]
Move = Callable[[Step, View, Around], "Moved | None"]


def _sum(step: Step, result: View, program: Around) -> Moved | None:
    arguments = named(step)
    sign = -1.0 if "sub" in step.op._schema.name else 1.0
    found: Moved = []
    for value, factor in ((arguments["self"], 1.0), (arguments["other"], sign * float(arguments["alpha"]))):
        if program.is_seeded(value):
            if value.shape != result.shape:
                return None
            found.append((value, unchanged, factor))
    return found


def _same(step: Step, result: View, program: Around) -> Moved | None:
    source = step.args[0]
    return [(source, unchanged, 1.0)] if source.shape == result.shape and source.dtype.is_floating_point else None


def _negative(step: Step, result: View, program: Around) -> Moved | None:
    return [(step.args[0], unchanged, -1.0)]


def _copied(step: Step, result: View, program: Around) -> Moved | None:
    source = step.args[1]
    if not program.is_seeded(source):
        return []
    return [(source, unchanged, 1.0)] if source.shape == result.shape else None


def _scaled(step: Step, result: View, program: Around) -> Moved | None:
    first, second = step.args[:2]
    divided = step.op._schema.name.startswith("aten::div")
    if program.is_seeded(second):
        first, second = second, first
        if divided:
            return None
    if first.shape != result.shape or step.kwargs.get("rounding_mode"):
        return None
    factor = _factor(second, result, program)
    if factor is None:
        return None
    return [(first, unchanged, 1.0 / factor if divided else factor)]


def _factor(value: Any, result: View, program: Around) -> float | Tensor | None:
    """What elements are multiplied by: one number, or one for each."""
    if not isinstance(value, View):
        return None if isinstance(value, complex) else float(value)
    tensor = program.number(value)
    if tensor is None or tensor.is_complex():
        return None
    tensor = tensor.detach()
    return float(tensor) if tensor.numel() == 1 and result.numel > 1 else tensor.expand(result.shape)


def _joined(step: Step, result: View, program: Around) -> Moved | None:
    arguments = named(step)
    dim = arguments["dim"]
    found: Moved = []
    start = 0
    for part in arguments["tensors"]:
        if len(part.shape) != len(result.shape):
            continue  # an empty tensor of one dimension, which torch lets pass
        size = part.shape[dim]
        if program.is_seeded(part):
            found.append((part, partial(torch.narrow, dim=dim, start=start, length=size), 1.0))
        start += size
    return found


def _stacked(step: Step, result: View, program: Around) -> Moved | None:
    arguments = named(step)
    dim = arguments["dim"]
    return [
        (part, partial(torch.select, dim=dim, index=k), 1.0)
        for k, part in enumerate(arguments["tensors"])
        if program.is_seeded(part)
    ]


def _sliced(step: Step, result: View, program: Around) -> Moved | None:
    arguments = named(step)
    size = result.shape[arguments["dim"]]
    start, stop, _ = slice(arguments["start"], arguments["end"]).indices(size)
    index = [slice(None)] * len(result.shape)
    index[arguments["dim"]] = slice(start, stop, arguments["step"])
    return [(arguments["grad_output"], lambda r: r[tuple(index)], 1.0)]


def _selected(step: Step, result: View, program: Around) -> Moved | None:
    arguments = named(step)
    return [(arguments["grad_output"], lambda r: r.select(arguments["dim"], arguments["index"]), 1.0)]


TAIL: dict[str, Move] = {
    "add": _sum,
    "sub": _sum,
    "neg": _negative,
    "clone": _same,
    "_to_copy": _same,
    "copy": _copied,
    "mul": _scaled,
    "div": _scaled,
    "cat": _joined,
    "stack": _stacked,
    "slice_backward": _sliced,
    "select_backward": _selected,
}
