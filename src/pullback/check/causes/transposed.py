"""The right numbers in the transposed arrangement: of the input, of the output, or of a matrix inside."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, several


@cause("transposed", priority=55)
def transposed(evidence: Evidence) -> Cause | None:
    """Reverse mode is the derivative with two dimensions swapped."""
    block = Block.of(evidence)
    if int(block.told.sum()) < 2:
        return None
    for candidate, what, fix in _swaps(evidence, block):
        if block.says(candidate):
            return Cause(
                "transposed",
                f"the backward has the right numbers with {what}, in {several(int(block.told.sum()), 'entry')}: "
                f"{example(evidence, block)}",
                fix,
            )
    return None


def _swaps(evidence: Evidence, block: Block) -> Iterator[tuple[Tensor, str, str]]:
    into, out = evidence.input_shape, evidence.output_shape
    m, n = block.numeric.shape
    for first, second in _pairs(len(into)):
        given = block.numeric.reshape((m, *into)).transpose(first + 1, second + 1).reshape(m, n)
        yield (
            given,
            f"dimensions {first} and {second} of {evidence.input} swapped",
            "return the transposed gradient, .mT",
        )
    for first, second in _pairs(len(out)):
        given = block.numeric.reshape((*out, n)).transpose(first, second).reshape(m, n)
        what = f"dimensions {first} and {second} of {evidence.output} swapped"
        yield given, what, "transpose the incoming gradient, .mT, the other way"
    if m == n:
        what = "rows and columns of the Jacobian swapped"
        yield block.numeric.mT, what, "the backward of A @ x is A.mT @ grad; of a permutation, its inverse"
    whole = block.numeric.reshape((*out, *into))
    for row in reversed(range(len(out))):
        for column in reversed(range(len(into))):
            if out[row] == into[column] > 1:
                given = whole.transpose(row, len(out) + column).reshape(m, n)
                what = f"dimension {row} of {evidence.output} and {column} of {evidence.input} swapped in the Jacobian"
                yield given, what, "use the transposed matrix; for a convolution, the flipped kernel"


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    yield from ((first, second) for second in reversed(range(count)) for first in reversed(range(second)))
