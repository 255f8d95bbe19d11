"""Layers: what was found in a program, with the owners of all positions, and how passes give the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.program import View
from pullback.data.space import Leaf, Space
from pullback.outer.contraction import Contribution, OneHot
from pullback.outer.find import Found
from pullback.outer.owners import Owners
from pullback.outer.terms import Cotangents, Parameter, parameter

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Way:
    """How passes give the cotangents of some parameters.

    Attributes:
        found: What was found in the program.
        which: Those parameters, by their indices.
        owners: For each contribution's key the owners of its positions.
        examples: B.
        outputs: O, the number of passes.
        columns: The Space of all parameters.
    """

    found: Found
    which: tuple[int, ...]
    owners: Callable[[Contribution], Owners]
    examples: int
    outputs: int
    columns: Space

    @cached_property
    def bases(self) -> list[View]:
        """The tensors that a pass returns."""
        return list({part.base: None for index in self.which for part in self.found.parts[index]})

    @property
    def space(self) -> Space:
        """What a pass answers in."""
        leaves, start = [], 0
        for k, view in enumerate(self.bases):
            leaves.append(Leaf(f"g{k}", torch.Size(view.shape), view.dtype, view.device, start))
            start += leaves[-1].numel
        return Space(tuple(leaves), pytree.tree_structure([0] * len(leaves)), tuple(range(len(leaves))), start)

    def kernel(self) -> Callable[[Tensors], Tensors]:
        """One pass, from a seed to these tensors."""
        return self.found.kernel(tuple(self.bases))

    def parameters(self, answers: Sequence[Tensor]) -> dict[int, Parameter]:
        """The rows by each of the parameters, from the answers of the passes."""
        cotangents = Cotangents(dict(zip(self.bases, answers, strict=True)))
        made = {}
        for index in self.which:
            leaf, parts = self.columns.leaves[index], self.found.parts[index]
            owned = [self.owners(part) for part in parts]
            shape = (self.examples, self.outputs, leaf.dtype, leaf.device)
            made[index] = parameter(leaf.numel, parts, owned, cotangents.of, shape)
        return made

    @property
    def bytes(self) -> int:
        """What the answers take, laid out."""
        return self.outputs * sum(leaf.numel * max(leaf.dtype.itemsize, 4) for leaf in self.space.leaves)


@dataclass(frozen=True, eq=False)
class Layers:
    """A Jacobian by parameters as sums of outer products.

    Attributes:
        found: What was found in the program.
        lead: How many leading dimensions of the outputs count examples.
        rows: The Space of the outputs.
        columns: The Space of the parameters.
        owners: For each contribution's key the owners of its positions; none where a position has two.
    """

    found: Found
    lead: int
    rows: Space
    columns: Space
    owners: dict[object, Owners | None]

    @property
    def examples(self) -> int:
        """B."""
        return math.prod(self.rows.shapes[0][: self.lead])

    @cached_property
    def apart(self) -> Way:
        """The parameters in whose gradients no position belongs to two examples: one pass serves all examples."""
        which = tuple(index for index in range(len(self.found.parts)) if index not in self.mixed)

        def owned(part: Contribution) -> Owners:
            found = self.owners[part.key]
            assert found is not None
            return found

        outputs = self.rows.size // max(self.examples, 1)
        return Way(self.found, which, owned, self.examples, outputs, self.columns)

    @cached_property
    def mixed(self) -> tuple[int, ...]:
        """The parameters in whose gradients a position belongs to two examples."""
        parts = enumerate(self.found.parts)
        return tuple(k for k, each in parts if not self.lead or any(self.owners[part.key] is None for part in each))

    def together(self, which: Sequence[int]) -> Way:
        """Parameters in whose gradients all output elements share all positions: one pass for each."""
        return Way(self.found, tuple(which), lambda part: Owners.one(part.positions), 1, self.rows.size, self.columns)

    def is_contracted(self, index: int) -> bool:
        """Whether a parameter's gradient is made of contractions only."""
        return not any(
            isinstance(part.coefficient, OneHot) and part.place.sizes[2] == 1 and part.positions > 1
            for part in self.found.parts[index]
        )
