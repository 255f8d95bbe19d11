"""``pb.seed``: seeds that are not plain tensors."""

from __future__ import annotations

from typing import Any

from pullback.autodiff.seeds import OneHot, Weights

__all__ = ["onehot", "weights"]


def onehot(index: Any) -> OneHot:
    """The seed that is one at an index of the output and zero elsewhere: it selects rows of the Jacobian.

    Args:
        index: What one would write in ``y[index]``: an int, a tuple of ints, a slice, a mask.

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pb.grad(x ** 3, x, pb.seed.onehot(1))
    tensor([ 0., 12.])
    """
    return OneHot(index)


def weights(**by_name: Any) -> Weights:
    """A seed for each output of a dict, by name: the weights of several tasks.

    Every output needs one, so that no task is forgotten in silence; ``0.0`` leaves a task out.

    Args:
        **by_name: For each output what :func:`pullback.backward` takes as a seed: a number, a tensor, ``"mean"``.

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> losses = {"fit": (x ** 2).sum(), "size": x.sum()}
    >>> pb.grad(losses, x, pb.seed.weights(fit=1.0, size=0.5))
    tensor([2.5000, 4.5000])
    """
    return Weights(by_name)
