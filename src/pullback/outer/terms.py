"""Terms: the numbers of a parameter's contributions, example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.outer.contraction import Contribution, Dense, OneHot, Place
from pullback.outer.owners import Owners


@dataclass(frozen=True, eq=False)
class Term:
    """``J[(b, o), (h, i, j)] = Σ_t a[b, t, h, i] g[b, o, t, h, j]``: the numbers of one contribution, or of several.

    Attributes:
        place: Where its elements stand in the parameter.
        a: The coefficient, ``(B, T, H, I)``; the one-hot i, ``(B, T)``, int64; or None: 1, with one i and T = 1.
        g: The cotangents of each output element o of each example b, ``(B, O, T, H, J)``.
        mask: What the elements are multiplied by besides, ``(H, I, J)``; None: nothing.
    """

    place: Place
    a: Tensor | None
    g: Tensor
    mask: Tensor | None = None

    @property
    def is_lookup(self) -> bool:
        """Whether the coefficient is one-hot."""
        return self.a is not None and self.a.ndim == 2

    @property
    def steps(self) -> int:
        """T."""
        return self.g.shape[2]


@dataclass(frozen=True, eq=False)
class Parameter:
    """The rows of a Jacobian by one parameter, as sums of outer products.

    Attributes:
        size: The number of its elements.
        terms: What adds up to them; none where they are zero.
        examples: B.
        outputs: O, the output elements of each example.
        dtype: What products are computed in.
        device: Where.
    """

    size: int
    terms: tuple[Term, ...]
    examples: int
    outputs: int
    dtype: torch.dtype
    device: torch.device

    @property
    def rows(self) -> int:
        """B O."""
        return self.examples * self.outputs


def exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype that products and sums are computed in: at least single precision."""
    return torch.promote_types(dtype, torch.float32)


class Cotangents:
    """The answers of the passes, laid out for contributions; each layout is made once.

    Args:
        stacks: For each tensor that the passes return, by its View, one answer for each of the output elements.
    """

    def __init__(self, stacks: dict[Any, Tensor]) -> None:
        self._stacks = stacks
        self._laid: dict[Any, Tensor] = {}

    def of(self, part: Contribution, owners: Owners) -> Tensor:
        """g, ``(B, O, T, H, J)``."""
        key = (part.key, id(owners))
        if key not in self._laid:
            stack = self._stacks[part.base].detach()
            g = owners.take(part.layout(stack), -3)  # (O, B, T, H, J)
            g = g.movedim(0, 1).to(exact(g.dtype))
            if owners.real is not None:
                g = torch.where(owners.real[:, None, :, None, None].to(g.device), g, 0)
            self._laid[key] = g.contiguous()
        return self._laid[key]


def parameter(
    size: int, parts: Sequence[Contribution], owned: Sequence[Owners], g_of: Callable[[Contribution, Owners], Tensor],
    shape: tuple[int, int, torch.dtype, torch.device],
) -> Parameter:  # fmt: skip
    """The rows by one parameter.

    Args:
        size: The number of its elements.
        parts: Its contributions.
        owned: The owners of each one's positions.
        g_of: Gives the cotangents of one.
        shape: B, O, the dtype and the device of the parameter.
    """
    examples, outputs, dtype, device = shape
    terms = [_term(part, owners, g_of(part, owners)) for part, owners in zip(parts, owned, strict=True)]
    dtype = exact(dtype)
    for term in terms:
        dtype = torch.promote_types(dtype, term.g.dtype)
    return Parameter(size, tuple(_merged(terms, dtype, device)), examples, outputs, dtype, device)


def _term(part: Contribution, owners: Owners, g: Tensor) -> Term:
    coefficient = part.coefficient
    if isinstance(coefficient, Dense):
        a = owners.take(coefficient.tensor(), -3)
        a = a.to(exact(a.dtype))
        if owners.real is not None:  # a filler must not bring an infinity along
            a = torch.where(owners.real[:, :, None, None].to(a.device), a, 0)
        return Term(part.place, a * part.weight if part.weight != 1.0 else a, g, part.mask)
    g = g * part.weight if part.weight != 1.0 else g
    if isinstance(coefficient, OneHot):
        return Term(part.place, owners.take(coefficient.index.to(g.device), -1), g, part.mask)
    return Term(part.place, None, g if owners.each == 1 else g.sum(dim=2, keepdim=True), part.mask)


def _merged(terms: list[Term], dtype: torch.dtype, device: torch.device) -> list[Term]:
    """Terms that go to the same place become one with more steps."""
    groups: dict[tuple[Any, ...], list[Term]] = {}
    for term in terms:
        kind = "ones" if term.a is None else "lookup" if term.is_lookup else "dense"
        groups.setdefault((kind, term.place, id(term.mask)), []).append(term)
    found = []
    for (kind, *_), members in groups.items():
        first = members[0]
        if len(members) > 1:
            every = [member.g.to(device=device, dtype=dtype) for member in members]
            g = sum(every[1:], every[0]) if kind == "ones" else torch.cat(every, dim=2)
            coefficients = [member.a.to(device) for member in members if member.a is not None]
            a = torch.cat(coefficients, dim=1) if coefficients else None
            first = Term(first.place, a, g, first.mask)
        a = first.a
        if a is not None:
            a = a.to(device=device, dtype=a.dtype if first.is_lookup else dtype)
        mask = None if first.mask is None else first.mask.to(device=device, dtype=dtype)
        found.append(replace(first, a=a, g=first.g.to(device=device, dtype=dtype), mask=mask))
    return found
