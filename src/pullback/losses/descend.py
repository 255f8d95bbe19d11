"""One backward pass for several losses: their rows, the weights made of them, and the combined gradient in ``.grad``.

Rows come from one plain reverse pass for each loss, through its own part of the graph and through what is shared. They
are kept and mixed; or, where a leaf has a hook or the rows do not fit into memory, let go of when their Gram matrix is
known, and one more pass, seeded with the weights, finds the mixture. Keeping is a pass less; the other takes less
memory, and is torch's own backward, hooks included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.backward import accumulate
from pullback.errors import StrategyError
from pullback.losses.passes import add_to_grad, groups_within_memory, is_hooked, row_passes
from pullback.losses.rows import Row, gram_of, matrix_of, mix
from pullback.losses.tasks import Tasks, check_leaves, no_shared, reached_leaves, tasks_of
from pullback.losses.ways import LossWeights, RowWay, checked_weights, row_way


def combined_backward(
    losses: Any, combine: Any, inputs: Mapping[str, Tensor] | None, *, retain_graph: bool | None, create_graph: bool
) -> None:
    """Add the combined gradient of several losses to ``.grad``.

    Args:
        losses: Scalars in a dict or sequence, or a vector.
        combine: A :class:`LossWeights`, or what :func:`row_way` knows.
        inputs: The leaves to accumulate into by name; None: all that are reached.
        retain_graph: Keep the graph for another pass; None: as ``create_graph``.
        create_graph: Keep the gradients differentiable, where the weights are those of losses.

    Raises:
        ArgumentError: A loss or ``combine`` is of the wrong kind.
        GraphError: A loss carries no graph, or its graph was freed; or no parameter is shared.
        StrategyError: The gradients cannot be kept differentiable, or a hook is in the way.
        ValueMismatch: A loss or a gradient is not finite, or ``combine`` returned something of the wrong shape.
    """
    way = combine if isinstance(combine, LossWeights) else row_way(combine)
    tasks = tasks_of(losses, "combine=")
    if isinstance(way, LossWeights):
        weights = checked_weights(way.weights(tasks), tasks, type(way).__name__)
        into = None if inputs is None else list(inputs.values())
        seeds = tasks.seeds(weights)
        accumulate(tasks.losses, seeds, into, retain_graph=retain_graph, create_graph=create_graph)
        way.learn(tasks)
        return
    if create_graph:
        raise StrategyError(
            f"the weights that {way.called} finds are numbers, so its gradient cannot be differentiated",
            got="combine= and create_graph=True",
            fix="leave create_graph out; pb.conflicts tells weights to multiply the losses by: (w * losses).sum()",
        )
    leaves, last = reached_leaves(tasks)
    if inputs is None:
        check_leaves((f"the parameter of shape {tuple(leaf.shape)}", leaf) for leaf in leaves)
    else:
        check_leaves(inputs.items())
        leaves = list({id(leaf): leaf for leaf in inputs.values()}.values())
    _Descent(way, tasks, leaves, last, retain_graph=bool(retain_graph)).run()


@dataclass
class _Descent:
    """One such pass.

    Attributes:
        way: How rows are combined.
        tasks: The losses.
        leaves: The leaves to accumulate into.
        last: The ids of the leaves that the last loss reaches.
        retain_graph: Keep the graph for another pass.
        shared: Which leaves two losses reach.
        again: Which leaves get their gradient by passes of their own.
        own: The gradients by leaves that one loss reaches.
        rows: The rows, where they are kept.
        gram: Their Gram matrix, where they are not.
    """

    way: RowWay
    tasks: Tasks
    leaves: list[Tensor]
    last: set[int]
    retain_graph: bool
    shared: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    own: dict[int, Tensor] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    gram: Tensor | None = None

    def run(self) -> None:
        self.again = {index for index, leaf in enumerate(self.leaves) if is_hooked(leaf)}
        groups = groups_within_memory(self.leaves, len(self.tasks.losses))
        if len(groups) == 1 or self.way.by_gram is None:
            self._find_all()
        else:
            self._find_in_groups(groups)
        device, kept = self.tasks.values.device, sorted(self.shared)
        weights = self.way.weights(lambda: matrix_of(self.rows, kept, device),
                                   lambda: gram_of(self.rows, kept, device) if self.gram is None else self.gram,
                                   self.tasks)  # fmt: skip
        mixed = self._mixed() if weights is None else mix(self.rows, sorted(self.shared - self.again), weights)
        self.rows.clear()
        # What a pass returned may be one tensor for two leaves, or the user's own: only what was mixed here is new.
        own = {index: gradient.clone() for index, gradient in self.own.items()}
        add_to_grad((self.leaves[index], gradient) for index, gradient in (mixed | own).items())
        self._pass_again(weights or [])

    def _find_all(self) -> None:
        """The rows by all leaves at once."""
        self.rows = row_passes(self.tasks, self.leaves, self._settle)
        self._take_own(self.rows, range(len(self.leaves)))

    def _find_in_groups(self, groups: Sequence[list[int]]) -> None:
        """The Gram matrix of rows that do not fit into memory together."""
        for group in groups:
            rows = row_passes(self.tasks, [self.leaves[index] for index in group], lambda rows: True)
            counts = [sum(row[place] is not None for row in rows) for place in range(len(group))]
            shared = [place for place, count in enumerate(counts) if count > 1]
            self.shared.update(group[place] for place in shared)
            self._take_own(rows, group)
            if shared:
                part = gram_of(rows, shared, self.tasks.values.device)
                self.gram = part if self.gram is None else self.gram + part
        if not self.shared:
            raise no_shared(self.tasks, self.leaves)
        self.again |= self.shared

    def _settle(self, rows: list[Row]) -> bool:
        """Before the last pass: what is shared, what needs a pass of its own, and so whether the graph is kept."""
        for index, leaf in enumerate(self.leaves):
            if sum(row[index] is not None for row in rows) + (id(leaf) in self.last) > 1:
                self.shared.add(index)
        if not self.shared:
            raise no_shared(self.tasks, self.leaves)
        if self.way.whole is not None and self.again & self.shared:
            leaf = self.leaves[min(self.again & self.shared)]
            raise StrategyError(
                f"{self.way.called} finds a gradient and no weights, so a hook on a parameter cannot be kept",
                got=f"a parameter of shape {tuple(leaf.shape)} with a hook",
                fix="remove the hook, or combine by weights, as UPGrad() does",
            )
        return self.retain_graph or bool(self.again)

    def _take_own(self, rows: Sequence[Row], indices: Sequence[int]) -> None:
        for place, index in enumerate(indices):
            if index not in self.shared | self.again:
                self.own.update((index, part) for row in rows if (part := row[place]) is not None)

    def _mixed(self) -> dict[int, Tensor]:
        """The combined gradient of a way that has no weights, by leaf."""
        shared = sorted(self.shared)
        vector = self.way.vector(matrix_of(self.rows, shared, self.tasks.values.device), self.tasks)
        parts = torch.split(vector, [self.leaves[index].numel() for index in shared])
        return {
            index: part.to(self.leaves[index]).view(self.leaves[index].shape).clone()
            for index, part in zip(shared, parts, strict=True)
        }

    def _pass_again(self, weights: Sequence[float]) -> None:
        """Passes for what the rows were not kept of: weighted where losses share, plain where one is alone."""
        shared = [self.leaves[index] for index in sorted(self.again & self.shared)]
        alone = [self.leaves[index] for index in sorted(self.again - self.shared)]
        if shared:
            accumulate(self.tasks.losses, self.tasks.seeds(weights), shared,
                       retain_graph=self.retain_graph or bool(alone), create_graph=False)  # fmt: skip
        if alone:
            accumulate(self.tasks.losses, self.tasks.ones, alone, retain_graph=self.retain_graph, create_graph=False)
