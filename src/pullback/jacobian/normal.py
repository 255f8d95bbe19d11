"""The normal operator ``JᵀJ`` of a Jacobian: what Gauss-Newton, Fisher and least squares are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.data.space import Space
from pullback.jacobian import spectrum
from pullback.jacobian.operator import Operator


@final
class Normal(Operator):
    """``JᵀJ``, ``(n, n)``, symmetric: ``N @ v`` is ``J.T @ (J @ v)``, a forward and a reverse pass.

    >>> import torch, pullback as pb
    >>> N = pb.jacobian(lambda x: x * x, torch.tensor([1.0, 2.0])).normal()
    >>> N @ torch.ones(2), N.diagonal()
    (tensor([ 4., 16.]), tensor([ 4., 16.]))
    """

    def __init__(self, base: Operator, diagonal: Callable[[], Tensor], matrix: Callable[[], Tensor]) -> None:
        self.base = base
        self._diagonal = diagonal
        self._matrix = matrix

    @property
    def inputs(self) -> Space:
        return self.base.inputs

    @property
    def outputs(self) -> Space:
        return self.base.inputs

    @property
    def T(self) -> Operator:
        return self

    def push(self, tangents: Tensors) -> Tensors:
        return self.base.pull(self.base.push(tangents))

    def pull(self, cotangents: Tensors) -> Tensors:
        return self.push(cotangents)

    def push_stack(self, stacks: Tensors) -> Tensors:
        return self.base.pull_stack(self.base.push_stack(stacks))

    def pull_stack(self, stacks: Tensors) -> Tensors:
        return self.push_stack(stacks)

    def diagonal(self) -> Tensor:
        """The squares of the norms of J's columns, ``(n,)``; layer by layer where J is by parameters.

        >>> import torch, pullback as pb
        >>> layer = torch.nn.Linear(2, 1)
        >>> N = pb.jacobian(layer, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), wrt="parameters").normal()
        >>> N.diagonal()
        tensor([10., 20.,  2.])
        """
        return self._diagonal()

    def matrix(self) -> Tensor:
        """Every entry, ``(n, n)``, summed over the rows of J, of which only some are there at a time.

        Raises:
            MemoryLimitError: It is larger than the memory limit.
        """
        return self._matrix()

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.linalg.LinearOperator`` on flat NumPy vectors, whose products are passes."""
        return spectrum.to_scipy(self)
