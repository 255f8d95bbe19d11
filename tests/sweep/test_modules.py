"""Every module of PyTorch's module database, by its inputs and by its parameters, in training and evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pullback as pb

from . import known
from .examine import Findings, examine_call, only_pullback_warnings
from .modules import Case, cases, differentiable, names, tensors
from .oracle import Truth, carries, fresh, truth_of_graph

pytestmark = pytest.mark.sweep

# The modules of torch 2.13's database, 114, where those that differ in training count twice.
AT_LEAST = 126


def test_the_sweep_is_complete() -> None:
    assert len(names()) >= AT_LEAST


def test_every_name_in_the_lists_is_a_module() -> None:
    assert set(known.MODULES) <= set(names())


@pytest.mark.parametrize("name", names())
def test_module(name: str) -> None:
    """By its inputs and by its parameters, on samples of one module; the lists are exact."""
    problems, refused, warned, undefined, count = [], [], [], [], 0
    for case in cases(name, more=name in known.MODULES_UNDEFINED | known.MODULES_WHOSE_FORWARD_IS_WRONG):
        for way, found in _examined(case).items():
            where = f"{case.name} by {way}: "
            problems += [where + problem for problem in found.problems]
            if _is_nan(case):
                undefined += [where + text for text in (*found.warned, found.refused) if text]
            else:
                refused += [where + found.refused] * bool(found.refused)
                warned += [where + text for text in found.warned]
            count += 1
    assert count, "nothing to differentiate by"
    assert not problems, "\n".join(problems)
    for texts, listed in (
        (refused, known.MODULES_WITHOUT_FORWARD),
        (warned, known.MODULES_WHOSE_FORWARD_IS_WRONG),
        (undefined, known.MODULES_UNDEFINED),
    ):
        assert bool(texts) == (name in listed), "\n".join(texts) or f"take it off the list of {listed}"


def _is_nan(case: Case) -> bool:
    """Whether the module's value is NaN somewhere."""
    with only_pullback_warnings():
        return any(part.isnan().any() for part in tensors(case.fresh()(*case.args, **case.kwargs)))


def _examined(case: Case) -> dict[str, Findings]:
    """The Jacobians by the inputs and by the parameters, where there are any, held against the oracle."""
    found = {}
    if list(case.module.parameters()):
        found["parameters"] = _by_parameters(case)
    if differentiable(case.kwargs):
        found["inputs and keywords"] = _by_keywords(case)
    elif differentiable(case.args):
        found["inputs"] = _by_inputs(case)
    return found


def _by_parameters(case: Case) -> Findings:
    module = case.fresh()
    truth = _truth(lambda: module(*case.args, **case.kwargs), list(module.parameters()))

    def make(tested: nn.Module, strategy: str) -> pb.Jacobian:
        if case.kwargs:
            f = _Calling(tested, case.kwargs)
            return pb.jacobian(f, *case.args, wrt="parameters", strategy=strategy)
        return pb.jacobian(tested, *case.args, wrt="parameters", strategy=strategy)

    return _examine(case, truth, make, module)


def _by_inputs(case: Case) -> Findings:
    """By all arguments in which something requires grad."""
    module, args = case.fresh(), list(case.args)
    wrt = tuple(index for index, arg in enumerate(args) if differentiable(arg))
    for index in wrt:
        args[index] = fresh(args[index])
    truth = _truth(
        lambda: module(*args, **case.kwargs), [leaf for index in wrt for leaf in tensors(args[index]) if carries(leaf)]
    )

    def make(tested: nn.Module, strategy: str) -> pb.Jacobian:
        f = functools.partial(tested, **case.kwargs) if case.kwargs else tested
        return pb.jacobian(f, *case.args, wrt=wrt, strategy=strategy)

    return _examine(case, truth, make, module)


def _by_keywords(case: Case) -> Findings:
    """By one structure of arguments and named ones, as the argument of a function that holds the module."""
    module = case.fresh()
    args = {index: arg for index, arg in enumerate(case.args) if differentiable(arg)}
    kwargs = {name: arg for name, arg in case.kwargs.items() if differentiable(arg)}

    def call(tested: nn.Module, x: tuple[dict[int, Any], dict[str, Any]]) -> Any:
        positional = (dict(enumerate(case.args)) | x[0]).values()
        return tested(*positional, **case.kwargs | x[1])

    x = fresh((args, kwargs))
    truth = _truth(lambda: call(module, x), [leaf for leaf in tensors(x) if carries(leaf)])

    def make(tested: nn.Module, strategy: str) -> pb.Jacobian:
        return pb.jacobian(lambda x: call(tested, x), (args, kwargs), strategy=strategy)

    return _examine(case, truth, make, module)


class _Calling(nn.Module):
    """A module that is called with the same keywords each time."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.kwargs = kwargs

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.kwargs)


def _truth(call: Callable[[], Any], leaves: list[Tensor]) -> Truth:
    """The oracle for one call by these leaves."""
    with only_pullback_warnings():
        torch.manual_seed(0)
        value = call()
        return truth_of_graph(value, leaves, torch.get_rng_state())


def _examine(case: Case, truth: Truth, make: Callable[[nn.Module, str], pb.Jacobian], once: nn.Module) -> Findings:
    """Examine the Jacobians of copies of the module; each copy's state must be as after one call."""
    copies: list[nn.Module] = []

    def make_of_copy(strategy: str) -> pb.Jacobian:
        copies.append(case.fresh())
        return make(copies[-1], strategy)

    findings = examine_call(make_of_copy, truth, tensors((case.args, case.kwargs)))
    for tested in copies:
        for (key, found), expected in zip(tested.state_dict().items(), once.state_dict().values(), strict=True):
            if not torch.equal(found, expected):
                findings.note("the module's state", f"{key} is not as after one call")
        if any(parameter.grad is not None for parameter in tested.parameters()):
            findings.note("the module's state", "a parameter has a .grad")
    return findings
