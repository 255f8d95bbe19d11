"""Rows: a parameter's Jacobian written from its terms, straight into the matrix that is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.outer.contraction import Place
from pullback.outer.terms import Parameter, Term

# Rows that are used up at once are made in parts of this size, which stay in the caches.
PART = 32 * 2**20

ALL = slice(None)


def write_rows(parameter: Parameter, matrix: Tensor, examples: slice = ALL, outputs: slice = ALL) -> None:
    """Write the rows of some examples and output elements into a matrix: every entry of it.

    Args:
        parameter: What the rows are of.
        matrix: ``(examples * outputs, size)``; its rows may lie apart.
        examples: Which examples.
        outputs: Which output elements of each.
    """
    same = (matrix.dtype, matrix.device, matrix.stride(1)) == (parameter.dtype, parameter.device, 1)
    if same and all(_is_direct(term) for term in parameter.terms):
        _write(parameter, matrix, examples, outputs)
        return
    width = len(range(parameter.outputs)[outputs])
    start = 0
    for some in example_parts(parameter, width, examples):
        exact = rows(parameter, some, outputs)
        matrix[start : start + len(exact)] = exact.to(matrix.device)
        start += len(exact)


def rows(parameter: Parameter, examples: slice = ALL, outputs: slice = ALL) -> Tensor:
    """The rows of some examples and output elements, in the dtype of the products."""
    height = len(range(parameter.examples)[examples]) * len(range(parameter.outputs)[outputs])
    matrix = torch.empty((height, parameter.size), dtype=parameter.dtype, device=parameter.device)
    _write(parameter, matrix, examples, outputs)
    return matrix


def example_parts(parameter: Parameter, outputs: int, examples: slice = ALL, most: int = PART) -> Iterator[slice]:
    """The examples in parts whose rows take no more than so many bytes, at least one at a time."""
    each = max(outputs * parameter.size * parameter.dtype.itemsize, 1)
    count = max(most // each, 1)
    chosen = range(parameter.examples)[examples]
    for start in range(chosen.start, chosen.stop, count):
        yield slice(start, min(start + count, chosen.stop))


def _write(parameter: Parameter, matrix: Tensor, examples: slice, outputs: slice) -> None:
    fresh = True
    for term in sorted(parameter.terms, key=lambda term: term.is_lookup):
        if fresh and (term.is_lookup or term.place.numel != parameter.size):
            matrix.zero_()
            fresh = False
        _put(term, matrix, examples, outputs, fresh=fresh)
        fresh = False
    if fresh:
        matrix.zero_()


def _is_direct(term: Term) -> bool:
    """Whether a term's products can be written where they stand."""
    return term.place.index is None and term.mask is None


def _put(term: Term, matrix: Tensor, examples: slice, outputs: slice, *, fresh: bool) -> None:
    """Write a term's products into a matrix, or add them to it."""
    g = term.g[examples, outputs]
    height, width = g.shape[:2]
    if not _is_direct(term):
        product = _products(term, g, examples)
        add_at(matrix.zero_() if fresh else matrix, term.place, product.flatten(0, 1))
        return
    apart, place = matrix.stride(0), term.place
    target = matrix.as_strided(
        (height, width, *place.sizes), (width * apart, apart, *place.steps), matrix.storage_offset() + place.offset
    )
    if term.is_lookup:
        assert term.a is not None
        _look_up(target[:, :, 0], term.a[examples], g[:, :, :, 0])
    elif term.a is not None and term.steps == 1:
        left, right = term.a[examples, :, :, :, None], g[:, :, 0, :, None, :]
        torch.mul(left, right, out=target) if fresh else target.addcmul_(left, right)
    elif term.a is not None and place.sizes[0] == 1:
        merged = matrix.as_strided(
            (height * width, *place.sizes[1:]), (apart, *place.steps[1:]), matrix.storage_offset() + place.offset
        )
        a = term.a[examples, None, :, 0]
        left = a.expand(-1, width, -1, -1).reshape(height * width, term.steps, place.sizes[1]).mT
        right = g[:, :, :, 0].reshape(height * width, term.steps, place.sizes[2])
        torch.bmm(left, right, out=merged) if fresh else merged.baddbmm_(left, right)
    else:
        product = _products(term, g, examples)
        target.copy_(product) if fresh else target.add_(product)


def _products(term: Term, g: Tensor, examples: slice) -> Tensor:
    """The elements of some rows by one term, ``(b, o, H, I, J)``."""
    if term.a is None:
        found = g[:, :, 0, :, None, :]
    elif term.is_lookup:
        found = torch.zeros((*g.shape[:2], *term.place.sizes), dtype=g.dtype, device=g.device)
        _look_up(found[:, :, 0], term.a[examples], g[:, :, :, 0])
    else:
        found = torch.einsum("bthi,bothj->bohij", term.a[examples], g)
    return found if term.mask is None else found * term.mask


def add_at(matrix: Tensor, place: Place, values: Tensor) -> None:
    """Add ``(rows, H, I, J)`` to the places of these elements in a matrix ``(rows, size)``."""
    if place.index is not None:
        matrix.index_add_(1, place.index.flatten().to(matrix.device), values.flatten(1))
        return
    shape, apart = (len(matrix), *place.sizes), (matrix.stride(0), *place.steps)
    matrix.as_strided(shape, apart, matrix.storage_offset() + place.offset).add_(values)


def _look_up(target: Tensor, index: Tensor, g: Tensor) -> None:
    """Add ``g[b, o, t]`` to row ``index[b, t]`` of ``target[b, o]``."""
    height, width = g.shape[:2]
    example = torch.arange(height, device=g.device)[:, None, None]
    output = torch.arange(width, device=g.device)[None, :, None]
    target.index_put_((example, output, index[:, None, :]), g, accumulate=True)
