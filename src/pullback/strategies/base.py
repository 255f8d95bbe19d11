"""What a strategy is, and the facts it bids on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pullback.data.problem import Side
from pullback.data.space import Leaf, Space
from pullback.registry import Registry

Want = Literal["matrix", "blocks"]
Grid = list[list[Tensor]]


@dataclass(frozen=True)
class Facts:
    """What is known of a Jacobian before it is built.

    Attributes:
        want: ``"matrix"``: every entry; ``"blocks"``: one matrix for each example of a batch.
        rows: The Space of the outputs that carry a graph.
        columns: The Space of the inputs that the graph reaches.
        holomorphic: Whether entries are complex derivatives.
        no_forward: Says why forward mode cannot be used, or ``""``; it costs two passes to find out.
        mixing: Says whether the examples, laid out along so many leading dimensions, mix: the reason, or ``""``.
    """

    want: Want
    rows: Space
    columns: Space
    holomorphic: bool
    no_forward: Callable[[], str]
    mixing: Callable[[int], str]

    @property
    def real_columns(self) -> int:
        """The tangents that determine J: a complex input counts twice unless f is holomorphic."""
        return self.columns.size * (2 if self.columns.is_complex and not self.holomorphic else 1)


@dataclass(frozen=True)
class Bid:
    """An offer: so many passes on one side, and why.

    Attributes:
        side: ``"reverse"`` or ``"forward"``.
        passes: How many passes.
        bytes: What the answers of all passes take.
        why: The reason, for a reader of the plan.
        lead: How many leading dimensions count examples; 0 where the strategy knows of none.
    """

    side: Side
    passes: int
    bytes: int
    why: str
    lead: int = 0


@dataclass(frozen=True)
class Refusal:
    """A strategy's reason not to bid."""

    why: str


class Strategy(ABC):
    """A choice of seeds that determines a Jacobian.

    Attributes:
        name: What users call it.
        gives: What it can build.
    """

    name: ClassVar[str]
    gives: ClassVar[frozenset[Want]]

    @abstractmethod
    def bid(self, facts: Facts) -> Bid | Refusal:
        """Offer to build what the facts describe, or say why not."""

    @abstractmethod
    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        """The seeds of the passes ``start`` to ``stop``, stacked: cotangents of the rows, or tangents."""

    @abstractmethod
    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        """J from the answers of all passes.

        Returns:
            For ``"matrix"`` a grid ``[k][j]`` of matrices (elements of output k, elements of input j);
            for ``"blocks"`` one tensor ``(batch, m_i, n_i)``.
        """


STRATEGIES: Registry[Strategy] = Registry("strategy", "pullback.strategies")


def strategy(kind: type[Strategy]) -> type[Strategy]:
    """Register a strategy under its name."""
    STRATEGIES.add(kind.name, kind())
    return kind


def answer_bytes(space: Space, passes: int) -> int:
    """What so many answers in a space take."""
    return passes * sum(leaf.numel * leaf.dtype.itemsize for leaf in space.leaves)


def real_part(tensor: Tensor) -> Tensor:
    """The real part of a tensor that may be real already."""
    return tensor.real if tensor.is_complex() else tensor


def like_gradient(block: Tensor, leaf: Leaf) -> Tensor:
    """A block of J as a reverse pass gives it: in the dtype and on the device of its input."""
    return block.to(dtype=leaf.dtype, device=leaf.device)


def unit_range(start: int, stop: int) -> Tensor:
    """The positions ``start`` to ``stop``, for :meth:`Space.onehots`."""
    return torch.arange(start, stop)
