"""Ways to combine: what a user may give as ``combine=``, and what it makes of the rows.

Two kinds. *Weights of losses* (:class:`LossWeights`) are one number for each loss, and every parameter gets the
gradient of the weighted sum. *Weights of rows* are made of the gradients themselves, by the parameters that losses
share; they weigh these only, and what one loss alone reaches gets that loss's own gradient: nothing conflicts there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.errors import ArgumentError, ValueMismatch
from pullback.losses.tasks import Tasks


class LossWeights(ABC):
    """Weights of losses that are learned, or follow the losses: ``Σ_k w_k ∇ℓ_k`` for every parameter."""

    @abstractmethod
    def weights(self, tasks: Tasks) -> Tensor:
        """One weight for each loss, ``(m,)``, without a graph; nothing that later calls rely on is changed."""

    @abstractmethod
    def learn(self, tasks: Tasks) -> None:
        """Take note of this step, once its gradients are in ``.grad``."""


@dataclass(frozen=True)
class RowWay:
    """Weights of rows, or a mixture that weights cannot say.

    Attributes:
        called: What messages call it.
        by_gram: From the Gram matrix ``(m, m)`` to weights ``(m,)``.
        by_matrix: From the matrix ``(m, n)`` to weights.
        whole: From the matrix to the combined gradient ``(n,)``.
    """

    called: str
    by_gram: Callable[[Tensor], Any] | None = None
    by_matrix: Callable[[Tensor], Any] | None = None
    whole: Callable[[Tensor], Any] | None = None

    def weights(self, matrix: Callable[[], Tensor], gram: Callable[[], Tensor], tasks: Tasks) -> list[float] | None:
        """One weight for each row; None where no weights tell the mixture.

        Raises:
            ArgumentError: What was given returned no tensor.
            ValueMismatch: The rows, or the weights, are not finite; or there is not one weight for each loss.
        """
        if self.by_gram is not None:
            known = gram()
            check_finite(known.diagonal(), tasks)
            return checked_weights(self.by_gram(known), tasks, self.called)
        if self.by_matrix is not None:
            return checked_weights(self.by_matrix(_checked(matrix(), tasks)), tasks, self.called)
        return None

    def vector(self, matrix: Tensor, tasks: Tasks) -> Tensor:
        """The combined gradient, flat, in the order of the matrix's columns.

        Raises:
            ArgumentError: What was given returned no tensor.
            ValueMismatch: The rows are not finite, or the vector has the wrong shape.
        """
        assert self.whole is not None
        found = self.whole(_checked(matrix, tasks))
        if not isinstance(found, Tensor):
            raise _no_tensor(self.called, found)
        if found.shape != matrix.shape[1:]:
            raise ValueMismatch(
                f"{self.called} returned a gradient of the wrong shape",
                got=f"shape {tuple(found.shape)} from a matrix of shape {tuple(matrix.shape)}",
                fix=f"one entry for each column: shape {tuple(matrix.shape[1:])}",
            )
        return found.detach()


def row_way(combine: Any) -> RowWay:
    """How a user's object combines rows.

    Raises:
        ArgumentError: It does not.
    """
    called = combine.__name__ if hasattr(combine, "__name__") else type(combine).__name__
    if isinstance(combine, nn.Module) and _is_torchjd(combine, "Aggregator"):
        # A hook of the user's on the aggregator is to see the whole matrix, as it would in TorchJD.
        if _hooked(combine) or not _is_torchjd(combine, "WeightedAggregator"):
            return RowWay(called, whole=combine)
        weighting: Any = combine.weighting
        if _hooked(weighting) or not _is_torchjd(combine, "GramianWeightedAggregator"):
            return RowWay(called, by_matrix=weighting)
        by_gram: Any = combine.gramian_weighting
        return RowWay(called, by_gram=by_gram)
    if callable(combine) and not isinstance(combine, type | Tensor):
        return RowWay(called, by_gram=combine)
    made = isinstance(combine, type)
    raise ArgumentError(
        "combine= is no way to combine losses",
        got=f"the class {combine.__name__}" if made else type(combine).__name__,
        fix=f"{combine.__name__}(...), an object of it"
        if made
        else "pb.seed.weights(name=...), pb.combine.GradNorm(...), "
        "an aggregator of TorchJD such as UPGrad(), or a function from the Gram matrix (m, m) to m weights",
    )


def checked_weights(found: Any, tasks: Tasks, called: str) -> list[float]:
    """Weights, if there is one number for each loss.

    Raises:
        ArgumentError: They are not in a tensor.
        ValueMismatch: There are more or fewer, or one is not finite.
    """
    if not isinstance(found, Tensor):
        raise _no_tensor(called, found)
    if found.shape != tasks.values.shape or found.is_complex():
        raise ValueMismatch(
            f"{called} returned weights of the wrong shape",
            got=f"shape {tuple(found.shape)}, {found.dtype}, for the losses {', '.join(tasks.names)}",
            fix=f"one real weight for each loss: shape {tuple(tasks.values.shape)}",
        )
    weights: list[float] = found.tolist()
    if not all(map(math.isfinite, weights)):
        raise ValueMismatch(
            f"{called} returned a weight that is not finite",
            got=", ".join(f"{name}: {weight}" for name, weight in zip(tasks.names, weights, strict=True)),
            fix="look at the losses and at print(pb.conflicts(losses)): one may be zero, or its gradient",
        )
    return weights


def check_finite(squares: Tensor, tasks: Tasks) -> None:
    """Refuse gradients whose norms, or their squares, are not finite.

    Args:
        squares: One number for each loss.
        tasks: The losses.

    Raises:
        ValueMismatch: One is not.
    """
    if not all(map(math.isfinite, squares.tolist())):
        told = zip(tasks.names, squares.sqrt().tolist(), strict=True)
        raise ValueMismatch(
            "a gradient is not finite, so it cannot be combined with the others",
            got=", ".join(f"{name}: norm {size}" for name, size in told),
            fix="leave this step out, lower the loss scale, or look where it arises: print(pb.graph(losses))",
        )


def _checked(matrix: Tensor, tasks: Tasks) -> Tensor:
    check_finite(torch.linalg.vector_norm(matrix, dim=1), tasks)
    return matrix


def _is_torchjd(module: nn.Module, kind: str) -> bool:
    """Whether a module is of a class of TorchJD's aggregators; told by name, as TorchJD need not be installed."""
    return any(each.__name__ == kind and each.__module__.startswith("torchjd.") for each in type(module).__mro__)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _no_tensor(called: str, found: Any) -> ArgumentError:
    return ArgumentError(
        f"{called} returned no tensor of weights", got=type(found).__name__, fix="return a tensor of shape (m,)"
    )


def checked_tasks(tasks: Any, called: str) -> int:
    """A number of tasks.

    Raises:
        ArgumentError: It is no int.
        ValueMismatch: It is less than two.
    """
    if isinstance(tasks, bool) or not isinstance(tasks, int):
        raise ArgumentError(f"{called} takes the number of losses", got=type(tasks).__name__, fix=f"{called}(2)")
    if tasks < 2:
        raise ValueMismatch(f"{called} weighs at least two losses", got=repr(tasks), fix=f"{called}(2)")
    return tasks


def check_count(tasks: Tasks, known: Tensor) -> None:
    """Refuse more or fewer losses than the weights were made for.

    Raises:
        ValueMismatch: There are.
    """
    if len(tasks.losses) != len(known):
        raise ValueMismatch(
            "there are not as many losses as weights",
            got=f"{len(tasks.losses)} losses ({', '.join(tasks.names)}), made for {len(known)}",
            fix="make it for as many losses as are given to pb.backward",
        )
