"""Gather: the values of a sparse matrix, picked from the answers of compressed passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# An entry is a sum of few terms, added one layer after the other; with more, they are added all at once.
MOST_LAYERS = 8


Places = slice | Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """One term of some entries.

    Attributes:
        entry: Which entries; None for all, in order.
        source: Where their terms stand in the answers, laid end to end.
        weight: What they are multiplied by; None for one.
    """

    entry: Places | None
    source: Places
    weight: Tensor | float | None


@dataclass(frozen=True, eq=False)
class Gather:
    """``values[e] = constant[e] + Σ weight * answers[source]``.

    Attributes:
        size: The number of entries.
        layers: The terms; every entry occurs at most once in each, unless there are more than a few.
        constant: What the entries are beside the answers; None for zero, where there are answers.
    """

    size: int
    layers: tuple[Layer, ...]
    constant: Tensor | None

    @classmethod
    def of(cls, source: np.ndarray, device: torch.device) -> Gather:
        """Each entry is one element of the answers."""
        return cls(len(source), (Layer(None, _places(source, device), None),), None)

    @classmethod
    def sums(
        cls,
        entry: np.ndarray,
        source: np.ndarray,
        weight: np.ndarray,
        constant: np.ndarray,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Gather:
        """Each entry is a constant and a weighted sum of elements of the answers; ``entry`` rises."""
        size = len(constant)
        starts = np.searchsorted(entry, np.arange(size)) if len(entry) else np.zeros(size, dtype=np.int64)
        rank = np.arange(len(entry)) - starts[entry] if len(entry) else entry
        most = int(rank.max(initial=-1)) + 1
        picks = [rank == k for k in range(most)] if most <= MOST_LAYERS else [np.ones(len(entry), dtype=bool)]
        layers = []
        for pick in picks:
            chosen = entry[pick]
            every = len(chosen) == size and most <= MOST_LAYERS
            places = None if every else _places(chosen, device)
            layers.append(Layer(places, _places(source[pick], device), _weight(weight[pick], dtype, device)))
        needed = constant.any() or not layers
        fixed = torch.from_numpy(constant).to(dtype=dtype, device=device) if needed else None
        return cls(size, tuple(layers), fixed)

    def __call__(self, answers: Sequence[Tensor]) -> Tensor:
        """The values from answers, one tensor ``(passes, ...)`` for each leaf."""
        if not self.layers:
            assert self.constant is not None
            return self.constant.clone()
        flat = join_passes(answers)
        values = self.constant
        own = False
        for layer in self.layers:
            terms = flat[layer.source] if isinstance(layer.source, slice) else flat.index_select(0, layer.source)
            if layer.weight is not None:
                terms = terms * layer.weight
            if layer.entry is None:
                values = terms if values is None else values + terms
            else:
                if values is None:
                    values = torch.zeros(self.size, dtype=flat.dtype, device=flat.device)
                elif not own:
                    values = values.clone()
                values = _added(values, layer.entry, terms)
            own = True
        assert values is not None
        return values


def _added(values: Tensor, entry: Places, terms: Tensor) -> Tensor:
    """Values with terms added to some of them, in place."""
    if isinstance(entry, slice):
        values[entry] += terms
        return values
    return values.index_add_(0, entry, terms)


def _places(positions: np.ndarray, device: torch.device) -> Places:
    """Positions as a slice where they are evenly spaced, else as indices, small where they fit."""
    if len(positions) > 1:
        step = int(positions[1] - positions[0])
        if step > 0 and bool((np.diff(positions) == step).all()):
            return slice(int(positions[0]), int(positions[-1]) + 1, step)
    small = positions.max(initial=0) < 2**31
    return torch.from_numpy(positions.astype(np.int32 if small else np.int64)).to(device)


def _weight(weight: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor | float | None:
    """Weights as one number where they are all the same; None for one."""
    if len(weight) and bool((weight == weight[0]).all()):
        return None if weight[0] == 1 else float(weight[0])
    return torch.from_numpy(weight).to(dtype=dtype, device=device)


def join_passes(answers: Sequence[Tensor]) -> Tensor:
    """All answers as one flat tensor: pass after pass, and within each leaf after leaf."""
    flat = [answer.reshape(answer.shape[0], -1) for answer in answers]
    return (flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)).reshape(-1)
