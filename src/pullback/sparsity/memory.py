"""Memory: what every element of every storage depends on, as the program goes on.

Views need no rule: an operand's dependencies are read from its storage with its own strides. Writing in place changes
the storage, and so every other view of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.autodiff.program import View
from pullback.sparsity.sets import Sets

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class _State:
    """A storage's dependencies, in the geometry that they were written with."""

    sets: Sets
    geometry: Geometry
    itemsize: int


class Memory:
    """The dependencies of all storages.

    Args:
        sizes: For each storage its number of bytes.
    """

    def __init__(self, sizes: dict[int, int]) -> None:
        self._sizes = sizes
        self._states: dict[int, _State] = {}

    def read(self, view: View) -> Sets | None:
        """What the elements of a view depend on; None where it does not depend on the seed."""
        state = self._states.get(view.storage)
        if state is None:
            return None
        geometry = _geometry(view)
        if state.geometry == geometry and state.itemsize == view.dtype.itemsize:
            return state.sets
        flat = self._flat(view.storage, view.dtype.itemsize)
        terms = tuple(term.map(lambda part: _region(part, view)) for term in flat.terms)
        terms = tuple(term for term in terms if bool(term.labels.any()))
        return Sets(view.shape, terms) if terms else None

    def in_order(self, view: View) -> Sets | None:
        """What the elements of a view depend on, in order but perhaps in the shape that they were written in."""
        state = self._states.get(view.storage)
        if state is not None and state.itemsize == view.dtype.itemsize:
            whole = self._sizes[view.storage] == view.numel * view.dtype.itemsize
            if whole and _is_row_major(view.shape, view.stride) and _is_row_major(*state.geometry[:2]):
                return state.sets
        return self.read(view)

    def write(self, view: View, sets: Sets | None) -> None:
        """The elements of a view now depend on this."""
        itemsize = view.dtype.itemsize
        length = self._sizes[view.storage] // itemsize
        if view.numel == length and _is_dense(view):
            if sets is None or not sets.terms:
                self._states.pop(view.storage, None)
            else:
                self._states[view.storage] = _State(sets, _geometry(view), itemsize)
            return
        if view.storage not in self._states and (sets is None or not sets.terms):
            return
        old = self._flat(view.storage, itemsize) if view.storage in self._states else Sets((length,), ())
        terms = [term.map(lambda part: _overwritten(part, view, None)) for term in old.terms]
        for term in sets.terms if sets is not None else ():
            labels = _overwritten(torch.zeros(length, dtype=torch.int32), view, term.labels)
            weight = term.weight
            if isinstance(weight, Tensor):
                weight = _overwritten(torch.zeros(length, dtype=weight.dtype), view, weight)
            terms.append(replace(term, labels=labels, weight=weight))
        kept = tuple(term for term in terms if bool(term.labels.any()))
        if kept:
            self._states[view.storage] = _State(Sets((length,), kept), ((length,), (1,), 0), itemsize)
        else:
            self._states.pop(view.storage, None)

    def _flat(self, storage: int, itemsize: int) -> Sets:
        """A storage's dependencies element by element, for elements of this size."""
        state = self._states[storage]
        shape, stride, offset = state.geometry
        length = self._sizes[storage] // state.itemsize

        def lay(part: Tensor) -> Tensor:
            if (shape, stride, offset) == ((length,), (1,), 0):
                return part
            flat = torch.zeros(length, dtype=part.dtype)
            flat.as_strided(shape, stride, offset).copy_(part)
            return flat

        terms = [term.map(lay) for term in state.sets.terms]
        if state.itemsize > itemsize:
            parts = state.itemsize // itemsize
            terms = [term.unweighted().map(lambda part: part.repeat_interleave(parts)) for term in terms]
        elif state.itemsize < itemsize:
            parts = itemsize // state.itemsize
            terms = [
                term.unweighted().map(lambda part, k=k: part.reshape(-1, parts)[:, k])  # type: ignore[misc]
                for term in terms
                for k in range(parts)
            ]
        return Sets((self._sizes[storage] // itemsize,), tuple(terms))


def _geometry(view: View) -> Geometry:
    return view.shape, view.stride, view.offset


def _is_dense(view: View) -> bool:
    """Whether a view's elements are distinct."""
    expected = 1
    for stride, size in sorted(zip(view.stride, view.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _region(flat: Tensor, view: View) -> Tensor:
    """The elements of a view out of those of its storage, which may be laid out in any way themselves."""
    flat = flat.contiguous()
    return flat.as_strided(view.shape, view.stride, flat.storage_offset() + view.offset)


def _is_row_major(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether elements follow one another in memory as they do in the tensor."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _overwritten(flat: Tensor, view: View, values: Tensor | None) -> Tensor:
    changed = flat.clone()
    region = changed.as_strided(view.shape, view.stride, view.offset)
    if values is None:
        region.zero_()
    else:
        region.copy_(values)
    return changed
