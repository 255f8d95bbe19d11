"""What a strategy is, and the facts it bids on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.data.problem import Side
from pullback.data.space import Leaf, Space
from pullback.registry import Registry

if TYPE_CHECKING:  # it needs SciPy, which `import pullback` does without
    from pullback.outer.layers import Layers
    from pullback.sparsity.stages import Stages
    from pullback.sparsity.structure import Structure
    from pullback.strategies.sender import Sender

Want = Literal["matrix", "blocks", "sparse"]
Grid = list[list[Tensor]]
# Takes the answers of the passes from a number on.
Sink = Callable[[int, Sequence[Tensor]], None]


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
        elsewhere: Says whether the structure was found at another point, where the recorded program's numbers are.
        wanted: The strategy that was asked for by name, or ``"auto"``.
        symmetric: Whether J is a Hessian.
        create_graph: Whether results must be differentiable.
        layers: Gives what the gradients of parameters are made of, or why that is not seen; the first time it is found.
        stages: Gives the two parts that a reverse pass is split into, or why it is not; the first time it is found.
        recorded: Whether the program is recorded in any case, so that looking at it costs little.
    """

    want: Want
    rows: Space
    columns: Space
    holomorphic: bool
    no_forward: Callable[[], str]
    mixing: Callable[[int], str]
    structure: Callable[[], Structure | str]
    elsewhere: Callable[[], bool] = lambda: False
    wanted: str = "auto"
    symmetric: bool = False
    create_graph: bool = False
    layers: Callable[[], Layers | str] = lambda: "nobody looked for outer products"
    stages: Callable[[], Stages | str] = lambda: "nobody looked for stages"
    recorded: bool = False

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
        two_stages: Whether the seeds of a later part are made from the answers of the earlier ones.
    """

    name: ClassVar[str]
    gives: ClassVar[frozenset[Want]]
    two_stages: ClassVar[bool] = False

    @abstractmethod
    def bid(self, facts: Facts) -> Bid | Refusal:
        """Offer to build what the facts describe, or say why not."""

    def settle(self, facts: Facts, bid: Bid) -> Bid | Refusal:
        """The bid with the number of passes that it takes, where the first was a lower bound."""
        return bid

    def others(self, facts: Facts, bid: Bid) -> list[Bid]:
        """Other bids of the same strategy, which may take less time than their passes tell."""
        return []

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space] | None:
        """Passes of its own and the Space that they answer in; None: passes between all inputs and outputs."""
        return None

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        """For each part of the bid how a recorded program can take its place; empty where it cannot."""
        return []

    @abstractmethod
    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        """The seeds of the passes ``start`` to ``stop``, stacked: cotangents of the rows, or tangents."""

    def following(
        self, facts: Facts, bid: Bid, part: int, answers: Sequence[Tensor]
    ) -> Callable[[int, int], tuple[Tensor, ...]] | None:
        """What makes the seeds of a part from the answers of the parts before it; None: :meth:`seeds` does."""
        return None

    @abstractmethod
    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        """J from the answers of all passes.

        Returns:
            For ``"matrix"`` a grid ``[k][j]`` of matrices (elements of output k, elements of input j);
            for ``"blocks"`` one tensor ``(batch, m_i, n_i)``; for ``"sparse"`` the entries of the pattern.
        """

    def entries_of(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Tensor | None:
        """The entries of the pattern, where there is one: J is verified by them, without its zeros."""
        return None

    def product(
        self, facts: Facts, bid: Bid, answers: Sequence[Tensor], seed: Sequence[Tensor]
    ) -> tuple[list[Tensor], Callable[[], list[Tensor]]] | None:
        """``uᵀJ`` by the factors that J was made of, where J has some, and what gives the sizes of rounding errors."""
        return None

    def sink(self, facts: Facts, bid: Bid, grid: Grid) -> Sink | None:
        """What writes answers into J as they come, so that none is kept; None: :meth:`recover_into` has them all."""
        return None

    def recover_into(self, facts: Facts, bid: Bid, answers: Sequence[Tensor], grid: Grid) -> None:
        """Write J from the answers of all passes over what stands in a grid.

        Args:
            facts: What J is.
            bid: The bid that was taken.
            answers: The answers of all passes.
            grid: ``[k][j]`` a matrix, or for ``"blocks"`` a stack of them, for output k and input j; in any memory
                layout and, where it is part of a larger matrix, in that one's dtype and on its device.
        """
        found = self.recover(facts, bid, answers)
        if isinstance(found, Tensor):
            found = split_blocks(found, [row[0].shape[1] for row in grid], [part.shape[2] for part in grid[0]])
        for row, into in zip(found, grid, strict=True):
            for part, target in zip(row, into, strict=True):
                target.copy_(part)


STRATEGIES: Registry[Strategy] = Registry("strategy", "pullback.strategies")


def strategy(kind: type[Strategy]) -> type[Strategy]:
    """Register a strategy under its name."""
    STRATEGIES.add(kind.name, kind())
    return kind


def split_blocks(blocks: Tensor, heights: Sequence[int], widths: Sequence[int]) -> Grid:
    """``(batch, m_i, n_i)`` as ``[k][j]``: views for output k and input j, with their heights and widths."""
    rows = torch.split(blocks, list(heights), dim=1)
    return [list(torch.split(row, list(widths), dim=2)) for row in rows]


def tiled(grid: Grid) -> Tensor | None:
    """The matrix whose parts a grid's matrices are, laid side by side without a gap; None where there is none."""
    first = grid[0][0]
    stride = _stride(grid)
    if min(stride) < 0:
        return None
    row = 0
    for parts in grid:
        column = 0
        for part in parts:
            place = first.storage_offset() + row * stride[0] + column * stride[1]
            same = part.dtype == first.dtype and part.untyped_storage()._cdata == first.untyped_storage()._cdata
            if part.numel() and not (same and part.storage_offset() == place and _steps(part, stride)):
                return None
            column += part.shape[1]
        row += parts[0].shape[0]
    return first.as_strided((row, column), stride)


def _stride(grid: Grid) -> tuple[int, int]:
    """The steps to the next row and column of the matrix that a grid may be."""
    first = grid[0][0]
    steps = list(first.stride())
    if first.shape[0] < 2 and len(grid) > 1:
        steps[0] = (grid[1][0].storage_offset() - first.storage_offset()) // max(first.shape[0], 1)
    if first.shape[1] < 2 and len(grid[0]) > 1:
        steps[1] = (grid[0][1].storage_offset() - first.storage_offset()) // max(first.shape[1], 1)
    return steps[0], steps[1]


def _steps(part: Tensor, stride: tuple[int, int]) -> bool:
    return all(size < 2 or own == step for size, own, step in zip(part.shape, part.stride(), stride, strict=True))


def overlaps(space: Space, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
    """The leaves that flat positions from ``start`` to ``stop`` meet: which, where in the leaf, where in the range."""
    for index, leaf in enumerate(space.leaves):
        low, high = max(start, leaf.offset), min(stop, leaf.offset + leaf.numel)
        if low < high:
            yield index, slice(low - leaf.offset, high - leaf.offset), slice(low - start, high - start)


def answer_bytes(space: Space, passes: int) -> int:
    """What so many answers in a space take."""
    return passes * sum(leaf.numel * leaf.dtype.itemsize for leaf in space.leaves)


def real_part(tensor: Tensor) -> Tensor:
    """The real part of a tensor that may be real already."""
    return tensor.real if tensor.is_complex() else tensor


def like_gradient(block: Tensor, leaf: Leaf) -> Tensor:
    """A block of J as a reverse pass gives it: in the dtype and on the device of its input."""
    return block.to(dtype=leaf.dtype, device=leaf.device)


def unit_range(start: int, stop: int) -> range:
    """The positions ``start`` to ``stop``, for :meth:`Space.onehots`."""
    return range(start, stop)
