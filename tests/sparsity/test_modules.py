"""Every module of PyTorch's module database: patterns by its inputs and by its parameters hold all non-zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback as pb

from ..sweep.modules import MODE, Case, cases, differentiable, names
from . import known
from .oracle import Findings, Recording, compare, examine_fresh, points, record, rows_of

pytestmark = pytest.mark.sweep

# So many samples of a module, those whose Jacobian has not more entries than this; or else the smallest.
SAMPLES = 2
LARGEST_MATRIX = 6000


def test_every_name_in_the_lists_is_a_module() -> None:
    assert set(known.MODULES) <= set(names())


@pytest.mark.parametrize("name", names())
def test_module(name: str) -> None:
    """The patterns for all points and for this one; the lists are exact."""
    wrong, spare, unrecordable = [], [], []
    for case in samples(name):
        for way, found in examined(case).items():
            where = f"{case.name} by {way}: "
            wrong += [where + text for text in found.wrong]
            spare += [f"{where}{found.spare} too many; no rule: {sorted(found.unknown)}"] * bool(found.spare)
            unrecordable += [where + found.unrecordable] * bool(found.unrecordable)
    assert not wrong, "\n".join(wrong)
    assert not unrecordable, unrecordable
    if MODE != "full":
        assert bool(spare) == (name in known.MODULES), "\n".join(spare) or "exact: take it off MODULES"


def samples(name: str) -> Iterator[Case]:
    """A few small samples."""
    found = list(cases(name))
    if MODE != "full":
        small = [case for case in found if case.size[0] * case.size[1] <= LARGEST_MATRIX][:SAMPLES]
        found = small or [min(found, key=lambda case: case.size[0] * case.size[1])]
    yield from found


def examined(case: Case) -> dict[str, Findings]:
    """What came out by the parameters and by the inputs, where there are any."""
    found = {}
    if list(case.module.parameters()):
        found["parameters"] = _by_parameters(case)
    args = {index: arg for index, arg in enumerate(case.args) if differentiable(arg)}
    kwargs = {name: arg for name, arg in case.kwargs.items() if differentiable(arg)}
    if args or kwargs:
        found["inputs"] = examine_fresh(lambda: _of_inputs(case), (args, kwargs))
    return found


def _of_inputs(case: Case) -> Callable[[Any], Any]:
    module = case.fresh()

    def f(x: tuple[dict[int, Any], dict[str, Any]]) -> Any:
        positional = (dict(enumerate(case.args)) | x[0]).values()
        return module(*positional, **case.kwargs | x[1])

    return f


def _by_parameters(case: Case) -> Findings:
    def at(point: list[Tensor]) -> nn.Module:
        module = case.fresh()
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), point, strict=True):
                parameter.copy_(value)
        return module

    def recorded(point: list[Tensor], seed: int) -> Recording:
        torch.manual_seed(seed)
        module = at(point)
        called = _Calling(module, case.kwargs) if case.kwargs else module
        return record(lambda: pb.jacobian(called, *case.args, wrt="parameters"))

    def numbers(point: list[Tensor], seed: int) -> Any:
        module = at(point)
        torch.manual_seed(seed)
        return rows_of(module(*case.args, **case.kwargs), list(module.parameters()))

    return compare(recorded, numbers, points([parameter.detach() for parameter in case.module.parameters()]))


class _Calling(nn.Module):
    """A module that is called with the same keywords each time."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.kwargs = kwargs

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.kwargs)
