"""Normalisations that torch does not decompose: those of vendors' libraries, and of weights."""

from __future__ import annotations

from typing import Any

from pullback.sparsity.call import Call, rule


@rule("cudnn_batch_norm_backward", "miopen_batch_norm_backward")
def batch_norm_backward(call: Call) -> Any:
    """Each channel for itself: its elements, its scale and its shift."""
    gradient = call.argument(1, "grad_output")
    if call.seeded != [gradient]:
        return NotImplemented
    channels = gradient.sets.reduce([dim for dim in range(gradient.ndim) if dim != 1], keepdim=True).scaled(None)
    flat = channels.move(lambda part: part.reshape(-1))
    return [channels.expand(call.shapes[0]), *(flat for _ in call.shapes[1:])]


@rule("_weight_norm_interface_backward")
def weight_norm_backward(call: Call) -> Any:
    """Each slice along the dimension that keeps its norms, for itself."""
    gradient, dim = call.args[0], call.argument(4, "dim")
    if call.seeded != [gradient]:
        return NotImplemented
    slices = gradient.sets.reduce([each for each in range(gradient.ndim) if each != dim], keepdim=True).scaled(None)
    norms = slices.move(lambda part: part.reshape(call.shapes[1]))
    return [slices.expand(call.shapes[0]), norms]
