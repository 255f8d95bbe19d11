"""Space: a pytree of tensors seen as one vector space.

A function's inputs and outputs may be a tensor, or tensors nested in dicts, tuples, lists and registered
dataclasses. A Space remembers that structure and lays its tensors end to end, so that the same vector can be
written flat, ``(n,)``, as a stack of columns, ``(n, k)``, or in the structure itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.errors import ArgumentError, ValueMismatch


@dataclass(frozen=True)
class Leaf:
    """One tensor of a Space: where it stands in the structure, and where in the flat vector.

    Attributes:
        name: Its place in the structure, as one would write it: ``x``, ``['weight']``, ``[0].mean``.
        shape: Its shape.
        dtype: Its dtype.
        device: Its device.
        offset: The index of its first element in the flat vector.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    offset: int
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numel", math.prod(self.shape))

    @property
    def slice(self) -> slice:
        """Its range in the flat vector."""
        return slice(self.offset, self.offset + self.numel)


class Form(Enum):
    """The three ways to write a vector of a Space."""

    STRUCTURE = "structure"
    FLAT = "flat"
    STACK = "stack"


@dataclass(frozen=True)
class Space:
    """The tensors of a pytree as one vector space of dimension ``size``.

    Attributes:
        leaves: The tensors that are differentiated, in pytree order; integers and non-tensors of the structure
            are left out: they are constants.
        treespec: The structure, as ``torch.utils._pytree`` describes it.
        positions: For each leaf, its index among all leaves of the structure, constants included.
        size: The number of elements of all leaves together.
    """

    leaves: tuple[Leaf, ...]
    treespec: pytree.TreeSpec
    positions: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tree: Any, *, name: str = "", names: Mapping[Any, str] | None = None, integers: bool = False) -> Space:
        """The Space of a pytree.

        Args:
            tree: Tensors, in any nesting that torch's pytree knows.
            name: What to call the whole in messages; leaf names begin with it.
            names: What to call each child of the root instead, by its index or key.
            integers: Count integer and bool tensors too (their derivatives are zero).

        >>> Space.of({"a": torch.ones(2, 3), "b": torch.ones(4)}, name="x").size
        10
        """
        paths, treespec = pytree.tree_flatten_with_path(tree)
        leaves: list[Leaf] = []
        positions: list[int] = []
        offset = 0
        for position, (path, value) in enumerate(paths):
            called = _child_name(names, path) if names is not None else name + pytree.keystr(path)
            if isinstance(value, Tensor) and (integers or is_differentiable_dtype(value.dtype)):
                leaf = Leaf(called or "value", value.shape, value.dtype, value.device, offset)
                leaves.append(leaf)
                positions.append(position)
                offset += leaf.numel
        return cls(tuple(leaves), treespec, tuple(positions), offset)

    @property
    def names(self) -> tuple[str, ...]:
        """The leaves' names, in order."""
        return tuple(leaf.name for leaf in self.leaves)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The leaves' shapes, in order."""
        return tuple(leaf.shape for leaf in self.leaves)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The leaves' first positions in the flat vector, in order."""
        return tuple(leaf.offset for leaf in self.leaves)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that holds all leaves: their promoted type."""
        dtypes = [leaf.dtype for leaf in self.leaves if is_differentiable_dtype(leaf.dtype)]
        if not dtypes:
            return torch.get_default_dtype()
        result = dtypes[0]
        for dtype in dtypes[1:]:
            result = torch.promote_types(result, dtype)
        return result

    @property
    def device(self) -> torch.device:
        """The device of flat vectors: the first leaf's."""
        return self.leaves[0].device if self.leaves else torch.device("cpu")

    @property
    def is_complex(self) -> bool:
        """Whether any leaf is complex."""
        return any(leaf.dtype.is_complex for leaf in self.leaves)

    def restrict(self, keep: Sequence[int]) -> Space:
        """The Space of some of the leaves, by index, laid end to end anew."""
        if tuple(keep) == tuple(range(len(self.leaves))):
            return self
        leaves: list[Leaf] = []
        offset = 0
        for index in keep:
            leaves.append(replace(self.leaves[index], offset=offset))
            offset += leaves[-1].numel
        return Space(tuple(leaves), self.treespec, tuple(self.positions[index] for index in keep), offset)

    def flatten(self, tree: Any) -> list[Any]:
        """The leaves of a tree of this structure, constants left out.

        Raises:
            ValueMismatch: The structure differs.
        """
        try:
            values = self.treespec.flatten_up_to(tree)
        except ValueError:
            raise ValueMismatch(
                "the structure differs",
                got=one_line(pytree.tree_structure(tree)),
                fix=f"give the structure {one_line(self.treespec)}",
            ) from None
        return [values[position] for position in self.positions]

    def unflatten(self, values: Sequence[Any], constant: Any = None) -> Any:
        """Put one value for each leaf back into the structure; constants are replaced by ``constant``."""
        filled = [constant] * self.treespec.num_leaves
        for position, value in zip(self.positions, values, strict=True):
            filled[position] = value
        return pytree.tree_unflatten(filled, self.treespec)

    def read(self, vector: Any, *, name: str) -> tuple[tuple[Tensor, ...], Form]:
        """Split a vector of this Space into one tensor for each leaf.

        Args:
            vector: Flat ``(size,)``, stacked ``(size, k)``, or in the structure of this Space.
            name: What messages call it.

        Returns:
            The tensors, each of its leaf's shape (behind a leading ``k`` for a stack) and the form it came in.

        Raises:
            ArgumentError: It is not made of tensors.
            ValueMismatch: It fits none of the three forms.
        """
        form = self._form(vector, name)
        if form is Form.STRUCTURE:
            values = tuple(self.flatten(vector))
            for value, leaf in zip(values, self.leaves, strict=True):
                self._check_leaf(value, leaf, name)
            return values, form
        rows = vector if form is Form.FLAT else vector.mT
        lead = rows.shape[:-1]
        return tuple(rows[..., leaf.slice].reshape(lead + leaf.shape) for leaf in self.leaves), form

    def write(self, values: Iterable[Tensor], form: Form) -> Any:
        """Write one tensor for each leaf as a vector in the given form: the inverse of :meth:`read`."""
        parts = list(values)
        if form is Form.STRUCTURE:
            return self.unflatten(parts)
        lead = 1 if form is Form.STACK else 0
        flat = self.join(
            [part.reshape(*part.shape[:lead], leaf.numel) for part, leaf in zip(parts, self.leaves, strict=True)]
        )
        return flat.mT if form is Form.STACK else flat

    def join(self, rows: Sequence[Tensor]) -> Tensor:
        """Concatenate flattened leaves along the last dimension, in the Space's dtype and on its device."""
        if len(rows) == 1:
            return rows[0]
        if not rows:
            return torch.zeros(0, dtype=self.dtype, device=self.device)
        return torch.cat([row.to(dtype=self.dtype, device=self.device) for row in rows], dim=-1)

    def zeros(self, *lead: int) -> tuple[Tensor, ...]:
        """The zero vector, one tensor for each leaf, behind the leading dimensions given."""
        return tuple(torch.zeros(lead + leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in self.leaves)

    def onehots(self, indices: Tensor | range) -> tuple[Tensor, ...]:
        """The unit vectors of these flat positions, stacked: ``(len(indices), *leaf.shape)`` for each leaf.

        Args:
            indices: The positions; a range counts by ones.
        """
        seeds = self.zeros(len(indices))
        for seed, leaf in zip(seeds, self.leaves, strict=True):
            ones = seed.view(len(indices), leaf.numel)
            if isinstance(indices, range):
                begin = max(indices.start, leaf.offset)
                end = min(indices.stop, leaf.offset + leaf.numel)
                if begin < end:
                    across = slice(begin - leaf.offset, end - leaf.offset)
                    ones[begin - indices.start : end - indices.start, across].diagonal().fill_(1)
                continue
            inside = (indices >= leaf.offset) & (indices < leaf.offset + leaf.numel)
            rows = inside.nonzero().flatten()
            columns = indices[rows] - leaf.offset
            ones[rows.to(leaf.device), columns.to(leaf.device)] = 1
        return seeds

    def describe(self) -> str:
        """The leaves in words: ``x (4, 3) float32, w (2,) float64``."""
        return (
            ", ".join(
                f"{leaf.name} {tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}" for leaf in self.leaves
            )
            or "nothing"
        )

    def _form(self, vector: Any, name: str) -> Form:
        if isinstance(vector, Tensor):
            if self.treespec.is_leaf() and self.leaves and vector.shape == self.leaves[0].shape:
                return Form.STRUCTURE
            if vector.ndim == 1 and vector.shape[0] == self.size:
                return Form.FLAT
            if vector.ndim == 2 and vector.shape[0] == self.size:
                return Form.STACK
            raise ValueMismatch(
                f"{name} does not fit {self.describe()}",
                got=f"a tensor of shape {tuple(vector.shape)}",
                fix=f"give shape ({self.size},), ({self.size}, k)"
                + (
                    f" or {tuple(self.leaves[0].shape)}"
                    if self.treespec.is_leaf() and self.leaves
                    else f", or the structure {one_line(self.treespec)}"
                ),
            )
        if self.treespec.is_leaf() or (
            not isinstance(vector, dict | list | tuple) and pytree.tree_structure(vector).is_leaf()
        ):
            raise ArgumentError(
                f"{name} is not a tensor",
                got=f"{type(vector).__name__}",
                fix=f"give a tensor of shape ({self.size},) or ({self.size}, k): torch.as_tensor(...)",
            )
        return Form.STRUCTURE

    def _check_leaf(self, value: Any, leaf: Leaf, name: str) -> None:
        where = f"{name}{leaf.name}"
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{where} is not a tensor", got=type(value).__name__, fix=f"give shape {tuple(leaf.shape)}"
            )
        if value.shape != leaf.shape:
            raise ValueMismatch(
                f"{where} has the wrong shape",
                got=f"{tuple(value.shape)}",
                fix=f"give shape {tuple(leaf.shape)}",
            )


def _child_name(names: Mapping[Any, str], path: Sequence[Any]) -> str:
    child = path[0].idx if isinstance(path[0], pytree.SequenceKey) else path[0].key
    return names[child] + pytree.keystr(tuple(path[1:]))


def is_differentiable_dtype(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype can carry a derivative: floating point or complex."""
    return dtype.is_floating_point or dtype.is_complex


def one_line(value: object) -> str:
    """A value's text on one line."""
    return " ".join(str(value).split())
