"""Gathers and scatters: elements are moved to and from places that index tensors name.

Where an element goes is found by running the gather of the same indices on the positions themselves. An index that is
not known may be any along its dimension: all elements along it then depend on one another, and the other dimensions
stay exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import Sets, union

MASKS = (torch.bool, torch.uint8)


@rule("index", "_unsafe_index")
def index(call: Call) -> Any:
    """A gather by index tensors and masks."""
    source, indices = call.args[:2]
    if source.sets is None:
        return NotImplemented
    picks = _known(indices, source.ndim)
    if picks is None:
        return NotImplemented
    known, unknown = picks
    found = source.sets
    if unknown:
        found = found.scaled(None).reduce(unknown, keepdim=True)
    core = found.core(keep=[dim for dim, each in enumerate(known) if each is not None])
    return core.move(lambda part: part[_key(known)]).expand(call.shapes[0])


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(call: Call) -> Any:
    """Values are written to, or added at, the places that indices name."""
    target, indices, values = call.args[:3]
    accumulate = bool(call.argument(3, "accumulate", False))
    picks = _known(indices, target.ndim)
    if picks is None:
        return NotImplemented
    known, unknown = picks
    shape = tuple(1 if dim in unknown else size for dim, size in enumerate(target.shape))
    places = _positions(shape)[_key(known)]
    parts = []
    if target.sets is not None:
        parts.append(_beside(target.sets, shape, places, accumulate, bool(unknown)))
    if values.sets is not None:
        if values.ndim > places.ndim:
            return NotImplemented
        found = values.sets.expand(tuple(places.shape))
        parts.append(_placed(found, places, shape, accumulate, bool(unknown)).expand(target.shape))
    return union(target.shape, parts)


@rule("gather")
def gather(call: Call) -> Any:
    """Elements along one dimension, chosen for each place."""
    source, dim, where = call.args[:3]
    if source.sets is None:
        return NotImplemented
    if not source.ndim or not where.ndim:
        return source.sets.move(lambda part: part.reshape(())).expand(call.shapes[0])
    if where.value is not None:
        chosen = where.value.cpu()
        return source.sets.move(lambda part: part.gather(dim, chosen))
    found = source.sets.scaled(None).reduce((dim,), keepdim=True)
    dim %= source.ndim
    cut = tuple(slice(1 if axis == dim else size) for axis, size in enumerate(where.shape))
    return found.move(lambda part: part[cut]).expand(where.shape)


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(call: Call) -> Any:
    """Elements are written to, or added at, places along one dimension."""
    named = call.named
    target, dim, where = named["self"], named["dim"], named["index"]
    source: Any = named.get("src", named.get("value"))
    name = call.op._schema.name.removeprefix("aten::").rstrip("_")
    reduction = named.get("reduce") or ("sum" if name == "scatter_add" else None)
    adds = reduction in {"sum", "add"}
    moved = isinstance(source, Operand) and source.sets is not None and source.ndim == target.ndim
    if isinstance(source, Operand) and source.sets is not None and not moved:
        return NotImplemented
    if not target.ndim:
        if where.numel != 1 or (reduction is not None and not adds):
            return NotImplemented
        kept_too = target.sets is not None and adds and named.get("include_self", True)
        return union((), [*([target.sets] if kept_too else []), *([source.sets] if moved else [])])
    dim %= target.ndim
    shape = target.shape
    if where.value is not None:
        places = _positions(shape).gather(dim, where.value.cpu())
    else:
        shape = tuple(1 if axis == dim else size for axis, size in enumerate(shape))
        places = _positions(shape)[tuple(slice(size) for size in where.shape)].expand(where.shape)
    unknown = where.value is None
    kept = reduction is not None and named.get("include_self", True)
    parts = []
    if target.sets is not None:
        found = _beside(target.sets, shape, places, kept, unknown)
        parts.append(found if adds or reduction is None else found.scaled(None))
    if moved:
        found = source.sets.move(lambda part: part[tuple(slice(size) for size in where.shape)])
        inexact = unknown or (reduction is not None and not adds)
        parts.append(_placed(found, places, shape, adds, inexact).expand(target.shape))
    return union(target.shape, parts)


@rule("index_select")
def index_select(call: Call) -> Any:
    """Slices along one dimension."""
    source, dim, where = call.args[:3]
    if source.sets is None:
        return NotImplemented
    if not source.ndim:
        return source.sets.expand(call.shapes[0])
    if where.value is None:
        return source.sets.scaled(None).reduce((dim,), keepdim=True).expand(call.shapes[0])
    chosen = where.value.cpu().reshape(-1)
    core = source.sets.core(keep=(dim % source.ndim,))
    return core.move(lambda part: part.index_select(dim, chosen)).expand(call.shapes[0])


@rule("index_add", "index_copy", "index_reduce", "index_fill")
def index_along(call: Call) -> Any:
    """Slices are added to, written over or combined with those at some places along one dimension."""
    named = call.named
    target, dim, where = named["self"], named["dim"], named["index"]
    source = named.get("source", named.get("value"))
    name = call.op._schema.name.removeprefix("aten::").rstrip("_")
    if not target.ndim:
        return NotImplemented
    dim %= target.ndim
    size = target.shape[dim]
    kept = name == "index_add" or (name == "index_reduce" and named["include_self"])
    chosen = None if where.value is None else where.value.cpu().reshape(-1).numpy().astype(np.int64)
    if chosen is not None:
        chosen = np.where(chosen < 0, chosen + size, chosen)
    exact = chosen is not None and name != "index_reduce"
    parts = []
    if target.sets is not None:
        found = target.sets
        if not kept and chosen is not None:
            hit = torch.zeros(size, dtype=torch.bool)
            hit[torch.from_numpy(chosen)] = True
            found = found.only(~hit.reshape(*(1,) * dim, size, *(1,) * (target.ndim - dim - 1)))
        parts.append(found if (exact or name == "index_add") else found.scaled(None))
    if isinstance(source, Operand) and source.sets is not None:
        found = source.sets
        if name == "index_fill" or not source.ndim:
            sizes = list(target.shape)
            sizes[dim] = where.numel
            found = found.expand(tuple(sizes))
        if chosen is None:
            parts.append(found.scaled(None).reduce((dim,), keepdim=True).expand(target.shape))
        else:
            weight: Any = named.get("alpha", 1) if exact else None
            repeated = len(np.unique(chosen)) != len(chosen)
            if not isinstance(weight, int | float) or (name == "index_copy" and repeated):
                weight = None
            if name == "index_fill":
                chosen, weight = np.unique(chosen), 1.0
            parts.append(found.relate(dim, chosen, np.arange(len(chosen)), size, weight))
    return union(target.shape, parts)


@rule("take")
def take(call: Call) -> Any:
    """Elements of the flat tensor."""
    source, where = call.args[:2]
    if source.sets is None:
        return NotImplemented
    if where.value is None:
        return source.sets.scaled(None).reduce(range(source.ndim), keepdim=False).expand(call.shapes[0])
    chosen = where.value.cpu()
    return source.sets.move(lambda part: part.reshape(-1)[chosen])


@rule("put")
def put(call: Call) -> Any:
    """Elements are written to, or added at, places of the flat tensor."""
    target, where, values = call.args[:3]
    accumulate = bool(call.argument(3, "accumulate", False))
    parts = []
    unknown = where.value is None
    shape = (1,) * target.ndim if unknown else target.shape
    places = torch.zeros(where.shape, dtype=torch.int64) if unknown else where.value.cpu() % max(target.numel, 1)
    if target.sets is not None:
        parts.append(_beside(target.sets, shape, places, accumulate, unknown))
    if values.sets is not None:
        found = values.sets.move(lambda part: part.reshape(where.shape))
        parts.append(_placed(found, places, shape, accumulate, unknown).expand(target.shape))
    return union(target.shape, parts)


@rule("masked_select")
def masked_select(call: Call) -> Any:
    """The elements under a mask, one after the other."""
    source, mask = call.args[:2]
    if source.sets is None:
        return NotImplemented
    if mask.value is None:
        return source.sets.scaled(None).reduce(range(source.ndim), keepdim=False).expand(call.shapes[0])
    shape = tuple(np.broadcast_shapes(source.shape, mask.shape))
    chosen = mask.value.cpu().expand(shape)
    return source.sets.expand(shape).move(lambda part: part[chosen])


@rule("masked_scatter")
def masked_scatter(call: Call) -> Any:
    """The elements under a mask are overwritten, one after the other, by those of another tensor."""
    target, mask, source = call.args[:3]
    shape = call.shapes[0]
    parts = []
    chosen = None if mask.value is None else mask.value.cpu().expand(shape)
    if target.sets is not None:
        found = target.sets.expand(shape)
        parts.append(found.scaled(None) if chosen is None else found.only(~chosen))
    if source.sets is not None:
        if chosen is None:
            parts.append(source.sets.scaled(None).reduce(range(source.ndim), keepdim=False).expand(shape))
        else:
            count = int(chosen.sum())
            places = chosen.reshape(-1).nonzero().flatten()
            first = source.sets.move(lambda part: part.reshape(-1)[:count])
            parts.append(first.accumulate(places, shape))
    return union(shape, parts)


@rule("masked_scatter_backward")
def masked_scatter_backward(call: Call) -> Any:
    """The elements under a mask come first, zeros fill up."""
    grad, mask = call.args[:2]
    shape = call.shapes[0]
    assert grad.sets is not None
    if mask.value is None:
        return grad.sets.scaled(None).reduce(range(grad.ndim), keepdim=False).expand(shape)
    picked = grad.sets.move(lambda part: part[mask.value.cpu().expand(grad.shape)])
    return picked.accumulate(torch.arange(picked.numel), shape)


@rule("embedding")
def embedding(call: Call) -> Any:
    """Rows of a matrix."""
    weight, where = call.args[:2]
    if weight.sets is None:
        return NotImplemented
    if where.value is None:
        return weight.sets.scaled(None).reduce((0,), keepdim=False).expand(call.shapes[0])
    chosen = where.value.cpu()
    core = weight.sets.core(keep=(0,))
    return core.move(lambda part: part[chosen]).expand(call.shapes[0])


@rule("embedding_dense_backward")
def embedding_dense_backward(call: Call) -> Any:
    """Each row of the matrix is the sum of the gradients of where it was used."""
    grad, where, count, padding, by_frequency = call.args[:5]
    if grad.sets is None:
        return NotImplemented
    width = grad.shape[-1]
    rows = grad.sets.move(lambda part: part.reshape(where.numel, width))
    if where.value is None:
        return rows.scaled(None).reduce((0,), keepdim=True).expand(call.shapes[0])
    chosen = where.value.cpu().reshape(-1).numpy()
    used = np.flatnonzero(chosen != padding) if padding >= 0 else np.arange(len(chosen))
    return rows.relate(0, chosen[used], used, count, None if by_frequency else 1.0)


@rule("unfold_backward")
def unfold_backward(call: Call) -> Any:
    """The windows along a dimension are added back to where they were taken from."""
    grad, sizes, dim, size, step = call.args[:5]
    if grad.sets is None:
        return NotImplemented
    dim = dim % max(len(sizes), 1)
    if not sizes:
        return grad.sets.reduce(range(grad.ndim), keepdim=False)
    target = torch.arange(sizes[dim]).unfold(0, size, step).reshape(-1).numpy()
    moved = grad.sets.move(lambda part: part.movedim(-1, dim + 1).flatten(dim, dim + 1))
    return moved.relate(dim, target, np.arange(len(target)), sizes[dim], 1.0)


def _known(indices: Any, ndim: int) -> tuple[list[Tensor | None], set[int]] | None:
    """Indices without masks, one for each dimension; with zeros for those that are not known, and their dimensions.

    None where a mask is not known.
    """
    known: list[Tensor | None] = []
    unknown: set[int] = set()
    for each in indices:
        if each is None:
            known.append(None)
        elif each.dtype in MASKS:
            if each.value is None:
                return None
            known.extend(each.value.cpu().bool().nonzero(as_tuple=True))
        elif each.value is None:
            unknown.add(len(known))
            known.append(torch.zeros(each.shape, dtype=torch.int64))
        else:
            known.append(each.value.cpu())
    return known + [None] * (ndim - len(known)), unknown


def _key(known: list[Tensor | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if each is None else each for each in known)


def _positions(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)


def _beside(sets: Sets, shape: tuple[int, ...], places: Tensor, kept: bool, unknown: bool) -> Sets:
    """What was there before, without what is overwritten."""
    if kept:
        return sets
    if unknown:
        return sets.scaled(None)
    hit = torch.zeros(int(np.prod(shape, dtype=np.int64)), dtype=torch.bool)
    hit[places.reshape(-1)] = True
    return sets.only(~hit.reshape(shape))


def _placed(sets: Sets, places: Tensor, shape: tuple[int, ...], adds: bool, inexact: bool) -> Sets:
    """Elements put to their places; one that is written several times depends on all that were."""
    overwritten = not adds and not inexact and bool((torch.bincount(places.reshape(-1), minlength=1) > 1).any())
    found = sets.scaled(None) if inexact or overwritten else sets
    one = _shared_tail(found, places, shape)
    return found.accumulate(places, shape) if one is None else one


def _shared_tail(sets: Sets, places: Tensor, shape: tuple[int, ...]) -> Sets | None:
    """The same, where the last dimension is moved as a whole and its elements are all the same."""
    width = shape[-1] if shape else 1
    last = places.ndim - 1
    if width < 2 or not places.numel() or places.shape[-1] != width or last not in sets.copied():
        return None
    first = places[..., :1]
    if not bool((first % width == 0).all()) or not torch.equal(places, first + torch.arange(width)):
        return None
    one = sets.move(lambda part: part.narrow(last, 0, 1))
    return one.accumulate(first // width, (*shape[:-1], 1)).expand(shape)
