"""PB814: in_dims of vmap do not fit the arguments."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import (
    FUNC,
    Transform,
    keyword_of,
    only_call,
    set_keyword,
    shape_of,
    transforms_in,
)
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say


class InDims(Cause):
    """``in_dims`` of ``vmap`` says for each argument which dimension holds the samples, and it does not fit them.

    ``in_dims`` is one number for all arguments (0 by default), or a tuple with one entry for each positional argument:
    a number, ``None`` for what all samples share (a Python number, the weights, a scalar tensor), or, for a dict or a
    nested tuple, the same structure with such entries.

    It must be a tuple, not a list. An argument that is no tensor needs ``None``; a tensor without dimensions too.
    Keyword arguments are always mapped over dimension 0: pass what is shared as a positional argument, or bind it with
    ``functools.partial``.
    """

    code = "PB814"
    title = "in_dims of vmap does not fit the arguments of the function."
    says = (
        "in_dims is not compatible with the structure",
        "expected `in_dims` to be int or a",
        "Got in_dim=",
        "Expected at least one Tensor to vmap over",
        ")(<inputs>): got no inputs",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in transforms_in(case, *FUNC) if each.function == "vmap_impl"]
        if not found or case.site is None:
            return None
        transform = found[-1]
        args, dims = tuple(transform.local.get("args") or ()), transform.local.get("in_dims")
        wanted = _wanted(args, dims)
        edits, confidence = _edits(case, wanted, args, dims)
        return self.found(
            say("in_dims is {dims}, the arguments are {arguments}.", dims=dims, arguments=_told(transform, args)),
            [case.mark(say("vmap is applied here"))],
            Fix(
                say(
                    "Give in_dims as a tuple with one entry for each argument: a dimension, or None for what is shared."
                ),
                "\n".join(each.text.strip() for each in edits if each.text) or f"torch.vmap(f, in_dims={wanted})",
                edits,
                confidence,
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def scaled(row, factor):
            return row * factor

        torch.vmap(scaled)(torch.ones(4, 3), 2.5)

    @staticmethod
    def good():
        import torch

        def scaled(row, factor):
            return row * factor

        torch.vmap(scaled, in_dims=(0, None))(torch.ones(4, 3), 2.5)


def _told(transform: Transform, args: tuple[Any, ...]) -> str:
    names = transform.defined.parameters if transform.defined is not None else []
    parts = []
    for number, each in enumerate(args):
        name = names[number] if number < len(names) else f"args[{number}]"
        parts.append(f"{name}: {shape_of(each) if isinstance(each, Tensor) else type(each).__name__}")
    return ", ".join(parts) or say("none")


def _wanted(args: tuple[Any, ...], dims: Any) -> str:
    """The in_dims that fit, as far as the arguments tell."""
    given = tuple(dims) if isinstance(dims, tuple | list) else (dims,) * len(args)
    entries = []
    for number, each in enumerate(args):
        dim = given[number] if number < len(given) else 0
        if not isinstance(each, Tensor | dict | list | tuple):
            dim = None
        elif isinstance(each, Tensor) and isinstance(dim, int):
            rank = len(shape_of(each) or ())
            dim = None if rank == 0 else dim if -rank <= dim < rank else 0
        elif isinstance(dim, dict) and isinstance(each, dict) and set(dim) != set(each):
            dim = {key: dim.get(key, 0) for key in each}
        entries.append(repr(dim))
    return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"


def _edits(case: Case, wanted: str, args: tuple[Any, ...], dims: Any) -> tuple[tuple[Edit, ...], Confidence]:
    site = case.site
    made = only_call(site, ("vmap",)) if site is not None and args else None
    if site is None or made is None or not any(each not in {"None", ""} for each in wanted.strip("()").split(", ")):
        return (), "medium"
    if isinstance(made.func, ast.Name | ast.Attribute) and made is case.call and keyword_of(made, "in_dims") is None:
        return (), "medium"
    same = isinstance(dims, list | int)
    return set_keyword(site, made, "in_dims", wanted, 1), "high" if same else "medium"
