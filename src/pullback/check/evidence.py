"""What is known of a gradient that is wrong: the numbers on which a cause is recognised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """One block of the Jacobian, of one output by one input, where reverse mode and differences disagree.

    Attributes:
        input: The name of the input.
        output: The name of the output.
        input_shape: Its shape; columns of the matrices are its elements, row-major.
        output_shape: Its shape; rows of the matrices are its elements, row-major.
        ours: The block by reverse mode, in float64 or complex128, of shape (m, n).
        numeric: The block by differences, of the same shape; NaN where they did not settle.
        error: An estimate of the error of each entry of ``numeric``.
        at: The value of the input, flat.
        value: The value of the output, flat.
        f: The output, flat, at another value of the input, flat; everything else held fixed.
        rerun: The block by reverse mode, computed once more.
        others: The blocks of the same output by the other inputs, right or wrong; theirs are empty.
    """

    input: str
    output: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    ours: Tensor
    numeric: Tensor
    error: Tensor
    at: Tensor
    value: Tensor
    f: Callable[[Tensor], Tensor]
    rerun: Callable[[], Tensor]
    others: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class Cause:
    """Why a gradient is wrong, or why it only looks so.

    Attributes:
        name: A short name, such as ``missing factor 2``.
        text: What was seen, in a sentence with numbers.
        fix: What to write instead.
        harmless: Whether the gradient is right after all: a kink, or rounding.
    """

    name: str
    text: str
    fix: str
    harmless: bool = False
