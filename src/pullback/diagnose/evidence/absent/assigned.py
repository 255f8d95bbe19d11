"""An assignment to ``.grad`` that was refused."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.absent.values import strictly
from pullback.diagnose.evidence.definitions import called, definitions, made, operand
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say

LIKE = {"zeros": "zeros_like", "ones": "ones_like", "randn": "randn_like", "rand": "rand_like", "empty": "empty_like"}


@dataclass(frozen=True)
class Assigned:
    """``owner.grad = value``: the statement, the tensor, and the value if it can be told."""

    owner: ast.expr
    node: ast.expr
    tensor: Tensor
    value: Any
    name: str
    text: str


def assigned(case: Case) -> Assigned | None:
    """The refused assignment to ``.grad``."""
    site = case.site
    statement = site.statement if site is not None else None
    if site is None or not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            tensor = strictly(site, target.value)
            if issubclass(type(tensor), Tensor):
                value = site.evaluated(statement.value)
                return Assigned(target.value, statement.value, tensor, value, case.text(target.value),
                                operand(case, statement.value))  # fmt: skip
    return None


def marks_of(case: Case, found: Assigned) -> list[Mark]:
    """The failing line, the value's and the tensor's."""
    marks = [case.mark(say("the gradient of {name} is set here", name=found.name))]
    marks += made(case, None, found.owner, say("{name} comes from here", name=found.name))
    return marks + made(case, None, found.node, say("the value was made here"))


def like(case: Case, found: Assigned) -> str:
    """The value as a call of ``zeros_like`` and so on, if it was made by such a function; else empty."""
    node = found.node
    steps = definitions(case, node)
    node = steps[-1].value if steps else node
    name = LIKE.get(called(node), "")
    return f"torch.{name}({found.name})" if name and callable(getattr(torch, name)) else ""


def edit_of(case: Case, found: Assigned, text: str) -> tuple[Edit, ...]:
    """The edit that assigns something else."""
    return (case.site.source.replaced(found.node, text),) if case.site is not None and text else ()


def fix_of(case: Case, found: Assigned, sentence: str, text: str, *, sure: bool = True) -> Fix:
    """The assignment of something else."""
    edits = edit_of(case, found, text)
    code = f"{found.name}.grad = {text}" if text else f"{found.name}.grad = torch.zeros_like({found.name})"
    return Fix(sentence, code, edits, "high" if edits and sure else "medium")
