"""Compare: numbers of one operation by two ways, with a sharper eye than for a whole pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.data.space import Space
from pullback.jacobian.verify import COARSEST, precise, random_vector, relative_error, tolerance_at

# So many seeds are sent, at once and one by one.
SEEDS = 3
# One operation rounds less than a whole pass: an error so many times smaller is one, if it is so many roundoffs.
SHARPER = 30
ROUNDOFFS = 100


def stacked(runs: Sequence[Sequence[Tensor]]) -> Tensors:
    """Several runs' tensors, stacked."""
    return tuple(torch.stack(parts) for parts in zip(*runs, strict=True))


def stacks_of(space: Space, count: int = SEEDS) -> Tensors:
    """Some random vectors of a space, stacked."""
    return stacked([random_vector(space, seed=31 + k) for k in range(count)])


def pulled(chosen: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor], *, create_graph: bool = False) -> Tensors:
    """A plain reverse pass from some results to the inputs."""
    live = [(value, weight) for value, weight in chosen if value.requires_grad]
    if not live:
        return tuple(map(torch.zeros_like, leaves))
    found = torch.autograd.grad(
        [value for value, _ in live],
        leaves,
        [weight for _, weight in live],
        retain_graph=True,
        create_graph=create_graph,
        materialize_grads=True,
        allow_unused=True,
    )
    return tuple(found)


def differ(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 0.0) -> bool:
    """Whether tensors differ by more than the rounding of their dtype, or than a tolerance."""
    for have, want in zip(found, expected, strict=True):
        if have.shape != want.shape:
            return True
        if want.numel() and (want.is_floating_point() or want.is_complex()):
            size = torch.nan_to_num(precise(want).abs(), posinf=0.0).amax()
            if relative_error(have, size.expand(want.shape), want) > max(tolerance_for([want]), tolerance):
                return True
    return False


def unequal(found_terms: tuple[float, float], expected_terms: tuple[float, float], tolerance: float) -> bool:
    """Whether an inner product differs from another by more than the rounding of their terms."""
    found, scale, expected = (
        torch.tensor([value], dtype=torch.float64)
        for value in (found_terms[0], found_terms[1] + expected_terms[1], expected_terms[0])
    )
    return relative_error(found, scale, expected) > tolerance


def tolerance_for(tensors: Sequence[Tensor]) -> float:
    """The largest relative error that rounding explains in one operation, from the coarsest dtype of some tensors."""
    roundoff = max((torch.finfo(tensor.dtype).eps for tensor in tensors), default=0.0)
    return max(tolerance_at(roundoff) / SHARPER, min(ROUNDOFFS * roundoff, COARSEST))
