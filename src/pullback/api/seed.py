"""``pb.seed``: seeds that are not plain tensors."""

from __future__ import annotations

from typing import Any

from pullback.autodiff.seeds import OneHot, Weights

__all__ = ["onehot", "weights"]


def onehot(index: Any) -> OneHot:
    """The seed that is one at an index of the output and zero elsewhere: ``uᵀJ`` is that row of the Jacobian.

    Args:
        index: What one would write in ``y[index]``. An int or a tuple of ints is one element; ``(..., k)``, a
            slice or a mask is several, whose rows are summed.

    Returns:
        The seed. An index that the output does not have raises a ``SeedError`` when the seed is used.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html (the vector-Jacobian product).

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pb.grad(x ** 3, x, pb.seed.onehot(1))
    tensor([ 0., 12.])
    """
    return OneHot(index)


def weights(**by_name: Any) -> Weights:
    """A seed for each output of a dict, by name: the weights of several tasks.

    ``x.grad += Σ_k u_kᵀ J_k``, in one pass. Every output needs a weight, so that no task is forgotten in silence;
    ``0.0`` leaves a task out.

    Args:
        **by_name: For each output what :func:`pullback.backward` takes as a seed: a number, a tensor, ``"mean"``.

    Returns:
        The seeds. Names that do not match the outputs' raise a ``ValueMismatch`` when they are used.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> losses = {"fit": (x ** 2).sum(), "size": x.sum()}
    >>> pb.grad(losses, x, pb.seed.weights(fit=1.0, size=0.5))
    tensor([2.5000, 4.5000])
    """
    return Weights(by_name)
