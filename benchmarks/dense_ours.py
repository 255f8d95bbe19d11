"""Pullback's ways to the derivatives of a dense problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pullback as pb
from benchmarks.dense_peers import Call, Make, ready
from benchmarks.dense_problems import Case, Function, Problem, Want

CALLED, UNCHECKED = "pullback, one call", "pullback, one call, verify=False"
PREPARED, COMPILED = "pullback, prepared", "pullback, prepared and compiled"
REUSED, RENEWED = "pullback, dense(out=buffer)", "pullback, one call, a new function each time"
# The problems that compile=True is for.
COMPILES = frozenset("SBEFH")
TAKE: dict[Want, Callable[[pb.Jacobian], Any]] = {
    "whole": lambda J: J.dense(),
    "examples": lambda J: J.blocks(),
    "parameters": lambda J: J.dense(),
    "gram": lambda J: J.gram(),
    "hessian": lambda J: J.dense(),
}


def jacobian(problem: Problem, f: Function, case: Case, **options: Any) -> pb.Jacobian:
    """The object that a user has, from one call with no choice made."""
    if problem.want == "hessian":
        return pb.hessian(f, case.x, **options)
    return pb.jacobian(f, case.x, wrt=_wrt(problem), **options)


def _wrt(problem: Problem) -> Any:
    return "parameters" if problem.want in {"parameters", "gram"} else 0


def ways(problem: Problem, case: Case, *, quick: bool) -> dict[str, Make]:
    """The ways, by name; small problems are not compiled, which takes seconds."""
    f, take = case.f, TAKE[problem.want]

    def prepare(*, compile: bool) -> Call:
        of: Any = "hessian" if problem.want == "hessian" else "jacobian"
        prepared = pb.prepare(f, case.x, wrt=_wrt(problem), of=of, compile=compile)
        return lambda: take(prepared(case.x))

    def reuse() -> Call:
        buffer = jacobian(problem, f, case).dense()
        return lambda: jacobian(problem, f, case).dense(out=buffer)

    found: dict[str, Make] = {
        CALLED: ready(lambda: take(jacobian(problem, f, case))),
        UNCHECKED: ready(lambda: take(jacobian(problem, f, case, verify=False))),
        PREPARED: lambda: prepare(compile=False),
    }
    if problem.key in COMPILES and not quick:
        found[COMPILED] = lambda: prepare(compile=True)
    if problem.key == "G":
        found[REUSED] = reuse
    if problem.key == "S":
        found[RENEWED] = ready(lambda: take(jacobian(problem, lambda x: f(x), case)))
    return found


def plan(problem: Problem, case: Case) -> str:
    """What Pullback chose for one call, in a line; nothing where it failed, which is shown elsewhere."""
    J = jacobian(problem, case.f, case)
    try:
        TAKE[problem.want](J)
        found = J.plan()
    except Exception:
        return ""
    return "; ".join(filter(None, [f"{found.chosen}, {found.passes:,} passes", found.route, *found.notes]))
