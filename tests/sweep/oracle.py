"""The oracle: J row by row, each row one plain reverse pass; and finite differences, where rows are in doubt."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# The relative error that rounding explains. In float64 two orders of summation differ by 1e-16 times the number of
# terms, and decompositions of the database's matrices multiply that by up to 1e6; a wrong formula is off by far
# more. float32 has 400 times its roundoff, half precision seven to ten times.
RTOL = {torch.float64: 1e-7, torch.float32: 5e-5, torch.bfloat16: 0.05, torch.float16: 0.01}
# Entries that cancel to nothing among large ones are held to this share of the relative error of the largest.
SHARE_OF_LARGEST = 1e-3
# What rounding leaves where every exact entry is zero, in units of roundoff times the largest output (at least 1);
# in half precision that would be everything, and RTOL of the largest output is the limit.
NOISE = 1000


@dataclass(frozen=True)
class Truth:
    """What the oracle says about a function at a point.

    Attributes:
        value: The function's value, detached.
        real: ``(m, n)``: row i is the gradient for the seed that is 1 at output element i; in double precision.
        turned: The same for the seeds ``1j``, where an output is complex; zero rows at real outputs.
        dtype: The dtype of a Jacobian of these inputs.
        coarsest: The coarsest real dtype among inputs and outputs.
        live: ``(m,)``: whether each output element carries a graph.
        generator: The state of the CPU generator after the evaluation.
    """

    value: Any
    real: Tensor
    turned: Tensor | None
    dtype: torch.dtype
    coarsest: torch.dtype
    live: Tensor
    generator: Tensor

    @property
    def largest(self) -> float:
        """The size of the largest finite output."""
        parts = [part.detach().abs().double() for part in pytree.tree_leaves(self.value) if _carries(part)]
        return max((float(part[part.isfinite()].max()) for part in parts if part.isfinite().any()), default=0.0)

    @property
    def size(self) -> Tensor:
        """``(m, n)``: what the rounding error of products is relative to."""
        return self.real.abs() if self.turned is None else self.real.abs() + self.turned.abs()

    def push(self, v: Tensor) -> Tensor:
        """``Jv`` for flat tangents ``(n,)`` or ``(n, k)``."""
        v = v.to(self.real.dtype)
        along_real = (self.real.conj() @ v).real
        if self.turned is None:
            return along_real
        return torch.complex(along_real, (self.turned.conj() @ v).real)

    def pull(self, u: Tensor) -> Tensor:
        """``uᵀJ`` for flat seeds ``(m,)`` or ``(m, k)``."""
        result = self.real.mT @ u.real.to(self.real.dtype)
        if self.turned is not None and u.is_complex():
            result = result + self.turned.mT @ u.imag.to(self.real.dtype)
        return result

    def difference(self, found: Tensor, expected: Tensor, size: Tensor | None = None, *, nonfinite: bool = True) -> str:
        """How a result differs from what it must be, beyond the rounding of this function's dtypes."""
        return difference(found, expected, size, dtype=self.coarsest, largest=self.largest, nonfinite=nonfinite)


def fresh(x: Any) -> Any:
    """The same numbers in new leaves that require grad, with storages of the same layout; constants copied."""

    def copy(leaf: Tensor) -> Tensor:
        leaf = leaf.detach()
        if leaf.layout is not torch.strided:
            return leaf.clone().requires_grad_()
        storage = leaf.untyped_storage().clone()
        twin = torch.empty(0, dtype=leaf.dtype).set_(storage, leaf.storage_offset(), leaf.shape, leaf.stride())
        return twin.requires_grad_() if carries(leaf) else twin

    return pytree.tree_map_only(Tensor, copy, x)


def truth_of(f: Callable[[Any], Any], x: Any, *, seed: int = 0) -> Truth:
    """Evaluate f once under a seed and take one plain reverse pass for each output element.

    Each output is differentiated alone: the others get no seed, not a seed of zeros.
    """
    x = fresh(x)
    leaves = [leaf for leaf in pytree.tree_leaves(x) if _carries(leaf)]
    torch.manual_seed(seed)
    value = f(x)
    generator = torch.get_rng_state()
    return truth_of_graph(value, leaves, generator)


def truth_with_all_seeds(f: Callable[[Any], Any], x: Any) -> Truth:
    """The same, but the other outputs get zeros as seeds, which torch needs for some operators."""
    together = truth_of(lambda x: flat(f(x)), x)
    return replace(truth_of(f, x), real=together.real)


def flat(value: Any) -> Tensor:
    """All tensors of a structure end to end."""
    return torch.cat([part.flatten() for part in pytree.tree_leaves(value) if isinstance(part, Tensor)])


def truth_of_graph(value: Any, leaves: list[Tensor], generator: Tensor | None = None) -> Truth:
    """The oracle for a value that is computed already, by these leaves."""
    outputs = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    turned = None
    if any(output.is_complex() for output in outputs):
        turned = torch.cat([_rows(output, leaves, 1j if output.is_complex() else 0) for output in outputs])
    return Truth(
        pytree.tree_map_only(Tensor, Tensor.detach, value),
        torch.cat([_rows(output, leaves, 1) for output in outputs]),
        turned,
        promoted(leaves),
        coarsest([leaf for leaf in (*leaves, *outputs) if carries(leaf)]),
        torch.cat([torch.full((output.numel(),), output.requires_grad) for output in outputs]),
        torch.get_rng_state() if generator is None else generator,
    )


def differences(f: Callable[[Any], Any], x: Any, *, step: float = 1e-6, seed: int = 0) -> Tensor:
    """The Jacobian ``(m, n)`` of a real float64 function by central differences, under one seed."""
    x = fresh(x)
    leaves = [leaf for leaf in pytree.tree_leaves(x) if _carries(leaf)]

    def value() -> Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            result = f(x)
        parts = [part for part in pytree.tree_leaves(result) if isinstance(part, Tensor)]
        return torch.cat([part.double().flatten() for part in parts])

    columns = []
    for leaf in leaves:
        numbers = leaf.detach()
        for place in itertools.product(*map(range, leaf.shape)):
            kept = numbers[place].clone()
            numbers[place] = kept + step
            above = value()
            numbers[place] = kept - step
            columns.append((above - value()) / (2 * step))
            numbers[place] = kept
    return torch.stack(columns, dim=1) if columns else torch.zeros(value().numel(), 0, dtype=torch.float64)


def difference(
    found: Tensor,
    expected: Tensor,
    size: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    rtol: float | None = None,
    largest: float = 1.0,
    nonfinite: bool = True,
) -> str:
    """How two tensors differ, in words; ``""`` where they agree to rounding.

    Args:
        found: What is under test.
        expected: What it must be.
        size: The size that each entry's rounding error is relative to; None: the entry's own.
        dtype: The dtype whose rounding is allowed for.
        rtol: A relative error that is allowed instead of that dtype's.
        largest: The size of the function's largest output.
        nonfinite: Whether NaN and infinities must stand in the same places, or are passed over.
    """
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if not expected.numel():
        return ""
    if found.is_complex() or expected.is_complex():
        found, expected = (torch.view_as_real(part.to(torch.complex128).resolve_conj()) for part in (found, expected))
        size = size.unsqueeze(-1) if size is not None else None
    found, expected = found.detach().double(), expected.detach().double()
    finite = expected.isfinite()
    if nonfinite:
        if bool((found.isnan() != expected.isnan()).any()):
            return f"NaN in other places: {int(found.isnan().sum())} instead of {int(expected.isnan().sum())}"
        infinite = expected.isinf() | found.isinf()
        if not torch.equal(found[infinite], expected[infinite]):
            return "infinities in other places"
    size = expected.abs() if size is None else torch.maximum(size.double(), expected.abs())
    finite &= size.isfinite()
    if not bool(finite.any()):
        return ""
    size = size[finite]
    relative = RTOL[dtype] if rtol is None else rtol
    allowed = relative * (size + SHARE_OF_LARGEST * size.max()) + min(
        NOISE * torch.finfo(dtype).eps, RTOL[dtype]
    ) * max(largest, 1.0)
    error = (found - expected).abs()[finite]
    wrong = ~(error <= allowed)
    if not bool(wrong.any()):
        return ""
    worst = int(torch.where(error.isnan(), torch.inf, error / allowed).argmax())
    return (
        f"{int(wrong.sum())} of {expected.numel()} entries wrong, the worst {found[finite][worst]:.9g} "
        f"instead of {expected[finite][worst]:.9g}"
    )


def carries(leaf: Tensor) -> bool:
    """Whether a tensor's dtype can carry a derivative."""
    return leaf.is_floating_point() or leaf.is_complex()


def _carries(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and carries(leaf)


def promoted(leaves: list[Tensor]) -> torch.dtype:
    """The dtype that holds all leaves."""
    dtype = leaves[0].dtype
    for leaf in leaves[1:]:
        dtype = torch.promote_types(dtype, leaf.dtype)
    return dtype


def coarsest(leaves: list[Tensor]) -> torch.dtype:
    """The real dtype among the leaves' with the largest roundoff."""
    return max((leaf.dtype.to_real() for leaf in leaves), key=lambda dtype: torch.finfo(dtype).eps)


def _rows(output: Tensor, leaves: list[Tensor], one: complex) -> Tensor:
    """One output's rows by one reverse pass each; zero rows where it carries no graph."""
    exact = torch.complex128 if any(leaf.is_complex() for leaf in leaves) else torch.float64
    rows = torch.zeros(output.numel(), sum(leaf.numel() for leaf in leaves), dtype=exact)
    if not output.requires_grad or not one:
        return rows
    for index in range(output.numel()):
        seed = torch.zeros(output.numel(), dtype=output.dtype)
        seed[index] = one
        found = torch.autograd.grad(output, leaves, seed.reshape(output.shape), retain_graph=True, allow_unused=True)
        parts = [
            torch.zeros(leaf.numel()) if gradient is None else gradient.to_dense().flatten()
            for gradient, leaf in zip(found, leaves, strict=True)
        ]
        rows[index] = torch.cat([part.to(exact) for part in parts])
    return rows
