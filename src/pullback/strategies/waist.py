"""Waist: split the program where it is narrowest, and multiply two thin factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.autodiff.replay import recorded_coefficients
from pullback.data.problem import Side
from pullback.data.space import Space
from pullback.sparsity.structure import Structure
from pullback.sparsity.waist import Waist as Narrowest
from pullback.strategies.base import Bid, Facts, Grid, Refusal, answer_bytes, strategy, tiled, unit_range
from pullback.strategies.compressed import Compressed, as_grid, known, space_of
from pullback.strategies.sender import Sender

# A product of two factors has to save at least so many times the passes.
WORTH_SPLITTING = 4


@strategy
class Waist(Compressed):
    """``J = (dy/dz)(dz/dx)`` with z the narrowest place between x and y.

    Each factor takes as many half-passes as z has elements: dz/dx reverse passes seeded at z, dy/dz the transpose of
    the recorded reverse pass from y to z.
    """

    name = "waist"
    from_pattern = False

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        if facts.create_graph or facts.elsewhere():
            return Refusal("the program was recorded at another point, or must be differentiated again")
        if facts.rows.dtype != facts.columns.dtype:
            return Refusal("its ends are of different dtypes")
        found = structure.waist
        if found is None:
            return Refusal("no place of the program is narrower than both its ends")
        ends = min(facts.rows.size, facts.columns.size)
        if found.size * WORTH_SPLITTING > ends and facts.wanted != self.name:
            return Refusal(f"the narrowest place has {found.size:,} elements, the ends {ends:,}")
        size = answer_bytes(facts.columns, found.size) + answer_bytes(facts.rows, found.size)
        why = f"everything flows through {found.size:,} elements: so many half-passes each way, and one product"
        halves: tuple[tuple[Side, int], ...] = (("reverse", found.size), ("reverse", found.size))
        return Bid("reverse", 2 * found.size, size, why, share=0.5, split=halves)

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        return [Sender(structure.from_waist), Sender(structure.to_waist, transposed=True)]

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space] | None:
        structure = known(facts)
        sender = self.senders(facts, bid, structure)[part]
        coefficients = recorded_coefficients(structure.program, sender.graph)
        name = "reverse from the waist" if part == 0 else "transposed reverse to the waist"
        return {name: sender.one(coefficients)}, facts.columns if part == 0 else facts.rows

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        waist = narrowest(known(facts))
        begin = start if start < waist.size else start - waist.size
        return space_of(waist.views).onehots(unit_range(begin, begin + stop - start))

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        by_outputs, by_inputs = self._factors(facts, structure, answers)
        product = (by_outputs @ by_inputs).reshape(-1)
        if facts.want == "matrix" or structure.pattern.nnz == product.numel():
            return product
        return product.index_select(0, structure.flat_positions(product.device))

    def entries_of(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Tensor | None:
        return None if facts.want == "matrix" else super().entries_of(facts, bid, answers)

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        structure = known(facts)
        product = self.entries(facts, bid, structure, answers)
        return product if facts.want == "sparse" else as_grid(facts, product.reshape(structure.shape))

    def recover_into(self, facts: Facts, bid: Bid, answers: Sequence[Tensor], grid: Grid) -> None:
        by_outputs, by_inputs = self._factors(facts, known(facts), answers)
        whole = tiled(grid)
        parts = [[whole]] if whole is not None else grid
        heights, widths = ([row[0].shape[0] for row in parts], [part.shape[1] for part in parts[0]])
        for left, targets in zip(torch.split(by_outputs, heights), parts, strict=True):
            for right, target in zip(torch.split(by_inputs, widths, dim=1), targets, strict=True):
                if (left.dtype, left.device) == (target.dtype, target.device):
                    torch.mm(left, right, out=target)
                else:
                    target.copy_(left @ right)

    @staticmethod
    def _factors(facts: Facts, structure: Structure, answers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The outputs by the waist, and the waist by the inputs."""
        count, size = len(facts.columns.leaves), narrowest(structure).size
        by_inputs = torch.cat([answer.reshape(size, -1) for answer in answers[:count]], dim=1)
        by_outputs = torch.cat([answer.reshape(size, -1) for answer in answers[count:]], dim=1)
        return by_outputs.mT, by_inputs


def narrowest(structure: Structure) -> Narrowest:
    """The waist, which there is once it was bid on."""
    assert structure.waist is not None
    return structure.waist
