"""Convolutions: the weight's gradient is a product of patches of one tensor with the elements of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.outer.contraction import Contraction, Dense, Layout
from pullback.outer.rule import Around, Sample, named, rule, sample_tensor


def _backward(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    result: int,
    *,
    transposed: bool = False,
    groups: int = 1,
    **how: Any,
) -> Sample:
    """A sample: the backward of a convolution of an input of some shape."""
    spatial = len(shape) - 2
    stride, padding, dilation, more = (
        [how.get(name, default)] * spatial
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    x, w = sample_tensor(*shape), sample_tensor(*weight)
    channels = weight[1] * groups if transposed else weight[0]
    out = torch.ops.aten.convolution(x, w, None, stride, padding, dilation, transposed, more, groups)

    def run(g: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            g, x, w, [channels], stride, padding, dilation, transposed, more, groups, [False, True, True]
        )

    return Sample(run, tuple(out.shape), result)


@rule(
    "convolution_backward",
    samples=(
        _backward((2, 3, 9), (4, 3, 3), 1),
        _backward((2, 3, 9), (4, 3, 3), 2),
        _backward((2, 4, 7, 8), (6, 2, 3, 2), 1, groups=2, stride=2, padding=1),
        _backward((2, 3, 7, 8), (4, 3, 2, 2), 1, dilation=3, stride=2),
        _backward((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), 1, padding=1),
        _backward((2, 4, 5), (4, 3, 3), 1, transposed=True, stride=2, padding=1, output_padding=1),
        _backward((2, 4, 4, 3), (4, 2, 3, 2), 1, transposed=True, groups=2, dilation=2, output_padding=1),
        _backward((2, 4, 5), (4, 3, 3), 2, transposed=True),
    ),
)
def convolution(step: Step, result: View, program: Around) -> Contraction | None:
    """The gradient of a convolution's weight or bias."""
    arguments = named(step)
    grad, weight = arguments["grad_output"], arguments["weight"]
    if not program.is_seeded(grad) or not grad.numel:
        return None
    which = [out is not None and _is_same(out, result) for out in step.outs].index(True)
    groups = arguments["groups"]
    if which == 2:
        return Contraction(grad, lambda g: _pixels(g, len(grad.shape), 1), None, lambda r: r.reshape(1, 1, -1))
    number = program.number(arguments["input"])
    if which != 1 or number is None:
        return None
    window = _Window(weight.shape[2:], arguments["stride"], arguments["padding"], arguments["dilation"])
    if arguments["transposed"]:
        # The roles are exchanged: each element of the input is spread over a patch of the output.
        counts = tuple(number.shape[2:])
        layout: Layout = lambda g: window.patches(g, groups, counts)  # noqa: E731
        coefficient = Dense(number, lambda a: _pixels(a, a.ndim, groups))
        return Contraction(grad, layout, coefficient, lambda r: r.reshape(groups, r.shape[0] // groups, -1))
    counts = tuple(grad.shape[2:])
    return Contraction(
        grad,
        lambda g: _pixels(g, len(grad.shape), groups),
        Dense(number, lambda a: window.patches(a, groups, counts)),
        lambda r: r.reshape(groups, r.shape[0] // groups, -1).transpose(1, 2),
    )


def _is_same(out: Any, result: View) -> bool:
    return isinstance(out, View) and out.tensor == result.tensor


def _pixels(tensor: Tensor, ndim: int, groups: int) -> Tensor:
    """``(..., N, C, *spatial)`` as ``(..., N * pixels, groups, C / groups)``."""
    lead = tensor.shape[: tensor.ndim - ndim]
    count, channels = tensor.shape[len(lead) : len(lead) + 2]
    flat = tensor.reshape(*lead, count, channels, -1).transpose(-1, -2)
    return flat.reshape(*lead, -1, groups, channels // groups)


class _Window:
    """The window of a convolution.

    Args:
        sizes: Its size along each spatial dimension.
        stride: How far it moves.
        padding: How many zeros stand at each side.
        dilation: How far apart its elements are.
    """

    def __init__(
        self, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ) -> None:
        count = len(sizes)
        self.sizes = tuple(sizes)
        self.stride, self.padding, self.dilation = (
            tuple(each) * (count if len(each) == 1 else 1) for each in (stride, padding, dilation)
        )

    def patches(self, tensor: Tensor, groups: int, counts: tuple[int, ...]) -> Tensor:
        """``(..., N, C, *spatial)`` as ``(..., N * windows, groups, C / groups * window)``."""
        spatial = len(self.sizes)
        lead = tensor.shape[: tensor.ndim - spatial - 2]
        first = len(lead)
        found = torch.nn.functional.pad(tensor, [each for size in reversed(self.padding) for each in (size, size)])
        for axis in range(spatial):
            dim = first + 2 + axis
            reach = self.dilation[axis] * (self.sizes[axis] - 1) + 1
            windows = found.unfold(dim, reach, self.stride[axis]).narrow(dim, 0, counts[axis])
            found = windows[..., :: self.dilation[axis]]
        # (..., N, C, windows, window)
        inner = range(first + 2, first + 2 + spatial)
        found = found.permute(*range(first + 1), *inner, first + 1, *range(first + 2 + spatial, found.ndim))
        total, channels = tensor.shape[first] * math.prod(counts), tensor.shape[first + 1] // groups
        return found.reshape(*lead, total, groups, channels * math.prod(self.sizes))
