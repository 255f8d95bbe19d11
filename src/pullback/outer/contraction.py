"""What one operation of a reverse pass does to a parameter's gradient: a sum of outer products over positions.

A *contraction* is ``out[h, i, j] = Σ_p a[p, h, i] g[p, h, j]``: ``g`` is linear in the seed, the coefficient ``a`` does
not depend on it, and the positions p are what is summed over: examples, steps in time, pixels. A matrix product has one
h, a grouped convolution one for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import View

Layout = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Dense:
    """A coefficient with numbers of its own.

    Attributes:
        source: The tensor of the program.
        layout: From it to ``(P, H, I)``.
    """

    source: Tensor
    layout: Layout

    def tensor(self) -> Tensor:
        """``a``, ``(P, H, I)``."""
        return self.layout(self.source.detach())


@dataclass(frozen=True, eq=False)
class OneHot:
    """A coefficient that is 1 at one i for each position and 0 elsewhere; there is one h.

    Attributes:
        index: That i, ``(P,)``; int64.
    """

    index: Tensor


Coefficient = Dense | OneHot | None


@dataclass(frozen=True, eq=False)
class Contraction:
    """What a rule finds in one operation.

    Attributes:
        seeded: The cotangent g, a tensor of the program.
        layout: From it, behind any leading dimensions, to ``(..., P, H, J)``.
        coefficient: a; None: 1 everywhere, with one i.
        place: From the operation's result to its view ``(H, I, J)``.
    """

    seeded: View
    layout: Layout
    coefficient: Coefficient
    place: Layout


@dataclass(frozen=True, eq=False)
class Place:
    """Where ``out[h, i, j]`` stands in a parameter laid out flat: at ``offset + h steps[0] + i steps[1] + j steps[2]``.

    Attributes:
        sizes: (H, I, J).
        steps: How far apart neighbours are.
        offset: Where the first stands.
        index: Where each of them stands, ``(H, I, J)``, where that follows no such rule; else None.
    """

    sizes: tuple[int, int, int]
    steps: tuple[int, int, int] = (0, 0, 0)
    offset: int = 0
    index: Tensor | None = None

    @property
    def swapped(self) -> Place:
        """The same elements with i and j exchanged."""
        h, i, j = self.sizes
        along_h, along_i, along_j = self.steps
        index = None if self.index is None else self.index.transpose(1, 2)
        return Place((h, j, i), (along_h, along_j, along_i), self.offset, index)

    @property
    def numel(self) -> int:
        """How many elements there are."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Place) or self._regular != other._regular:
            return False
        if self.index is None or other.index is None:
            return self.index is other.index
        return bool((self.index == other.index).all())

    def __hash__(self) -> int:
        return hash((self._regular, self.index is None))

    @property
    def _regular(self) -> tuple[object, ...]:
        # Steps along dimensions of size one say nothing.
        steps = tuple(step for size, step in zip(self.sizes, self.steps, strict=True) if size > 1)
        return self.sizes, steps, self.offset


@dataclass(frozen=True, eq=False)
class Contribution:
    """A part of a parameter's gradient: a contraction, and where its results go.

    Attributes:
        base: The tensor that a pass has to return: all of g's memory.
        layout: From it, behind any leading dimensions, to ``(..., P, H, J)``.
        key: Equal for contributions whose cotangents are laid out the same from the same tensor.
        positions: P.
        coefficient: a; None: 1 everywhere.
        place: Where the results go.
        weight: What they are multiplied by.
        mask: What each of them is multiplied by besides, ``(H, I, J)``; None: nothing.
    """

    base: View
    layout: Layout
    key: tuple[Any, ...]
    positions: int
    coefficient: Coefficient
    place: Place
    weight: float = 1.0
    mask: Tensor | None = None


def chained(first: Layout | None, second: Layout) -> Layout:
    """One layout after another."""
    return second if first is None else lambda tensor: second(first(tensor))


def node_of(view: View) -> tuple[int, int]:
    """The storage and version of a view."""
    return view.storage, view.version


def relaid(source: View, target: View) -> Layout | None:
    """How one view of a memory is made from another, behind any leading dimensions; None where that is not possible.

    Both must hold every element of the same stretch of memory once: they differ by an order of dimensions, and by how
    these are split.
    """
    if (source.shape, source.stride, source.offset) == (target.shape, target.stride, target.offset):
        return unchanged
    if source.offset != target.offset or source.numel != target.numel:
        return None
    from_order, to_order = _memory_order(source), _memory_order(target)
    if from_order is None or to_order is None:
        return None
    sizes = [target.shape[dim] for dim in to_order]
    back = [to_order.index(dim) for dim in range(len(sizes))]

    def layout(tensor: Tensor) -> Tensor:
        lead = tensor.ndim - len(from_order)
        first = tuple(range(lead))
        ordered = tensor.permute(*first, *(lead + dim for dim in from_order))
        split = ordered.reshape(*tensor.shape[:lead], *sizes)
        return split.permute(*first, *(lead + dim for dim in back))

    return layout


def placed(home: Tensor, place: Layout) -> Place:
    """Where the elements (H, I, J) of an operation's result stand, given where its own elements do.

    Args:
        home: A tensor of the result's shape, as :func:`moved` has it.
        place: From the result to its view ``(H, I, J)``.
    """
    found = moved(home, place)
    h, i, j = found.shape
    if not found.is_meta:
        return Place((h, i, j), index=found)
    return Place((h, i, j), tuple(found.stride()), int(found.storage_offset()))  # type: ignore[arg-type]


def moved(home: Tensor, layout: Layout) -> Tensor:
    """Where the elements of a layout stand in a parameter, given where those of a tensor do.

    Args:
        home: A tensor without numbers that is a view of the parameter's memory; or where that is not possible the
            positions of its elements there, int64.
        layout: From the tensor to what is made of its elements.
    """
    found = layout(home)
    if not home.is_meta or found.untyped_storage()._cdata == home.untyped_storage()._cdata:
        return found
    return layout(positions(home))


def positions(home: Tensor) -> Tensor:
    """Where the elements of a tensor stand in a parameter, int64."""
    if not home.is_meta:
        return home
    size = home.untyped_storage().nbytes() // home.element_size()
    return torch.arange(size).as_strided(home.shape, home.stride(), home.storage_offset())


def unchanged(tensor: Tensor) -> Tensor:
    """The layout of a tensor as it is."""
    return tensor


def _memory_order(view: View) -> list[int] | None:
    """The dimensions in the order of memory; None where elements repeat or are left out."""
    order = sorted(range(len(view.shape)), key=lambda dim: (-view.stride[dim], dim))
    order.sort(key=lambda dim: view.shape[dim] != 1)  # those of size one may have any stride
    expected = 1
    for dim in reversed(order):
        if view.shape[dim] != 1 and view.stride[dim] != expected:
            return None
        expected *= view.shape[dim]
    return order


def meta(shape: tuple[int, ...]) -> Tensor:
    """A tensor without numbers, contiguous."""
    return torch.empty(shape, device="meta")
