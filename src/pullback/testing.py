"""For tests: an assertion that gradients are right, and functions whose Jacobians have a closed form.

Every strategy in the registry is tested on every scenario that it bids for; a new one of either kind is tested at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.door import check


def assert_gradients(f: Any, *inputs: Any, **options: Any) -> None:
    """Assert that the derivatives of f are right at these inputs, as :func:`pullback.check` finds.

    Args:
        f: A function of tensors, an ``nn.Module``, or a subclass of ``torch.autograd.Function``.
        *inputs: Its arguments.
        **options: As for :func:`pullback.check`.

    Raises:
        AssertionError: They are not; its text is the report.

    >>> assert_gradients(torch.sin, torch.linspace(0, 1, 5))
    """
    __tracebackhide__ = True
    report = check(f, *inputs, **options)
    if not report:
        raise AssertionError(str(report))


@dataclass(frozen=True)
class Scenario:
    """A function, its arguments, and its Jacobian in closed form.

    Attributes:
        name: What it is called.
        f: The function.
        args: Its arguments, differentiated by the first.
        matrix: ``J``, ``(m, n)``: outputs and inputs flattened and laid end to end.
    """

    name: str
    f: Callable[..., Any]
    args: tuple[Any, ...]
    matrix: Tensor


def scenarios(dtype: torch.dtype = torch.float64, device: str | torch.device = "cpu") -> list[Scenario]:
    """All scenarios, in a dtype and on a device."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype=dtype, device=device)

    return [
        _linear(random(3, 5), random(5)),
        _elementwise(random(4, 3)),
        _scalar_output(random(6)),
        _scalar_input(random()),
        _tall(random(300, 3), random(3)),
        _wide(random(2, 300), random(300)),
        _softmax(random(5)),
        _bilinear_batch(random(2, 3, 3), random(40, 3)),
        _coupled_batch(random(20, 2)),
        _two_leaves(random(3), random(2)),
    ]


def _linear(a: Tensor, x: Tensor) -> Scenario:
    return Scenario("linear", lambda x: a @ x, (x,), a)


def _elementwise(x: Tensor) -> Scenario:
    return Scenario("elementwise", torch.sin, (x,), x.cos().flatten().diag())


def _scalar_output(x: Tensor) -> Scenario:
    return Scenario("scalar output", lambda x: (x**3).sum(), (x,), (3 * x**2)[None])


def _scalar_input(x: Tensor) -> Scenario:
    powers = torch.arange(1, 5, dtype=x.dtype, device=x.device)
    return Scenario("scalar input", lambda x: x**powers, (x,), (powers * x ** (powers - 1))[:, None])


def _tall(w: Tensor, x: Tensor) -> Scenario:
    return Scenario("tall", lambda x: torch.sin(w @ x), (x,), (w @ x).cos()[:, None] * w)


def _wide(w: Tensor, x: Tensor) -> Scenario:
    return Scenario("wide", lambda x: torch.sin(w @ x), (x,), (w @ x).cos()[:, None] * w)


def _softmax(x: Tensor) -> Scenario:
    p = x.softmax(0)
    return Scenario("softmax", lambda x: x.softmax(0), (x,), p.diag() - p[:, None] * p)


def _bilinear_batch(w: Tensor, x: Tensor) -> Scenario:
    blocks = torch.einsum("okj,bj->bok", w + w.mT, x)
    return Scenario(
        "bilinear batch",
        lambda x: torch.einsum("bi,oij,bj->bo", x, w, x),
        (x,),
        torch.block_diag(*blocks),  # type: ignore[no-untyped-call]
    )


def _coupled_batch(x: Tensor) -> Scenario:
    n = x.shape[0]
    centre = torch.eye(n, dtype=x.dtype, device=x.device) - 1 / n
    columns = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return Scenario("coupled batch", lambda x: x - x.mean(0), (x,), torch.kron(centre, columns))


def _two_leaves(a: Tensor, b: Tensor) -> Scenario:
    def f(tree: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"outer": tree["a"][:, None] * tree["b"], "sum": tree["a"].sum() + tree["b"].sum()}

    eye_a, eye_b = (torch.eye(len(v), dtype=v.dtype, device=v.device) for v in (a, b))
    by_a = torch.einsum("ik,j->ijk", eye_a, b).flatten(0, 1)
    by_b = torch.einsum("i,jk->ijk", a, eye_b).flatten(0, 1)
    ones = torch.ones(1, len(a) + len(b), dtype=a.dtype, device=a.device)
    matrix = torch.cat([torch.cat([by_a, by_b], dim=1), ones])
    return Scenario("two leaves", f, ({"a": a, "b": b},), matrix)
