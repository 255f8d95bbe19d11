"""Replay: run a recorded program again, at another point or with other seeds.

A program is run in two parts. Its *coefficients* depend on the point alone and are computed once; its *linear part*
carries a seed through them, as often as there are seeds, and under vmap where many are sent at once. Both are
``torch.fx`` graphs of the recorded operations, cut down to what the tensors asked for need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from pullback.autodiff.program import NotRecordable, Program, Step, View, seeded_storages

# Operations that give the tensor itself: below autograd nothing is left of them.
SAME = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift"}


@dataclass
class Replay:
    """A program, cut down to some of its tensors.

    Attributes:
        graph: The linear part, ``(*coefficients, *seeds) -> targets``.
        captured: The tensors that were there before, in the order that ``coefficients`` takes them.
        literals: For each of them whether the function makes it anew each time.
        watched: The Views whose numbers the coefficients end with: what the program's course depended on.
        seeds: The Views that the linear part's seeds stand for.
        build: Makes ``coefficients``.
    """

    graph: fx.Graph
    captured: tuple[Tensor, ...]
    literals: tuple[bool, ...]
    watched: tuple[View, ...]
    seeds: tuple[View, ...]
    build: Callable[[], fx.GraphModule]

    @cached_property
    def linear(self) -> fx.GraphModule:
        """``(*coefficients, *seeds) -> targets``; compiled to Python when it is first needed."""
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def interpreted(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """:attr:`linear`, operation by operation: for a few runs that is less work than to compile it."""
        given = iter(inputs)
        values: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                return tuple(values[each] for each in node.args[0])
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
        raise AssertionError("a graph ends with its output")

    @cached_property
    def coefficients(self) -> fx.GraphModule:
        """``(*points, *captured) -> coefficients``; built when it is first needed, which is at another point."""
        return self.build()


@dataclass
class _Builder:
    """Builds one graph: an environment from tensors of the program to nodes."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[int, fx.Node] = field(default_factory=dict)
    owners: dict[tuple[int, torch.dtype], fx.Node] = field(default_factory=dict)

    def placeholder(self, view: View) -> None:
        self.put(view, self.graph.placeholder(f"t{view.tensor}"))

    def put(self, view: View, node: fx.Node) -> None:
        self.nodes[view.tensor] = node
        self.owners[view.storage, view.dtype] = node

    def has(self, view: View) -> bool:
        return view.tensor in self.nodes or (view.storage, view.dtype) in self.owners

    def get(self, view: View) -> fx.Node:
        node = self.nodes.get(view.tensor)
        if node is None:
            owner = self.owners[view.storage, view.dtype]
            node = self.graph.call_function(
                torch.ops.aten.as_strided.default, (owner, list(view.shape), list(view.stride), view.offset)
            )
            self.nodes[view.tensor] = node
        return node

    def add(self, step: Step) -> None:
        if step.op._schema.name in SAME:
            self.put(step.results[0], self.get(step.reads[0]))
            return
        # autograd's zeros without memory do not mix with others outside of it
        op = torch.ops.aten.zeros.default if step.op._schema.name == "aten::_efficientzerotensor" else step.op
        args = tuple(self._replace(value) for value in step.args)
        kwargs = {name: self._replace(value) for name, value in step.kwargs.items()}
        node = self.graph.call_function(op, args, kwargs)
        returns = step.op._schema.returns
        if len(returns) == 1 and not isinstance(returns[0].type, torch.ListType):
            if isinstance(step.outs[0], View):
                self.put(step.outs[0], node)
            return
        for index, out in enumerate(step.outs):
            if isinstance(out, View):
                self.put(out, self.graph.call_function(_item, (node, index)))

    def finish(self, views: Sequence[View]) -> fx.Graph:
        self.graph.output(tuple(self.get(view) for view in views))
        return self.graph

    def _replace(self, value: Any) -> Any:
        if isinstance(value, View):
            return self.get(value)
        if isinstance(value, list | tuple):
            return type(value)([self._replace(each) for each in value])
        return value


def replay(
    program: Program, targets: Sequence[View], watched: Sequence[View] = (), stand_ins: Sequence[View] = ()
) -> Replay:
    """A program cut down to the tensors asked for.

    Args:
        program: The program.
        targets: What the linear part returns.
        watched: What the coefficients return beside what the linear part needs.
        stand_ins: The seeds that the program had before others took their place.
    """
    steps = _needed(program, [*targets, *watched])
    seeded = seeded_storages(program)
    linear = [step for step in steps if _touches(step, seeded)]
    rest = [step for step in steps if not _touches(step, seeded)]
    made = {view.tensor for step in linear for view in step.results} | {view.tensor for view in program.seeds}
    needed: dict[int, View] = {}
    for view in (*(view for step in linear for view in step.reads), *targets):
        if view.tensor not in made and view.storage not in seeded:
            if program.versions[view.storage] != view.version:
                raise NotRecordable("a coefficient is overwritten after it was used")
            needed.setdefault(view.tensor, view)
    used = {view.tensor: view for step in rest for view in step.reads if view.tensor in program.captured}
    used |= {tensor: view for tensor, view in needed.items() if tensor in program.captured}
    used |= {view.tensor: view for view in watched if view.tensor in program.captured}
    available = {view.tensor for step in rest for view in step.results} | {view.tensor for view in program.points}
    for view in (view for step in rest for view in step.reads if view.tensor in program.tensors):
        # The seed of a larger program, of which only the shape is read.
        if view.tensor not in available and view.storage in {seed.storage for seed in stand_ins}:
            used.setdefault(view.tensor, view)

    def coefficients() -> fx.GraphModule:
        first = _Builder()
        for view in (*program.points, *used.values()):
            first.placeholder(view)
        for step in rest:
            first.add(step)
        return fx.GraphModule(torch.nn.Module(), first.finish([*needed.values(), *watched]))

    second = _Builder()
    for view in needed.values():
        second.placeholder(view)
    for view in program.seeds:
        second.placeholder(view)
    for step in linear:
        second.add(step)
    captured = tuple(program.tensors[tensor] for tensor in used)
    literals = tuple(tensor in program.literals or tensor not in program.captured for tensor in used)
    return Replay(second.finish(list(targets)), captured, literals, tuple(watched), program.seeds, coefficients)


def recorded_coefficients(program: Program, graph: Replay) -> tuple[Tensor, ...]:
    """The coefficients as they were when the program was recorded."""
    names = [int(node.name[1:]) for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(_real(program.tensors[name].detach()) for name in names[: len(names) - len(graph.seeds)])


def laid_like(tensor: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """The same numbers in the memory layout that a program was recorded with."""
    if tensor.stride() == tuple(stride):
        return tensor
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _real(tensor: Tensor) -> Tensor:
    """A tensor that has memory: autograd's zeros may have none."""
    if not tensor._is_zerotensor():
        return tensor
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def transposed(linear: Callable[..., tuple[Tensor, ...]], seeds: Sequence[View]) -> Callable[..., tuple[Tensor, ...]]:
    """The transpose of a linear function of seeds: from cotangents of its results to cotangents of the seeds."""

    def run(cotangents: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        zeros = [torch.zeros(seed.shape, dtype=seed.dtype, device=seed.device) for seed in seeds]
        pulled: Any = torch.func.vjp(linear, *zeros)
        answers: tuple[Tensor, ...] = pulled[1](cotangents)
        return answers

    return run


def _item(values: Any, index: int) -> Any:
    return values[index]


def _touches(step: Step, storages: set[int]) -> bool:
    return any(view.storage in storages for view in (*step.reads, *step.results))


def _needed(program: Program, targets: Sequence[View]) -> list[Step]:
    """The steps that the targets depend on, in order."""
    given = {(view.storage, view.version) for view in program.seeds}
    tensors = {view.tensor for view in targets}
    nodes = {(view.storage, view.version) for view in targets} - given
    kept: list[Step] = []
    for step in reversed(program.steps):
        results = step.results
        looks = not step.writes and results and all(view.storage in {r.storage for r in step.reads} for view in results)
        if looks:
            wanted = any(view.tensor in tensors for view in results)
        else:
            wanted = any((view.storage, view.version) in nodes for view in results)
        if wanted:
            kept.append(step)
            tensors.update(view.tensor for view in step.reads)
            nodes.update({(view.storage, view.version) for view in step.reads} - given)
    return kept[::-1]
