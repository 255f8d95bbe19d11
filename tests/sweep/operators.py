"""PyTorch's operator database as functions of their differentiable tensors."""

from __future__ import annotations

import functools
import itertools
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .oracle import fresh

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _profile = hypothesis.settings.get_current_profile_name()
    # Importing torch's test utilities loads a hypothesis profile of theirs.
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import SampleInput

    hypothesis.settings.load_profile(_profile)

# "sample": every operator with a few of its samples; "full": all of them.
MODE = os.environ.get("PULLBACK_SWEEP", "sample")
SAMPLES = 6
# A sample is small if it has so few input and output elements. Of an operator that has no small ones, those are
# taken whose Jacobian has not more entries than this.
LARGEST_INPUT = 200
LARGEST_OUTPUT = 400
LARGEST_MATRIX = 1_200_000
# One small sample is looked for among so many, and has so many inputs and outputs, if there is one.
TRIED = 16
FEW = 3


@dataclass(frozen=True)
class Case:
    """One sample of one operator.

    Attributes:
        name: The operator and the sample's number.
        f: The operator as a function of a tuple of tensors.
        x: The sample's differentiable tensors.
        size: How many elements its inputs and its outputs have.
    """

    name: str
    f: Callable[[tuple[Tensor, ...]], Any]
    x: tuple[Tensor, ...]
    size: tuple[int, int]


@functools.cache
def operators() -> dict[str, Any]:
    """The operators that torch says are differentiable on the CPU in float64 (else in complex128), by full name."""
    return {op.full_name: op for op in op_db if op.supports_autograd and dtype_of(op) is not None}


def dtype_of(op: Any) -> torch.dtype | None:
    """The dtype an operator is swept in, or None: it has no derivative in double precision."""
    able = op.supported_backward_dtypes("cpu")
    return next((dtype for dtype in (torch.float64, torch.complex128) if dtype in able), None)


def cases(name: str, *, every: bool = False) -> Iterator[Case]:
    """The small samples of an operator: all of them, or a few from all over the list."""
    op = operators()[name]
    samples = _samples(op)
    wanted = len(samples) if every or MODE == "full" else SAMPLES
    for fits in (_is_small, _is_manageable):
        found = (_case(op, index, samples[index], fits) for index in _spread(len(samples)))
        few = list(itertools.islice(filter(None, found), wanted))
        yield from few
        if few:
            return


@functools.cache
def smallest(name: str) -> Case:
    """One small sample of an operator, at which it gives numbers."""
    op = operators()[name]
    samples = _samples(op)
    tried = (_case(op, index, samples[index], _is_manageable) for index in _spread(len(samples))[:TRIED])
    found = [case for case in tried if case is not None]
    # A derivative by one number, or of one, leaves strategies nothing to choose.
    return min(found, key=lambda case: (not _gives_numbers(case), min(case.size) < FEW, case.size[0] * case.size[1]))


def _gives_numbers(case: Case) -> bool:
    if not min(case.size):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = case.f(fresh(case.x))
    return all(bool(part.isfinite().all()) for part in pytree.tree_leaves(value) if isinstance(part, Tensor))


def _is_small(n: int, m: int) -> bool:
    return n <= LARGEST_INPUT and m <= LARGEST_OUTPUT


def _is_manageable(n: int, m: int) -> bool:
    return n * m <= LARGEST_MATRIX


def _samples(op: Any) -> list[Any]:
    """All sample inputs, the same in every process."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [*op.sample_inputs("cpu", dtype_of(op), requires_grad=True), *_more_samples(op.full_name)]


def _more_samples(name: str) -> Iterator[SampleInput]:
    """Small samples of an operator whose samples are all too large."""
    if name == "slice_scatter":
        x, part = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 4), (2, 4)))
        yield SampleInput(x, part, 0, 1, 3, 1)
        yield SampleInput(x, part.detach(), 0, 0, 4, 2)


def _case(op: Any, index: int, sample: Any, fits: Callable[[int, int], bool]) -> Case | None:
    """A sample as a function; None where it does not fit or there is nothing to differentiate by."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    x = tuple(leaves[i].detach() for i in places)
    count = sum(part.numel() for part in x)
    if not x or not fits(count, 0):
        return None

    def f(x: tuple[Tensor, ...]) -> Any:
        filled = [
            leaf.detach().clone() if isinstance(leaf, Tensor) and not leaf.requires_grad else leaf for leaf in leaves
        ]
        for i, part in zip(places, x, strict=True):
            filled[i] = part
        input, args, kwargs = pytree.tree_unflatten(filled, spec)
        return sample.output_process_fn_grad(op.gradcheck_wrapper(op.op, input, *args, **kwargs))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = f(fresh(x))
    outputs = sum(leaf.numel() for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
    if not fits(count, outputs):
        return None
    return Case(f"{op.full_name}[{index}]", f, x, (count, outputs))


def _spread(count: int) -> list[int]:
    """0 to count - 1, so ordered that the first few come from all over the range."""
    bits = max(count - 1, 1).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(2**bits))
    return [i for i in turned if i < count]
