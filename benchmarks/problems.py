"""The sparse problems in PyTorch, and their Jacobians as one writes them by hand with torch.func and a coloring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vjp, vmap

import pullback as pb
from benchmarks import problem_numbers
from pullback.coloring import color_columns, color_rows, recover_direct

Function = Callable[[Tensor], Tensor]
conv2d = nn.functional.conv2d
ALPHA = 10.0


def brusselator(n: int) -> Function:
    """Two species that react and diffuse on a periodic grid."""
    scale = ALPHA * n * n

    def laplacian(w: Tensor) -> Tensor:
        return w.roll(1, 0) + w.roll(-1, 0) + w.roll(1, 1) + w.roll(-1, 1) - 4 * w

    def f(x: Tensor) -> Tensor:
        u, v = x[: n * n].reshape(n, n), x[n * n :].reshape(n, n)
        of_u = 1 + u * u * v - 4.4 * u + scale * laplacian(u)
        of_v = 3.4 * u - u * u * v + scale * laplacian(v)
        return torch.cat([of_u.flatten(), of_v.flatten()])

    return f


def broyden() -> Function:
    """Broyden's tridiagonal function."""

    def f(x: Tensor) -> Tensor:
        around = nn.functional.pad(x, (1, 1))
        return (3 - 2 * x) * x - around[:-2] - 2 * around[2:] + 1

    return f


def conv(size: int, weights: list[Tensor]) -> Function:
    """Three convolutions of an image, with tanh between them."""

    def f(x: Tensor) -> Tensor:
        y = torch.tanh(conv2d(x.reshape(1, 3, size, size), weights[0], padding=1))
        y = torch.tanh(conv2d(y, weights[1], padding=1))
        return conv2d(y, weights[2], padding=1).flatten()

    return f


def bundle(cameras: int, points: int, camera: Tensor, point: Tensor, seen: Tensor) -> Function:
    """Where cameras see points, less where they were seen."""

    def f(x: Tensor) -> Tensor:
        c = x[: 9 * cameras].reshape(cameras, 9)[camera]
        X = x[9 * cameras :].reshape(points, 3)[point]
        w, t, focal, k1, k2 = c[:, :3], c[:, 3:6], c[:, 6:7], c[:, 7:8], c[:, 8:9]
        angle = torch.sqrt((w * w).sum(1, keepdim=True) + 1e-12)
        e = w / angle
        along = (e * X).sum(1, keepdim=True)
        P = X * angle.cos() + torch.linalg.cross(e, X) * angle.sin() + e * along * (1 - angle.cos()) + t
        q = -P[:, :2] / P[:, 2:3]
        r2 = (q * q).sum(1, keepdim=True)
        return (focal * (1 + k1 * r2 + k2 * r2 * r2) * q - seen).flatten()

    return f


def arrowhead() -> Function:
    """One row and one column that are full."""

    def f(x: Tensor) -> Tensor:
        return torch.cat([(x * x).sum()[None], x[0] * x[1:] + x[1:] ** 2])

    return f


def rosenbrock() -> Function:
    """The chained Rosenbrock function, a number."""

    def f(x: Tensor) -> Tensor:
        return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()

    return f


def arrow() -> Function:
    """A number whose Hessian has one full row and column."""

    def f(x: Tensor) -> Tensor:
        return (x[0] * x[1:] ** 2).sum() + (x**3).sum()

    return f


def function(key: str, sizes: tuple[int, ...], numbers: dict[str, Tensor]) -> Function:
    """A new function object of a problem."""
    if key == "brusselator":
        return brusselator(*sizes)
    if key == "conv":
        return conv(*sizes, [numbers[f"w{k}"] for k in range(3)])
    if key == "bundle":
        return bundle(*sizes[:2], numbers["camera"], numbers["point"], numbers["seen"])
    return {"broyden": broyden, "arrowhead": arrowhead, "rosenbrock": rosenbrock}[key]()


@dataclass(frozen=True)
class Problem:
    """One problem at one size.

    Attributes:
        key: Its name in the program.
        title: Its name in a table.
        sizes: Its size, as its function takes it.
        of: ``"jacobian"``, or ``"hessian"`` of a number.
        axis: What a hand-written coloring colors: ``"columns"`` with jvp, or ``"rows"`` with vjp.
    """

    key: str
    title: str
    sizes: tuple[int, ...]
    of: str = "jacobian"
    axis: str = "columns"

    def __str__(self) -> str:
        return f"{self.title} {' x '.join(f'{size:,}' for size in self.sizes)}"

    @cached_property
    def numbers(self) -> dict[str, Tensor]:
        """Its points and constants."""
        return {name: torch.from_numpy(each) for name, each in problem_numbers.ALL[self.key](*self.sizes).items()}

    @property
    def points(self) -> tuple[Tensor, Tensor]:
        """Two points, to be taken by turns."""
        return self.numbers["x"], self.numbers["other"]

    def fresh(self) -> Function:
        """Its function, as an object that was not seen before."""
        return function(self.key, self.sizes, self.numbers)

    def mapped(self) -> Function:
        """What is differentiated once: the function, or the gradient of the number."""
        return grad(self.fresh()) if self.of == "hessian" else self.fresh()

    def lazy(self, x: Tensor | None = None) -> pb.Jacobian:
        """Pullback's Jacobian or Hessian of a fresh function, at the first point or another; nothing is found yet."""
        at = self.points[0] if x is None else x
        return (pb.hessian if self.of == "hessian" else pb.jacobian)(self.fresh(), at)

    def prepare(self, *, compile: bool) -> pb.Prepared:
        """Pullback's preparation of a fresh function."""
        return pb.prepare(self.fresh(), self.points[0], of=self.of, compile=compile)

    def dense(self, x: Tensor) -> dict[str, Callable[[], Tensor]]:
        """torch.func's ways to every entry."""
        f = self.mapped()
        return {
            "torch.func.jacfwd": lambda: torch.func.jacfwd(f)(x),
            "torch.func.jacrev": lambda: torch.func.jacrev(f)(x),
        }

    def product(self, v: Tensor, x: Tensor) -> Tensor:
        """J v at a point, by torch.func."""
        return jvp(self.mapped(), (x,), (v,))[1]


def by_hand(problem: Problem, pattern: pb.Pattern) -> tuple[str, Callable[[Tensor], Tensor]]:
    """The coloring and torch.func, as one writes it who knows the pattern, with one gather into CSR.

    Returns:
        Its name, and what gives the Jacobian at a point.
    """
    f, x = problem.mapped(), problem.points[0]
    columns = problem.axis == "columns"
    coloring = (color_columns if columns else color_rows)(pattern)
    places = torch.from_numpy(recover_direct(pattern, coloring))
    seeds = (torch.from_numpy(coloring.colors) == torch.arange(coloring.count)[:, None]).to(x.dtype)
    crow, column = pattern.to_torch()

    def matrix(answers: Tensor) -> Tensor:
        return torch.sparse_csr_tensor(crow, column, answers.reshape(-1)[places], pattern.shape, check_invariants=False)

    def forward(x: Tensor) -> Tensor:
        return matrix(vmap(lambda tangent: jvp(f, (x,), (tangent,))[1])(seeds))

    def reverse(x: Tensor) -> Tensor:
        _, pull = vjp(f, x)
        return matrix(vmap(lambda cotangent: pull(cotangent)[0])(seeds))

    mode = "jvp" if columns else "vjp"
    return f"by hand: vmap({mode}), {coloring.count:,} colours", forward if columns else reverse


def suite(*, quick: bool) -> list[Problem]:
    """The problems of the table, at full size or small."""
    sizes: dict[str, Any] = {
        "brusselator": (32,) if quick else (256,),
        "broyden": (10_000,) if quick else (1_000_000,),
        "conv": (16,) if quick else (64,),
        "bundle": (20, 500, 3_000) if quick else (100, 10_000, 60_000),
        "arrowhead": (500,) if quick else (4_000,),
        "rosenbrock": (1_000,) if quick else (100_000,),
    }
    return [
        Problem("brusselator", "Brusselator", sizes["brusselator"]),
        Problem("broyden", "Broyden", sizes["broyden"]),
        Problem("conv", "conv net", sizes["conv"], axis="rows"),
        Problem("bundle", "bundle adjustment", sizes["bundle"]),
        Problem("arrowhead", "arrowhead", sizes["arrowhead"]),
        Problem("rosenbrock", "Rosenbrock Hessian", sizes["rosenbrock"], of="hessian"),
    ]


def small_suite() -> list[Problem]:
    """The problems at sizes where dense matrices fit."""
    small = {"brusselator": (16,), "broyden": (500,), "conv": (12,), "bundle": (5, 40, 150), "arrowhead": (300,),
             "rosenbrock": (300,)}  # fmt: skip
    return [Problem(p.key, p.title, small[p.key], p.of, p.axis) for p in suite(quick=True)]
