"""Every operator of PyTorch's database by every strategy, forced one by one; and by what was prepared elsewhere.

One small sample of each operator as it is, and in one of the arrangements, by the strategies that it suits. In all
arrangements by all strategies, and all samples, with PULLBACK_SWEEP=full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import pullback as pb
from pullback.strategies.base import STRATEGIES

from . import known
from .arrangements import ARRANGEMENTS, STEP, Arrangement, is_defined, is_real, plain, reduced
from .examine import only_pullback_warnings
from .forced import Kind, Tally, force, force_prepared, kinds
from .operators import MODE, cases, operators, smallest
from .oracle import Truth, fresh, truth_with_all_seeds

pytestmark = pytest.mark.sweep

NAMES = sorted(set(operators()) - set(known.SPARSE_INPUT))
# The operators are dealt out to so many tests, so that each can count what every strategy built.
DEALS = 5
# How often each strategy builds each kind of result in a deal of about 108 operators, at least.
AT_LEAST = 2
# One in so many operators is prepared; in each half of them these strategies build something.
SPARSER = 8
PREPARED = {"bidirectional", "blocks", "colored-columns", "colored-rows", "factored"}
# The strategies that an arrangement was made for.
SUITS = {
    "examples": ("blocks", "factored"),
    "vmapped": ("blocks", "staged"),
    "layer": ("outer", "staged"),
    "narrow": ("waist",),
    "arrow": ("bidirectional",),
    "hessian": ("acyclic", "star"),
}
# Every second operator is arranged in one way; the ways take turns. Many operators have no second derivative.
TURNS = ("examples", "hessian", "layer", "arrow", "hessian", "vmapped", "narrow")


def test_an_arrangement_suits_every_strategy() -> None:
    assert set(SUITS) == set(ARRANGEMENTS)
    assert set(TURNS) == set(ARRANGEMENTS)
    suited = set().union(*SUITS.values())
    assert suited | {"columns", "rows", "colored-columns", "colored-rows"} == set(STRATEGIES.all())


@pytest.mark.parametrize("deal", range(DEALS))
def test_operators_by_every_strategy(deal: int) -> None:
    """Right, or refused with a reason; each strategy builds something; the list of those that warn is exact."""
    tally, warned = Tally(), set()
    for name in NAMES[deal::DEALS]:
        before = len(tally.warned)
        for arrangement, wanted in _scope(name):
            truth = _truth(arrangement, name)
            if truth is not None:
                defined = name not in known.UNDEFINED
                force(arrangement.name, arrangement.make, truth, tally, wanted, nonfinite=defined)
        warned |= {name} if len(tally.warned) > before else set()
    print(dict(tally.built), dict(tally.refused))
    assert not tally.problems, "\n".join(tally.problems)
    assert not tally.fewer_than(AT_LEAST), tally.built
    listed = set(known.FORCED_WARNED) & set(NAMES[deal::DEALS])
    assert warned >= listed, f"no warning: take it off the list: {listed - warned}"
    if MODE == "full":
        listed |= set(known.WARNED)
    assert warned <= listed, "\n".join(f"{where}: {text}" for where, text in tally.warned.items())


def _scope(name: str) -> Iterator[tuple[Arrangement, list[Kind]]]:
    """What is differentiated for an operator, and how."""
    place = NAMES.index(name)
    everything = MODE == "full" or name in known.FORCED_WARNED
    case = smallest(name)
    for sample in cases(name) if MODE == "full" else [case]:
        yield plain(sample), kinds(turn=None if everything else place)
    turns, odd = divmod(place, 2)
    chosen = list(ARRANGEMENTS) if everything else [] if odd else [TURNS[turns % len(TURNS)]]
    with only_pullback_warnings():
        found = {each: ARRANGEMENTS[each](reduced(case)) for each in chosen} if is_real(case) else {}
        found = {each: made for each, made in found.items() if is_defined(made)}
    for each, made in found.items():
        yield made, kinds() if everything else kinds(*SUITS[each])


def _truth(arrangement: Arrangement, name: str) -> Truth | None:
    """The oracle; None where torch has no derivative of the derivative for it."""
    with only_pullback_warnings():
        try:
            if name in known.WRONG_WITHOUT_OTHER_SEEDS and not arrangement.hessian:
                return truth_with_all_seeds(arrangement.f, arrangement.x)
            return arrangement.truth()
        except RuntimeError:
            if not arrangement.hessian:
                raise
            return None


@pytest.mark.parametrize("half", range(2))
def test_prepared_by_every_strategy(half: int) -> None:
    """What was prepared at one point, at another: right there, or refused with a reason."""
    tally, wanted = Tally(), kinds(want={"matrix", "blocks"})
    names = NAMES[half::2] if MODE == "full" else NAMES[half :: 2 * SPARSER]
    for place, name in enumerate(names):
        case = smallest(name)
        for kind in wanted if MODE == "full" else [wanted[place % len(wanted)]]:
            with only_pullback_warnings():
                suited = next((each for each, able in SUITS.items() if kind[0] in able), "examples")
                found = [plain(case), ARRANGEMENTS[suited](reduced(case))] if is_real(case) else []
            for arrangement in found:
                _force_prepared(arrangement, [kind], tally)
    print(dict(tally.built), dict(tally.refused))
    assert not tally.problems, "\n".join(tally.problems)
    assert {strategy for strategy, _ in tally.built} >= PREPARED, tally.built


def _force_prepared(arrangement: Arrangement, wanted: list[Kind], tally: Tally) -> None:
    x = tuple(part * (1 - 2 * STEP) for part in arrangement.x)
    elsewhere = replace(arrangement, x=x)
    with only_pullback_warnings():
        if not is_defined(arrangement) or not is_defined(elsewhere):
            return
        truth = _truth(elsewhere, name="")
    if truth is None:
        return

    def prepare(strategy: str) -> pb.Jacobian:
        kind = "hessian" if arrangement.hessian else "jacobian"
        prepared = pb.prepare(arrangement.f, fresh(arrangement.x), of=kind, strategy=strategy)
        torch.manual_seed(0)
        return prepared(fresh(x))

    force_prepared(arrangement.name, prepare, truth, tally, wanted)
