"""The seeds of a pass as they were given, and whether anyone scales the loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.graph.frames import variables

HALF = (torch.float16, torch.bfloat16)


def given_seeds(backward: Backward) -> Iterator[tuple[Tensor, Tensor]]:
    """Each root with the seed that was passed for it; without those that torch made itself."""
    local = variables(backward.frame)
    given = next(
        (local[name] for name in ("grad_tensors", "grad_outputs", "grad_variables") if local.get(name) is not None),
        None,
    )
    if given is None:
        return
    seeds = [given] if isinstance(given, Tensor) else list(given)
    for root, seed in zip(backward.roots, seeds, strict=False):
        if isinstance(root, Tensor) and isinstance(seed, Tensor):
            yield root, seed


def is_method(backward: Backward) -> bool:
    """Whether it was ``root.backward(...)`` or ``torch.autograd.backward``: not ``torch.autograd.grad``."""
    return backward.frame.f_code is not torch.autograd.grad.__code__


def scales_loss(audit: Audit) -> bool:
    """Whether a GradScaler is at hand: it expects that gradients overflow now and then."""
    scaler: Any = torch.amp.GradScaler
    for frame in audit.frames():
        for thing in (*frame.local.values(), *frame.module.values()):
            if issubclass(type(thing), scaler):
                return True
            inner = getattr(thing, "__dict__", None) if type(thing).__module__ not in ("builtins", "torch") else None
            if isinstance(inner, dict) and any(issubclass(type(part), scaler) for part in inner.values()):
                return True
    return False


def seed_node(backward: Backward) -> ast.expr | None:
    """The seed as it is written, if there is one and it is written at the call."""
    node = backward.spot.node if backward.spot is not None else None
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if keyword.arg in {"gradient", "grad_tensors", "grad_outputs"}:
            return keyword.value
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    method = name == "backward" and not _is_module(node.func)
    place = 0 if method else 1 if name == "backward" else 2
    return node.args[place] if len(node.args) > place else None


def root_node(backward: Backward) -> ast.expr | None:
    """What was differentiated, as it is written."""
    node = backward.spot.node if backward.spot is not None else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "backward" and not _is_module(node.func):
        return node.func.value
    return node.args[0] if node.args else None


def _is_module(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in {"torch.autograd", "autograd"}
