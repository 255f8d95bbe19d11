"""What a strategy is, and the facts it bids on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.data.problem import Side
from pullback.data.space import Leaf, Space
from pullback.registry import Registry

if TYPE_CHECKING:  # it needs SciPy, which `import pullback` does without
    from pullback.sparsity.structure import Structure

Want = Literal["matrix", "blocks", "sparse"]
Grid = list[list[Tensor]]


@dataclass(frozen=True)
class Facts:
    """What is known of a Jacobian before it is built.

    Attributes:
        want: ``"matrix"``: every entry; ``"blocks"``: one matrix for each example of a batch; ``"sparse"``: the
            entries of the pattern, row after row.
        rows: The Space of the outputs that carry a graph.
        columns: The Space of the inputs that the graph reaches.
        holomorphic: Whether entries are complex derivatives.
        no_forward: Says why forward mode cannot be used, or ``""``; it costs two passes to find out.
        mixing: Says whether the examples, laid out along so many leading dimensions, mix: the reason, or ``""``.
        structure: Gives the pattern and what follows from it, or why there is none; the first time it is found.
        elsewhere: Whether the structure was found at another point, where the recorded program's numbers are.
        wanted: The strategy that was asked for by name, or ``"auto"``.
        symmetric: Whether J is a Hessian.
        create_graph: Whether results must be differentiable.
    """

    want: Want
    rows: Space
    columns: Space
    holomorphic: bool
    no_forward: Callable[[], str]
    mixing: Callable[[int], str]
    structure: Callable[[], Structure | str]
    elsewhere: bool = False
    wanted: str = "auto"
    symmetric: bool = False
    create_graph: bool = False

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
        firm: Whether ``passes`` is their number; else it is a lower bound, and :meth:`Strategy.settle` finds it.
        share: What part of the function's whole reverse or forward pass one of these runs, roughly.
        split: The passes of each part, where they do not all run the same way: ``(side, passes)``, in order.
    """

    side: Side
    passes: int
    bytes: int
    why: str
    lead: int = 0
    firm: bool = True
    share: float = 1.0
    split: tuple[tuple[Side, int], ...] = ()

    @property
    def parts(self) -> list[tuple[Side, int, int]]:
        """Which passes run on which side: ``(side, start, stop)``."""
        found, start = [], 0
        for side, passes in self.split or ((self.side, self.passes),):
            found.append((side, start, start + passes))
            start += passes
        return [part for part in found if part[1] < part[2]]


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

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        """The bid with the number of passes that it takes, where the first was a lower bound."""
        return bid

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space] | None:
        """Passes of its own and the Space that they answer in; None: passes between all inputs and outputs."""
        return None

    @abstractmethod
    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        """The seeds of the passes ``start`` to ``stop``, stacked: cotangents of the rows, or tangents."""

    @abstractmethod
    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        """J from the answers of all passes.

        Returns:
            For ``"matrix"`` a grid ``[k][j]`` of matrices (elements of output k, elements of input j);
            for ``"blocks"`` one tensor ``(batch, m_i, n_i)``; for ``"sparse"`` the entries of the pattern.
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
