"""Factored: split the reverse pass where only constant operations follow, and color the first factor alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.autodiff.replay import recorded_coefficients
from pullback.data.space import Space
from pullback.sparsity.factor import Factors
from pullback.sparsity.gather import Gather
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Refusal, strategy
from pullback.strategies.compressed import Compressed, colored_seeds, known, space_of
from pullback.strategies.sender import Sender

# A pass to the cut leaves out what follows it.
SHARE = 0.9


@strategy
class Factored(Compressed):
    """``Jᵀ = T (dz/dw) H``: passes only from w to the cut z; H and T are constant and cost none.

    Each copy of a gathered element is an element of z of its own, and each summand of an output one of w, so rows that
    meet in J need not meet in dz/dw: a stencil takes as many passes as it has fields or fewer, bundle adjustment two.
    """

    name = "factored"

    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        if not isinstance(structure.factors, Factors):
            return Refusal(structure.factors)
        if facts.create_graph:
            return Refusal("a recorded program cannot be differentiated again")
        if not tail_matters(structure) and structure.factors.head is None:
            return Refusal("no constant operation could be split off")
        if facts.elsewhere():
            return Refusal("the program was recorded at another point")
        if not structure.frontier:
            return Bid("reverse", 0, 0, "J is constant: nothing has to be run")
        bound = structure.inner_bound
        size = self._bytes(structure, bound)
        return Bid("reverse", bound, size, f"no fewer than {bound} to the cut", firm=False, share=SHARE)

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        structure = known(facts)
        coloring = structure.inner
        size = structure.shape[1]
        assert isinstance(structure.factors, Factors)
        length = structure.factors.inner.shape[0]
        copies = structure.factors.inner.shape[1]
        before = "" if structure.factors.head is None else f"from {copies:,} copies of outputs "
        why = f"{before}to {length:,} elements of which {size:,} inputs are constant sums: {coloring}"
        return Bid("reverse", coloring.count, self._bytes(structure, coloring.count), why, share=SHARE)

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        assert isinstance(structure.factors, Factors)
        return [Sender(structure.to_frontier, sums=structure.factors.sums)]

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space] | None:
        structure = known(facts)
        sender = self.senders(facts, bid, structure)[part]
        coefficients = recorded_coefficients(structure.program, sender.graph)
        return {"reverse to the cut": sender.one(coefficients)}, space_of(structure.sums)

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        structure = known(facts)
        return colored_seeds(space_of(structure.inner_seeds), structure.inner.colors, start, stop)

    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        return cut_gather(structure, facts.columns)(answers)

    @staticmethod
    def _bytes(structure: Structure, passes: int) -> int:
        assert isinstance(structure.factors, Factors)
        return passes * sum(view.numel * view.dtype.itemsize for view in structure.sums)


def tail_matters(structure: Structure) -> bool:
    """Whether the cut is anywhere but at the answers themselves."""
    answers = {(view.storage, view.version) for view in structure.program.answers if view is not None}
    return any((view.storage, view.version) not in answers for view in structure.frontier) or not structure.frontier


def cut_gather(structure: Structure, columns: Space) -> Gather:
    """How the entries of J are put together from the answers at the cut."""
    key = "factored", columns.device
    if key not in structure.gathers:
        found = structure.contributions
        assert isinstance(structure.factors, Factors)
        length = structure.factors.inner.shape[0]
        colors = structure.inner.colors.astype(np.int64)
        source = colors[found.w] * length + found.z
        structure.gathers[key] = Gather.sums(
            found.entry, source, found.weight, found.constant, columns.dtype, columns.device
        )
    return structure.gathers[key]
