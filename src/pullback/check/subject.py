"""What a behaviour looks at: a function, its inputs, and what it is differentiated by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Subject:
    """A function that is checked.

    Attributes:
        f: What the user gave: a function, an ``nn.Module`` or a ``torch.autograd.Function`` class.
        inputs: The arguments as they were given; nothing may change them.
        wrt: The tensors that are differentiated by, by name (parameters of a module too), detached, in their own
            dtype.
        forward: The outputs, floating or complex tensors in order, at other values of those tensors, given in the
            order of ``wrt``. Anything else is held fixed; random numbers and buffers are the same at every call; a
            graph is recorded where the given tensors require grad. ``call(inputs)`` of a Function is its ``apply``.
        outputs: The names of the outputs that ``forward`` returns, in order.
        generator: For random numbers.
        seed: What the generator was made from.
    """

    f: Any
    inputs: tuple[Any, ...]
    wrt: dict[str, Tensor]
    forward: Callable[..., tuple[Tensor, ...]]
    outputs: tuple[str, ...]
    generator: torch.Generator
    seed: int = 0

    @property
    def is_function(self) -> bool:
        """Whether it is a custom ``torch.autograd.Function``."""
        return isinstance(self.f, type) and issubclass(self.f, torch.autograd.Function)

    def call(self, inputs: Sequence[Any]) -> Any:
        """What f returns for arguments like ``inputs``: of any layout and shapes; nothing is restored."""
        return (self.f.apply if self.is_function else self.f)(*inputs)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a function besides its numbers.

    Attributes:
        name: A short name, such as ``modifies its input``.
        text: What was seen, in a sentence.
        fix: What to write instead.
        harmless: Whether it is worth a word but no failure.
    """

    name: str
    text: str
    fix: str
    harmless: bool = False
