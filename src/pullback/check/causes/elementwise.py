"""A factor for each element, which turns out to be a known function of the input or the output.

What is found: the input used where the output is needed or the reverse, one input in place of another, a chain factor
that is missing (the derivative of an activation by what went into it), and one that is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, figure, several

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "{}": lambda v: v,
    "{}²": lambda v: v * v,
    "(1 - {})": lambda v: 1 - v,
    "(1 - {}²)": lambda v: 1 - v * v,
    "{} (1 - {})": lambda v: v * (1 - v),
    "(1 + {}²)": lambda v: 1 + v * v,
    "{}³": lambda v: v * v * v,
    "sign({})": torch.sgn,
    "exp({})": torch.exp,
    "cos({})": torch.cos,
    "sin({})": torch.sin,
    "sigmoid({})": torch.sigmoid,
    "sigmoid({}) (1 - sigmoid({}))": lambda v: torch.sigmoid(v) * (1 - torch.sigmoid(v)),
    "(1 - tanh({})²)": lambda v: 1 - torch.tanh(v) ** 2,
}
_FACTORS = (1, 2, 0.5, 3, 1 / 3, 2 / 3, 1.5)
_LEAST = 3


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A function of what is known, and what it means if the backward is that many times the derivative."""

    name: str
    text: str
    values: Tensor
    by_row: bool
    fix: str


@cause("elementwise factor", priority=66)
def elementwise(evidence: Evidence) -> Cause | None:
    """Each column, or each row, is off by a known function of an input or the output."""
    block = Block.of(evidence)
    if not bool(block.wrong.any()) or int(block.told.sum()) < _LEAST:
        return None
    ratios = {by_row: _shared(block, by_row=by_row) for by_row in (False, True)}
    for candidate in _candidates(evidence, block):
        ratio = ratios[candidate.by_row]
        factor = _fits(ratio, candidate.values) if ratio is not None else None
        if factor is None:
            continue
        scale = torch.nan_to_num(candidate.values * factor, 0, 0, 0)
        scaled = block.numeric * (scale[:, None] if candidate.by_row else scale)
        if block.says(scaled, scale.abs().max()):
            times = "" if factor == 1 else f"{figure(factor)} · "
            return Cause(
                candidate.name,
                f"the backward is {times}{candidate.text} times the differences, element by element, in "
                f"{several(int(block.told.sum()), 'entry')}: {example(evidence, block)}",
                candidate.fix,
            )
    return None


def _shared(block: Block, *, by_row: bool) -> Tensor | None:
    """The ratio of both numbers that all entries of a column, or row, share; NaN where nothing is told."""
    ratio, told = (block.ratio.mT, block.told.mT) if by_row else (block.ratio, block.told)
    if int(told.any(0).sum()) < _LEAST:
        return None
    count = told.sum(0)
    clean = torch.where(told, ratio, 0)
    mean = clean.sum(0) / count.clamp(min=1)
    apart = torch.where(told, (ratio - mean).abs(), 0)
    if bool((apart > 1e-3 * (1 + mean.abs())).any()):
        return None
    return torch.where(count > 0, mean, torch.nan)


def _fits(ratio: Tensor, values: Tensor) -> float | None:
    """The simple number by which the values are the ratios; None if they are not, or do not vary."""
    known = ~torch.isnan(ratio)
    seen, given = ratio[known], values[known].to(ratio.dtype)
    if not bool(torch.isfinite(given).all()) or not bool((given != 0).all()):
        return None
    if bool(((given - given[0]).abs() <= 1e-3 * given[0].abs()).all()):
        return None
    quotients = seen / given
    first = quotients[0].item()
    for size in _FACTORS:
        for factor in (size, -size):
            if abs(first - factor) < 1e-4 and bool(((quotients - factor).abs() < 1e-4).all()):
                return factor
    return None


def _candidates(evidence: Evidence, block: Block) -> Iterator[_Candidate]:
    x, y = evidence.at.detach().to(block.numeric.dtype), evidence.value.detach().to(block.numeric.dtype)
    near = {other.input: other.at.detach().to(x.dtype) for other in evidence.others if other.at.shape == x.shape}
    for name, values in {evidence.input: x, **near}.items():
        yield from _single(name, values, by_row=False)
    for name, values in ({evidence.output: y, **near} if x.shape == y.shape else near).items():
        yield from _confused(name, values, evidence.input, x)
        yield from _confused(evidence.input, x, name, values)
    yield from _single(evidence.output, y, by_row=True)


def _confused(used: str, first: Tensor, needed: str, second: Tensor) -> Iterator[_Candidate]:
    """One value in place of another, in the same formula."""
    for pattern, function in _FUNCTIONS.items():
        yield _Candidate(
            "one value in place of another",
            f"{pattern.replace('{}', used)} / {pattern.replace('{}', needed)}",
            function(first) / function(second),
            False,
            f"see which of {used} and {needed} the formula needs, and save that one",
        )


def _single(name: str, values: Tensor, *, by_row: bool) -> Iterator[_Candidate]:
    for pattern, function in _FUNCTIONS.items():
        text, found = pattern.replace("{}", name), function(values)
        fix = f"multiply the gradient by {text}"
        yield _Candidate("missing chain factor", f"1 / {_grouped(text)}", 1 / found, by_row, fix)
        if function is not torch.sgn:  # Its own inverse.
            yield _Candidate("surplus factor", text, found, by_row, f"leave out the factor {text}")


def _grouped(text: str) -> str:
    """In parentheses if it is a product."""
    return f"({text})" if ") (" in text or " (" in text[1:] else text
