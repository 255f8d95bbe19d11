"""Convolutions, all three ways: each of input, kernel and output from any other.

Along each spatial dimension a position of the longer side is ``stride * (position of the shorter side) - padding +
dilation * (position in the kernel)``. What depends on what is read off these triples: dimension after dimension, since
without knowing the kernel the window is a product of intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.autodiff.program import View
from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import MOST_TERMS, Sets, union

# Canonical layout: batch, group, channel of the output, channel of the input, spatial dimensions.
ABSENT = {"input": (2,), "output": (3,), "kernel": (0,)}


@dataclass(frozen=True)
class Convolution:
    """One convolution.

    Attributes:
        input: The shape of the input.
        kernel: The shape of the kernel.
        output: The shape of the output.
        triples: For each spatial dimension: input, output and kernel positions that meet.
        transposed: Whether the kernel's channels are those of the input first.
        groups: The number of groups.
    """

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    triples: tuple[dict[str, np.ndarray], ...]
    transposed: bool
    groups: int

    @classmethod
    def of(cls, input: Any, kernel: Any, output: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
           groups: int) -> Convolution:  # fmt: skip
        """A convolution from its arguments."""
        spatial = len(kernel) - 2
        longer, shorter = ("output", "input") if transposed else ("input", "output")
        shapes = {"input": input, "output": output}
        triples = []
        for dim, (step, pad, spread) in enumerate(
            zip(_each(stride, spatial), _each(padding, spatial), _each(dilation, spatial), strict=True)
        ):
            short, tap = (part.reshape(-1) for part in np.indices((shapes[shorter][dim + 2], kernel[dim + 2])))
            long = short * step - pad + tap * spread
            met = (long >= 0) & (long < shapes[longer][dim + 2])
            triples.append({longer: long[met], shorter: short[met], "kernel": tap[met]})
        return cls(tuple(input), tuple(kernel), tuple(output), tuple(triples), transposed, groups)

    def carry(self, sets: Sets, source: str, result: str) -> Sets:
        """What one of input, output and kernel depends on through another; all else is unknown."""
        found = self._canonical(sets.scaled(None), source)
        missing = [dim for dim in ABSENT[result] if dim not in ABSENT[source]]
        found = found.reduce(missing, keepdim=True)
        for dim, triple in enumerate(self.triples):
            size = getattr(self, result)[dim + 2]
            # Two of the three say what the third is: no pair occurs twice.
            found = found.relate(dim + 4, triple[result], triple[source], size)
        batch, channels = self.input[0], self.kernel[:2]
        first, second = channels[0] // self.groups, channels[1]
        outer, inner = (second, first) if self.transposed else (first, second)
        full = [batch, self.groups, outer, inner, *getattr(self, result)[2:]]
        for dim in ABSENT[result]:
            full[dim] = 1
        found = found.expand(tuple(full))
        return self._from_canonical(found, result)

    def by_kernel(self, sets: Sets, kernel: Tensor, source: str, result: str) -> Sets:
        """What input or output depends on through the other, by a kernel that is known."""
        shape = getattr(self, result)
        channels = int(shape[1])
        constant: Any = kernel.detach().to(torch.float64).numpy()
        used = (constant != 0).any(axis=(0, 1))
        parts = []
        for tap in product(*(range(size) for size in self.kernel[2:])):
            if not used[tap]:
                continue
            new, old, weight = self._channels(constant[(slice(None), slice(None), *tap)], source, result)
            part = sets.relate(1, new, old, channels, weight)
            for dim, (triple, place) in enumerate(zip(self.triples, tap, strict=True)):
                here = triple["kernel"] == place
                part = part.relate(dim + 2, triple[result][here], triple[source][here], shape[dim + 2], 1.0)
            parts.append(part)
        return union(tuple(shape), parts)

    def worth_knowing(self, kernel: Tensor | None) -> bool:
        """Whether a known kernel says more than an unknown one."""
        if kernel is None or kernel.is_complex() or int(np.prod(self.kernel[2:])) > MOST_TERMS:
            return False
        return bool((kernel == 0).any()) or self.kernel[:2] == (self.groups, 1)

    def _channels(self, slice_: np.ndarray, source: str, result: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, second = np.nonzero(slice_)
        weight = slice_[first, second]
        per = self.kernel[0] // self.groups
        second = second + (first // per) * self.kernel[1]
        kernel_first = "input" if self.transposed else "output"
        return (first, second, weight) if result == kernel_first else (second, first, weight)

    def _canonical(self, sets: Sets, role: str) -> Sets:
        groups = self.groups
        if role == "kernel":
            first, second, *spatial = self.kernel
            shape = (1, groups, first // groups, second, *spatial)
            found = sets.move(lambda part: part.reshape(shape))
            return found.move(lambda part: part.transpose(2, 3)) if self.transposed else found
        batch, channels, *spatial = getattr(self, role)
        own = (channels // groups, 1) if role == "output" else (1, channels // groups)
        return sets.move(lambda part: part.reshape(batch, groups, *own, *spatial))

    def _from_canonical(self, sets: Sets, role: str) -> Sets:
        if role == "kernel" and self.transposed:
            sets = sets.move(lambda part: part.transpose(2, 3))
        shape = getattr(self, role)
        return sets.move(lambda part: part.reshape(shape))


@rule("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "cudnn_convolution_transpose",
      "miopen_convolution", "miopen_convolution_transpose", "miopen_depthwise_convolution", "mkldnn_convolution",
      "thnn_conv2d", "_slow_conv2d_forward", "slow_conv3d_forward", "slow_conv3d", "conv_depthwise3d",
      "_conv_depthwise2d", "slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d",
      "slow_conv_dilated3d")  # fmt: skip
def convolution(call: Call) -> Any:
    """The output from input, kernel and bias."""
    named = call.named
    source, kernel, bias = named["input" if "input" in named else "self"], named["weight"], named.get("bias")
    shape = call.shapes[0]
    if source.ndim != kernel.ndim:
        return NotImplemented
    transposed = named.get("transposed", "transpose" in call.op._schema.name)
    each = Convolution.of(
        source.shape, kernel.shape, shape, named.get("stride", 1), named.get("padding", 0), named.get("dilation", 1),
        transposed, named.get("groups", _groups(source, kernel, transposed)),
    )  # fmt: skip
    parts = []
    if source.sets is not None:
        parts.append(_through_kernel(each, source.sets, kernel, "input", "output"))
    if kernel.sets is not None:
        parts.append(each.carry(kernel.sets, "kernel", "output"))
    if isinstance(bias, Operand) and bias.sets is not None:
        spread = (1, shape[1], *(1 for _ in shape[2:]))
        parts.append(bias.sets.move(lambda part: part.reshape(spread)).expand(shape))
    return union(shape, parts)


@rule("convolution_backward", "convolution_backward_overrideable", "mkldnn_convolution_backward",
      "_slow_conv2d_backward")  # fmt: skip
def convolution_backward(call: Call) -> Any:
    """Input, kernel and bias from the output; or each of the first two from the other."""
    named = call.named
    output = named["grad_output"]
    source, kernel = named["input" if "input" in named else "self"], named["weight"]
    if source.ndim != kernel.ndim:
        return NotImplemented
    transposed = named.get("transposed", False)
    each = Convolution.of(
        source.shape, kernel.shape, output.shape, named["stride"], named["padding"], named.get("dilation", 1),
        transposed, named.get("groups", 1),
    )  # fmt: skip
    results: list[list[Sets]] = [[], [], []]
    if output.sets is not None:
        results[0].append(_through_kernel(each, output.sets, kernel, "output", "input"))
        results[1].append(each.carry(output.sets, "output", "kernel"))
        over = [0, *range(2, output.ndim)]
        results[2].append(output.sets.reduce(over, keepdim=False))
    if source.sets is not None:
        results[1].append(each.carry(source.sets, "input", "kernel"))
    if kernel.sets is not None:
        results[0].append(each.carry(kernel.sets, "kernel", "input"))
    shapes = (source.shape, kernel.shape, output.shape[1:2])
    made = [place for place, out in enumerate(call.step.outs) if isinstance(out, View)]
    return [union(shapes[place], results[place]) if results[place] else None for place in made]


@rule("conv_tbc")
def conv_tbc(call: Call) -> Any:
    """A convolution over time, with batch and channels last."""
    source, kernel, bias, pad = (call.named[name] for name in ("self", "weight", "bias", "pad"))
    turned = _over_time(source.shape, kernel.shape, call.shapes[0], pad)
    parts = []
    if source.sets is not None:
        found = turned.carry(source.sets.move(lambda part: part.permute(1, 2, 0)), "input", "output")
        parts.append(found.move(lambda part: part.permute(2, 0, 1)))
    if kernel.sets is not None:
        found = turned.carry(kernel.sets.move(lambda part: part.permute(2, 1, 0)), "kernel", "output")
        parts.append(found.move(lambda part: part.permute(2, 0, 1)))
    if bias.sets is not None:
        parts.append(bias.sets.expand(call.shapes[0]))
    return union(call.shapes[0], parts)


@rule("conv_tbc_backward")
def conv_tbc_backward(call: Call) -> Any:
    """Input, kernel and bias from the output."""
    output, source, kernel, _, pad = call.args
    if output.sets is None or len(call.seeded) > 1:
        return NotImplemented
    turned = _over_time(source.shape, kernel.shape, output.shape, pad)
    found = output.sets.move(lambda part: part.permute(1, 2, 0))
    return [
        turned.carry(found, "output", "input").move(lambda part: part.permute(2, 0, 1)),
        turned.carry(found, "output", "kernel").move(lambda part: part.permute(2, 1, 0)),
        output.sets.reduce((0, 1), keepdim=False),
    ]


def _through_kernel(each: Convolution, sets: Sets, kernel: Operand, source: str, result: str) -> Sets:
    known = kernel.value.cpu() if kernel.value is not None and kernel.sets is None else None
    if each.worth_knowing(known):
        assert known is not None
        return each.by_kernel(sets, known, source, result)
    return each.carry(sets, source, result)


def _groups(source: Operand, kernel: Operand, transposed: bool) -> int:
    return 1 if transposed else source.shape[1] // max(kernel.shape[1], 1)


def _each(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _over_time(source: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...], pad: int) -> Convolution:
    """A convolution whose first dimension is time, in the order of others."""
    (time, batch, inner), (taps, _, outer), length = source, kernel, output[0]
    return Convolution.of((batch, inner, time), (outer, inner, taps), (batch, outer, length), 1, pad, 1, False, 1)
