"""Newton's method on a nonlinear PDE with a million unknowns: the residual is plain PyTorch, its Jacobian sparse.

    python examples/newton_pde.py
    python examples/newton_pde.py --n 200 --solver direct
    python examples/newton_pde.py --help

Heat in a plate that conducts better where it is hot, u = 0 on its edge:

    -∇·((1 + u²) ∇u) = s    on the unit square

by finite volumes on N x N inner points. The source s is such that u = sin(πx) sin(πy) solves the PDE, so the error of
what is found is known: it falls with 1/N². Each Newton step solves J d = -r. J comes from ``pb.prepare``, which finds
the pattern and the plan once; the linear system goes to algebraic multigrid (``pip install pyamg``) or, without it, to
SciPy.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable

# The solvers call BLAS for tiny things only, where many threads lose much on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, bicgstab, spilu, splu
from torch import Tensor, nn

import pullback as pb

Array = NDArray[np.float64]
Solver = Callable[[csr_matrix, Array, float], tuple[Array, str]]
# SciPy's direct solver is the choice up to so many unknowns; beyond, its factors fill the memory.
DIRECT = 100_000
STEPS = 12

console = Console(highlight=False)


def residual(n: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The residual, (n²,) to (n²,), and the exact solution of the PDE at the inner points."""
    at = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
    x, y = torch.meshgrid(at, at, indexing="ij")
    pi = math.pi
    exact = (pi * x).sin() * (pi * y).sin()
    slope2 = (pi * (pi * x).cos() * (pi * y).sin()) ** 2 + (pi * (pi * x).sin() * (pi * y).cos()) ** 2
    source = ((1 + exact**2) * 2 * pi**2 * exact - 2 * exact * slope2) / (n + 1) ** 2

    def flux(u: Tensor, dim: int) -> Tensor:
        """What flows through the faces between neighbours."""
        size = u.shape[dim] - 1
        low, high = u.narrow(dim, 0, size), u.narrow(dim, 1, size)
        return (1 + (low**2 + high**2) / 2) * (high - low)

    def f(flat: Tensor) -> Tensor:
        u = nn.functional.pad(flat.reshape(n, n), (1, 1, 1, 1))
        across, along = flux(u[:, 1:-1], 0), flux(u[1:-1], 1)
        return (-across.diff(dim=0) - along.diff(dim=1) - source).flatten()

    return f, exact.flatten()


def multigrid(A: csr_matrix, b: Array, tolerance: float) -> tuple[Array, str]:
    """BiCGSTAB behind algebraic multigrid (Ruge and Stüben's)."""
    import pyamg  # noqa: PLC0415  it need not be there

    residuals: list[float] = []
    levels = pyamg.ruge_stuben_solver(A)
    x = levels.solve(b, tol=tolerance, accel="bicgstab", residuals=residuals, maxiter=100)
    return x, f"{len(residuals) - 1} cycles on {len(levels.levels)} levels"


def direct(A: csr_matrix, b: Array, tolerance: float) -> tuple[Array, str]:
    """SuperLU."""
    factors = splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    return factors.solve(b), f"{factors.L.nnz + factors.U.nnz:,} factor entries"


def iterative(A: csr_matrix, b: Array, tolerance: float) -> tuple[Array, str]:
    """BiCGSTAB behind an incomplete factorization."""
    factors = spilu(A.tocsc(), drop_tol=1e-3, fill_factor=10)
    count = 0

    def counted(x: Array) -> None:
        nonlocal count
        count += 1

    x, _ = bicgstab(A, b, rtol=tolerance, maxiter=2_000, M=LinearOperator(A.shape, factors.solve), callback=counted)
    return x, f"{count} iterations"


SOLVERS: dict[str, Solver] = {"pyamg": multigrid, "direct": direct, "iterative": iterative}


def choose(name: str, unknowns: int) -> str:
    """The solver, or the best of those that are installed."""
    if name != "auto":
        return name
    if importlib.util.find_spec("pyamg"):
        return "pyamg"
    return "direct" if unknowns <= DIRECT else "iterative"


def newton(n: int, solver: str, tolerance: float) -> tuple[float, float]:
    """Solve, and tell of every step.

    Args:
        n: The inner points on a side.
        solver: A name of ``SOLVERS``.
        tolerance: The residual's norm to reach, relative to the first one's.

    Returns:
        The last relative residual, and the largest error against the exact solution of the PDE.
    """
    f, exact = residual(n)
    u = torch.zeros(n * n, dtype=torch.float64)
    began = time.perf_counter()
    jac = pb.prepare(f, u)
    prepared = time.perf_counter() - began
    console.print(f"{jac!r}\nfound in {prepared:.2f} s, by {jac.plan().chosen}; linear solver: {solver}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("step", "residual", "f, ms", "Jacobian, ms", "solve, ms", ""):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    first, in_jacobians, in_solves, before = 0.0, prepared, 0.0, math.inf
    for step in range(STEPS):
        began = time.perf_counter()
        r = f(u)
        evaluated = time.perf_counter()
        norm = r.norm().item()
        first = first or norm
        row = [str(step), f"{norm / first:.2e}", f"{(evaluated - began) * 1e3:.1f}"]
        if norm <= tolerance * first:
            table.add_row(*row)
            break
        began = time.perf_counter()
        J = jac(u).sparse("scipy")
        built = time.perf_counter()
        # Far from the solution, a rough step will do as well as a fine one.
        rough = min(0.1, max(0.1 * (norm / before) ** 2, 0.1 * tolerance * first / norm))
        d, told = SOLVERS[solver](csr_matrix(J), -r.numpy(), rough)
        solved = time.perf_counter()
        u = u + torch.from_numpy(d)
        before = norm
        in_jacobians, in_solves = in_jacobians + built - began, in_solves + solved - built
        table.add_row(*row, f"{(built - began) * 1e3:.1f}", f"{(solved - built) * 1e3:,.0f}", told)
    console.print(table)
    error = (u - exact).abs().max().item()
    console.print(
        f"Jacobians, with their preparation, took {in_jacobians:.2f} s; linear solves {in_solves:.2f} s. "
        f"The largest error is {error:.1e}; 1/N² is {1 / n**2:.1e}."
    )
    return norm / first, error


@click.command()
@click.option("--n", default=1000, show_default=True, help="Inner grid points on a side; n² unknowns.")
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", *SOLVERS]),
    help="Who solves the linear systems; auto: pyamg if it is installed.",
)
@click.option("--tolerance", default=1e-8, show_default=True, help="The relative residual to reach.")
def main(n: int, solver: str, tolerance: float) -> None:
    """Solve a nonlinear PDE by Newton's method."""
    torch.set_num_threads(1)
    reached, _ = newton(n, choose(solver, n * n), tolerance)
    if not reached <= tolerance:
        raise click.ClickException(f"Newton's method has not converged: the relative residual is {reached:.1e}")


if __name__ == "__main__":
    main()
