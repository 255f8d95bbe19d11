"""Sets: for every element of a tensor, which elements of the seed it depends on.

A tensor's dependencies are the union of a few *terms*. A term sends each element to one row of a matrix over a *root*
(the seed, or a tensor inside the program), or to none. Moving elements moves the terms' labels, which is done by
running the operation itself on them; nothing is expanded before a reduction or the end asks for it.

Where all coefficients on the way are constants, a term also knows its weight: then it is not only a pattern but a part
of the matrix itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

# Above so many terms a union is merged into one matrix.
MOST_TERMS = 24
# Sums of so few elements along a dimension are unions of terms; longer ones are matrices.
SHORT = 4
# A relation of more pairs than this is taken for one of all with all.
MOST_ENTRIES = 2**28
# A pattern of more entries than this is as good as dense.
MOST_LISTED = 2 * 10**8

Weight = float | Tensor | None


@dataclass(frozen=True, eq=False)
class Root:
    """A space that dependencies are counted in: the seed, or a tensor inside the program.

    Attributes:
        name: What it is.
        size: Its number of elements.
    """

    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Term:
    """Each element depends on one row of a matrix over a root.

    Attributes:
        root: The root.
        labels: int32, in the tensor's shape: 1 + the row; 0 where the element does not depend on anything.
        rows: The matrix, ``(rows, root.size)``; None for the identity.
        weight: What the row is multiplied by: one number, or one for each element; None where it is not constant.
    """

    root: Root
    labels: Tensor
    rows: sp.csr_matrix | None = None
    weight: Weight = None

    def map(self, move: Callable[[Tensor], Tensor]) -> Term:
        """The term after its elements were moved."""
        weight = move(self.weight) if isinstance(self.weight, Tensor) else self.weight
        return replace(self, labels=move(self.labels), weight=weight)

    def unweighted(self) -> Term:
        """The same dependencies by a factor that is not constant."""
        return self if self.weight is None else replace(self, weight=None)

    def same_as(self, other: Term) -> bool:
        """Whether two terms have the same root, rows and labels."""
        if self.root is not other.root or self.rows is not other.rows:
            return False
        a, b = self.labels, other.labels
        if a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()):
            return True
        for dim in range(a.ndim):
            if a.stride(dim) == 0 and b.stride(dim) == 0 and a.shape[dim]:
                a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
        few = tuple(slice(None, None, max(size // 3, 1)) for size in a.shape)
        return bool(torch.equal(a[few], b[few])) and bool(torch.equal(a, b))


@dataclass(frozen=True, eq=False)
class Sets:
    """The dependencies of a tensor.

    Attributes:
        shape: The tensor's shape.
        terms: Their union.
    """

    shape: tuple[int, ...]
    terms: tuple[Term, ...]

    @classmethod
    def identity(cls, shape: tuple[int, ...], root: Root, start: int = 0) -> Sets:
        """Each element is the root's element of its own position, from ``start`` on."""
        count = int(np.prod(shape, dtype=np.int64))
        labels = torch.arange(start + 1, start + count + 1, dtype=torch.int32).reshape(shape)
        return cls(shape, (Term(root, labels, weight=1.0),))

    @classmethod
    def everything(cls, shape: tuple[int, ...], parts: Iterable[Sets]) -> Sets:
        """Each element depends on all that any element of the parts depends on."""
        terms = []
        for part in parts:
            whole = part.reduce(range(len(part.shape)), keepdim=False)
            for term in whole.terms:
                one = term.labels.reshape(())
                terms.append(replace(term, labels=one.expand(shape), weight=None))
        return cls(shape, tuple(terms))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def move(self, operation: Callable[[Tensor], Tensor]) -> Sets:
        """The elements moved by an operation, which is run on the labels (and must fill with zeros)."""
        terms = tuple(term.map(operation) for term in self.terms)
        shape = tuple(terms[0].labels.shape) if terms else tuple(operation(torch.zeros(self.shape)).shape)
        return Sets(shape, terms)

    def expand(self, shape: tuple[int, ...]) -> Sets:
        """Broadcast to a shape."""
        return self if shape == self.shape else Sets(shape, self.move(lambda part: part.expand(shape)).terms)

    def scaled(self, factor: float | Tensor | None) -> Sets:
        """Multiplied by a constant (a number, or one for each element); None: by something that is not constant."""
        return Sets(self.shape, tuple(replace(term, weight=_times(term.weight, factor)) for term in self.terms))

    def only(self, keep: Tensor) -> Sets:
        """Without the dependencies of the elements where a mask is False."""
        mask = keep.expand(self.shape)
        terms = (replace(term, labels=term.labels * mask) for term in self.terms)
        return Sets(self.shape, tuple(term for term in terms if bool(term.labels.any())))

    def accumulate(self, target: Tensor, shape: tuple[int, ...], factor: float = 1.0) -> Sets:
        """Add every element into one place of a new tensor.

        Args:
            target: For every element (broadcast to this shape) its flat position in the new tensor; -1 for none.
            shape: The new tensor's shape.
            factor: What every element is multiplied by.
        """
        flat = target.expand(self.shape).reshape(-1)
        size = int(np.prod(shape, dtype=np.int64))
        terms = []
        for term in self.terms:
            here = term if factor == 1.0 else replace(term, weight=_times(term.weight, factor))
            terms.append(_accumulate_term(here, flat, size, shape))
        return union(shape, [Sets(shape, tuple(terms))])

    def reduce(self, dims: Iterable[int], keepdim: bool, factor: float = 1.0) -> Sets:
        """The sum over some dimensions."""
        over = {dim % len(self.shape) for dim in dims} if self.shape else set()
        result = self
        for dim in sorted(over):
            result = result._without_copies(dim)
        if any(result.shape[dim] != 1 for dim in over):
            result = result._summed(over)
        if factor != 1.0:
            result = result.scaled(factor)
        if keepdim:
            return result
        dropped = tuple(size for dim, size in enumerate(self.shape) if dim not in over)
        return Sets(dropped, tuple(term.map(lambda part: part.reshape(dropped)) for term in result.terms))

    def copied(self) -> tuple[int, ...]:
        """The dimensions along which all elements are one and the same."""
        return tuple(
            dim
            for dim, size in enumerate(self.shape)
            if size != 1 and all(_is_copy(term.labels, dim) and _is_copy(term.weight, dim) for term in self.terms)
        )

    def core(self, keep: Iterable[int] = ()) -> Sets:
        """One of each element that occurs more often along a dimension; the dimensions to keep stay as they are."""
        kept = set(keep)
        result = self
        for dim in self.copied():
            if dim not in kept and self.shape[dim]:
                result = result.move(lambda part, dim=dim: part.narrow(dim, 0, 1))  # type: ignore[misc]
        return result

    def relate(self, dim: int, new: Any, old: Any, size: int, weight: Any = None) -> Sets:
        """Along one dimension: each new element is a sum of old ones.

        Args:
            dim: The dimension.
            new: For each pair the new position.
            old: For each pair the old position.
            size: The number of new positions.
            weight: The coefficient of each pair, or one for all; None where it is not constant.
        """
        dim %= len(self.shape)
        table, scale, degree = _table(np.asarray(new), np.asarray(old), size, weight)
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        source = self if weight is not None else self.scaled(None)
        if not table.shape[1] or not self.terms or not self.numel:
            return Sets(shape, ())
        if dim in source.copied() or self.shape[dim] == 1:
            found = source.move(lambda part: part.narrow(dim, 0, 1)).expand(shape)
            if not degree.all():
                found = found.only(_along(torch.from_numpy(degree > 0), dim, len(shape)))
            total = scale.sum(axis=1) if isinstance(scale, np.ndarray) else None if scale is None else scale * degree
            return found.scaled(
                None if total is None else _along(torch.from_numpy(total * 1.0), dim, len(shape)).expand(shape)
            )
        if weight is None and (table == table[:1]).all():
            chosen = torch.from_numpy(table[0])
            part = (
                source if len(chosen) == self.shape[dim] else source.move(lambda part: part.index_select(dim, chosen))
            )
            return part.reduce((dim,), keepdim=True).expand(shape)
        core = source.core(keep=(dim,))
        if core.numel // core.shape[dim] * table.size > MOST_ENTRIES:
            return source.reduce((dim,), keepdim=True).scaled(None).expand(shape)
        if len(core.terms) > 1 and table.shape[1] > 1 and len(core.terms) * table.shape[1] > MOST_TERMS:
            core = core.merged()
        if table.shape[1] > SHORT and len(core.terms) * table.shape[1] > MOST_TERMS:
            return core._taken(dim, table, scale).reduce((dim + 1,), keepdim=False).expand(shape)
        taps = core._taken(dim, table, scale)
        parts = [taps.move(lambda part, k=k: part.select(dim + 1, k)) for k in range(table.shape[1])]  # type: ignore[misc]
        return union(parts[0].shape, parts).expand(shape)

    def _taken(self, dim: int, table: np.ndarray, scale: Any) -> Sets:
        """The elements at the places of a table along a dimension, which becomes two; none where a place is -1."""
        index = torch.from_numpy(table)
        present = _along(index >= 0, dim, len(self.shape) + 1)
        picked = index.clamp(min=0).reshape(-1)
        shape = (*self.shape[:dim], *index.shape, *self.shape[dim + 1 :])
        found = self.move(lambda part: part.index_select(dim, picked).reshape(shape))
        if not bool((index >= 0).all()):
            found = Sets(found.shape, tuple(replace(term, labels=term.labels * present) for term in found.terms))
        if isinstance(scale, np.ndarray):
            return found.scaled(_along(torch.from_numpy(scale), dim, len(found.shape)).expand(found.shape))
        return found.scaled(scale) if scale != 1.0 else found

    def _summed(self, over: set[int]) -> Sets:
        """The sum over some dimensions, kept with size 1; one term for each root."""
        kept = tuple(1 if dim in over else size for dim, size in enumerate(self.shape))
        core = self.core(keep=over)
        shape = tuple(1 if dim in over else size for dim, size in enumerate(core.shape))
        order = [*(dim for dim in range(len(shape)) if dim not in over), *sorted(over)]
        count = int(np.prod(shape, dtype=np.int64))
        if not core.numel:
            return Sets(kept, ())

        def laid(part: Tensor) -> Tensor:
            return part.permute(order).reshape(count, core.numel // count)

        return _as_rows(core.terms, laid, shape).expand(kept)

    def _without_copies(self, dim: int) -> Sets:
        """The sum over a dimension along which all elements are one and the same; or self."""
        size = self.shape[dim]
        if size <= 1 or not all(_is_copy(term.labels, dim) and _is_copy(term.weight, dim) for term in self.terms):
            return self
        return self.move(lambda part: part.narrow(dim, 0, 1)).scaled(float(size))

    def matrix(self) -> sp.csr_matrix:
        """The pattern ``(elements, root.size)`` where there is one root; bool, without duplicates, sorted."""
        roots = {term.root for term in self.terms}
        assert len(roots) <= 1
        width = next(iter(roots)).size if roots else 0
        return merged(self, width)

    def merged(self) -> Sets:
        """The same dependencies as one term for each root."""
        core = self.core()
        return _as_rows(core.terms, lambda part: part.reshape(-1, 1), core.shape).expand(self.shape)


def union(shape: tuple[int, ...], parts: Iterable[Sets]) -> Sets:
    """The sum of tensors: what any of them depends on."""
    terms: list[Term] = []
    for part in parts:
        for term in part.expand(shape).terms:
            for index, known in enumerate(terms):
                if term.same_as(known):
                    terms[index] = replace(known, weight=_plus(known.weight, term.weight))
                    break
            else:
                terms.append(term)
    result = Sets(shape, tuple(terms))
    return result.merged() if len(terms) > MOST_TERMS else result


def entries(term: Term) -> tuple[np.ndarray, np.ndarray, Any]:
    """A term as entries of a matrix: elements, positions in the root, and weights (None: not constant)."""
    labels = term.labels.reshape(-1).numpy()
    elements = np.flatnonzero(labels).astype(np.int32, copy=False)
    full = len(elements) == len(labels)
    picked = labels - 1 if full else labels[elements] - 1
    weight: Any = term.weight
    if isinstance(weight, Tensor):
        weight = weight.expand(term.labels.shape).reshape(-1).numpy()
        weight = weight if full else weight[elements]
    if term.rows is None:
        return elements, picked, weight
    starts, stops = term.rows.indptr[picked], term.rows.indptr[picked + 1]
    counts = stops - starts
    check_count(int(counts.sum()))
    where = ranges(starts, counts)
    if weight is not None:
        scale = np.repeat(weight, counts) if isinstance(weight, np.ndarray) else weight
        weight = term.rows.data[where] * scale
    return np.repeat(elements, counts), term.rows.indices[where], weight


class TooManyEntries(Exception):
    """Why a pattern is not put together."""


def check_count(count: int) -> None:
    """Refuse to list more entries than memory is likely to hold.

    Raises:
        TooManyEntries: There are too many.
    """
    if count > MOST_LISTED:
        raise TooManyEntries(f"the pattern has up to {count:,} entries, too many to be worth listing")


def count_entries(term: Term) -> int:
    """How many entries a term has, without listing them."""
    if term.rows is None:
        return int(torch.count_nonzero(term.labels))
    labels = term.labels.reshape(-1).numpy()
    return int(np.diff(term.rows.indptr)[labels[labels != 0] - 1].sum())


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The concatenation of ``start, start + 1, ...``, so many for each start."""
    total = int(counts.sum())
    if not total:
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(counts)
    shift = np.repeat(starts - (ends - counts), counts)
    return np.asarray(np.arange(total) + shift)


def merged(sets: Sets, width: int) -> sp.csr_matrix:
    """The union of terms over one root as a matrix: bool, sorted, without duplicates."""
    if not sets.terms:
        return sp.csr_matrix((sets.numel, width), dtype=bool)
    core = sets.core()
    terms = [term.unweighted() for term in core.terms]
    rows = _sum_of(terms, [term.labels.reshape(-1, 1).numpy() for term in terms], [None] * len(terms))
    # Two counting sorts order the entries by row and column.
    rows = rows.tocsc(copy=False).tocsr()
    rows.has_sorted_indices = True
    rows.sum_duplicates()
    rows.data = np.ones(rows.nnz, dtype=bool)
    if core.shape == sets.shape:
        return rows
    index = torch.arange(core.numel).reshape(core.shape).expand(sets.shape).reshape(-1)
    return rows[index.numpy()]


def pattern_matrix(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sp.csr_matrix:
    """A bool matrix from coordinates, which may repeat; sorted, without duplicates."""
    data = np.ones(len(rows), dtype=bool)
    # Two counting sorts order the entries by row and column; SciPy would also sort in between.
    coordinates = sp.coo_matrix((data, (rows, columns)), shape=shape)
    coordinates.has_canonical_format = True
    matrix = coordinates.tocsc(copy=False).tocsr()
    matrix.has_sorted_indices, matrix.has_canonical_format = True, False
    matrix.sum_duplicates()
    matrix.data = np.ones(matrix.nnz, dtype=bool)
    return matrix


def _accumulate_term(term: Term, target: Tensor, size: int, shape: tuple[int, ...]) -> Term:
    labels = term.labels.reshape(-1)
    weight = term.weight
    if isinstance(weight, Tensor):
        weight = weight.expand(term.labels.shape).reshape(-1)
    if len(labels) and not (bool((labels != 0).all()) and int(target.min()) >= 0):
        keep = ((labels != 0) & (target >= 0)).nonzero().flatten()
        labels, target = labels[keep], target[keep]
        weight = weight[keep] if isinstance(weight, Tensor) else weight
    hits = torch.bincount(target, minlength=size)
    if not len(labels) or int(hits.max()) <= 1:
        placed = torch.zeros(size, dtype=torch.int32)
        placed[target] = labels
        if isinstance(weight, Tensor):
            weight = torch.zeros(size, dtype=weight.dtype).index_put((target,), weight).reshape(shape)
        return Term(term.root, placed.reshape(shape), term.rows, weight)
    width = term.root.size if term.rows is None else term.rows.shape[0]
    data: Any = np.ones(len(labels), dtype=bool)
    if weight is not None:
        data = weight.numpy() if isinstance(weight, Tensor) else np.full(len(labels), float(weight))
    sums = sp.coo_matrix((data, (target.numpy(), labels.numpy() - 1)), shape=(size, width)).tocsr()
    if term.rows is not None:
        sums = sums @ (term.rows if weight is not None else term.rows.astype(bool, copy=False))
    where = (hits > 0).to(torch.int32) * torch.arange(1, size + 1, dtype=torch.int32)
    return Term(term.root, where.reshape(shape), sums, None if weight is None else 1.0)


def _as_rows(terms: Iterable[Term], lay: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Sets:
    """Terms laid out as ``(elements, summands)``, summed: one term for each root."""
    found = []
    count = int(np.prod(shape, dtype=np.int64))
    every = list(terms)
    for root in dict.fromkeys(term.root for term in every):
        chosen = [term for term in every if term.root is root]
        constant = all(term.weight is not None for term in chosen)
        labels = [lay(term.labels).numpy() for term in chosen]
        weights = [
            (lay(term.weight).numpy() if isinstance(term.weight, Tensor) else term.weight) if constant else None
            for term in chosen
        ]
        rows = _sum_of(chosen, labels, weights)
        if not constant:
            rows = _one_of([term.rows for term in chosen], rows)
        where = torch.arange(1, count + 1, dtype=torch.int32)
        if count and not (rows.indptr[1:] > rows.indptr[:-1]).all():
            where *= torch.from_numpy(rows.indptr[1:] > rows.indptr[:-1])
        found.append(Term(root, where.reshape(shape), rows, 1.0 if constant else None))
    return Sets(shape, tuple(found))


def _one_of(known: Iterable[sp.csr_matrix | None], rows: sp.csr_matrix) -> sp.csr_matrix:
    """A pattern, as the matrix that it is already known as: terms over one matrix can be united."""
    for each in {id(matrix): matrix for matrix in known if matrix is not None}.values():
        if each.shape == rows.shape and each.nnz == rows.nnz and each.dtype == rows.dtype:
            each.sort_indices()
            rows.sort_indices()
            if np.array_equal(each.indptr, rows.indptr) and np.array_equal(each.indices, rows.indices):
                return each
    return rows


def _sum_of(terms: list[Term], labels: list[np.ndarray], weights: list[Any]) -> sp.csr_matrix:
    """The sums along the rows of labels ``(elements, summands)`` of terms over one root, without duplicates."""
    matrices = {id(term.rows): term.rows for term in terms}
    width = terms[0].root.size
    heights = {key: width if rows is None else rows.shape[0] for key, rows in matrices.items()}
    starts = dict(zip(heights, np.cumsum([0, *heights.values()]).tolist(), strict=False))
    constant = weights[0] is not None
    laid, scales = [], []
    for term, part, weight in zip(terms, labels, weights, strict=True):
        start = starts[id(term.rows)]
        laid.append(np.where(part, part + start, 0) if start else part)
        if constant:
            scales.append(np.broadcast_to(np.asarray(weight, dtype=np.float64), part.shape))
    stacked = laid[0] if len(laid) == 1 else np.concatenate(laid, axis=1)
    full = bool(stacked.all())
    mask: Any = ... if full else stacked != 0
    indptr = np.arange(len(stacked) + 1, dtype=np.int64) * stacked.shape[1]
    if not full:
        np.cumsum(np.count_nonzero(mask, axis=1), out=indptr[1:])
    indices = stacked[mask].reshape(-1) - 1
    data = np.concatenate(scales, axis=1)[mask].reshape(-1) if constant else np.ones(len(indices), dtype=bool)
    sums = sp.csr_matrix((data, indices, indptr), shape=(len(stacked), sum(heights.values())))
    if list(matrices.values()) == [None]:
        sums.sum_duplicates()
        return sums
    kind = np.float64 if constant else np.bool_
    blocks = [
        sp.identity(width, dtype=kind, format="csr") if rows is None else rows.astype(kind, copy=False)
        for rows in matrices.values()
    ]
    return sums @ (blocks[0] if len(blocks) == 1 else sp.vstack(blocks, format="csr"))


def _table(new: np.ndarray, old: np.ndarray, size: int, weight: Any) -> tuple[np.ndarray, Any, np.ndarray]:
    """Pairs as a table: for each new position its old ones, -1 for none; their weights; and how many there are."""
    degree = np.bincount(new, minlength=size)
    most = int(degree.max(initial=0))
    order = np.argsort(new, kind="stable")
    rank = np.arange(len(new)) - np.repeat(np.cumsum(degree) - degree, degree)
    table = np.full((size, most), -1, dtype=np.int64)
    table[new[order], rank] = old[order]
    if weight is None or isinstance(weight, bool | int | float):
        return table, None if weight is None else float(weight), degree
    scale = np.zeros((size, most))
    scale[new[order], rank] = np.asarray(weight)[order]
    return table, scale, degree


def _along(values: Tensor, dim: int, ndim: int) -> Tensor:
    """A tensor whose dimensions are those from ``dim`` on among so many."""
    return values.reshape(*(1,) * dim, *values.shape, *(1,) * (ndim - dim - values.ndim))


def _is_copy(part: Weight, dim: int) -> bool:
    return not isinstance(part, Tensor) or part.stride(dim) == 0


def _times(weight: Weight, factor: Weight) -> Weight:
    if weight is None or factor is None:
        return None
    return weight * factor


def _plus(a: Weight, b: Weight) -> Weight:
    if a is None or b is None:
        return None
    return a + b
