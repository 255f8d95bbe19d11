"""Gather: the values of a sparse matrix, picked from the answers of compressed passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# An entry is a sum of few terms, added one layer after the other; with more, they are added all at once.
MOST_LAYERS = 8


@dataclass(frozen=True, eq=False)
class Layer:
    """One term of some entries.

    Attributes:
        entry: Which entries; None for all, in order.
        source: Where their terms stand in the answers, laid end to end.
        weight: What they are multiplied by; None for one.
    """

    entry: Tensor | None
    source: Tensor
    weight: Tensor | None


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
        return cls(len(source), (Layer(None, torch.from_numpy(source).to(device), None),), None)

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
            scale = weight[pick]
            layers.append(
                Layer(
                    None if every else torch.from_numpy(chosen.astype(np.int64)).to(device),
                    torch.from_numpy(source[pick].astype(np.int64)).to(device),
                    None if (scale == 1).all() else torch.from_numpy(scale).to(dtype=dtype, device=device),
                )
            )
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
        for layer in self.layers:
            terms = flat.index_select(0, layer.source)
            if layer.weight is not None:
                terms = terms * layer.weight.to(terms.dtype)
            if layer.entry is None:
                values = terms if values is None else values.to(terms.dtype) + terms
            else:
                base = torch.zeros(self.size, dtype=flat.dtype, device=flat.device) if values is None else values
                values = base.to(flat.dtype).index_add(0, layer.entry, terms)
        assert values is not None
        return values


def join_passes(answers: Sequence[Tensor]) -> Tensor:
    """All answers as one flat tensor: pass after pass, and within each leaf after leaf."""
    flat = [answer.reshape(answer.shape[0], -1) for answer in answers]
    return (flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)).reshape(-1)
