"""Remembered: a structure found at one point, for the next dense Jacobian of the same function and shapes.

It is used again only while all that it rests on is as it was, and what is built with it is held against a plain
reverse pass every time.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.closures import Held, held_by
from pullback.autodiff.linearize import Linearization, Recorded
from pullback.jacobian.guards import same_numbers, same_values
from pullback.sparsity.structure import Structure

# A larger pattern is not kept for a function that may never be called again: pb.prepare keeps it where it is wanted.
MOST_ENTRIES = 500_000


@dataclass(frozen=True, eq=False)
class Remembered:
    """A structure without the numbers of its point, and what it rests on.

    Attributes:
        structure: Pattern and colorings.
        constants: Tensors that the function holds and whose numbers the pattern relies on, with those numbers.
        values: The plain values that the function held.
        around: The default dtype and autocast.
    """

    structure: Structure
    constants: tuple[tuple[weakref.ref[Tensor], Tensor], ...]
    values: list[Any]
    around: tuple[object, ...]

    @classmethod
    def of(cls, lin: Linearization, found: Structure) -> Remembered | None:
        """What may be used again; None where what it rests on cannot be looked at again."""
        if not isinstance(lin, Recorded) or lin.problem.call is None or found.local or found.unknown:
            return None
        if found.about.watched or found.most_entries > MOST_ENTRIES:
            return None
        held, program = held_by(lin.problem.f), found.program
        own = {id(tensor) for tensor in held.tensors}
        constants = [
            tensor
            for index, tensor in program.captured.items()
            if id(tensor) in found.about.constants and index not in program.literals
        ]
        if any(id(tensor) not in own for tensor in constants):
            return None
        kept = tuple((weakref.ref(tensor), tensor.detach().clone()) for tensor in constants)
        return cls(found.without_numbers(), kept, list(held.values), _around(lin))

    def holds(self, lin: Linearization) -> bool:
        """Whether all that it rests on is as it was."""
        held: Held = held_by(lin.problem.f)
        own = {id(tensor) for tensor in held.tensors}
        return (
            self.around == _around(lin)
            and same_values(held.values, self.values)
            and all(_is_same(tensor(), numbers, own) for tensor, numbers in self.constants)
        )


def _is_same(tensor: Tensor | None, numbers: Tensor, held: set[int]) -> bool:
    return tensor is not None and id(tensor) in held and same_numbers(tensor.detach(), numbers)


def _around(lin: Linearization) -> tuple[object, ...]:
    kind = lin.inputs.device.type
    cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_default_dtype(), torch.get_autocast_dtype(kind) if cast else None
