"""``pb.backward`` and ``pb.grad``: torch's backward passes, with a seed that is checked, named and weighted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.backward import accumulate, check_graph, gradients
from pullback.autodiff.seeds import Seed, Weights, assign, cotangent
from pullback.errors import ArgumentError, GraphError
from pullback.losses.descend import combined_backward

# An error lists no more unused inputs than this.
MOST_NAMED = 8


def backward(
    outputs: Any,
    seed: Seed = None,
    *,
    combine: Any = None,
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
            output of one element. A seed of another dtype is cast if no value is lost but to rounding.
            For several outputs: one seed each in the same structure, ``pb.seed.weights(name=...)`` for a dict,
            or a number, a name or a function that holds for each. None in a structure is, as in torch, the seed
            of an output of one element; ``0.0`` leaves an output out.
        combine: How several losses make one gradient; they are scalars in a dict or sequence, or a vector, where each
            element is a loss. Fixed weights, as seeds are given: ``pb.seed.weights(name=...)``, a dict, a sequence.
            ``pb.combine.Uncertainty``, ``GradNorm`` or ``DynamicWeightAverage``: weights that are learned with the
            model, or follow the losses. With these, every parameter gets ``Σ_k w_k ∇ℓ_k``. An aggregator of TorchJD,
            such as ``UPGrad()``, or a function from the Gram matrix ``J Jᵀ`` of the losses' gradients, ``(m, m)``, to
            m weights: parameters that two losses reach get the combination ``wᵀJ`` and are the columns of J;
            one that a single loss reaches, as in the head of a task, gets that loss's own gradient (as by TorchJD's
            ``mtl_backward``). Rows are found one loss at a time, by plain passes, and a hook on a tensor runs in each.
        inputs: Accumulate into these tensors only; a tensor, a structure of them, or an iterator such as
            ``model.parameters()``.
        retain_graph: Keep the graph for another pass; None: as ``create_graph``.
        create_graph: Keep the gradients differentiable.

    Raises:
        SeedError: The seed does not fit its output: shape, device, or a value that its dtype does not hold.
        GraphError: An output carries no graph, or its graph was freed.
        ArgumentError: An output, seed or input is of the wrong kind.
        ValueMismatch: A weight's name is no output's, or an output has no weight. With ``combine``: a loss is not a
            single finite number, or weights are not one for each loss.
        StrategyError: With ``combine``: the gradient cannot be kept differentiable, or as a hook demands.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html; for ``combine``: Quinton,
    Rey, "Jacobian Descent for Multi-Objective Optimization", arXiv:2406.16232; Sener, Koltun, "Multi-Task Learning as
    Multi-Objective Optimization", NeurIPS 2018, algorithm 2 (shared and own parameters).

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> pb.backward(x ** 2, torch.tensor([0.1, 0.9]))
    >>> x.grad
    tensor([0.2000, 3.6000])
    >>> def equal_norms(gram):
    ...     return 1 / gram.diagonal().sqrt()
    >>> x.grad = None
    >>> pb.backward({"fit": (x ** 2).sum(), "size": -x.sum()}, combine=equal_norms)
    >>> x.grad
    tensor([-0.2599,  0.1873])
    """
    named = None if inputs is None else _named(_gathered(inputs))
    if combine is not None:
        _check_alone(combine, seed)
        if not isinstance(combine, Weights | Mapping | Sequence | Tensor | int | float):
            combined_backward(outputs, combine, named, retain_graph=retain_graph, create_graph=create_graph)
            return
        seed = combine
    tensors, weights = _resolve(outputs, seed, named)
    into = None if named is None else list(named.values())
    accumulate(tensors, weights, into, retain_graph=retain_graph, create_graph=create_graph)


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
    inputs = _gathered(inputs)
    named = _named(inputs)
    tensors, weights = _resolve(outputs, seed, named)
    found = gradients(tensors, weights, list(named.values()), retain_graph=retain_graph, create_graph=create_graph)
    if not allow_unused and any(gradient is None for gradient in found):
        raise _unused([name for name, gradient in zip(named, found, strict=True) if gradient is None], named)
    if isinstance(inputs, Tensor):
        return found[0]
    return pytree.tree_unflatten(list(found), pytree.tree_structure(inputs))


def _resolve(outputs: Any, seed: Any, inputs: Mapping[str, Tensor] | None) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors to start from and their cotangents, with everything checked that can be."""
    if _fits(outputs, seed):
        _check_require_grad(inputs)
        return [outputs], [seed]
    assigned = assign(outputs, seed)
    for output, _, name in assigned:
        check_graph(output, name, None if inputs is None else list(inputs.values()))
    _check_require_grad(inputs)
    return [output for output, _, _ in assigned], [cotangent(*each) for each in assigned]


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


def _check_alone(combine: Any, seed: Any) -> None:
    """Refuse a seed beside a way to combine: both say what the losses weigh."""
    if seed is not None:
        raise ArgumentError(
            "a seed and combine= both weigh the losses",
            got=f"seed {type(seed).__name__}, combine {type(combine).__name__}",
            fix="one of them; or multiply the losses by what the seed says",
        )


def _gathered(inputs: Any) -> Any:
    """A generator, such as ``model.parameters()``, as a tuple; torch.autograd.grad takes them too."""
    return tuple(inputs) if isinstance(inputs, Iterator) else inputs


def _named(inputs: Any) -> dict[str, Tensor]:
    """The tensors of a structure of inputs, by what messages call them."""
    if isinstance(inputs, Tensor):
        return {"the input": inputs}
    paths, _ = pytree.tree_flatten_with_path(inputs)
    if not paths:
        raise ArgumentError(
            "there is no input to differentiate by", got=f"an empty {type(inputs).__name__}", fix="inputs=[x]"
        )
    for path, value in paths:
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"inputs{pytree.keystr(path)} is not a tensor",
                got=type(value).__name__,
                fix="give tensors: x, [x, w], model.parameters() or dict(model.named_parameters())",
            )
    return {f"inputs{pytree.keystr(path)}": value for path, value in paths}


def _check_require_grad(inputs: Mapping[str, Tensor] | None) -> None:
    for name, tensor in (inputs or {}).items():
        if not tensor.requires_grad:
            raise GraphError(
                f"{name} does not require grad, so no graph leads to it",
                got=f"shape {tuple(tensor.shape)}, {tensor.dtype}, requires_grad=False",
                fix="call .requires_grad_() on it before computing the outputs",
            )


def _unused(unused: Sequence[str], inputs: Mapping[str, Tensor]) -> GraphError:
    shown = ", ".join(f"{name} {tuple(inputs[name].shape)}" for name in unused[:MOST_NAMED])
    more = f" and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
    return GraphError(
        f"the outputs do not depend on {unused[0]}" + (f" and {len(unused) - 1} more" if len(unused) > 1 else ""),
        got=f"{shown}{more}: no path of the graph leads there",
        fix="allow_unused=True gives None; if it should be used, look for a copy made after the outputs "
        "(x.to(), x * 1, x.view()) or for the path being cut",
    )
