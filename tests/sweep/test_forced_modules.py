"""Every module of PyTorch's database by every strategy, forced one by one: by its parameters and by its inputs.

The smallest sample of each module, and a batch of eight like it; by one of the two, or with PULLBACK_SWEEP=full both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import pullback as pb

from . import known
from .examine import only_pullback_warnings
from .forced import Tally, force, kinds
from .modules import Case, cases, differentiable, names, tensors
from .operators import MODE
from .oracle import Truth, carries, fresh, truth_of_graph

pytestmark = pytest.mark.sweep

# The modules are dealt out to so many tests, so that each can count what every strategy built.
DEALS = 3
# Strategies that each deal of about 42 modules has work for.
# Few modules have a sample that is small enough for "outer" in each deal; tests/outer is there for it.
EXERCISED = {"blocks", "colored-columns", "colored-rows", "factored", "staged", "waist"}
# What a batch of calls is there for; a single call is for the others, of which test_modules has rows and columns.
SUITS = ("blocks", "outer", "staged")
PLAIN = ("bidirectional", "blocks", "colored-columns", "colored-rows", "factored", "waist")
# A batch of a module has so many examples, and a Jacobian of it has at most so many rows and entries.
EXAMPLES = 8
LARGEST_OUTPUT, LARGEST_MATRIX = 400, 200_000
STEP = 0.01


@dataclass(frozen=True)
class Problem:
    """A Jacobian of a module, its oracle, and whether it is by parameters and of a batch."""

    name: str
    make: Callable[[str], pb.Jacobian]
    truth: Truth
    by_parameters: bool
    batched: bool = False


@pytest.mark.parametrize("deal", range(DEALS))
def test_modules_by_every_strategy(deal: int) -> None:
    """Right, or refused with a reason; each strategy builds something; the list of those that warn is exact."""
    tally, warned, mine = Tally(), set(), sorted(names())[deal::DEALS]
    for place, name in enumerate(mine):
        before = len(tally.warned)
        case = min(cases(name), key=lambda case: (not case.size[1], case.size[0] * case.size[1]))
        everything = MODE == "full" or name in known.FORCED_MODULES_WARNED
        for each in _problems(case, None if everything else place):
            wanted = kinds() if everything else kinds(*SUITS) if each.batched else kinds(*PLAIN, turn=place // 2)
            # By parameters blocks are rows, of whichever strategy.
            wanted = [kind for kind in wanted if kind[1] != "blocks" or not each.by_parameters]
            force(each.name, each.make, each.truth, tally, wanted, nonfinite=_is_finite(each.truth))
        warned |= {name} if len(tally.warned) > before else set()
    print(dict(tally.built), dict(tally.refused))
    assert not tally.problems, "\n".join(tally.problems)
    exercised = {strategy for strategy, _ in tally.built}
    assert exercised >= EXERCISED, tally.built
    assert warned == set(known.FORCED_MODULES_WARNED) & set(mine), "\n".join(
        f"{where}: {text}" for where, text in tally.warned.items()
    )


def _is_finite(truth: Truth) -> bool:
    return all(bool(part.isfinite().all()) for part in tensors(truth.value))


def _problems(case: Case, turn: int | None) -> Iterator[Problem]:
    """By the parameters and by the inputs: one call, and a batch; with a turn, one of the two for the most part."""
    by_inputs, by_parameters = bool(differentiable(case.args)), bool(list(case.module.parameters()))
    if by_parameters:
        if turn is None or not by_inputs or turn % 2:
            yield _by_parameters(case.name, _Calling(case), list(case.args))
        for name, module, args in _batched(case):
            yield replace(_by_parameters(name, module, args), batched=True)
    if by_inputs and (turn is None or not by_parameters or not turn % 2):
        yield _by_inputs(case.name, _Calling(case), list(case.args))
        for name, module, args in _batched(case):
            yield replace(_by_inputs(name, module, args), batched=True)


class _Calling(nn.Module):
    """A module that is called with the same keywords each time, from the same state."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.module = case.fresh()
        self.kwargs = case.kwargs

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.kwargs)


class _EachExample(_Calling):
    """The module called for each example of a batch, one after the other."""

    def forward(self, *args: Any) -> Tensor:
        return torch.stack([_flat(super(_EachExample, self).forward(*_example(args, b))) for b in range(EXAMPLES)])


def _batched(case: Case) -> list[tuple[str, nn.Module, list[Any]]]:
    """Eight samples like one, where that is not too large: in one call if the module takes it, else one by one."""
    n, m = case.size
    if m * EXAMPLES > LARGEST_OUTPUT or n * m * EXAMPLES > LARGEST_MATRIX:
        return []
    longer = pytree.tree_map_only(Tensor, lambda leaf: torch.cat(_nearby(leaf)) if leaf.ndim else leaf, case.args)
    apart = pytree.tree_map_only(Tensor, lambda leaf: torch.stack(_nearby(leaf)), case.args)
    for name, module, args in (
        (f"{case.name}, eight times as long", _Calling(case), longer),
        (f"{case.name}, eight times", _EachExample(case), apart),
    ):
        try:
            with only_pullback_warnings():
                value = _Calling(case)(*args) if args is longer else module(*args)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            continue
        if sum(part.numel() for part in tensors(value)) <= LARGEST_OUTPUT:
            return [(name, module, list(args))]
    return []


def _nearby(leaf: Tensor) -> list[Tensor]:
    """A tensor and some that are a little smaller; numbers that carry no derivative are the same."""
    if not carries(leaf):
        return [leaf] * EXAMPLES
    made = [leaf.detach() * (1 - STEP * b) for b in range(EXAMPLES)]
    return [part.requires_grad_(leaf.requires_grad) for part in made]


def _example(args: Any, index: int) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf[index], args)


def _flat(value: Any) -> Tensor:
    return torch.cat([part.flatten() for part in tensors(value) if part.is_floating_point()])


def _by_parameters(name: str, module: nn.Module, args: list[Any]) -> Problem:
    state = {key: value.clone() for key, value in module.state_dict().items()}
    truth = _truth(lambda: module(*args), list(module.parameters()))
    module.load_state_dict(state)

    def make(strategy: str) -> pb.Jacobian:
        module.load_state_dict(state)
        return pb.jacobian(module, *args, wrt="parameters", strategy=strategy)

    return Problem(f"{name} by parameters", make, truth, by_parameters=True)


def _by_inputs(name: str, module: nn.Module, args: list[Any]) -> Problem:
    wrt = tuple(index for index, arg in enumerate(args) if differentiable(arg))
    given = [fresh(arg) if index in wrt else arg for index, arg in enumerate(args)]
    state = {key: value.clone() for key, value in module.state_dict().items()}
    leaves = [leaf for index in wrt for leaf in tensors(given[index]) if carries(leaf)]
    truth = _truth(lambda: module(*given), leaves)

    def make(strategy: str) -> pb.Jacobian:
        module.load_state_dict(state)
        return pb.jacobian(module, *args, wrt=wrt, strategy=strategy)

    return Problem(f"{name} by inputs", make, truth, by_parameters=False)


def _truth(call: Callable[[], Any], leaves: list[Tensor]) -> Truth:
    """The oracle for one call by these leaves."""
    with only_pullback_warnings():
        torch.manual_seed(0)
        value = call()
        return truth_of_graph(value, leaves, torch.get_rng_state())
