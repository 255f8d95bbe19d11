"""What torch was asked for when it failed: the roots, seeds and inputs, read from its own frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from pullback.diagnose.evidence.frames import frames_of
from pullback.graph.frames import variables

Verb = Literal["backward", "grad"]


@dataclass(frozen=True)
class Asked:
    """One call of ``tensor.backward``, ``torch.autograd.backward`` or ``torch.autograd.grad``, as it was made.

    Attributes:
        verb: ``backward`` or ``grad``.
        roots: What was to be differentiated (usually tensors).
        seeds: The seeds as they were given, one for each; None where none was given. May be fewer than the roots.
        inputs: By what, if that was said.
        retain_graph: As it was given; None if it was not.
        create_graph: As it was given.
        allow_unused: As it was given to ``grad``.
        method: Whether it was a method of the root.
    """

    verb: Verb
    roots: Sequence[Any]
    seeds: Sequence[Any]
    inputs: Sequence[Any] | None
    retain_graph: Any
    create_graph: Any
    allow_unused: Any
    method: bool

    @property
    def tensors(self) -> list[Tensor]:
        """The roots that are tensors."""
        return [root for root in self.roots if isinstance(root, Tensor)]


def asked_in(trace: TracebackType | None) -> Asked | None:
    """The last question to autograd in a traceback, if there is one; what a user's own hook asked is not it."""
    codes = {
        torch.Tensor.backward.__code__: _of_method,
        torch.autograd.backward.__code__: _of_backward,
        torch.autograd.grad.__code__: _of_grad,
    }
    found: Asked | None = None
    for frame, _, _ in frames_of(trace):
        read = codes.get(frame.f_code)
        if read is None:
            continue
        if found is not None and found.method and read is _of_backward:
            continue  # the method calls the function
        found = read(variables(frame))
    return found


def _of_method(local: Mapping[str, Any]) -> Asked:
    seed = local.get("gradient")
    return _asked("backward", [local.get("self")], [seed], local, method=True)


def _of_backward(local: Mapping[str, Any]) -> Asked:
    seeds = local.get("grad_tensors")
    if seeds is None:
        seeds = local.get("grad_variables")
    return _asked("backward", _many(local.get("tensors")), _many(seeds), local, method=False)


def _of_grad(local: Mapping[str, Any]) -> Asked:
    return _asked("grad", _many(local.get("outputs")), _many(local.get("grad_outputs")), local, method=False)


def _asked(verb: Verb, roots: Sequence[Any], seeds: Sequence[Any], local: Mapping[str, Any], *, method: bool) -> Asked:
    inputs = local.get("inputs")
    return Asked(
        verb,
        roots,
        seeds,
        None if inputs is None else _many(inputs),
        local.get("retain_graph"),
        local.get("create_graph"),
        local.get("allow_unused"),
        method,
    )


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Tensor) or not isinstance(value, Sequence) or isinstance(value, str):
        try:
            return [value] if isinstance(value, Tensor) or not hasattr(value, "__next__") else []
        except Exception:  # whatever the program's own object does
            return [value]
    return list(value)
