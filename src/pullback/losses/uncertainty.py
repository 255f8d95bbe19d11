"""Uncertainty weighting: each loss is weighed by a variance that is learned with the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pullback.losses.tasks import Tasks
from pullback.losses.ways import LossWeights, check_count, checked_tasks


class Uncertainty(nn.Module, LossWeights):
    """Weigh each loss by how uncertain its task is, which is learned: ``w_k = exp(-s_k) / 2``.

    ``L = Σ_k ½ exp(-s_k) ℓ_k + ½ s_k`` with ``s_k = log σ_k²``. A step adds the gradient of L to ``.grad``: of the
    model, and of ``s``. Give the optimiser both: ``Adam([*model.parameters(), *uncertainty.parameters()])``. At the
    optimum ``w_k = 1 / (2 ℓ_k)``, so that a loss of another scale weighs the same. (Where the paper has ``exp(-s_k)``
    without the half, for classification, ``s_k`` is larger by log 2 at the optimum, and the weight is the same.)

    Args:
        tasks: How many losses there are; their order is that of the losses given to ``pb.backward``.

    Attributes:
        log_variances: ``s``, ``(tasks,)``; zeros at first.

    Source: Kendall, Gal, Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and
    Semantics", CVPR 2018, equations (7) to (10) and section 3.

    >>> import torch, pullback as pb
    >>> from pullback.losses.uncertainty import Uncertainty
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> uncertainty = Uncertainty(2)
    >>> pb.backward({"fit": (w ** 2).sum(), "size": w.sum()}, combine=uncertainty)
    >>> w.grad, uncertainty.log_variances.grad
    (tensor([1.5000, 2.5000]), tensor([-2., -1.]))
    """

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(checked_tasks(tasks, "Uncertainty")))

    def weights(self, tasks: Tasks) -> Tensor:
        check_count(tasks, self.log_variances)
        return (torch.exp(-self.log_variances.detach()) / 2).to(tasks.values)

    def learn(self, tasks: Tasks) -> None:
        with torch.enable_grad():
            s, values = self.log_variances, tasks.values.to(self.log_variances)
            (torch.exp(-s) * values / 2 + s / 2).sum().backward()  # type: ignore[no-untyped-call]
