"""Dynamic weight average: losses that fall slowly weigh more."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pullback.errors import ValueMismatch
from pullback.losses.tasks import Tasks
from pullback.losses.ways import LossWeights, check_count, checked_tasks


class DynamicWeightAverage(nn.Module, LossWeights):
    """Weigh each loss by how slowly it fell between the last two epochs: ``w_k = K softmax_k(r_k / T)``.

    ``r_k = L_k(t-1) / L_k(t-2)`` with the mean losses of the two epochs before, and K tasks. The weights are ones in
    the first two epochs. Call :meth:`end_epoch` after each epoch; averages are over the calls of ``pb.backward`` in it.

    Args:
        tasks: How many losses there are; their order is that of the losses given to ``pb.backward``.
        temperature: T: the larger, the more alike the weights.

    Attributes:
        averages: The mean losses of the last two epochs, ``(2, tasks)``, the older first; NaN before.

    Raises:
        ValueMismatch: ``temperature`` is not positive, or ``tasks`` is less than two.

    Source: Liu, Johns, Davison, "End-to-End Multi-Task Learning with Attention", CVPR 2019, equation (7).

    >>> import torch, pullback as pb
    >>> from pullback.losses.average import DynamicWeightAverage
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> average = DynamicWeightAverage(2)
    >>> for epoch in range(3):
    ...     pb.backward({"falls": (w ** 2).sum() / 10**epoch, "stays": w.sum()}, combine=average)
    ...     average.end_epoch()
    >>> average.current()
    tensor([0.7787, 1.2213])
    """

    averages: Tensor
    total: Tensor
    steps: Tensor

    def __init__(self, tasks: int, *, temperature: float = 2.0) -> None:
        super().__init__()
        count = checked_tasks(tasks, "DynamicWeightAverage")
        if not temperature > 0:
            raise ValueMismatch(
                "temperature= of DynamicWeightAverage is not positive", got=repr(temperature), fix="temperature=2.0"
            )
        self.temperature = temperature
        self.register_buffer("averages", torch.full((2, count), float("nan")))
        self.register_buffer("total", torch.zeros(count))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def current(self) -> Tensor:
        """The weights of this epoch."""
        older, newer = self.averages
        weights = len(newer) * torch.softmax(newer / older / self.temperature, dim=0)
        return torch.where(self.averages.isnan().any(), torch.ones_like(weights), weights)

    def end_epoch(self) -> None:
        """Take the mean losses of this epoch into account; nothing happens if there was no step."""
        if int(self.steps):
            self.averages.copy_(torch.stack([self.averages[1], self.total / self.steps]))
            self.total.zero_()
            self.steps.zero_()

    def weights(self, tasks: Tasks) -> Tensor:
        check_count(tasks, self.total)
        return self.current().to(tasks.values)

    def learn(self, tasks: Tasks) -> None:
        self.total += tasks.values.to(self.total)
        self.steps += 1
