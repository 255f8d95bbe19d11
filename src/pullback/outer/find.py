"""Find: how each parameter's gradient is put together, by walking back from it through a recorded reverse pass.

Behind the contractions a pass only moves and adds elements (transposes, accumulations, concatenations). The walk
carries a *home*: a view of the parameter's memory with the shape of the tensor at hand, which says where each of its
elements ends up. An operation that is no contraction is followed through torch's own decomposition of it; what remains
unknown is taken as it is: an element of the tensor is then a position of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Node, Program, Step, View, base_name, is_alias, is_factory_like, seeded_nodes
from pullback.autodiff.replay import Replay, recorded_coefficients, replay
from pullback.outer.contraction import (
    Contraction,
    Contribution,
    Dense,
    Layout,
    OneHot,
    Place,
    chained,
    meta,
    moved,
    node_of,
    placed,
    positions,
    relaid,
    unchanged,
)
from pullback.outer.fused import decomposed
from pullback.outer.rule import RULES
from pullback.outer.tail import TAIL

# A gradient of more parts than this is taken as it is.
MOST_PARTS = 4096
# A longer tensor of which only a part goes to a gradient is taken as it is.
LARGEST = 2**24


@dataclass(frozen=True, eq=False)
class Found:
    """What was found in a program.

    Attributes:
        program: The program, with decompositions put in and tensors kept that it would have overwritten.
        parts: For each answer its contributions; none where it is zero.
    """

    program: Program
    parts: tuple[tuple[Contribution, ...], ...]
    _graphs: dict[tuple[View, ...], Replay] = field(default_factory=dict)

    def kernel(self, targets: tuple[View, ...]) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]:
        """One pass, from a seed to some of the program's tensors."""
        if targets not in self._graphs:
            self._graphs[targets] = replay(self.program, targets)
        graph = self._graphs[targets]
        coefficients = recorded_coefficients(self.program, graph)
        kind = targets[0].device.type

        def run(seeds: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            if not torch.is_autocast_enabled(kind):
                return graph.interpreted(*coefficients, *seeds)
            with torch.autocast(kind, enabled=False):  # the casts were recorded
                return graph.interpreted(*coefficients, *seeds)

        return run

    @property
    def bases(self) -> list[View]:
        """The tensors that a pass has to return, each once."""
        return list({contribution.base: None for parts in self.parts for contribution in parts})


def find(program: Program, shapes: list[tuple[int, ...]]) -> Found:
    """How the answers of a reverse pass are put together.

    Args:
        program: The pass.
        shapes: The shapes of its answers.
    """
    walk = Walk(program)
    parts = []
    for answer, shape in zip(program.answers, shapes, strict=True):
        parts.append(walk.parts(answer, shape) if answer is not None and answer.numel else [])
    return walk.finish(parts)


@dataclass(frozen=True, eq=False)
class Pending:
    """A tensor on the way back.

    Attributes:
        view: The tensor.
        home: Where its elements go, of its shape: a view of the parameter's memory, or the positions there.
        weight: What they are multiplied by.
        scale: What each of them is multiplied by besides, of its shape; None: nothing.
    """

    view: View
    home: Tensor
    weight: float = 1.0
    scale: Tensor | None = None

    def through(self, view: View, layout: Layout, factor: float | Tensor = 1.0) -> Pending:
        """A tensor that this one is made of, where its elements go by a view of this one."""
        scale = None if self.scale is None else layout(self.scale)
        home = moved(self.home, layout)
        if isinstance(factor, Tensor):
            return Pending(view, home, self.weight, factor if scale is None else scale * factor)
        return Pending(view, home, self.weight * factor, scale)


class Walk:
    """The walk through one program; it is what rules ask about their surroundings."""

    def __init__(self, program: Program) -> None:
        self.program = replace(program, tensors=dict(program.tensors), sizes=dict(program.sizes))
        self.program.versions, self.program.captured = dict(program.versions), dict(program.captured)
        self._added: dict[int, list[Step]] = {}
        self._seeded: dict[Node, None] = seeded_nodes(program)
        self._made: dict[Node, tuple[int, Step, View]] = {}
        self._seeds = {node_of(seed): seed for seed in program.seeds}
        self._decomposed: dict[int, list[View | None] | None] = {}
        for index, step in enumerate(program.steps):
            self._enter(index, step)
        self._size = 0  # of the parameter at hand
        views = (view for step in program.steps for view in (*step.reads, *step.results))
        self._next_tensor = 1 + max((view.tensor for view in (*program.points, *program.seeds, *views)), default=0)

    def _enter(self, index: int, step: Step) -> None:
        if is_alias(step):
            return
        for view in step.results:
            if view.numel * view.dtype.itemsize == self.program.sizes[view.storage]:
                self._made.setdefault(node_of(view), (index, step, view))

    def is_seeded(self, value: Any) -> bool:
        """Whether an argument is a tensor that depends on the seed."""
        return isinstance(value, View) and node_of(value) in self._seeded

    def number(self, value: Any) -> Tensor | None:
        """A tensor that does not depend on the seed; None for other arguments, and where it was overwritten since."""
        if not isinstance(value, View) or node_of(value) in self._seeded:
            return None
        if self.program.versions[value.storage] != value.version:
            return None
        return self.program.tensors.get(value.tensor)

    def source(self, view: View) -> tuple[Step, View] | None:
        """The step that made all of a tensor's memory, and its result."""
        found = self._made.get(node_of(view))
        return None if found is None else found[1:]

    def parts(self, answer: View, shape: tuple[int, ...]) -> list[Contribution]:
        """The contributions to one answer."""
        found: list[Contribution] = []
        self._size = answer.numel
        start = Pending(answer, meta(shape))
        pending = [start]
        while pending:
            if len(found) + len(pending) > MOST_PARTS:
                return [self._alone(start)]
            each = pending.pop()
            if self.is_seeded(each.view):
                further = self._advance(each)
                if isinstance(further, Contribution):
                    found.append(further)
                else:
                    pending += further
        return found

    def _advance(self, pending: Pending) -> Contribution | list[Pending]:
        """One step back: the contribution that it is, or what it moves and adds."""
        made = self._made.get(node_of(pending.view))
        if made is None:
            return self._alone(pending)
        index, step, result = made
        back = relaid(pending.view, result)
        here = pending.through(result, back) if back is not None else self._part_of(pending, result)
        if here is None:
            return self._alone(pending)
        name = base_name(step.op)
        parts = TAIL[name](step, result, self) if name in TAIL else None
        if parts is not None:
            return [here.through(view, layout, factor) for view, layout, factor in parts]
        rule = RULES.all().get(name)
        contraction = rule.find(step, result, self) if rule is not None else None
        if contraction is not None:
            return self._contracted(here, contraction)
        inner = self._inside(index, step, result) if rule is None and name not in TAIL else None
        return [here.through(inner, unchanged)] if inner is not None else self._alone(here)

    def _part_of(self, pending: Pending, result: View) -> Pending | None:
        """A tensor of which only a part is looked at: the rest is multiplied by zero; None where elements repeat."""
        view = pending.view
        length = self.program.sizes[view.storage] // view.dtype.itemsize
        if length > LARGEST or view.dtype != result.dtype:
            return None
        memory = torch.arange(length)
        part, whole = (memory.as_strided(each.shape, each.stride, each.offset) for each in (view, result))
        if int(part.flatten().bincount(minlength=1).max()) > 1:
            return None
        home = torch.zeros(length, dtype=torch.long)
        home[part] = positions(pending.home)
        scale = torch.zeros(length, dtype=torch.float64)
        scale[part] = 1.0 if pending.scale is None else pending.scale.double().cpu()
        return Pending(result, home[whole], pending.weight, scale[whole])

    def _contracted(self, pending: Pending, found: Contraction) -> Contribution:
        """A contraction as a contribution; what its results are multiplied by goes to one of its factors, if it can."""
        place = placed(pending.home, found.place)
        if pending.scale is None:
            return self._contribution(found, place, pending.weight)
        scale = found.place(pending.scale)
        if bool((scale == scale[:, :1]).all()):  # the same for all i
            found = replace(found, layout=chained(found.layout, lambda g: g * scale[:, 0].to(g)))
        elif isinstance(found.coefficient, Dense) and bool((scale == scale[:, :, :1]).all()):
            source, layout = found.coefficient.source, found.coefficient.layout
            found = replace(found, coefficient=Dense(source, chained(layout, lambda a: a * scale[:, :, 0].to(a))))
        else:
            return replace(self._contribution(found, place, pending.weight), mask=scale)
        return self._contribution(found, place, pending.weight)

    def _inside(self, index: int, step: Step, result: View) -> View | None:
        """A tensor equal to the result of a step, at the end of torch's own decomposition of it."""
        if index not in self._decomposed:
            found = decomposed(step, self.program, self.is_seeded, self._next_tensor)
            if found is not None:
                self._next_tensor = found.next_tensor
                self._added.setdefault(index, []).extend(found.steps)
                for each in found.steps:
                    apart = is_alias(each) or is_factory_like(each.op)
                    if not apart and any(self.is_seeded(view) for view in each.reads):
                        self._seeded.update((node_of(view), None) for view in each.results)
                    self._enter(index, each)
                for view in found.tensors:
                    if self.is_seeded(view):
                        self.program.tensors.pop(view.tensor, None)
            self._decomposed[index] = None if found is None else found.results
        results = self._decomposed[index]
        if results is None:
            return None
        for out, inner in zip(step.outs, results, strict=False):
            if isinstance(out, View) and out.tensor == result.tensor and inner is not None:
                return inner if inner.shape == result.shape and inner.dtype == result.dtype else None
        return None

    def _alone(self, pending: Pending) -> Contribution:
        """A tensor as it is: each of its elements a position of its own."""
        view, home = pending.view, pending.home
        size, index = self._size, positions(home).flatten()
        ndim, count = len(view.shape), view.numel

        scale = None if pending.scale is None else pending.scale.reshape(count, 1, 1)

        def layout(g: Tensor) -> Tensor:
            flat = g.reshape(*g.shape[: g.ndim - ndim], count, 1, 1)
            return flat if scale is None else flat * scale.to(flat)

        contraction = Contraction(view, layout, OneHot(index), unchanged)
        return self._contribution(contraction, Place((1, size, 1), (0, 1, 0)), pending.weight)

    def _contribution(self, found: Contraction, place: Place, weight: float) -> Contribution:
        view = found.seeded
        source = self.source(view)
        base = self._seeds.get(node_of(view)) or (source[1] if source is not None else view)
        first = relaid(base, view)
        if first is None:
            base, first = view, unchanged
        layout = chained(first, found.layout)
        laid = layout(meta(base.shape))
        steps = tuple(step if size > 1 else 0 for size, step in zip(laid.shape, laid.stride(), strict=True))
        key = (base, tuple(laid.shape), steps, laid.storage_offset(), laid._is_view() or id(found))
        return Contribution(base, layout, key, laid.shape[0], found.coefficient, place, weight)

    def finish(self, parts: list[list[Contribution]]) -> Found:
        """The program with what was added to it; tensors that it overwrites later are kept as they were."""
        steps: list[Step] = []
        for index, step in enumerate(self.program.steps):
            steps += [step, *self._added.get(index, [])]
        program = replace(self.program, steps=steps)
        kept = _kept(program, list({each.base: None for part in parts for each in part}))
        renamed = [tuple(replace(each, base=kept.get(each.base, each.base)) for each in part) for part in parts]
        return Found(program, tuple(renamed))


def _kept(program: Program, bases: list[View]) -> dict[View, View]:
    """Copies of the tensors that the program overwrites later, made as soon as they are there."""
    kept: dict[View, View] = {}
    tensor = 1 + max([*program.tensors, *(view.tensor for step in program.steps for view in step.results)], default=0)
    for base in bases:
        if program.versions[base.storage] == base.version:
            continue
        storage = 1 + max(program.sizes)
        copy = View(tensor, storage, 0, base.shape, meta(base.shape).stride(), 0, base.dtype, base.device)
        tensor += 1
        program.sizes[storage] = base.numel * base.dtype.itemsize
        program.versions[storage] = 0
        layout = {"memory_format": torch.contiguous_format}
        step = Step(torch.ops.aten.clone.default, (base,), layout, (base,), (copy,), (), None, "")
        made = [index for index, each in enumerate(program.steps) if node_of(base) in map(node_of, each.results)]
        program.steps.insert(made[0] + 1 if made else 0, step)
        kept[base] = copy
    return kept
