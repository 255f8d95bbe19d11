"""Strategies forced one by one: each builds everything it gives, or says why not, and what it builds is right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import pullback as pb
from pullback.errors import GuardError, StrategyError
from pullback.plan import Plan
from pullback.strategies.base import STRATEGIES, Want

from .examine import only_pullback_warnings
from .oracle import Truth

Make = Callable[[str], pb.Jacobian]
# A strategy, and what it builds.
Kind = tuple[str, Want]


@dataclass
class Tally:
    """What came out of many Jacobians, each by every strategy.

    Attributes:
        problems: Wrong numbers, other errors than a refusal, another way taken without a word: each is a fault.
        built: How often each strategy really built each kind of result.
        refused: How often each strategy said why it does not.
        warned: Pullback's warnings: where, and what they say.
    """

    problems: list[str] = field(default_factory=list)
    built: Counter[Kind] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    warned: dict[str, str] = field(default_factory=dict)

    def note(self, where: str, wrong: str) -> None:
        """Record a problem, if there is one."""
        if wrong:
            self.problems.append(f"{where}: {wrong}")

    def fewer_than(self, least: int) -> dict[Kind, int]:
        """What was built less often than it has to be, of all that the registry's strategies give."""
        return {kind: self.built[kind] for kind in kinds() if self.built[kind] < least}


def kinds(*names: str, want: Collection[Want] = ("matrix", "blocks", "sparse"), turn: int | None = None) -> list[Kind]:
    """What strategies give, all or those named; with a turn, entries of a pattern and matrices take turns."""
    found: list[Kind] = []
    for name, strategy in STRATEGIES.all().items():
        if name in names or not names:
            wants = sorted(strategy.gives & set(want))
            found += [(name, each) for each in (wants if turn is None or "sparse" not in wants else [wants[turn % 2]])]
    return found


def force(
    where: str, make: Make, truth: Truth, tally: Tally, wanted: Sequence[Kind], *, nonfinite: bool = True
) -> None:
    """Build what strategies give, forced one by one, and hold it against the oracle.

    Args:
        where: What is differentiated.
        make: Makes the Jacobian, given the strategy.
        truth: The oracle.
        tally: What the outcome is added to.
        wanted: The strategies, and what they build.
        nonfinite: Whether what is NaN must stand in the same places: a row of NaN has no structural zeros.
    """
    for name, want in wanted:
        here = f"{where}, {want} by {name}"
        plan = _build(here, make, truth, tally, (name, want), nonfinite=nonfinite)
        if plan is not None and plan.chosen != name and plan.offers and not plan.notes and here not in tally.warned:
            tally.note(here, f"{plan.want} by {plan.chosen!r} instead, without a word")
        # A plain reverse pass for each output element always can.
        if plan is None and (name, want) == ("rows", "matrix"):
            tally.note(here, "refused")


def force_prepared(where: str, prepare: Make, truth: Truth, tally: Tally, wanted: Sequence[Kind]) -> None:
    """What was prepared by each strategy at one point, built at another, and held against the oracle there."""
    for name, want in wanted:
        _build(f"{where}, prepared {want} by {name}", prepare, truth, tally, (name, want), nonfinite=True)


def _build(where: str, make: Make, truth: Truth, tally: Tally, kind: Kind, *, nonfinite: bool) -> Plan | None:
    """One result by one strategy, compared; and how it was made, if it was not refused."""
    torch.manual_seed(0)
    with only_pullback_warnings() as caught:
        try:
            J = make(kind[0])
            found, expected = BUILDERS[kind[1]](J, truth)
            plan = J.plan()
        except (StrategyError, GuardError) as error:
            tally.refused[kind[0]] += 1
            tally.note(where, "" if error.got else "no reason")
            return None
        except Exception as error:  # one finding more, so that all others are seen too
            tally.note(where, f"{type(error).__name__}: {error}"[:600])
            return None
        finally:
            if caught:
                tally.warned[where] = "; ".join(str(warning.message) for warning in caught)
    tally.note(where, truth.difference(found, expected, nonfinite=nonfinite))
    if found.dtype != truth.dtype:
        tally.note(where, f"{found.dtype} instead of {truth.dtype}")
    if not torch.equal(torch.get_rng_state(), truth.generator):
        tally.note(where, "the generator is not as after one evaluation")
    if plan.chosen == kind[0]:
        tally.built[kind] += 1
    return plan


def _matrix(J: pb.Jacobian, truth: Truth) -> tuple[Tensor, Tensor]:
    return J.matrix(), truth.real


def _sparse(J: pb.Jacobian, truth: Truth) -> tuple[Tensor, Tensor]:
    return J.sparse().to_dense(), truth.real


def _blocks(J: pb.Jacobian, truth: Truth) -> tuple[Tensor, Tensor]:
    found = J.blocks()
    expected, mixed = blocks_of(J, truth.real)
    if mixed:
        raise AssertionError(f"blocks of examples that mix: {mixed}")
    return found, expected


BUILDERS: dict[Want, Callable[[pb.Jacobian, Truth], tuple[Tensor, Tensor]]] = {
    "matrix": _matrix,
    "sparse": _sparse,
    "blocks": _blocks,
}


def blocks_of(J: pb.Jacobian, matrix: Tensor) -> tuple[Tensor, int]:
    """Each example's own rows and columns, and how many entries outside of them are not zero.

    By inputs that no example has to itself, the rows of each example.
    """
    examples = J.outputs.shapes[0][0]
    if not examples:
        heights, widths = (sum(math.prod(shape[1:]) for shape in space.shapes) for space in (J.outputs, J.inputs))
        return matrix.new_zeros(0, heights, widths), 0
    rows = _of_examples(J.outputs.shapes, examples)
    if any(shape[:1] != (examples,) for shape in J.inputs.shapes):
        return torch.stack([matrix[row] for row in rows]), 0
    columns = _of_examples(J.inputs.shapes, examples)
    rest = matrix.clone()
    for row, column in zip(rows, columns, strict=True):
        rest[row[:, None], column] = 0
    blocks = [matrix[row][:, column] for row, column in zip(rows, columns, strict=True)]
    return torch.stack(blocks), int((rest != 0).sum())


def _of_examples(shapes: tuple[torch.Size, ...], examples: int) -> list[Tensor]:
    """For each example the flat positions of its elements."""
    parts, start = [], 0
    for shape in shapes:
        parts.append(torch.arange(start, start + math.prod(shape)).reshape(examples, math.prod(shape[1:])))
        start += math.prod(shape)
    return list(torch.cat(parts, dim=1))
