"""Call: one operation as a rule sees it: what its operands depend on, and which values may be relied on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.registry import Registry
from pullback.sparsity.sets import Sets, union


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor among an operation's arguments.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        sets: What its elements depend on; None where they do not depend on the seed.
        value: Its numbers, where they hold for every call that the pattern is for; else None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    sets: Sets | None
    value: Tensor | None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return int(torch.Size(self.shape).numel())


@dataclass
class Call:
    """One operation.

    Attributes:
        step: The recorded operation.
        args: Its arguments, tensors as Operands.
        kwargs: Its keyword arguments.
        shapes: The shapes of its results.
    """

    step: Step
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    notes: list[str] = field(default_factory=list)

    @property
    def op(self) -> Any:
        """The operation, overload and all."""
        return self.step.op

    @property
    def operands(self) -> list[Operand]:
        """All tensors among the arguments."""
        found: list[Operand] = []
        _collect((self.args, tuple(self.kwargs.values())), found)
        return found

    @property
    def seeded(self) -> list[Operand]:
        """The tensors among the arguments that depend on the seed."""
        return [operand for operand in self.operands if operand.sets is not None]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by the names in the operation's schema, with defaults."""
        return {
            argument.name: self.argument(
                len(self.args) if argument.kwarg_only else place, argument.name, argument.default_value
            )
            for place, argument in enumerate(self.op._schema.arguments)
        }

    def run_on(self, labels: Callable[[Operand], Any]) -> Any:
        """Run the operation itself with other tensors in place of its operands."""
        args = _replace(self.args, labels)
        kwargs = {
            name: value if name in {"dtype", "device", "layout", "pin_memory"} else _replace(value, labels)
            for name, value in self.kwargs.items()
        }
        kwargs = {name: value for name, value in kwargs.items() if name not in {"dtype", "device", "pin_memory"}}
        return self.op(*args, **kwargs)


Rule = Callable[[Call], "Sets | list[Sets | None] | None"]

RULES: Registry[Rule] = Registry("sparsity rule", "pullback.sparsity.rules")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations, by their names in ``torch.ops.aten`` (in-place variants included)."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES.add(name, function)
        return function

    return register


def everything(call: Call) -> list[Sets | None]:
    """Every element of every result depends on all elements of all operands: right for any operation."""
    parts = [operand.sets for operand in call.seeded if operand.sets is not None]
    return [Sets.everything(shape, parts) for shape in call.shapes]


def all_of(call: Call, shape: tuple[int, ...]) -> Sets:
    """The union of all operands, broadcast: right for an operation on each element."""
    return union(shape, [operand.sets for operand in call.seeded if operand.sets is not None])


def _collect(value: Any, found: list[Operand]) -> None:
    if isinstance(value, Operand):
        found.append(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)


def _replace(value: Any, labels: Callable[[Operand], Any]) -> Any:
    if isinstance(value, Operand):
        return labels(value)
    if isinstance(value, list | tuple) and not isinstance(value, View):
        return type(value)(_replace(each, labels) for each in value)
    return value
