"""All entries off by the same factor: a sign, a 2, the number of elements, or another constant."""

from __future__ import annotations

import math

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, figure, several


@cause("sign", priority=42)
def sign(evidence: Evidence) -> Cause | None:
    """Minus the derivative."""
    block, factor = _constant(evidence)
    if factor is None or not _is(factor, -1):
        return None
    return Cause("wrong sign", _text(evidence, block, factor), "return the negative of what the backward returns")


@cause("factor 2", priority=44)
def two(evidence: Evidence) -> Cause | None:
    """Half or twice the derivative."""
    block, factor = _constant(evidence)
    if factor is None:
        return None
    if _is(factor, 0.5):
        return Cause("missing factor 2", _text(evidence, block, factor), "multiply what the backward returns by 2")
    if _is(factor, 2):
        return Cause(
            "factor 2 too many",
            _text(evidence, block, factor),
            "halve what the backward returns; see whether something is counted twice",
        )
    return None


@cause("mean and sum", priority=50)
def size(evidence: Evidence) -> Cause | None:
    """The derivative times or over the number of elements that are summed."""
    block, factor = _constant(evidence)
    if factor is None:
        return None
    for count, what in _sizes(evidence).items():
        for value, word, fix in (
            (1 / count, "1 / ", "a mean is taken where a sum is meant: multiply by"),
            (count, "", "a sum is taken where a mean is meant: divide by"),
        ):
            for sign in (1, -1):
                if _is(factor, sign * value):
                    ratio = f"{'-' if sign < 0 else ''}{word}{count}"
                    text = f"{_text(evidence, block, factor)}. The factor is {ratio}, and {what}"
                    return Cause("mean and sum confused", text, f"{fix} {sign * count}")
        if count > 2 and (_is(factor, (count - 1) / count) or _is(factor, count / (count - 1))):
            ratio = f"({count} - 1) / {count}" if abs(factor) < 1 else f"{count} / ({count} - 1)"
            return Cause(
                "n and n - 1 confused",
                f"{_text(evidence, block, factor)}. The factor is {ratio}, and {what}",
                "use the same divisor in backward as in forward: n, or n - 1 for an unbiased variance",
            )
    return None


@cause("constant factor", priority=52)
def constant(evidence: Evidence) -> Cause | None:
    """The derivative times any other number; several entries have to agree on it."""
    block, factor = _constant(evidence)
    if factor is None or int(block.told.sum()) < 3:
        return None
    return Cause(
        "constant factor",
        _text(evidence, block, factor),
        f"divide what the backward returns by {figure(factor)}, after looking for where it comes from",
    )


def _constant(evidence: Evidence) -> tuple[Block, complex | None]:
    """The number by which all entries are off; None if there is none."""
    block = Block.of(evidence)
    if not bool(block.told.any()) or not bool(block.wrong.any()):
        return block, None
    weight = block.numeric.abs() ** 2
    factor = (torch.where(block.told, block.numeric.conj() * block.ours, 0).sum() / weight[block.told].sum()).item()
    if abs(factor) < 1e-6 or not block.says(factor * block.numeric, factor):
        return block, None
    return block, factor


def _is(factor: complex, value: float) -> bool:
    return abs(factor - value) < 1e-5 * abs(value)


def _text(evidence: Evidence, block: Block, factor: complex) -> str:
    return (
        f"the backward is {figure(_rounded(factor))} times the differences in all "
        f"{several(int(block.told.sum()), 'entry')} that are not 0; {example(evidence, block)}"
    )


def _rounded(factor: complex) -> complex:
    """Without the last digits, which are the differences' error, and without an imaginary part that is nothing else."""
    if isinstance(factor, complex) and abs(factor.imag) < 1e-6 * abs(factor):
        factor = factor.real
    return factor if isinstance(factor, complex) else float(f"{factor:.5g}")


def _sizes(evidence: Evidence) -> dict[int, str]:
    """Numbers of elements that a sum may go over, largest first, and what they are."""
    found: dict[int, str] = {}
    for name, shape in ((evidence.input, evidence.input_shape), (evidence.output, evidence.output_shape)):
        for start in range(len(shape)):
            for stop in range(start + 1, len(shape) + 1):
                count = math.prod(shape[start:stop])
                dims = f"dimension {start}" if stop == start + 1 else f"dimensions {start} to {stop - 1}"
                found.setdefault(count, f"{count} is the number of elements of {name} along {dims}")
    rest = len(evidence.input_shape) - len(evidence.output_shape)
    inner, outer = evidence.ours.shape[1], evidence.ours.shape[0]
    if rest and outer and inner % outer == 0:
        found.setdefault(
            inner // outer, f"{inner // outer} elements of {evidence.input} stand for each one of the output"
        )
    if outer and inner and outer % inner == 0:
        found.setdefault(outer // inner, f"{outer // inner} elements of {evidence.output} stand for each of the input")
    return dict(sorted(((count, what) for count, what in found.items() if count > 1), reverse=True))
