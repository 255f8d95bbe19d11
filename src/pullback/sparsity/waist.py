"""Waist: the narrowest place of a program, through which everything flows from the seed to the answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from pullback.autodiff.program import Node, Program, View, is_alias, is_factory_like, seeded_nodes
from pullback.sparsity.factor import producers

# Stands for "cannot be cut" among capacities, which SciPy counts in 32 bits.
UNCUT = 2**30


@dataclass(frozen=True)
class Waist:
    """A set of tensors that separates the seed from the answers.

    Attributes:
        views: The tensors.
        size: Their number of elements together; no other set has fewer.
    """

    views: tuple[View, ...]
    size: int


def waist(program: Program) -> Waist | None:
    """The smallest set of tensors between seed and answers: a minimum vertex cut, by maximum flow.

    Every tensor is a vertex whose capacity is its number of elements (Menger's theorem; Ford and Fulkerson 1956).
    Seeds and answers themselves count as cuts too: None where nothing inside is narrower.
    """
    seeded, wholes = seeded_nodes(program), producers(program)
    numbers: dict[Node, int] = {node: k for k, node in enumerate(seeded)}
    source, sink = 2 * len(numbers), 2 * len(numbers) + 1
    edges: dict[tuple[int, int], int] = {}
    for node, k in numbers.items():
        edges[2 * k, 2 * k + 1] = min(wholes[node].numel, UNCUT) if node in wholes else UNCUT
    for seed in program.seeds:
        edges[source, 2 * numbers[seed.storage, seed.version]] = UNCUT
    for answer in program.answers:
        if answer is not None and (answer.storage, answer.version) in numbers:
            edges[2 * numbers[answer.storage, answer.version] + 1, sink] = UNCUT
    for step in program.steps:
        if is_alias(step) or is_factory_like(step.op):
            continue
        for view in step.reads:
            for result in step.results:
                before, after = (view.storage, view.version), (result.storage, result.version)
                if before in numbers and after in numbers:
                    edges[2 * numbers[before] + 1, 2 * numbers[after]] = UNCUT
    chosen = _cut(edges, source, sink)
    if chosen is None:
        return None
    nodes = [node for node, k in numbers.items() if k in chosen]
    ends = {(view.storage, view.version) for view in (*program.seeds, *program.answers) if view is not None}
    if not nodes or any(node in ends for node in nodes):
        return None
    return Waist(tuple(wholes[node] for node in nodes), sum(wholes[node].numel for node in nodes))


def _cut(edges: dict[tuple[int, int], int], source: int, sink: int) -> set[int] | None:
    """The vertices of a minimum cut; None where nothing flows or nothing can be cut."""
    if not edges:
        return None
    rows, columns = np.array(list(edges)).T
    capacities = np.fromiter(edges.values(), dtype=np.int32)
    graph = sp.csr_array((capacities, (rows, columns)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink)
    if not 0 < flow.flow_value < UNCUT:
        return None
    residual = (graph - flow.flow).tocsr()
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
    return {a // 2 for a, b in edges if a in reached and b not in reached and b == a + 1 and a % 2 == 0 and a < source}
