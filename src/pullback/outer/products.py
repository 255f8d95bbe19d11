"""Products of a parameter's Jacobian with itself, from its terms: without the Jacobian where that is less work.

``J Jᵀ`` of two terms is ``Σ_tt' (a_t · a'_t') (g_t · g'_t')``: the inner products of what enters a layer, times those
of the cotangents that leave it. Where two terms go to the same matrix, one of them transposed (a tied embedding), the
inner products cross: ``(a_t · g'_t') (g_t · a'_t')``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from pullback.outer.contraction import Place
from pullback.outer.rows import ALL, PART, add_at, example_parts, rows
from pullback.outer.terms import Parameter, Term

# An entry that is multiplied or written alone costs as much as so many within a product of matrices.
ALONE = 8
# How a Gram matrix was made.
FROM_TERMS = "inner products of coefficients times those of cotangents"
FROM_ROWS = "rows made of outer products"


@dataclass
class Grams:
    """Gram matrices of parameters, one after the other.

    Attributes:
        most: The bytes that anything made on the way may take.
    """

    most: int
    _room: Tensor | None = field(default=None, init=False)
    # Inner products of the cotangents of two terms, which the next parameter may share: a bias follows its weight.
    _between: tuple[Tensor, Tensor, Tensor] | None = field(default=None, init=False)

    def gram(self, parameter: Parameter) -> tuple[Tensor, str]:
        """``J Jᵀ`` by one parameter, ``(B O, B O)``, and how it was made; it holds until the next one is asked for."""
        if not parameter.terms:
            return torch.zeros((parameter.rows,) * 2, dtype=parameter.dtype, device=parameter.device), "zero"
        forms, shape = forms_of(parameter), (parameter.size, parameter.examples, parameter.outputs)
        if fit_together(forms) and gram_is_less(forms, *shape) and _fits(parameter, parameter.rows, self.most):
            return self._from_terms(parameter), FROM_TERMS
        return gram_of_rows(parameter, self.most), FROM_ROWS

    def _from_terms(self, parameter: Parameter) -> Tensor:
        size, terms = parameter.rows, parameter.terms
        if len(terms) == 1 and list(_tiles(terms[0], terms[0], parameter, self.most)) == [(ALL, ALL)]:
            return self._pair(terms[0], terms[0], ALL, ALL)
        whole = torch.zeros((size, size), dtype=parameter.dtype, device=parameter.device)
        numbers = torch.arange(size, device=whole.device).view(-1, parameter.outputs)
        for first, second in combinations_with_replacement(terms, 2):
            for some, which in _tiles(first, second, parameter, self.most):
                part = self._pair(first, second, some, which)
                chosen = numbers[some, which].flatten()
                whole[chosen] += part
                if first is not second:
                    whole[:, chosen] += part.T
        return whole

    def _pair(self, first: Term, second: Term, some: slice, which: slice) -> Tensor:
        """The products of some rows of one term with all rows of another: ``(rows, B O)``."""
        g = first.g[some, which]
        height, width = g.shape[:2]
        examples, outputs = second.g.shape[:2]
        shape = (-1, height, width, first.steps, examples, outputs, second.steps)
        if first.place == second.place:
            products = self._inner_of(first, second, g, whole=some == ALL and which == ALL).view(shape)
            if first.a is not None:
                inner = _inner(_coefficients(first, some), _coefficients(second, ALL))
                factor = inner.view(-1, height, 1, first.steps, examples, 1, second.steps)
                products = torch.mul(products, factor, out=self._room_for(products))
        else:
            crossed = _inner(_coefficients(first, some), _flat(second.g)).view(
                -1, height, 1, first.steps, examples, outputs, second.steps
            )
            products = crossed * _inner(_flat(g), _coefficients(second, ALL)).view(
                -1, height, width, first.steps, examples, 1, second.steps
            )
        if products.shape[0] == first.steps == second.steps == 1:
            return products.reshape(height * width, examples * outputs)
        return products.sum(dim=(0, 3, 6)).reshape(height * width, examples * outputs)

    def _room_for(self, products: Tensor) -> Tensor:
        """Memory for a result that is used up before the next is made: fresh memory costs as much as the products."""
        room = self._room
        if room is None or (room.numel(), room.dtype, room.device) != (
            products.numel(),
            products.dtype,
            products.device,
        ):
            self._room = room = torch.empty_like(products).flatten()
        return room.view(products.shape)

    def _inner_of(self, first: Term, second: Term, g: Tensor, *, whole: bool) -> Tensor:
        """Inner products of cotangents; kept where they are of whole terms with one step."""
        known = self._between
        if whole and known is not None and known[0] is first.g and known[1] is second.g:
            return known[2]
        found = _inner(_flat(g), _flat(second.g))
        if whole and first.steps == 1 == second.steps:
            self._between = first.g, second.g, found
        return found


Side = tuple[Tensor, bool]


def _flat(g: Tensor) -> Side:
    """Cotangents ``(b, o, t, H, J)`` as ``(H, b o t, J)``."""
    height, width, steps, h, j = g.shape
    if h == 1:
        return g.reshape(1, height * width * steps, j), False
    return g.permute(3, 0, 1, 2, 4).reshape(h, height * width * steps, j), False


def _coefficients(term: Term, some: slice) -> Side:
    """Coefficients of some examples as ``(H, b t, I)``; one-hot ones as the i's, ``(b t,)``, and True."""
    assert term.a is not None
    a = term.a[some]
    if term.is_lookup:
        return a.reshape(-1), True
    height, steps, h, i = a.shape
    return a.permute(2, 0, 1, 3).reshape(h, height * steps, i), False


def _inner(left: Side, right: Side) -> Tensor:
    """Inner products of all with all, for each h."""
    (first, one), (second, other) = left, right
    if one and other:
        return (first[:, None] == second)[None]
    if one:
        return second[:, :, first].mT
    if other:
        return first[:, :, second]
    if first.shape[0] == 1:
        return (first[0] @ second[0].T)[None]
    return first @ second.mT


def _tiles(first: Term, second: Term, parameter: Parameter, most: int) -> Iterator[tuple[slice, slice]]:
    """Parts of the rows whose products with all others stay within a limit."""
    each = first.steps * second.steps * parameter.rows * first.g.shape[3] * parameter.dtype.itemsize
    fits = max(min(most, 2 * PART) // max(each, 1), 1)
    if fits >= parameter.rows:
        yield ALL, ALL
        return
    outputs = min(parameter.outputs, fits)
    examples = max(fits // parameter.outputs, 1)
    for start in range(0, parameter.examples, examples):
        for begin in range(0, parameter.outputs, outputs):
            yield slice(start, start + examples), slice(begin, begin + outputs)


def gram_of_rows(parameter: Parameter, most: int) -> Tensor:
    """``J Jᵀ`` from the rows of J, all of them at once where they fit."""
    if parameter.rows * parameter.size * parameter.dtype.itemsize <= most:
        matrix = rows(parameter)
        return matrix @ matrix.T
    parts = list(example_parts(parameter, parameter.outputs, most=max(most // 2, 1)))
    result = torch.empty((parameter.rows,) * 2, dtype=parameter.dtype, device=parameter.device)
    for k, some in enumerate(parts):
        upper = rows(parameter, some)
        for other in parts[k:]:
            block = upper @ (upper if other is some else rows(parameter, other)).T
            here, there = (
                slice(*(parameter.outputs * end for end in (each.start, each.stop))) for each in (some, other)
            )
            result[here, there] = block
            result[there, here] = block.T
    return result


def row_norms(parameter: Parameter, most: int) -> Tensor:
    """The squares of the rows' norms, ``(B, O)``."""
    result = torch.zeros((parameter.examples, parameter.outputs), dtype=parameter.dtype, device=parameter.device)
    forms, shape = forms_of(parameter), (parameter.size, parameter.examples, parameter.outputs)
    if forms and fit_together(forms) and _norms_are_less(forms, *shape) and _fits(parameter, parameter.rows, most):
        for k, first in enumerate(parameter.terms):
            for second in parameter.terms[k:]:
                result += _norms_of_pair(first, second) * (1 if first is second else 2)
        return result.clamp_(min=0)
    for some in example_parts(parameter, parameter.outputs, most=min(most, PART)):
        result[some] = rows(parameter, some).square().sum(dim=1).view(-1, parameter.outputs)
    return result


def _norms_of_pair(first: Term, second: Term) -> Tensor:
    """The products of two terms of each row, ``(B, O)``."""
    if first.place == second.place:
        if first.a is None or second.a is None:
            return (first.g * second.g).sum(dim=(2, 3, 4))
        if first is second and first.steps == 1 and not first.is_lookup:
            sizes = first.a.square().sum(dim=3)[:, None] * first.g.square().sum(dim=4)
            return sizes.sum(dim=(2, 3))
        return (_steps(first.a, second.a) * _steps(first.g, second.g)).sum(dim=(-3, -2, -1))
    assert first.a is not None
    assert second.a is not None
    return (_steps(first.a, second.g) * _steps(first.g, second.a)).sum(dim=(-3, -2, -1))


def _steps(first: Tensor, second: Tensor) -> Tensor:
    """Inner products of all steps with all, example by example: ``(B, O or 1, H, T, T')``."""
    one, other = first.ndim == 2, second.ndim == 2
    if one and other:
        return (first[:, :, None] == second[:, None, :])[:, None, None]
    if one:
        return _steps(second, first).mT
    if first.ndim == 4:
        first = first[:, None]
    left = first.transpose(2, 3)
    if other:
        index = second[:, None, None, None].expand(-1, *left.shape[1:4], -1)
        return left.gather(-1, index)
    if second.ndim == 4:
        second = second[:, None]
    return left @ second.transpose(2, 3).mT


def column_squares(parameter: Parameter, most: int) -> Tensor:
    """The diagonal of ``JᵀJ``, ``(size,)``: the squares of the columns' norms."""
    result = torch.zeros((1, parameter.size), dtype=parameter.dtype, device=parameter.device)
    if len(parameter.terms) == 1 and parameter.terms[0].steps == 1:
        term = parameter.terms[0]
        add_at(result, term.place, _contracted(term, _squared(term), term.g.square().sum(dim=1), power=2)[None])
        return result[0]
    for some in example_parts(parameter, parameter.outputs, most=min(most, PART)):
        result += rows(parameter, some).square().sum(dim=0)
    return result[0]


def pulled(parameter: Parameter, weights: Tensor) -> tuple[Tensor, Tensor]:
    """``uᵀJ`` from the terms, ``(size,)``, and the root of the sum of the squares of what was added up.

    Args:
        parameter: The parameter.
        weights: u, ``(B, O)``.
    """
    result = torch.zeros((1, parameter.size), dtype=parameter.dtype, device=parameter.device)
    squares = torch.zeros_like(result)
    weights = weights.to(dtype=parameter.dtype, device=parameter.device)
    for term in parameter.terms:
        weighted = torch.einsum("bo,bothj->bthj", weights, term.g)
        add_at(result, term.place, _contracted(term, term.a, weighted)[None])
        add_at(squares, term.place, _contracted(term, _squared(term), term.g.square().sum(dim=1), power=2)[None])
    return result[0], squares[0].sqrt()


def _contracted(term: Term, a: Tensor | None, g: Tensor, power: int = 1) -> Tensor:
    """``Σ_bt a[b, t, h, i] g[b, t, h, j]``, ``(H, I, J)``."""
    if a is None:
        found = g.sum(dim=(0, 1))[:, None, :]
    elif term.is_lookup:
        found = torch.zeros(term.place.sizes, dtype=g.dtype, device=g.device)
        found[0].index_add_(0, a.flatten(), g.flatten(0, 1)[:, 0])
    else:
        found = torch.einsum("bthi,bthj->hij", a, g)
    return found if term.mask is None else found * term.mask**power


def _squared(term: Term) -> Tensor | None:
    return term.a if term.a is None or term.is_lookup else term.a.square()


@dataclass(frozen=True)
class Form:
    """What the work with a term depends on.

    Attributes:
        place: Where its elements stand.
        steps: T.
        kind: ``"dense"``, ``"lookup"`` or ``"ones"``.
        masked: Whether elements are multiplied by numbers of their own.
    """

    place: Place
    steps: int
    kind: str
    masked: bool = False

    @property
    def inner(self) -> int:
        """The multiplications for an inner product of two coefficients."""
        return {"dense": self.place.sizes[1], "lookup": 1, "ones": 0}[self.kind]

    @property
    def row(self) -> int:
        """The multiplications for one row."""
        h, i, j = self.place.sizes
        return self.steps * h * j * (i if self.kind == "dense" else 1)


def forms_of(parameter: Parameter) -> list[Form]:
    """The forms of a parameter's terms."""
    return [
        Form(
            term.place,
            term.steps,
            "ones" if term.a is None else "lookup" if term.is_lookup else "dense",
            term.mask is not None,
        )
        for term in parameter.terms
    ]


def fit_together(forms: Sequence[Form]) -> bool:
    """Whether inner products of any two terms follow from those of their factors."""
    if any(form.masked for form in forms):
        return False
    for k, first in enumerate(forms):
        for second in forms[k + 1 :]:
            ones = (first.kind == "ones", second.kind == "ones")
            if first.place == second.place:
                if ones[0] != ones[1]:
                    return False
            elif any(ones) or first.place != second.place.swapped:
                return False
    return True


def gram_is_less(forms: Sequence[Form], size: int, examples: int, outputs: int) -> bool:
    """Whether a Gram matrix from the terms is less work than from the rows."""
    if all(form.kind == "ones" for form in forms):
        return True  # the cotangents are the rows, and their inner products may be known
    rows = examples * outputs
    work = sum(
        first.place.sizes[0]
        * first.steps
        * second.steps
        * (examples**2 * first.inner + rows**2 * (first.place.sizes[2] + ALONE))
        for first, second in combinations_with_replacement(forms, 2)
    )
    return work <= rows * (sum(form.row for form in forms) + ALONE * size) + rows**2 * size


def _norms_are_less(forms: Sequence[Form], size: int, examples: int, outputs: int) -> bool:
    """Whether the norms of the rows from the terms are less work than from the rows."""
    rows = examples * outputs
    work = sum(
        first.place.sizes[0]
        * first.steps
        * second.steps
        * (examples * first.inner + rows * (first.place.sizes[2] + ALONE))
        for first, second in combinations_with_replacement(forms, 2)
    )
    return work <= rows * (sum(form.row for form in forms) + ALONE * size)


def _fits(parameter: Parameter, rows: int, most: int) -> bool:
    """Whether the products of so many rows of terms with all rows fit into memory."""
    longest = max(term.steps for term in parameter.terms)
    widest = max(term.place.sizes[0] for term in parameter.terms)
    return rows * longest**2 * widest * parameter.dtype.itemsize <= most
