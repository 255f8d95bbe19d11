"""Functional: an operation that writes in place, as the operation that returns a new tensor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from pullback.autodiff.program import Step, views_in


def functional_step(step: Step) -> Step:
    """The same operation without its ``out`` arguments, which it does not read, and without the write."""
    op = functional(step.op)
    if op is step.op:
        return step
    outs = {argument.name for argument in step.op._schema.arguments if _is_out(argument)}
    kwargs = {name: value for name, value in step.kwargs.items() if name not in outs}
    return replace(step, op=op, kwargs=kwargs, reads=tuple(views_in((step.args, tuple(kwargs.values())))))


@cache
def functional(op: Any) -> Any:
    """The overload with the same arguments that returns its result; the operation itself where there is none."""
    if not op._schema.is_mutable:
        return op
    namespace, _, name = op._schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    packet = getattr(getattr(torch.ops, namespace), name, None)
    wanted = _arguments(op)
    for overload in packet.overloads() if packet is not None else ():
        found = getattr(packet, overload)
        if not found._schema.is_mutable and _arguments(found) == wanted:
            return found
    return op


def _arguments(op: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in op._schema.arguments if not _is_out(argument)]


def _is_out(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write)
