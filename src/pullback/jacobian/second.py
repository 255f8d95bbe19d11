"""Second: whether the graph that a Jacobian carries with ``create_graph=True`` has the right derivatives.

A Jacobian may be right and its derivative wrong: torch differentiates its forward formulas again, and not all of them
hold what that needs. For random u and v, ``⟨u, Jv⟩`` as built and ``⟨Jᵀu, v⟩`` of a plain reverse pass are one number,
and have one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.autodiff.linearize import Deferred, Recorded, Tensors
from pullback.jacobian.verify import Disagreement, Verifier, inner, precise, random_vector
from pullback.strategies.base import Facts, Grid


def disagreement(
    verifier: Verifier, product: Tensor, seed: Sequence[Tensor], tangent: Sequence[Tensor]
) -> Disagreement | None:
    """Whether ``⟨u, Jv⟩`` as built has another gradient than by a plain reverse pass; two more passes.

    Args:
        verifier: What holds results against plain reverse passes.
        product: ``⟨u, Jv⟩``, with its graph.
        seed: u.
        tangent: v.
    """
    lin = verifier.linearization
    lin = lin.real if isinstance(lin, Deferred) else lin
    if not isinstance(lin, Recorded):
        return None
    points = [lin.points[index] for index in lin.live_inputs]
    terms = lin.pull(tuple(seed))
    expected = gradient(product_of(terms, tangent), points)
    found = gradient(product, points)
    noise = verifier.noise_of_derivative(inner(terms, tangent)[1])
    for leaf, have, want in zip(lin.columns.leaves, found, expected, strict=True):
        scale = torch.nan_to_num(precise(want).abs(), posinf=0.0).amax() if want.numel() else precise(want).abs()
        where = f" in its derivative by {leaf.name}"
        wrong = verifier.judge(have.flatten(), scale.expand(want.numel()), want.flatten(), noise, where)
        if wrong is not None:
            return wrong
    return None


def of_result(verifier: Verifier, facts: Facts, result: Grid | Tensor) -> Disagreement | None:
    """Whether a Jacobian that was built has another gradient than plain reverse passes; real ones only."""
    if facts.rows.is_complex or facts.columns.is_complex:
        return None
    seed, tangent = verifier.probe[0], random_vector(facts.columns, seed=101)
    u, v = (torch.cat([precise(part).flatten() for part in parts]) for parts in (seed, tangent))
    if facts.want == "blocks":
        assert isinstance(result, Tensor)
        left, right = (_by_example(parts, len(result)) for parts in (seed, tangent))
        product = torch.einsum("bm,bmn,bn->", left, precise(result), right)
    elif not isinstance(result, Tensor):
        matrix = torch.cat([torch.cat([precise(block) for block in row], dim=1) for row in result])
        product = u.to(matrix.dtype) @ matrix @ v.to(matrix.dtype)
    else:
        structure = facts.structure()
        assert not isinstance(structure, str)
        row, column = structure.coordinates(result.device)
        product = (precise(result) * u[row] * v[column]).sum()
    return disagreement(verifier, product, seed, tangent)


def product_of(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """``Re⟨left, right⟩`` with its graph."""
    terms = [(precise(a).conj() * precise(b)).sum() for a, b in zip(left, right, strict=True)]
    return sum((term.real if term.is_complex() else term).double() for term in terms)  # type: ignore[return-value]


def _by_example(parts: Sequence[Tensor], examples: int) -> Tensor:
    return torch.cat([precise(part).reshape(examples, -1) for part in parts], dim=1)


def gradient(product: Tensor, points: Sequence[Tensor]) -> Tensors:
    """The gradient by the inputs; zeros where there is no graph."""
    if not product.requires_grad:
        return tuple(torch.zeros_like(point) for point in points)
    found = torch.autograd.grad(product, points, retain_graph=True, materialize_grads=True, allow_unused=True)
    return tuple(part.detach() for part in found)
