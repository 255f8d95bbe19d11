"""The oracle of patterns: where the rows of plain reverse passes are not zero, at several points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback as pb
from pullback.autodiff.program import NotRecordable, Program, View, forget_seeded
from pullback.errors import PullbackError
from pullback.sparsity.detect import decisions, varying_storages
from pullback.sparsity.factor import Factors
from pullback.sparsity.structure import Structure, structure

from ..sweep.examine import only_pullback_warnings
from ..sweep.oracle import fresh

# A pattern is held against the passes at so many points; and, while it seems too large, against more, until so many
# in a row found nothing new or so many passes were taken.
POINTS, IN_VAIN, MOST_PASSES = 3, 26, 4000

Function = Callable[[Any], Any]
# The number of a point, and the entries of the pattern that were zero so far -> the point.
Point = Callable[[int, np.ndarray], Any]


@dataclass
class Findings:
    """What came out for one function.

    Attributes:
        wrong: What a pattern lacks, and constants that are none: each is a fault.
        spare: How many entries of the pattern were zero at all points.
        unrecordable: Why there is no pattern, or ``""``.
        unknown: The operations that have no rule.
    """

    wrong: list[str] = field(default_factory=list)
    spare: int = 0
    unrecordable: str = ""
    unknown: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Recording:
    """A reverse pass as a program, with the rows and columns that it is about.

    Attributes:
        program: The program.
        shape: How many elements the outputs have, and the inputs.
        rows: The rows of the matrix that the pass can have a seed for.
        columns: The columns that it reaches.
        course: What ran, without the tensors' values but for those that decided what runs.
    """

    program: Program
    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    course: list[Any]

    def structure(self, *, local: bool) -> Structure:
        """What is known of the matrix, at this point or at any."""
        return structure(self.program, local=local, fixed=_is_fixed)

    def pattern(self, found: Structure) -> np.ndarray:
        """The pattern in the whole matrix."""
        pattern = np.zeros(self.shape, dtype=bool)
        if found.pattern.nnz:
            pattern[np.ix_(self.rows, self.columns)] = found.pattern.toarray()
        return pattern

    def constants(self, found: Structure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The entries that are said to be constants: rows, columns and values."""
        none = np.zeros(0, dtype=int)
        if not isinstance(found.factors, Factors):
            return none, none, none
        free = np.ones(found.pattern.nnz, dtype=bool)
        free[found.contributions.entry] = False
        row, column = found.pattern.nonzero()
        return self.rows[row[free]], self.columns[column[free]], found.contributions.constant[free]


def record(make: Callable[[], pb.Jacobian]) -> Recording:
    """The reverse pass of a Jacobian.

    Raises:
        NotRecordable: It cannot be seen as a program.
    """
    lin = make()._lin
    columns, rows = _elements(lin.inputs, lin.live_inputs), _elements(lin.outputs, lin.live_outputs)
    program = lin.record("reverse") if lin.live_inputs and lin.live_outputs else Program("reverse")
    forget_seeded(program)
    shape = tuple(sum(leaf.numel for leaf in space.leaves) for space in (lin.outputs, lin.inputs))
    return Recording(program, shape, rows, columns, _course(program))


def examine(f: Function, x: Any, *, noise: float = 0.0, more: bool = True) -> Findings:
    """Hold the pattern of a function of tensors against its passes."""
    return examine_fresh(lambda: f, x, noise=noise, more=more)


def examine_fresh(make: Callable[[], Function], x: Any, *, noise: float = 0.0, more: bool = True) -> Findings:
    """The same for a function that changes what it holds: it is made anew for each evaluation."""

    def recorded(point: Any, seed: int) -> Recording:
        torch.manual_seed(seed)
        detached = pytree.tree_map(lambda leaf: leaf.detach(), point)
        return record(lambda: pb.jacobian(make(), detached))

    def numbers(point: Any, seed: int) -> np.ndarray:
        return rows_at(make(), point, seed=seed)

    return compare(recorded, numbers, points(x), noise=noise, more=more)


def compare(
    recorded: Callable[[Any, int], Recording],
    numbers: Callable[[Any, int], np.ndarray],
    at: Point,
    *,
    noise: float = 0.0,
    more: bool = True,
) -> Findings:
    """Hold patterns against the numbers of plain passes at several points, the first of which is recorded.

    Args:
        recorded: The recording at a point, under a seed.
        numbers: The matrix there.
        at: The points.
        noise: The share of the largest entry up to which an entry counts as zero.
        more: Whether to look for points at which what the pattern has too much is not zero.
    """
    findings = Findings()
    pattern, last = np.zeros(0, dtype=bool), 0
    with only_pullback_warnings():
        try:
            recording = recorded(at(0, pattern), 0)
        except NotRecordable as error:
            findings.unrecordable = str(error)
            return findings
        found, here = recording.structure(local=False), recording.structure(local=True)
        findings.unknown = set(found.unknown)
        pattern, constants = recording.pattern(found), recording.constants(found)
        union = np.zeros_like(pattern)
        for number in itertools.count():
            spare = pattern & ~union
            tired = not more or number - last > IN_VAIN or number * len(pattern) > MOST_PASSES
            if number >= POINTS and (tired or not spare.any()):
                break
            point = at(number, spare)
            try:
                matrix = numbers(point, number)
                same = number == 0 or recorded(point, number).course == recording.course
            except (RuntimeError, PullbackError, ValueError, NotRecordable):
                if not number:
                    raise
                # Not defined here.
                continue
            size = np.where(np.isfinite(matrix), np.abs(matrix), 0)
            nonzero = size > noise * size.max(initial=0)
            if number == 0:
                findings.wrong += _lacks("the pattern at this point", recording.pattern(here), nonzero)
            if same:
                findings.wrong += _lacks(f"the pattern, at point {number},", pattern, nonzero)
                findings.wrong += _differs(number, constants, matrix)
                last = number if (nonzero & ~union).any() else last
                union |= nonzero
    findings.spare = int(spare.sum())
    return findings


def rows_at(f: Function, x: Any, *, seed: int) -> np.ndarray:
    """J by one plain pass for each row; of complex outputs the sum of the sizes for the seeds 1 and i."""
    leaves = [leaf.requires_grad_() for leaf in pytree.tree_leaves(fresh(x))]
    given = pytree.tree_unflatten(leaves, pytree.tree_structure(x))
    torch.manual_seed(seed)
    try:
        value = f(given)
    except RuntimeError as error:
        if "leaf Variable" not in str(error):
            raise
        torch.manual_seed(seed)
        value = f(pytree.tree_map(torch.clone, given))
    return rows_of(value, leaves)


def rows_of(value: Any, leaves: list[Tensor]) -> np.ndarray:
    """The same for a value that is computed already."""
    outputs = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    live = [output for output in outputs if output.requires_grad]
    matrix = np.zeros((sum(output.numel() for output in outputs), sum(leaf.numel() for leaf in leaves)))
    row = 0
    for output in outputs:
        for index in range(output.numel()):
            for one in (1, 1j) if output.is_complex() else (1,):
                if output.requires_grad:
                    found = torch.autograd.grad(live, leaves, _unit(live, output, index, one), **KEEPING)
                    matrix[row] = _number(found, leaves) if one == 1 else matrix[row] + np.abs(_number(found, leaves))
            row += 1
    return matrix


KEEPING: dict[str, Any] = {"retain_graph": True, "allow_unused": True}


def _unit(live: list[Tensor], output: Tensor, index: int, one: complex) -> list[Tensor]:
    seeds = [torch.zeros(each.shape, dtype=each.dtype) for each in live]
    for seed, each in zip(seeds, live, strict=True):
        if each is output:
            seed.view(-1)[index] = one
    return seeds


def _number(found: Sequence[Tensor | None], leaves: list[Tensor]) -> np.ndarray:
    """A row; the sizes of complex numbers."""
    parts = []
    for part, leaf in zip(found, leaves, strict=True):
        dense = torch.zeros(leaf.shape) if part is None else part.detach().to_dense()
        parts.append(dense.abs() if dense.is_complex() else dense)
    return torch.cat([part.flatten().double() for part in parts]).numpy()


def points(x: Any) -> Point:
    """The point itself, and others by it: nearby, scaled, shuffled, other signs; or one element far off or small."""
    generator = torch.Generator().manual_seed(1)

    def uniform(leaf: Tensor) -> Tensor:
        return torch.rand(leaf.shape, generator=generator, dtype=torch.float64)

    def normal(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64)

    def shuffled(leaf: Tensor) -> Tensor:
        return leaf.flatten()[torch.randperm(leaf.numel(), generator=generator)].reshape(leaf.shape)

    ways = (
        lambda leaf: leaf * (0.5 + uniform(leaf)),
        lambda leaf: leaf + 0.3 * normal(leaf),
        shuffled,
        lambda leaf: leaf * normal(leaf).sign(),
        lambda leaf: 0.1 * leaf,
        lambda leaf: 2 * normal(leaf),
        uniform,
    )

    def point(number: int, spare: np.ndarray) -> Any:
        if not number:
            return x
        turn = number - 1 if number < POINTS else number - POINTS
        cycle, place = divmod(turn, 4) if number >= POINTS else (turn, 3)
        aimed = place < 3
        way = (lambda leaf: leaf) if aimed else ways[cycle % len(ways)]
        moved = pytree.tree_map(lambda leaf: fresh(leaf).detach().copy_(way(leaf.detach())), x)
        if aimed:
            columns = np.flatnonzero(spare.any(axis=0))
            size = 1 + max(float(leaf.abs().max()) for leaf in pytree.tree_leaves(moved) if leaf.numel())
            _put(pytree.tree_leaves(moved), int(columns[cycle % len(columns)]), (size, -size, 0.01)[place])
        return moved

    return point


def _put(leaves: list[Tensor], column: int, value: float) -> None:
    """Change one element among those of all leaves."""
    for leaf in leaves:
        if column < leaf.numel():
            leaf[np.unravel_index(column, leaf.shape) if leaf.ndim else ()] = value
            return
        column -= leaf.numel()


def _elements(space: Any, live: Sequence[int]) -> np.ndarray:
    """The positions of some leaves' elements among all."""
    starts = np.cumsum([0, *(leaf.numel for leaf in space.leaves)])
    return np.concatenate([np.arange(starts[k], starts[k + 1]) for k in live] or [np.zeros(0, dtype=int)])


def _is_fixed(index: int, tensor: Tensor) -> bool:
    return not tensor.requires_grad


def _lacks(what: str, pattern: np.ndarray, nonzero: np.ndarray) -> list[str]:
    wrong = nonzero & ~pattern
    if not wrong.any():
        return []
    return [f"{what} lacks {int(wrong.sum())} of {int(nonzero.sum())} entries, {np.argwhere(wrong)[:4].tolist()}"]


def _differs(point: int, constants: tuple[np.ndarray, np.ndarray, np.ndarray], matrix: np.ndarray) -> list[str]:
    row, column, value = constants
    true = matrix[row, column]
    wrong = np.isfinite(true) & ~np.isclose(value, true, rtol=1e-9, atol=1e-12)
    if not wrong.any():
        return []
    return [f"{int(wrong.sum())} constants are wrong at point {point}: {value[wrong][0]} instead of {true[wrong][0]}"]


def _course(program: Program) -> list[Any]:
    """The steps without the tensors: two passes that took the same branches have the same course."""

    def plain(value: Any) -> Any:
        if isinstance(value, View):
            return value.shape, value.dtype
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return repr(value)

    steps: list[Any] = [(step.op, plain(step.args), plain(tuple(step.kwargs.items()))) for step in program.steps]
    for view, _ in decisions(program, varying_storages(program, _is_fixed)):
        selected = program.tensors[view.tensor]
        steps.append((selected != 0).tolist() if selected.ndim else None)
    return steps
