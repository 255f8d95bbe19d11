"""Problem: which function, at which arguments, by which of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pullback.data.space import Space

Side = Literal["reverse", "forward"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A function, its arguments, and the tensors that it is differentiated by.

    Attributes:
        call: The function of the tensors asked for, in the structure of ``inputs``; the rest is fixed.
            None for a graph that exists already.
        f: The user's own function, for messages and for remembering what has been verified.
        tree: The tensors asked for, as the user gave them.
        inputs: Their Space.
        has_aux: Whether f returns ``(output, aux)``.
        symmetric: Whether the Jacobian is symmetric: that of a gradient is.
    """

    call: Callable[[Any], Any] | None
    f: Any
    tree: Any
    inputs: Space
    has_aux: bool = False
    symmetric: bool = False

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The tensors asked for, in the order of ``inputs``."""
        return tuple(self.inputs.flatten(self.tree))
