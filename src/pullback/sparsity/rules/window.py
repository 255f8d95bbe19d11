"""Windows: pooling, resizing, padding and unfolding, which leave batches and channels apart.

A window is a product of intervals, so dimension after dimension is related by itself; the weights of averages and of
linear resizing are products as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.autodiff.program import View
from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import Sets, union

# A relation along one dimension: positions before and after the forward operation, and weights.
Pairs = tuple[np.ndarray, np.ndarray, Any]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average(call: Call) -> Any:
    """The mean of each window."""
    source = call.named["self"]
    return _forward(source.sets, _averages(call, source.shape, call.shapes[0]), call.shapes[0])


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def average_backward(call: Call) -> Any:
    """The gradient of each mean goes to its window."""
    grad, source = call.named["grad_output"], call.named["self"]
    if grad.sets is None:
        return NotImplemented
    return _backward(grad.sets, _averages(call, source.shape, grad.shape), source.shape)


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
      "adaptive_avg_pool3d", "mkldnn_adaptive_avg_pool2d")  # fmt: skip
def adaptive_average(call: Call) -> Any:
    """The mean of each of so many windows."""
    source, shape = call.args[0], call.shapes[0]
    spatial = len(call.named["output_size"])
    return _forward(source.sets, _adaptive(source.shape, shape, spatial, averaged=True), shape)


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "mkldnn_adaptive_avg_pool2d_backward")
def adaptive_average_backward(call: Call) -> Any:
    """The gradient of each mean goes to its window."""
    grad, source = call.args[:2]
    if grad.sets is None:
        return NotImplemented
    spatial = _spatial(call)
    return _backward(grad.sets, _adaptive(source.shape, grad.shape, spatial, averaged=True), source.shape)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
      "quantized_max_pool2d", "mkldnn_max_pool2d", "mkldnn_max_pool3d")  # fmt: skip
def largest(call: Call) -> Any:
    """The maximum of each window."""
    source, shape = call.args[0], call.shapes[0]
    pairs = _windows(call, source.shape, shape)
    return [_forward(source.sets.scaled(None), pairs, shape), *(None for _ in call.shapes[1:])]


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward",
      "adaptive_max_pool3d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward")  # fmt: skip
def largest_backward(call: Call) -> Any:
    """The gradient of each maximum goes to where it was found: somewhere in its window, if that is not known."""
    named = call.named
    grad, source, indices = named["grad_output"], named["self"], named["indices"]
    if grad.sets is None:
        return NotImplemented
    spatial = _spatial(call)
    if indices.value is not None:
        return grad.sets.accumulate(_places(indices.value.cpu(), source.shape, spatial), source.shape)
    found = grad.sets.scaled(None)
    if "fractional" in call.op._schema.name:
        return found.reduce(range(grad.ndim - spatial, grad.ndim), keepdim=True).expand(source.shape)
    if "adaptive" in call.op._schema.name:
        return _backward(found, _adaptive(source.shape, grad.shape, spatial, averaged=False), source.shape)
    return _backward(found, _windows(call, source.shape, grad.shape), source.shape)


@rule("max_unpool2d", "max_unpool3d")
def unpool(call: Call) -> Any:
    """Elements are put where indices say, others are zero."""
    source, indices = call.args[:2]
    spatial = _spatial(call)
    shape = call.shapes[0]
    if indices.value is not None:
        return source.sets.scaled(None).accumulate(_places(indices.value.cpu(), shape, spatial), shape)
    return source.sets.scaled(None).reduce(range(source.ndim - spatial, source.ndim), keepdim=True).expand(shape)


_RESIZES = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)  # fmt: skip


@rule(*_RESIZES)
def resize(call: Call) -> Any:
    """Each element is a mean of elements near its place."""
    named = call.named
    source = named[_first(named, "self", "input")]
    shape = call.shapes[0]
    if named.get("scale_factors") is not None:
        factors = [float(each) for each in named["scale_factors"]]
        named = {**named, **dict(zip(_scales(len(shape) - 2), factors, strict=True))}
    pairs = _resized(call, named, source, source.shape, shape)
    return NotImplemented if pairs is None else _forward(source.sets, pairs, shape)


@rule(*(f"{name}_backward" for name in _RESIZES))
def resize_backward(call: Call) -> Any:
    """The gradient of each mean goes to the elements near its place."""
    named = call.named
    grad = named["grad_output"]
    shape = call.shapes[0]
    pairs = _resized(call, named, grad, shape, grad.shape)
    return NotImplemented if pairs is None else _backward(grad.sets, pairs, shape)


_PADS = (
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d",
)  # fmt: skip


@rule(*_PADS)
def pad(call: Call) -> Any:
    """Elements at the edges occur again."""
    source = call.args[0]
    return _forward(source.sets, _padded(call, source.shape), call.shapes[0])


@rule(*(f"{name}_backward" for name in _PADS))
def pad_backward(call: Call) -> Any:
    """Each element is the sum of the gradients of its copies."""
    grad, source = call.args[:2]
    if grad.sets is None:
        return NotImplemented
    return _backward(grad.sets, _padded(call, source.shape), source.shape)


@rule("im2col")
def im2col(call: Call) -> Any:
    """Windows side by side."""
    source = call.args[0]
    where = _columns(source.shape, *call.args[1:])
    shape = call.shapes[0]
    flat = source.sets.move(lambda part: part.reshape(*shape[:-2], -1, source.shape[-2] * source.shape[-1]))
    taken = flat.move(lambda part: torch.nn.functional.pad(part, (1, 0))[..., where])
    return taken.move(lambda part: part.reshape(shape))


@rule("col2im")
def col2im(call: Call) -> Any:
    """Windows are added up where they overlap."""
    source, _, *window = call.args
    shape = call.shapes[0]
    where = _columns(shape, *window)
    channels = shape[-3]
    batch = shape[:-3]
    flat = source.sets.move(lambda part: part.reshape(*batch, channels, where.numel()))
    places = where.reshape(-1).numpy()
    used = np.flatnonzero(places)
    area = shape[-1] * shape[-2]
    return flat.relate(-1, places[used] - 1, used, area, 1.0).move(lambda part: part.reshape(shape))


@rule("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sampler(call: Call) -> Any:
    """Elements at places that a grid says, from anywhere in their channel."""
    source, grid = call.args[:2]
    shape = call.shapes[0]
    parts = []
    if source.sets is not None:
        parts.append(source.sets.scaled(None).reduce(range(2, source.ndim), keepdim=True).expand(shape))
    if grid.sets is not None:
        places = grid.sets.scaled(None).reduce((-1,), keepdim=False)
        parts.append(places.move(lambda part: part.unsqueeze(1)).expand(shape))
    return union(shape, parts)


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward", "cudnn_grid_sampler_backward")
def grid_sampler_backward(call: Call) -> Any:
    """An image's gradient from all of its channel, a grid's from its place in all channels."""
    grad, source, grid = (call.named[name] for name in ("grad_output", _first(call.named, "input", "self"), "grid"))
    if grad.sets is None or len(call.seeded) > 1:
        return NotImplemented
    found = grad.sets.scaled(None)
    image = found.reduce(range(2, grad.ndim), keepdim=True).expand(source.shape)
    places = found.reduce((1,), keepdim=False).move(lambda part: part.unsqueeze(-1)).expand(grid.shape)
    made = [place for place, out in enumerate(call.step.outs) if isinstance(out, View)]
    return [(image, places)[place] for place in made]


def _forward(sets: Sets, pairs: Sequence[Pairs], shape: tuple[int, ...]) -> Sets:
    """From before to after, along the last dimensions."""
    for place, (before, after, weight) in enumerate(pairs):
        dim = len(shape) - len(pairs) + place
        sets = sets.relate(dim, after, before, shape[dim], weight)
    return sets.expand(shape)


def _backward(sets: Sets, pairs: Sequence[Pairs], shape: tuple[int, ...]) -> Sets:
    """From after to before, along the last dimensions."""
    for place, (before, after, weight) in enumerate(pairs):
        dim = len(shape) - len(pairs) + place
        sets = sets.relate(dim, before, after, shape[dim], weight)
    return sets.expand(shape)


def _averages(call: Call, before: tuple[int, ...], after: tuple[int, ...]) -> list[Pairs]:
    named, spatial = call.named, _spatial(call)
    sizes, steps, pads = (_each(named[name], spatial) for name in ("kernel_size", "stride", "padding"))
    steps = steps or sizes
    divisor = named.get("divisor_override")
    pairs = []
    for place in range(spatial):
        length, count = before[len(before) - spatial + place], after[len(after) - spatial + place]
        starts = np.arange(count) * steps[place] - pads[place]
        stops = np.minimum(starts + sizes[place], length + pads[place])
        inside_starts, inside_stops = np.maximum(starts, 0), np.minimum(stops, length)
        shares = stops - starts if named.get("count_include_pad", True) else inside_stops - inside_starts
        if divisor is not None:
            shares = np.full(count, float(divisor) if place == 0 else 1.0)
        pairs.append(_intervals(inside_starts, inside_stops, shares))
    return pairs


def _adaptive(before: tuple[int, ...], after: tuple[int, ...], spatial: int, *, averaged: bool) -> list[Pairs]:
    pairs = []
    for place in range(-spatial, 0):
        length, count = before[place], after[place]
        index = np.arange(count)
        starts = index * length // max(count, 1)
        stops = -((-(index + 1) * length) // max(count, 1))
        pairs.append(_intervals(starts, stops, stops - starts if averaged else None))
    return pairs


def _windows(call: Call, before: tuple[int, ...], after: tuple[int, ...]) -> list[Pairs]:
    named, spatial = call.named, _spatial(call)
    sizes, steps, pads, spreads = (
        _each(named[name], spatial) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    steps = steps or sizes
    pairs: list[Pairs] = []
    for place in range(spatial):
        length, count = before[len(before) - spatial + place], after[len(after) - spatial + place]
        window, tap = (part.reshape(-1) for part in np.indices((count, sizes[place])))
        position = window * steps[place] - pads[place] + tap * spreads[place]
        inside = (position >= 0) & (position < length)
        pairs.append((position[inside], window[inside], None))
    return pairs


def _resized(
    call: Call, named: dict[str, Any], operand: Operand, before: tuple[int, ...], after: tuple[int, ...]
) -> list[Pairs] | None:
    """What one dimension of resizing does, measured on unit vectors of that dimension alone.

    A coefficient may round to zero in one dtype and not in another: in double precision or in the operand's own, it is
    one that is not zero.
    """
    name = call.op._schema.name.removeprefix("aten::").removesuffix("_backward")
    spatial = len(after) - 2
    if "_aa" in name and 1 in (*before[2:], *after[2:]):
        # torch itself mixes up the dimensions of an image one element wide.
        return None
    corners = () if "nearest" in name else (bool(named["align_corners"]),)
    own = torch.float64 if operand.dtype == torch.float64 else torch.float32
    pairs: list[Pairs] = []
    for place, scale in enumerate(_scales(spatial)):
        length, count = before[place + 2], after[place + 2]
        factor = named.get(scale, named.get("scales"))
        found = [_resize_alone(name, length, count, dtype, corners, factor).numpy() for dtype in {own, torch.float64}]
        old, new = np.logical_or.reduce([each != 0 for each in found]).nonzero()
        weights = _resize_alone(name, length, count, own, corners, factor).numpy()
        pairs.append((old, new, weights[old, new].astype(np.float64)))
    return pairs


def _resize_alone(
    name: str, length: int, count: int, dtype: torch.dtype, corners: tuple[bool, ...], factor: float | None
) -> Tensor:
    """The matrix of resizing one dimension: positions before by positions after."""
    units = torch.eye(length, dtype=dtype).unsqueeze(0)
    aten: Any = torch.ops.aten
    found: Tensor
    if "nearest" in name:
        one = aten._upsample_nearest_exact1d if "exact" in name else aten.upsample_nearest1d
        found = one(units, [count], factor)
    elif "linear" in name and "_aa" not in name:
        found = aten.upsample_linear1d(units, [count], *corners, factor)
    else:
        found = getattr(aten, name)(units.unsqueeze(2), [1, count], *corners, None, factor)[:, :, 0]
    return found[0]


def _padded(call: Call, before: tuple[int, ...]) -> list[Pairs]:
    named = call.named
    sides = list(named["padding"])
    spatial = len(sides) // 2
    reflects = "reflection" in call.op._schema.name
    pairs: list[Pairs] = []
    for place in range(spatial):
        left, right = sides[2 * (spatial - 1 - place) : 2 * (spatial - place)]
        length = before[len(before) - spatial + place]
        position = np.arange(-left, length + right)
        if reflects:
            position = np.abs(position)
            position = np.where(position >= length, 2 * (length - 1) - position, position)
        pairs.append((np.clip(position, 0, length - 1), np.arange(len(position)), 1.0))
    return pairs


def _columns(shape: tuple[int, ...], kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """For each place in the windows of one channel: 1 + the position it shows; 0 in the padding."""
    area = shape[-1] * shape[-2]
    image = torch.arange(1, area + 1, dtype=torch.float64).reshape(1, 1, *shape[-2:])
    return torch.nn.functional.unfold(image, kernel, dilation, padding, stride)[0].to(torch.int64)


def _intervals(starts: np.ndarray, stops: np.ndarray, shares: np.ndarray | None) -> Pairs:
    counts = np.maximum(stops - starts, 0)
    after = np.repeat(np.arange(len(starts)), counts)
    before = np.arange(len(after)) - np.repeat(np.cumsum(counts) - counts, counts) + starts[after]
    return before, after, None if shares is None else 1.0 / shares[after]


def _places(indices: Tensor, shape: tuple[int, ...], spatial: int) -> Tensor:
    """Flat positions of indices that count within a channel."""
    area = math.prod(shape[len(shape) - spatial :])
    channels = math.prod(shape[: len(shape) - spatial])
    starts = torch.arange(channels).reshape(*shape[: len(shape) - spatial], *(1,) * spatial) * area
    return indices + starts


def _spatial(call: Call) -> int:
    """The number of spatial dimensions, which an operation has in its name."""
    return next(count for count in (1, 2, 3) if f"{count}d" in call.op._schema.name)


def _scales(spatial: int) -> tuple[str, ...]:
    return ("scales",) if spatial == 1 else ("scales_d", "scales_h", "scales_w")[3 - spatial :]


def _each(value: Any, count: int) -> list[int]:
    values = _list(value)
    return values * count if len(values) == 1 else values


def _list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value or ())


def _first(named: dict[str, Any], *names: str) -> str:
    return next(name for name in names if name in named)
