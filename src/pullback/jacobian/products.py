"""Products: a random seed times what was built, and what a plain reverse pass gives for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.jacobian import second
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import Disagreement, column_norms, precise
from pullback.strategies.base import Facts, Grid, split_blocks


def verify_result(passes: Passes, facts: Facts, result: Grid | Tensor) -> Disagreement | None:
    """Where what was built disagrees with a plain reverse pass, if it does.

    Args:
        passes: The passes at the point.
        facts: What was wanted.
        result: The grid of matrices, the blocks, or the entries of the pattern.
    """
    seed, expected = passes.verifier.probe
    if facts.holomorphic:
        expected = tuple(part.conj() for part in expected)
    if facts.want == "blocks":
        found, scale = _seed_times_blocks(seed, result, facts)
    elif isinstance(result, Tensor):
        found, scale = _seed_times_entries(seed, result, facts)
    else:
        found, scale = _seed_times_grid(seed, result)
    wrong = passes.verifier.disagreement(found, scale, expected)
    return second.of_result(passes.verifier, facts, result) if wrong is None and facts.create_graph else wrong


# ``uᵀJ`` for each input, and what gives the size that its rounding error is relative to.
Product = tuple[list[Tensor], Callable[[], list[Tensor]]]


def _seed_times_entries(seed: Sequence[Tensor], values: Tensor, facts: Facts) -> Product:
    structure = facts.structure()
    assert not isinstance(structure, str)
    row, column = structure.coordinates(values.device)
    exact = precise(values.detach())
    weights = facts.rows.join([precise(part.real if part.is_complex() else part).flatten() for part in seed])
    terms = exact * weights.to(exact.dtype)[row]
    total = torch.zeros(facts.columns.size, dtype=exact.dtype, device=exact.device).index_add(0, column, terms)

    def scale() -> list[Tensor]:
        squares = torch.zeros(facts.columns.size, dtype=exact.abs().dtype, device=exact.device)
        squares = squares.index_add(0, column, exact.abs().square())
        size = float(torch.linalg.vector_norm(weights)) / max(facts.rows.size, 1) ** 0.5
        return [(squares.sqrt() * size)[leaf.slice] for leaf in facts.columns.leaves]

    return [total[leaf.slice] for leaf in facts.columns.leaves], scale


def _seed_times_grid(seed: Sequence[Tensor], grid: Grid) -> Product:
    weights = [part.flatten().real if part.is_complex() else part.flatten() for part in seed]
    found, columns = [], [[precise(block.detach()) for block in column] for column in zip(*grid, strict=True)]
    for column in columns:
        products = [part.to(block) @ block for part, block in zip(weights, column, strict=True)]
        found.append(torch.stack(products).sum(0) if len(products) > 1 else products[0])

    def scale() -> list[Tensor]:
        return [torch.stack([column_norms(block) for block in each]).norm(dim=0) for each in columns]

    return found, scale


def _seed_times_blocks(seed: Sequence[Tensor], blocks: Grid | Tensor, facts: Facts) -> Product:
    examples = facts.columns.leaves[0].shape[0]
    if isinstance(blocks, Tensor):
        heights, widths = ([leaf.numel // examples for leaf in side.leaves] for side in (facts.rows, facts.columns))
        blocks = split_blocks(blocks, heights, widths)
    weights = [part.reshape(examples, 1, -1) for part in seed]
    found, columns = [], [[precise(block.detach()) for block in column] for column in zip(*blocks, strict=True)]
    for column in columns:
        products = [torch.bmm(part.to(block), block)[:, 0] for part, block in zip(weights, column, strict=True)]
        found.append(torch.stack(products).sum(0) if len(products) > 1 else products[0])

    def scale() -> list[Tensor]:
        # A sum of squares is far faster than a norm along a middle axis.
        return [torch.stack([block.abs().square().sum(1) for block in each]).sum(0).sqrt() for each in columns]

    return found, scale
