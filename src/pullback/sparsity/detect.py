"""Detect: walk a program once, and carry along what every element depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Line, Program, Step, View, base_name, is_alias, is_factory_like, where
from pullback.sparsity.call import RULES, Call, Operand, everything
from pullback.sparsity.decompose import by_decomposition
from pullback.sparsity.functional import functional_step
from pullback.sparsity.memory import Memory
from pullback.sparsity.sets import Root, Sets


@dataclass(frozen=True)
class Trust:
    """Which values hold for every call that the pattern is for.

    Attributes:
        local: All of them: the pattern is for this point.
        varying: The storages whose numbers differ from call to call: they depend on the inputs, on random
            numbers, or are parameters and buffers.
    """

    local: bool
    varying: frozenset[int]

    def value(self, program: Program, view: View) -> Tensor | None:
        """A view's numbers, where they may be relied on."""
        if view.storage in self.varying and not self.local:
            return None
        if program.versions[view.storage] != view.version:
            return None
        found = program.tensors.get(view.tensor)
        return found if found is None or found.device.type == "cpu" else found.detach().cpu()


@dataclass
class Walk:
    """The walk over a program.

    Attributes:
        program: The program.
        trust: Which values may be relied on.
        memory: What every storage depends on, so far.
        unknown: Operations without a rule, by name, with the line of the first.
        root: The space that dependencies are counted in.
        depth: How many decompositions it is inside of.
    """

    program: Program
    trust: Trust
    memory: Memory = field(init=False)
    unknown: dict[str, str] = field(default_factory=dict)
    root: Root = field(init=False)
    depth: int = 0

    def __post_init__(self) -> None:
        self.memory = Memory(self.program.sizes)
        self.root = Root("seed", sum(seed.numel for seed in self.program.seeds))
        start = 0
        for seed in self.program.seeds:
            self.memory.write(seed, Sets.identity(seed.shape, self.root, start))
            start += seed.numel

    def run(self, steps: Iterable[Step] | None = None) -> None:
        """Carry dependencies through the steps."""
        rules = RULES.all()
        for step in self.program.steps if steps is None else steps:
            self.advance(step, rules)

    def advance(self, step: Step, rules: dict[str, Any]) -> None:
        """Carry dependencies through one step."""
        if is_alias(step):
            return
        sets = {view: self.memory.read(view) for view in step.reads}
        if not any(found is not None for found in sets.values()):
            for view in step.results:
                self.memory.write(view, None)
            return
        call = self.call(step, sets)
        for view, found in zip(step.results, self.results(call, rules), strict=True):
            if view.dtype.is_floating_point or view.dtype.is_complex:
                self.memory.write(view, found)

    def call(self, step: Step, sets: dict[View, Sets | None]) -> Call:
        """A step as its rule sees it: as if it did not write in place."""
        shapes = tuple(view.shape for view in step.results)
        step = functional_step(step)
        name = base_name(step.op)

        def operand(view: View) -> Operand:
            value = self.trust.value(self.program, view)
            # Another mask would select another number of elements: what the program did then is guarded.
            current = self.program.versions[view.storage] == view.version
            if value is None and current and is_deciding_mask(name, view):
                value = self.program.tensors.get(view.tensor)
            return Operand(view.shape, view.dtype, sets.get(view), value)

        args = tuple(_with_operands(value, operand) for value in step.args)
        kwargs = {name: _with_operands(value, operand) for name, value in step.kwargs.items()}
        return Call(step, args, kwargs, shapes)

    def inside(self, program: Program) -> Walk | None:
        """The walk over what one operation consists of, in dependencies on the same root; None where it decides."""
        varying = varying_storages(program, lambda index, tensor: True)
        if decisions(program, varying):
            return None
        walk = Walk(program, Trust(local=False, varying=varying), depth=self.depth + 1)
        walk.root = self.root
        return walk

    def results(self, call: Call, rules: dict[str, Any]) -> list[Sets | None]:
        """What the results of a call depend on."""
        if not call.seeded:
            return [None for _ in call.shapes]
        name = base_name(call.op)
        found: Any = NotImplemented
        if name in rules:
            found = rules[name](call)
        elif is_pointwise(call.op):
            found = rules["pointwise"](call)
        if found is NotImplemented:
            found = by_decomposition(call, self)
        if found is NotImplemented:
            self.unknown.setdefault(name, where(call.step.line))
            found = everything(call)
        every: list[Sets | None] = list(found) if isinstance(found, list | tuple) else [found]
        return every + [None] * (len(call.shapes) - len(every))


def is_pointwise(op: Any) -> bool:
    """Whether an operation works on each element; those that torch writes others in are known by their twins."""
    namespace, _, name = op._schema.name.partition("::")
    twin = getattr(torch.ops.aten, name, None) if namespace == "prims" else None
    ops = [op] if twin is None else [getattr(twin, overload) for overload in twin.overloads()]
    return any(torch.Tag.pointwise in each.tags for each in ops)


def varying_storages(program: Program, fixed: Callable[[int, Tensor], bool]) -> frozenset[int]:
    """The storages whose numbers differ from call to call.

    Args:
        program: The program.
        fixed: Whether a captured tensor is a constant.
    """
    changing = {view.storage for view in (*program.points, *program.seeds)}
    for step in program.steps:
        for view in step.reads:
            if view.tensor in program.captured and not fixed(view.tensor, program.captured[view.tensor]):
                changing.add(view.storage)
        random = torch.Tag.nondeterministic_seeded in step.op.tags
        reads = step.reads if not is_factory_like(step.op) else ()
        # Which elements were found is guarded, as a branch is.
        guarded = base_name(step.op) in DECIDING
        if random or (not guarded and any(view.storage in changing for view in reads)):
            changing.update(view.storage for view in step.results)
    return frozenset(changing)


def decisions(program: Program, varying: frozenset[int]) -> list[tuple[View, Line | None]]:
    """What the course of a program depended on: numbers read by Python, and masks that decide a shape."""
    found: dict[View, Line | None] = {}
    for step in program.steps:
        name = base_name(step.op)
        plain = bool(step.outs) and all(isinstance(out, bool | int | float | complex) for out in step.outs)
        number = bool(step.reads) and plain
        if (number and name not in METADATA) or name in DECIDING:
            looked_at = step.reads[:1] if name in DECIDING else step.reads
        else:
            looked_at = tuple(view for view in step.reads if is_deciding_mask(name, view))
        for view in looked_at:
            if view.storage in varying:
                found.setdefault(view, step.line)
    return list(found.items())


def is_deciding_mask(name: str, view: View) -> bool:
    """Whether an operation's result has as many elements as this mask selects."""
    return view.dtype in {torch.bool, torch.uint8} and name in MASKED


# The shape of their result depends on the numbers of their first operand.
DECIDING = {"nonzero", "nonzero_static", "unique_dim", "_unique2", "unique_consecutive", "unique_dim_consecutive",
            "repeat_interleave", "bincount"}  # fmt: skip
MASKED = {"index", "index_put", "_index_put_impl", "masked_select", "masked_scatter", "_unsafe_index",
          "_unsafe_index_put", "masked_scatter_backward", "_unsafe_masked_index"}  # fmt: skip
METADATA = {"is_same_size", "_has_compatible_shallow_copy_type", "is_pinned", "numel", "dim", "size", "stride"}


def _with_operands(value: Any, operand: Callable[[View], Operand]) -> Any:
    if isinstance(value, View):
        return operand(value)
    if isinstance(value, list | tuple):
        return type(value)(_with_operands(each, operand) for each in value)
    return value
