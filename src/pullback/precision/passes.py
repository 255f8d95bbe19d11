"""A function evaluated in a dtype with its graph, and backward passes through it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.seeds import assign, cotangent
from pullback.errors import ArgumentError, GraphError
from pullback.graph.graph import Graph
from pullback.graph.names import Names
from pullback.graph.recording.record import record
from pullback.graph.replaying.replay import replay
from pullback.graph.replaying.steps import Replay
from pullback.graph.walk import Walk, walk
from pullback.precision.subject import Cast

Look = Callable[[int, Sequence[Tensor | None]], None]


@dataclass(frozen=True)
class Evaluated:
    """A function's outputs in a dtype, and the graph behind them.

    Attributes:
        outputs: The outputs, those without a graph too.
        names: What they are called.
        leaves: What is differentiated by, by name.
        graph: The graph.
        walk: The torch nodes that its nodes stand for.
    """

    outputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    leaves: Mapping[str, Tensor]
    graph: Graph
    walk: Walk

    @classmethod
    def of(cls, cast: Cast) -> tuple[Evaluated, Any]:
        """Call the function; also what it returned.

        Raises:
            ArgumentError: It returned something that is no tensor, or complex.
            GraphError: Nothing that it returned carries a graph.
        """
        with record():
            returned = cast.f(*cast.inputs)
        assigned = assign(returned, None)
        carrying = [(name, output) for output, _, name in assigned if output.requires_grad]
        for name, output in carrying:
            if output.is_complex():
                raise ArgumentError(
                    f"{name} is complex, and half precision has no complex numbers to compare",
                    got=f"{output.dtype}",
                    fix="return torch.view_as_real(y), or y.abs()",
                )
        if not carrying:
            raise GraphError(
                "no output carries a graph: nothing that is differentiated by leads to it",
                got=", ".join(f"{name} of {output.dtype}" for output, _, name in assigned[:3]),
                fix="look for .detach(), .item(), .data or torch.no_grad() inside f; or name other tensors in wrt=",
            )
        names = Names()
        names.add("", dict(cast.tensors))
        for prefix, module in cast.modules.items():
            names.add(prefix, module)
        found = walk(carrying, names)
        outputs, called = tuple(each[0] for each in assigned), tuple(each[2] for each in assigned)
        return cls(outputs, called, cast.leaves, Graph(returned, found), found), returned

    @property
    def lowest(self) -> torch.dtype:
        """The coarsest dtype that a cotangent has somewhere."""
        met = {facts.dtype for node in self.graph.nodes for facts in node.produces if facts.dtype.is_floating_point}
        return max(met, key=lambda dtype: (torch.finfo(dtype).bits <= 16, torch.finfo(dtype).eps))

    def gradients(self, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient for each leaf; None where the pass did not arrive."""
        ends = [pair for pair in zip(self.outputs, cotangents, strict=True) if pair[0].requires_grad]
        return list(
            torch.autograd.grad(
                [output for output, _ in ends],
                list(self.leaves.values()),
                [each for _, each in ends],
                retain_graph=True,
                allow_unused=True,
            )
        )

    def watched(self, cotangents: Sequence[Tensor], look: Look) -> list[Tensor | None]:
        """The same, while something looks at what arrives at each node, by the node's index in the graph."""
        handles: list[Any] = []
        try:
            for node, index in self.walk.index_of.items():
                if node.next_functions:
                    handles.append(node.register_prehook(functools.partial(look, index)))
            return self.gradients(cotangents)
        finally:
            for handle in handles:
                handle.remove()

    def replayed(self, cotangents: Sequence[Tensor]) -> Replay:
        """The pass told node by node."""
        ends = [pair for pair in zip(self.outputs, cotangents, strict=True) if pair[0].requires_grad]
        return replay(
            [output for output, _ in ends],
            [each for _, each in ends],
            self.walk.leaves,
            self.walk.index_of,
            labels=self.graph.labels,
        )


def seeds_of(returned: Any, seed: Any) -> list[Tensor]:
    """The cotangent of each output, as it is meant: in the dtype of the outputs, which are the reference's.

    Raises:
        SeedError: The seed does not fit.
    """
    return [
        cotangent(output, weight, name) if output.requires_grad else torch.zeros_like(output)
        for output, weight, name in assign(returned, seed)
    ]
