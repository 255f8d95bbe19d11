"""``pb.backward`` and ``pb.grad``: torch's backward passes, with a seed that is checked, named and weighted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.backward import accumulate, check_graph, gradients
from pullback.autodiff.seeds import Seed, cotangents, describe
from pullback.errors import ArgumentError, GraphError


def backward(
    outputs: Any,
    seed: Seed = None,
    *,
    inputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Add ``uᵀJ`` to ``.grad``: ``outputs.backward(seed)``, with a seed that cannot be misread.

    ``x.grad += Σ_i u_i ∂y_i/∂x``, bit for bit what ``torch.autograd.backward`` adds.

    Args:
        outputs: A tensor with a graph, or tensors in a dict, tuple or other structure.
        seed: One weight ``u_i`` for each element of the output: a tensor of exactly its shape; a number, the
            weight of every element; ``"ones"`` (the gradient of the sum); ``"mean"`` (that of the mean);
            ``pb.seed.onehot(index)``; a function of the (detached) output that returns one of these; None for an
            output of one element. For several outputs: one seed each in the same structure,
            ``pb.seed.weights(name=...)`` for a dict, or a number, a name or a function that holds for each.
        inputs: Accumulate into these tensors only; a tensor or a structure of them.
        retain_graph: Keep the graph for another pass; None: as ``create_graph``.
        create_graph: Keep the gradients differentiable.

    Raises:
        SeedError: The seed does not fit its output: shape, device, or a value that its dtype does not hold.
        GraphError: An output carries no graph, or its graph was freed.
        ArgumentError: An output, seed or input is of the wrong kind.
        ValueMismatch: A weight's name is no output's, or an output has no weight.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pb.backward(x ** 2, torch.tensor([0.1, 0.9]))
    >>> x.grad
    tensor([0.2000, 3.6000])
    """
    if _fits(outputs, seed):
        tensors, weights = [outputs], [seed]
    else:
        _check_graphs(outputs, None)
        tensors, weights = cotangents(outputs, seed)  # type: ignore[assignment]
    leaves = None if inputs is None else _inputs(inputs)
    accumulate(tensors, weights, leaves, retain_graph=retain_graph, create_graph=create_graph)  # type: ignore[arg-type]


def grad(
    outputs: Any,
    inputs: Any,
    seed: Seed = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> Any:
    """``uᵀJ``, returned instead of added to ``.grad``: ``torch.autograd.grad`` with a checked seed.

    Args:
        outputs: As for :func:`backward`.
        inputs: The tensors to differentiate by; a tensor or a structure of them.
        seed: As for :func:`backward`.
        retain_graph: As for :func:`backward`.
        create_graph: As for :func:`backward`.
        allow_unused: Give None for an input that the outputs do not depend on, rather than raise.

    Returns:
        The gradients, in the structure of ``inputs``.

    Raises:
        SeedError: As for :func:`backward`.
        GraphError: As for :func:`backward`; or an input does not require grad, or is not used.
        ArgumentError: As for :func:`backward`.
        ValueMismatch: As for :func:`backward`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pb.grad(x ** 2, {"x": x}, "mean")
    {'x': tensor([1., 2.])}
    """
    leaves = _inputs(inputs, require_grad=False)
    if not _fits(outputs, seed):
        _check_graphs(outputs, leaves)
    _inputs(inputs)
    tensors, weights = cotangents(outputs, seed)
    found = gradients(tensors, weights, leaves, retain_graph=retain_graph, create_graph=create_graph)
    if not allow_unused and any(gradient is None for gradient in found):
        raise _unused(inputs, found)
    return pytree.tree_unflatten(list(found), pytree.tree_structure(inputs))


def _fits(output: Any, seed: Any) -> bool:
    """Whether a seed needs no care: a tensor just like its output. The common case, and the fast one."""
    return (
        isinstance(output, Tensor)
        and isinstance(seed, Tensor)
        and output.requires_grad
        and seed.shape == output.shape
        and seed.dtype == output.dtype
        and seed.device == output.device
        and seed.layout == output.layout
    )


def _check_graphs(outputs: Any, inputs: Sequence[Tensor] | None) -> None:
    if isinstance(outputs, Tensor):
        check_graph(outputs, describe(outputs), inputs)
        return
    for path, value in pytree.tree_flatten_with_path(outputs)[0]:
        if isinstance(value, Tensor):
            check_graph(value, f"output{pytree.keystr(path)}", inputs)


def _inputs(inputs: Any, *, require_grad: bool = True) -> list[Tensor]:
    paths, _ = pytree.tree_flatten_with_path(inputs)
    if not paths:
        raise ArgumentError(
            "there is no input to differentiate by", got=f"an empty {type(inputs).__name__}", fix="inputs=[x]"
        )
    for path, value in paths:
        name = f"inputs{pytree.keystr(path)}"
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{name} is not a tensor", got=type(value).__name__, fix="give tensors that require grad"
            )
        if require_grad and not value.requires_grad:
            raise GraphError(
                f"{name} does not require grad, so no graph leads to it",
                got=f"shape {tuple(value.shape)}, {value.dtype}",
                fix="call .requires_grad_() on it before computing the outputs",
            )
    return [value for _, value in paths]


def _unused(inputs: Any, found: Sequence[Tensor | None]) -> GraphError:
    paths, _ = pytree.tree_flatten_with_path(inputs)
    name, shape = next(
        (f"inputs{pytree.keystr(path)}", tuple(value.shape))
        for (path, value), gradient in zip(paths, found, strict=True)
        if gradient is None
    )
    return GraphError(
        f"the outputs do not depend on {name}",
        got=f"shape {shape}, which the graph does not reach",
        fix="allow_unused=True gives None for it; if it should be used, look for a copy made after (x.to(), "
        "x * 1, x.view()) or for the path being cut",
    )
