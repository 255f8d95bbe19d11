"""The registry of rules: how one operation of a reverse pass contracts a cotangent with a coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.outer.contraction import Contraction
from pullback.registry import Registry


class Around(Protocol):
    """What a rule may ask of the program around an operation."""

    def is_seeded(self, value: Any) -> bool:
        """Whether an argument is a tensor that depends on the seed."""

    def number(self, value: Any) -> Tensor | None:
        """A tensor that does not depend on the seed; None for other arguments, and where it was overwritten since."""

    def source(self, view: View) -> tuple[Step, View] | None:
        """The step that made all of a tensor's memory, and its result."""


@dataclass(frozen=True)
class Sample:
    """A call of an operation, linear in one operand.

    Attributes:
        run: From that operand to the results.
        shape: The operand's shape.
        result: Which of the results is followed.
    """

    run: Callable[[Tensor], Any]
    shape: tuple[int, ...]
    result: int = 0


Find = Callable[[Step, View, Around], "Contraction | None"]


@dataclass(frozen=True)
class Rule:
    """How to see an operation as a contraction, and calls that it is tested on."""

    find: Find
    samples: tuple[Sample, ...]


RULES: Registry[Rule] = Registry("contraction rule", "pullback.outer.rules")


def rule(*names: str, samples: tuple[Sample, ...]) -> Callable[[Find], Find]:
    """Register a rule for operations, by their names in ``torch.ops.aten`` (in-place variants included).

    Args:
        names: The operations.
        samples: Calls of them on which the rule is tested.
    """

    def register(function: Find) -> Find:
        for name in names:
            RULES.add(name, Rule(function, samples))
        return function

    return register


def named(step: Step) -> dict[str, Any]:
    """The arguments of an operation by the names in its schema, with defaults."""
    found = {}
    for place, argument in enumerate(step.op._schema.arguments):
        given = place < len(step.args) and not argument.kwarg_only
        found[argument.name] = step.args[place] if given else step.kwargs.get(argument.name, argument.default_value)
    return found


def sample_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Numbers for a sample's other operands."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
