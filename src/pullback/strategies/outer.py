"""Outer: rows of a Jacobian by parameters, as outer products of what enters a layer and its cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.data.space import Space
from pullback.outer.layers import Layers
from pullback.outer.products import pulled
from pullback.outer.rows import write_rows
from pullback.outer.terms import Parameter, exact
from pullback.strategies.base import Bid, Facts, Grid, Refusal, Strategy, strategy, unit_range
from pullback.strategies.blocks import common_lead, per_example

# With fewer examples, or fewer entries, rows are made before a program could be recorded.
FEWEST_EXAMPLES = 8
FEWEST_ENTRIES = 2**21


@strategy
class Outer(Strategy):
    """A seed for output element r of *every* example, to the cotangents at each layer; J is made of outer products.

    Weights are shared by all examples, so the gradients of examples add up in one pass; but the cotangent that reaches
    a layer keeps them apart, at positions of which each belongs to one example. That is not assumed: passes seeded on
    some examples must reach no position of others.
    """

    name = "outer"
    gives = frozenset({"matrix"})

    def bid(self, facts: Facts) -> Bid | Refusal:
        layers = layers_of(facts)
        if isinstance(layers, str):
            return Refusal(layers)
        way = layers.apart
        why = f"{layers.examples} examples share {len(way.which)} parameters, each gradient a sum of outer products"
        return Bid("reverse", way.outputs, way.bytes, why)

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space]:
        way = _known(facts).apart
        return {"reverse to the layers": way.kernel()}, way.space

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return example_seeds(facts.rows, _known(facts).lead, start, stop)

    def product(
        self, facts: Facts, bid: Bid, answers: Sequence[Tensor], seed: Sequence[Tensor]
    ) -> tuple[list[Tensor], Callable[[], list[Tensor]]]:
        layers = _known(facts)
        weights = weights_of(facts.rows, layers.lead, seed)
        made = [pulled(each, weights) for each in layers.apart.parameters(answers).values()]
        return [total for total, _ in made], lambda: [size for _, size in made]

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        layers = _known(facts)
        leaves = facts.columns.leaves
        grid = [
            [torch.empty((row.numel, leaf.numel), dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
            for row in facts.rows.leaves
        ]
        write_grid(facts.rows, layers.lead, layers.apart.parameters(answers), grid)
        return grid

    def recover_into(self, facts: Facts, bid: Bid, answers: Sequence[Tensor], grid: Grid) -> None:
        layers = _known(facts)
        write_grid(facts.rows, layers.lead, layers.apart.parameters(answers), grid)


def layers_of(facts: Facts) -> Layers | str:
    """What J is made of, where rows made of outer products are sure to be the least work; or why they are not."""
    if facts.columns.is_complex or facts.rows.is_complex:
        return "complex functions are built by rows or columns"
    lead = common_lead(facts.rows, facts.rows)
    if not lead or lead[0] < FEWEST_EXAMPLES:
        return "no leading dimension of the outputs counts enough examples"
    if common_lead(facts.rows, facts.columns):
        return "the inputs have the outputs' leading dimension: they are no parameters that examples share"
    if facts.wanted != Outer.name and facts.rows.size * facts.columns.size < FEWEST_ENTRIES:
        return "too few entries to be worth looking for outer products"
    layers = facts.layers()
    if isinstance(layers, str):
        return layers
    if layers.mixed:
        names = ", ".join(facts.columns.leaves[index].name for index in layers.mixed[:3])
        return f"the gradients of examples are mixed before they reach {names}"
    if not any(layers.is_contracted(index) for index in range(len(facts.columns.leaves))):
        return "no gradient is a sum of outer products"
    return layers


def weights_of(rows: Space, lead: int, seed: Sequence[Tensor]) -> Tensor:
    """A seed as one weight for output element o of example b, ``(B, O)``, in at least single precision."""
    parts = [
        part.reshape(-1, one.numel).to(exact(part.dtype))
        for part, one in zip(seed, per_example(rows, lead).leaves, strict=True)
    ]
    return torch.cat([part.to(parts[0]) for part in parts], dim=1)


def write_grid(rows: Space, lead: int, parameters: dict[int, Parameter], grid: Sequence[Sequence[Tensor]]) -> None:
    """Write J into matrices that are there.

    Args:
        rows: The Space of the outputs.
        lead: How many of their leading dimensions count examples.
        parameters: The rows by each parameter.
        grid: ``[k][j]``: a matrix (elements of output k, elements of parameter j); its rows may lie apart.
    """
    for line, leaf in zip(grid, per_example(rows, lead).leaves, strict=True):
        for index, each in parameters.items():
            write_rows(each, line[index], outputs=leaf.slice)


def example_seeds(rows: Space, lead: int, start: int, stop: int) -> tuple[Tensor, ...]:
    """For each output element of an example from ``start`` to ``stop`` a seed that is 1 there in every example."""
    seeds = per_example(rows, lead).onehots(unit_range(start, stop))
    # A recorded program may view its seed as another shape, so that it has to have memory of its own.
    return tuple(
        seed.reshape((stop - start,) + (1,) * lead + seed.shape[1:]).expand(stop - start, *leaf.shape).contiguous()
        for seed, leaf in zip(seeds, rows.leaves, strict=True)
    )


def _known(facts: Facts) -> Layers:
    """What was found, which there is once the strategy has bid on it."""
    layers = facts.layers()
    assert isinstance(layers, Layers)
    return layers
