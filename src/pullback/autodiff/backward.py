"""Backward passes on tensors that carry a graph: torch's own, with the missing and the freed graph told apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.autodiff.seeds import describe
from pullback.errors import GraphError


def accumulate(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    inputs: Sequence[Tensor] | None,
    *,
    retain_graph: bool | None,
    create_graph: bool,
) -> None:
    """Add the gradients to ``.grad``."""
    try:
        torch.autograd.backward(outputs, cotangents, retain_graph, create_graph, inputs=inputs)
    except RuntimeError as error:
        raise_if_freed(error)
        raise


def gradients(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    inputs: Sequence[Tensor],
    *,
    retain_graph: bool | None,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """The gradients; None for an input that the graph does not reach."""
    try:
        return torch.autograd.grad(
            outputs,
            inputs,
            cotangents,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    except RuntimeError as error:
        raise_if_freed(error)
        raise


def raise_if_freed(error: RuntimeError) -> None:
    """Explain the error of a second pass through a graph that was freed by the first.

    Raises:
        GraphError: It is that error.
    """
    if "backward through the graph a second time" in str(error):
        raise GraphError(
            "the graph of this output was freed by an earlier backward pass",
            got="a second pass through the same graph",
            fix="retain_graph=True in the earlier pass; or add the losses up and pass once; or compute the output "
            "again",
        ) from error


def check_graph(output: Tensor, name: str, inputs: Sequence[Tensor] | None) -> None:
    """Refuse an output that carries no graph, and say why it does not.

    Raises:
        GraphError: It carries none.
    """
    if output.requires_grad:
        return
    if output.is_inference():
        what = "was computed in inference mode, which records no graph"
        fix = "compute it outside torch.inference_mode()"
    elif not (output.is_floating_point() or output.is_complex()):
        what = f"is of {output.dtype}, which has no derivative"
        fix = "differentiate what it was made from: argmax, comparisons and casts to integers cut the graph"
    elif not torch.is_grad_enabled():
        what = "carries no graph, and gradients are switched off here"
        fix = "compute it outside torch.no_grad()"
    elif inputs is not None and not any(tensor.requires_grad for tensor in inputs):
        what = "carries no graph, since none of the inputs requires grad"
        fix = "x.requires_grad_() before computing it"
    elif inputs is not None:
        what = "carries no graph, though the inputs require grad: the path between them was cut"
        fix = "look for .detach(), .data, torch.no_grad() or a new tensor made from numbers on the way"
    else:
        what = "carries no graph: nothing it was computed from requires grad, or the path was cut"
        fix = "x.requires_grad_() before computing it; or look for .detach(), .data or torch.no_grad() on the way"
    shape = "" if name == describe(output) else f", shape {tuple(output.shape)}"
    raise GraphError(f"{name} {what}", got=f"requires_grad=False, {output.dtype}{shape}", fix=fix)
