"""Who called a custom Function is found, whether ``apply`` is written in Python or in C."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pullback.autodiff import applied

callers: list[str | None] = []


def look(x: Tensor) -> Tensor:
    frame = applied.caller_of_function(sys._getframe())
    while frame is not None and frame.f_code.co_filename != __file__:
        frame = frame.f_back
    callers.append(None if frame is None else frame.f_code.co_name)
    return 2 * x


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return function(*args)

    return around


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return look(x).detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return look(g)


class Decorated(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    @decorated
    def forward(x: Tensor) -> Tensor:
        return look(x)

    @staticmethod
    @torch.no_grad()
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        look(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Plain.apply(look(x))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 4 * g


@pytest.fixture(params=["as it is", "without frames"])
def _apply(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    callers.clear()
    if request.param == "without frames":
        monkeypatch.setattr(applied, "APPLIES", applied.APPLIES - {applied._APPLY})
        monkeypatch.setattr(applied, "_APPLY", None)


@pytest.mark.usefixtures("_apply")
def test_the_caller_of_a_function_is_found() -> None:
    def user() -> None:
        x = torch.ones(2, requires_grad=True)
        Plain.apply(x)
        Decorated.apply(x)
        Outer.apply(x)

    user()
    assert callers == ["user", "user", "user", "user", "forward"]


@pytest.mark.usefixtures("_apply")
def test_no_function_is_running() -> None:
    x = torch.ones(2, requires_grad=True)
    y = Plain.apply(x)
    callers.clear()
    look(x)
    Decorated.forward(x)
    with torch.no_grad():
        look(x)
    y.sum().backward()
    assert callers == [None, None, None, None]


@pytest.mark.usefixtures("_apply")
def test_under_a_transform() -> None:
    def user() -> None:
        torch.func.vmap(Decorated.apply)(torch.ones(2, 2))

    user()
    assert set(callers) == {"user"}
