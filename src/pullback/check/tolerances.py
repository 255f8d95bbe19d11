"""How far two ways to the same number may be apart.

For a projection ``r = ⟨uᵀJ, v⟩`` by reverse mode and ``d = ⟨u, Jv⟩`` by differences

    |r - d| <= Σ|u_i| E_i + ρ (Σ|g_j v_j| + Σ|u_i D_i| + Σ|u_i y_i|) + κ |r(perturbed) - r|

with ``E`` the error estimate of the differences D, ``g = uᵀJ`` and y the output. ``ρ = ε^(2/3)`` is what one central
difference can tell apart in arithmetic of roundoff ε: 4e-11 in float64. Directions are as long as the input, so y is
the natural size of a derivative, and one that vanishes in exact arithmetic is rounding noise beside it.

The last term is the conditioning: how far the reverse pass moves when inputs and seed are perturbed by ε relative; it
is measured only where the others do not explain the difference. ``κ = 2K + log2 N`` counts roundings: each of the K
operations of the graph rounds once forward and once backward, and a sum of N terms, taken in pairs, log2 N times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# An error estimate above this share of the derivatives around says that the differences have not settled.
UNSETTLED = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """What is allowed besides the error of the differences.

    Attributes:
        relative: ρ, or what the user asked for.
        absolute: What the user allows for each entry.
        roundoff: ε of the arithmetic.
    """

    relative: float
    absolute: float
    roundoff: float

    @classmethod
    def of(cls, roundoff: float, atol: float | None, rtol: float | None) -> Tolerance:
        """The tolerance for arithmetic of this roundoff, unless the user asks for another."""
        return cls(math.pow(roundoff, 2 / 3) if rtol is None else rtol, atol or 0.0, roundoff)

    @property
    def wanted(self) -> float:
        """The relative error of differences with which one is content: a third of the digits, ``ε^(1/3)``."""
        return math.cbrt(self.roundoff)

    def of_projection(
        self, u: Tensor, pulled: Tensor, v: Tensor, pushed: Tensor, error: Tensor, natural: Tensor
    ) -> float:
        """What is allowed between ``⟨uᵀJ, v⟩`` and ``⟨u, Jv⟩``."""
        size = u.abs()
        terms = pulled.abs() @ v.abs() + size @ pushed.abs().add_(natural)
        by_differences = size @ torch.where(u == 0, 0.0, error) if bool(error.isinf().any()) else size @ error
        return float(by_differences) + self.relative * float(terms) + self.absolute * float(u.norm() * v.norm())

    def of_entries(self, one: Tensor, other: Tensor, error: Tensor, v: Tensor, natural: Tensor) -> Tensor:
        """What is allowed between two vectors ``Jv``, for each entry; small ones are held to the mean size."""
        size = one.abs().add_(other.abs())
        mean = float(size.nan_to_num(0.0, 0.0).mean())
        return size.add_(natural).add_(mean).mul_(self.relative).add_(error).add_(self.absolute * float(v.norm()))


def roundings(operations: int, numel: int) -> float:
    """κ: how many roundings a reverse pass goes through."""
    return 2 * max(operations, 1) + math.log2(max(numel, 2))


def perturbed(x: Tensor, roundoff: float, generator: torch.Generator) -> Tensor:
    """A vector whose entries are moved up or down by one roundoff, at random."""
    signs = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
    return x + roundoff * signs * x.abs()


def settled(value: Tensor, error: Tensor, output: Tensor) -> Tensor:
    """For each entry of a derivative by differences, whether its error is small.

    Small beside the derivatives around it; or, where all of them vanish, beside the output itself: directions are as
    long as the input, so a derivative of the output's size is a natural one.
    """
    if not value.numel():
        return torch.ones_like(value, dtype=torch.bool)
    if bool(error.max() <= UNSETTLED * value.abs().mean()) and bool(output.sum().isfinite()):
        return torch.ones_like(value, dtype=torch.bool)
    known = error.isfinite() & output.isfinite()
    if not bool(known.any()):
        return known
    size = UNSETTLED * (value.abs() + value[known].abs().mean())
    natural = math.sqrt(torch.finfo(torch.float64).eps) * (output.abs() + output[known].abs().mean())
    return known & (error <= size + natural)
