"""Gradient: the problem whose function is another one's gradient, and whose Jacobian is therefore a Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.linearize import evaluate
from pullback.data.problem import Problem
from pullback.errors import ArgumentError, ValueMismatch


def gradient_problem(problem: Problem) -> Problem:
    """The gradient of a scalar function as a problem; its aux, if it has one, is kept."""

    def call(points: Sequence[Tensor]) -> Any:
        if torch._C._functorch.maybe_current_level() is not None:
            return _transformed(problem, points)
        return _recorded(problem, points)

    return replace(problem, call=call, symmetric=True)


def _recorded(problem: Problem, points: Sequence[Tensor]) -> Any:
    with torch.enable_grad():
        leaves = [point if point.requires_grad else point.detach().requires_grad_() for point in points]
        value, aux = evaluate(problem, leaves)
        scalar = _scalar(value)
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if scalar.requires_grad:
            gradients = torch.autograd.grad(scalar, leaves, create_graph=True, allow_unused=True)
    return _answer(problem, points, gradients, aux)


def _transformed(problem: Problem, points: Sequence[Tensor]) -> Any:
    spec: list[Any] = []

    def scalar(*given: Tensor) -> tuple[Tensor, list[Tensor]]:
        value, aux = evaluate(problem, given)
        leaves, tree = pytree.tree_flatten(aux)
        spec[:] = [tree, leaves]
        return _scalar(value), [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    # torch takes nothing but tensors beside the value
    gradients, tensors = torch.func.grad(scalar, argnums=tuple(range(len(points))), has_aux=True)(*points)
    remaining, (tree, leaves) = iter(tensors), spec
    aux = pytree.tree_unflatten([next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves], tree)
    return _answer(problem, points, gradients, aux)


def _answer(problem: Problem, points: Sequence[Tensor], gradients: Sequence[Tensor | None], aux: Any) -> Any:
    filled = [torch.zeros_like(point) if each is None else each for each, point in zip(gradients, points, strict=True)]
    tree = problem.inputs.unflatten(filled)
    return (tree, aux) if problem.has_aux else tree


def _scalar(value: Any) -> Tensor:
    """The function's value as a tensor without dimensions.

    Raises:
        ArgumentError: It is not one tensor.
        ValueMismatch: It is not one real number.
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(
            "a Hessian needs a function that returns one tensor",
            got=type(value).__name__,
            fix="return the loss alone, or (loss, aux) with has_aux=True",
        )
    if value.numel() != 1 or value.is_complex():
        raise ValueMismatch(
            "a Hessian needs a function that returns one real number",
            got=f"a tensor of {value.dtype} and shape {tuple(value.shape)}",
            fix="return y.sum() or y.mean(); pb.jacobian(f, x) is for functions with several outputs",
        )
    return value.reshape(())
