"""Which form of a kernel runs: compiled where Numba is installed, plain Python otherwise.

``PULLBACK_COMPILED=0`` in the environment asks for plain Python even so.
"""

from __future__ import annotations

import os
from functools import cache
from time import perf_counter
from typing import Any

SWITCH = "PULLBACK_COMPILED"


def is_compiled() -> bool:
    """Whether kernels run compiled."""
    if os.environ.get(SWITCH, "1") == "0":
        return False
    from pullback.coloring import compiled  # noqa: PLC0415  imports Numba, which takes its time

    return compiled.numba is not None


def kernel(name: str) -> Any:
    """A kernel of :mod:`pullback.coloring.compiled`, in the form that runs here."""
    from pullback.coloring import compiled  # noqa: PLC0415

    function = getattr(compiled, name)
    return function if is_compiled() else getattr(function, "py_func", function)


class Clock:
    """A budget of seconds that compiling does not count against."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.stop = perf_counter() + budget

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return perf_counter() > self.stop

    @property
    def left(self) -> float:
        """The seconds that are left; negative where there are none."""
        return self.stop - perf_counter()

    def kernel(self, name: str) -> Any:
        """A kernel that is compiled already, its compilation added to the time that is left."""
        start = perf_counter()
        _compile(name, is_compiled())
        self.stop += perf_counter() - start
        return kernel(name)


@cache
def _compile(name: str, use: bool) -> None:
    """Compile a kernel, by running it on nothing."""
    from pullback.coloring import compiled  # noqa: PLC0415

    if use:
        kernel(name)(*compiled.NOTHING[name])
