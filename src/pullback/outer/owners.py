"""Owners: which example each position belongs to, as passes seeded on some examples show.

For every two examples there is a binary digit in which their numbers differ. So for each digit two passes are seeded on
the examples whose number has it set, and on those where it is not: a position that belongs to one example is reached by
exactly one of them, and which ones reach it spells the example's number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Positions are padded to the same number for each example up to this factor.
MOST_PADDING = 4


@dataclass(frozen=True, eq=False)
class Owners:
    """The positions of each example, the same number for all of them.

    Attributes:
        index: ``(B, T)``; int64.
        real: Where a position stands and not a filler; None: everywhere.
        in_order: Whether the positions are in this order already.
    """

    index: Tensor
    real: Tensor | None
    in_order: bool

    @property
    def examples(self) -> int:
        """B."""
        return self.index.shape[0]

    @property
    def each(self) -> int:
        """T."""
        return self.index.shape[1]

    @classmethod
    def one(cls, positions: int) -> Owners:
        """All positions belong to one example."""
        return cls(torch.arange(positions)[None], None, in_order=True)

    def take(self, tensor: Tensor, dim: int) -> Tensor:
        """Positions along a dimension (counted from the end) as ``(B, T)``; fillers hold any of them."""
        if not self.in_order:
            tensor = tensor.index_select(dim, self.index.flatten().to(tensor.device))
        place = dim % tensor.ndim
        return tensor.reshape(*tensor.shape[:place], *self.index.shape, *tensor.shape[place + 1 :])


def masks(examples: int) -> Tensor:
    """The examples whose number has a digit set, for each digit; then those where it is not: ``(2 digits, B)``."""
    digits = torch.arange(max(examples - 1, 0).bit_length())
    is_set = (torch.arange(examples)[None] >> digits[:, None]) % 2 == 1
    return torch.cat([is_set, ~is_set])


def owners(reached: Tensor, examples: int) -> Owners | None:
    """The positions of each example; None where a position belongs to two.

    Args:
        reached: For each of the passes of :func:`masks` the positions that it reached, ``(2 digits, P)``; bool.
        examples: How many examples there are.
    """
    digits, count = len(reached) // 2, reached.shape[1]
    if not digits:
        return Owners.one(count) if examples == 1 else None
    is_set, is_not = reached[:digits], reached[digits:]
    alive = (is_set | is_not).all(dim=0)
    # A position that no seed reaches is nobody's, one that is not reached for some digits only proves nothing.
    if bool((is_set & is_not).any()) or bool(((is_set | is_not).any(dim=0) != alive).any()):
        return None
    weights = torch.arange(digits, device=reached.device)[:, None]
    owner = (is_set.long() << weights).sum(dim=0).cpu()
    return _grouped(owner, alive.cpu(), examples)


def _grouped(owner: Tensor, alive: Tensor, examples: int) -> Owners | None:
    count = len(owner)
    if bool((owner[alive] >= examples).any()):
        return None
    if examples and count and count % examples == 0:
        # The usual orders, which leave no position out: example after example, or step after step.
        each = count // examples
        for index in (torch.arange(count).view(examples, each), torch.arange(count).view(each, examples).T):
            number = torch.arange(examples)[:, None]
            if bool(((owner[index] == number) | ~alive[index]).all()):
                return Owners(index.contiguous(), None, in_order=bool((index.flatten() == torch.arange(count)).all()))
    living = alive.nonzero().flatten()
    order = living[owner[living].argsort(stable=True)]
    counts = owner[living].bincount(minlength=examples)
    each = int(counts.max()) if examples else 0
    if examples * each > MOST_PADDING * max(count, 1):
        return None
    real = torch.arange(each)[None] < counts[:, None]
    index = torch.zeros((examples, each), dtype=torch.long)
    index[real] = order
    return Owners(index, None if bool(real.all()) else real, in_order=False)
