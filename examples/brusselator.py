"""An implicit ODE: two species that react and diffuse, with the Jacobian that its solver asks for.

    python examples/brusselator.py
    python examples/brusselator.py --help

The Brusselator on a periodic N x N grid, 2 N² unknowns,

    ∂u/∂t = 1 + u² v - 4.4 u + α Δu
    ∂v/∂t = 3.4 u - u² v + α Δv

is stiff: SciPy's ``solve_ivp`` takes it with the implicit method BDF, which needs the Jacobian of the right side again
and again. Four ways to give it one are compared:

1. ``jac=`` from Pullback: prepared once, then a sparse SciPy matrix at each point;
2. SciPy's finite differences, told where the nonzeros are (``jac_sparsity=``, here ``J.pattern``);
3. SciPy's finite differences, told nothing: a dense matrix;
4. ``torch.func.jacfwd``: a dense matrix.

The dense ways take minutes at N = 64, so they are run on a smaller grid (``--dense-n``), beside Pullback again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# One thread for every way: the matrices are small, and many threads lose much on a busy machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.integrate import solve_ivp
from scipy.sparse import csr_array
from torch import Tensor

import pullback as pb

ALPHA = 0.02
RTOL, ATOL = 1e-5, 1e-7
Array = NDArray[np.float64]

console = Console(highlight=False)


def right_side(n: int) -> Callable[[Tensor], Tensor]:
    """The right side of the ODE, as one writes it in PyTorch."""
    scale = ALPHA * n * n

    def laplacian(w: Tensor) -> Tensor:
        return w.roll(1, 0) + w.roll(-1, 0) + w.roll(1, 1) + w.roll(-1, 1) - 4 * w

    def f(x: Tensor) -> Tensor:
        u, v = x[: n * n].reshape(n, n), x[n * n :].reshape(n, n)
        of_u = 1 + u * u * v - 4.4 * u + scale * laplacian(u)
        of_v = 3.4 * u - u * u * v + scale * laplacian(v)
        return torch.cat([of_u.flatten(), of_v.flatten()])

    return f


def start(n: int) -> Array:
    """Both species unevenly spread."""
    s = np.arange(n) / n
    wave = 16 * s**2 * (1 - s) ** 2
    u = np.broadcast_to(0.5 + 2.5 * wave, (n, n))
    v = np.broadcast_to(1.0 + 3.0 * wave[:, None], (n, n))
    return np.concatenate([u.ravel(), v.ravel()])


@dataclass
class Run:
    """One solution.

    Attributes:
        name: Where the Jacobian came from.
        end: The state at the last time.
        seconds: What all of it took, preparation included.
        jacobian: The seconds of that which went into Jacobians; None where SciPy keeps them to itself.
        steps: The time steps.
        calls: The calls of the right side, SciPy's differences included.
        jacobians: The Jacobians.
    """

    name: str
    end: Array
    seconds: float
    jacobian: float | None
    steps: int
    calls: int
    jacobians: int


def solve(name: str, n: int, until: float, make: Callable[[Callable[[Tensor], Tensor], Tensor], dict[str, Any]]) -> Run:
    """Solve the ODE.

    Args:
        name: What the way is called.
        n: The grid's points on a side.
        until: The last time.
        make: From the right side and a point, the keywords of ``solve_ivp`` that have to do with the Jacobian.
    """
    f, x = right_side(n), start(n)
    spent, calls = [0.0], [0]

    def numpy_f(t: float, x: Array) -> Array:
        calls[0] += 1
        with torch.no_grad():
            return f(torch.from_numpy(x)).numpy()

    began = time.perf_counter()
    keywords = make(f, torch.from_numpy(x))
    spent[0] = time.perf_counter() - began
    asked = keywords.get("jac")
    if asked is not None:

        def jac(t: float, x: Array) -> Any:
            before = time.perf_counter()
            found = asked(torch.from_numpy(x))
            spent[0] += time.perf_counter() - before
            return found

        keywords["jac"] = jac
    solution = solve_ivp(numpy_f, (0.0, until), x, method="BDF", rtol=RTOL, atol=ATOL, **keywords)
    seconds = time.perf_counter() - began
    assert solution.success, solution.message
    return Run(
        name,
        solution.y[:, -1],
        seconds,
        spent[0] if asked is not None else None,
        len(solution.t) - 1,
        calls[0],
        solution.njev,
    )


def by_pullback(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """Prepared once; then one sparse matrix for each point."""
    prepared = pb.prepare(f, x)
    return {"jac": lambda x: prepared(x).sparse("scipy")}


def by_sparse_differences(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """SciPy groups the columns of the pattern and takes a difference for each group."""
    pattern = pb.jacobian(f, x).pattern
    ones = np.ones(pattern.nnz)
    return {"jac_sparsity": csr_array((ones, pattern.indices, pattern.indptr), shape=pattern.shape)}


def by_differences(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """SciPy takes a difference for each column."""
    return {}


def by_jacfwd(f: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Any]:
    """Every entry, zeros included."""
    dense = torch.func.jacfwd(f)
    return {"jac": lambda x: dense(x).numpy()}


PULLBACK = "Pullback, sparse"
SPARSE = {PULLBACK: by_pullback, "differences, sparse": by_sparse_differences}
DENSE = {"differences, dense": by_differences, "torch.func.jacfwd, dense": by_jacfwd}


def compare(n: int, until: float, ways: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Solve in all ways, and tell of it."""
    runs = [solve(name, n, until, make) for name, make in ways.items()]
    first = runs[0]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"N = {n}: {2 * n * n:,} unknowns, t = 0 … {until:g}",
        title_justify="left",
    )
    table.add_column("Jacobian", no_wrap=True)
    for header in ("seconds", "ratio", "in J", "steps", "f", "J", "off by"):
        table.add_column(header, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.name,
            f"{run.seconds:.2f}",
            f"{run.seconds / first.seconds:.2f}",
            "" if run.jacobian is None else f"{run.jacobian:.3f}",
            str(run.steps),
            f"{run.calls:,}",
            str(run.jacobians),
            f"{np.abs(run.end - first.end).max():.0e}",
        )
    console.print(table)


@click.command()
@click.option("--n", default=64, show_default=True, help="Grid points on a side, for the sparse ways.")
@click.option("--dense-n", default=20, show_default=True, help="The same for the dense ways; 0 leaves them out.")
@click.option("--until", default=6.0, show_default=True, help="The last time.")
@click.option("--quick", is_flag=True, help="Small grids and a short time.")
def main(n: int, dense_n: int, until: float, *, quick: bool) -> None:
    """Solve the Brusselator with Jacobians of four makes."""
    torch.set_num_threads(1)
    if quick:
        n, dense_n, until = min(n, 12), min(dense_n, 6), min(until, 1.0)
    f, x = right_side(n), torch.from_numpy(start(n))
    prepared = pb.prepare(f, x)  # also what a process does once, which is no part of the times below
    console.print(repr(prepared))
    compare(n, until, SPARSE)
    if dense_n:
        compare(dense_n, until, SPARSE | DENSE)
    console.print(
        f"BDF, rtol {RTOL:g}, atol {ATOL:g}. 'in J': the seconds that went into Jacobians, preparation included; "
        "where it is empty, SciPy takes the differences itself, by calls of f. 'f', 'J': how often each was called. "
        "'off by': the largest difference of the last state from the first row's. The rest of the time is SciPy's: "
        "factorizing and solving, most of it."
    )


if __name__ == "__main__":
    main()
