"""GradNorm: weights are learned so that the gradients of all losses have a norm that fits their pace."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pullback.errors import ArgumentError, ValueMismatch
from pullback.losses.passes import row_passes
from pullback.losses.rows import precise
from pullback.losses.tasks import Tasks, check_leaves
from pullback.losses.ways import LossWeights, check_count, check_finite, checked_tasks

# A weight is kept above this part of the mean: below zero a loss would be climbed.
LEAST = 1e-3


class GradNorm(nn.Module, LossWeights):
    """Weigh the losses so that their gradients by a shared layer have norms that fit how fast each is trained.

    With ``G_k = w_k |∇_W ℓ_k|``, their mean ``Ḡ`` and the pace ``r_k = (ℓ_k / ℓ_k(0)) / mean``, the weights descend
    ``Σ_k |G_k - Ḡ r_k^α|``, where ``Ḡ r_k^α`` is held fixed; before each step they are scaled to the sum ``tasks``. A
    step adds ``Σ_k w_k ∇ℓ_k`` to the model's ``.grad``, and that derivative to the weights'. Give the optimiser both,
    the weights with a learning rate of their own: ``Adam([{"params": model.parameters()}, {"params":
    gradnorm.parameters(), "lr": 0.025}])``.

    Args:
        tasks: How many losses there are; their order is that of the losses given to ``pb.backward``.
        layer: The parameters W by which norms are taken: the last ones that the losses share, a module or parameters.
        alpha: How strongly a loss that falls behind is pulled; 0 makes all norms equal.

    Attributes:
        task_weights: ``w``, ``(tasks,)``; ones at first.
        first_losses: ``ℓ(0)``, those of the first step; NaN before.

    Raises:
        ArgumentError: ``layer`` holds no parameter.
        ValueMismatch: ``alpha`` is negative, or ``tasks`` is less than two.

    Source: Chen, Badrinarayanan, Lee, Rabinovich, "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep
    Multitask Networks", ICML 2018, equations (1) and (2) and algorithm 1.

    >>> import torch, pullback as pb
    >>> from pullback.losses.gradnorm import GradNorm
    >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> gradnorm = GradNorm(2, [w])
    >>> pb.backward({"fit": (w ** 2).sum(), "size": w.sum()}, combine=gradnorm)
    >>> gradnorm.task_weights.grad  # the larger gradient is to weigh less
    tensor([10.0000, -1.4142])
    """

    first_losses: Tensor

    def __init__(self, tasks: int, layer: nn.Module | Iterable[Tensor], *, alpha: float = 1.5) -> None:
        super().__init__()
        count = checked_tasks(tasks, "GradNorm")
        if not alpha >= 0:
            raise ValueMismatch(
                "alpha= of GradNorm is negative", got=repr(alpha), fix="alpha=1.5, or 0 for equal norms"
            )
        self.alpha = alpha
        self.task_weights = nn.Parameter(torch.ones(count))
        self.register_buffer("first_losses", torch.full((count,), float("nan")))
        # A tuple, so that the layer's parameters are not taken for GradNorm's own.
        self._layer = tuple(layer.parameters() if isinstance(layer, nn.Module) else layer)
        if not self._layer or not all(isinstance(each, Tensor) for each in self._layer):
            raise ArgumentError(
                "layer= of GradNorm holds no parameters",
                got=f"{type(layer).__name__} of {len(self._layer)}",
                fix="the last shared layer, such as model.trunk[-1], or [weight]",
            )
        check_leaves((f"layer[{index}]", each) for index, each in enumerate(self._layer))
        self._norms: Tensor | None = None

    def weights(self, tasks: Tasks) -> Tensor:
        check_count(tasks, self.task_weights)
        self._norms = self._norms_of_rows(tasks)
        with torch.no_grad():
            self.task_weights.clamp_(min=LEAST)
            self.task_weights.mul_(len(self.task_weights) / self.task_weights.sum())
        return self.task_weights.detach().to(tasks.values)

    def learn(self, tasks: Tasks) -> None:
        norms, self._norms = self._norms, None
        assert norms is not None
        values = tasks.values.to(self.first_losses)
        if bool(self.first_losses.isnan().any()):
            self.first_losses.copy_(values)
        pace = (values / self.first_losses).to(self.task_weights)
        with torch.enable_grad():
            scaled = self.task_weights * norms.to(self.task_weights)
            target = scaled.detach().mean() * (pace / pace.mean()) ** self.alpha
            (scaled - target).abs().sum().backward()  # type: ignore[no-untyped-call]

    def _norms_of_rows(self, tasks: Tasks) -> Tensor:
        """The norm of each loss's gradient by the layer."""
        rows = row_passes(tasks, self._layer, lambda rows: True)
        zero = tasks.values.new_zeros(())
        squares = [
            sum((precise(part).square().sum().to(zero) for part in row if part is not None), start=zero) for row in rows
        ]
        found = torch.stack(squares)
        check_finite(found, tasks)
        if not bool((found > 0).all()):
            told = zip(tasks.names, found.sqrt().tolist(), strict=True)
            raise ValueMismatch(
                "a loss has no gradient by GradNorm's layer",
                got=", ".join(f"norm {norm:.3g} of {name}" for name, norm in told),
                fix="give the last layer that all losses share: GradNorm(tasks, model.trunk[-1])",
            )
        return found.sqrt()
