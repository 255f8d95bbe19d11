"""An operator arranged so that each strategy has something to find: in a batch, behind a layer, in a narrow place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback as pb

from .operators import Case
from .oracle import Truth, fresh, truth_of

EXAMPLES = 8
# How far the arranged operator's inputs are from the sample's: a few percent, to stay where it is defined.
STEP = 0.01
# How many inputs and outputs an arranged operator has at most.
FEW = 6


@dataclass(frozen=True)
class Arrangement:
    """A function made of an operator.

    Attributes:
        name: The sample's name and the arrangement's.
        f: The function; of a Hessian, the scalar function.
        x: Where it is differentiated.
        hessian: Whether its Hessian is meant.
    """

    name: str
    f: Callable[[Any], Any]
    x: tuple[Tensor, ...]
    hessian: bool = False

    def make(self, strategy: str) -> pb.Jacobian:
        """The Jacobian, or Hessian, by a strategy."""
        # A copy: the function holds the sample's tensors, and is not suspected of using one beside its argument.
        x = fresh(self.x)
        return (pb.hessian if self.hessian else pb.jacobian)(self.f, x, strategy=strategy)

    def truth(self) -> Truth:
        """The oracle for it."""
        return truth_of(self._gradient if self.hessian else self.f, self.x)

    def _gradient(self, x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        value = self.f(x)
        if not value.requires_grad:
            return tuple(map(torch.zeros_like, x))
        found = torch.autograd.grad(value, x, create_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(part) if each is None else each for each, part in zip(found, x, strict=True))


def arrangements(case: Case) -> Iterator[Arrangement]:
    """The sample as it is, and all arrangements of it that can be evaluated."""
    yield plain(case)
    if not is_real(case):
        return
    few = reduced(case)
    for arrange in ARRANGEMENTS.values():
        found = arrange(few)
        if is_defined(found):
            yield found


def plain(case: Case) -> Arrangement:
    """The operator itself."""
    return Arrangement(case.name, case.f, case.x)


def is_real(case: Case) -> bool:
    """Whether everything that carries a derivative is in double precision."""
    outputs = [part for part in pytree.tree_leaves(case.f(fresh(case.x))) if isinstance(part, Tensor)]
    floating = [part for part in outputs if part.is_floating_point() or part.is_complex()]
    strided = all(part.layout is torch.strided for part in (*outputs, *case.x))
    return bool(floating) and strided and all(part.dtype == torch.float64 for part in (*floating, *case.x))


def is_defined(arrangement: Arrangement) -> bool:
    """Whether the function can be evaluated where it is differentiated, and gives numbers."""
    try:
        value = arrangement.f(fresh(arrangement.x))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return False
    return all(bool(part.isfinite().all()) for part in pytree.tree_leaves(value))


def nearby(case: Case, steps: int) -> tuple[Tensor, ...]:
    """The sample's inputs, a little smaller."""
    return tuple(part * (1 - STEP * steps) for part in case.x)


def flat(case: Case, x: tuple[Tensor, ...]) -> Tensor:
    """What the operator gives, end to end; integers left out."""
    parts = [part for part in pytree.tree_leaves(case.f(x)) if isinstance(part, Tensor)]
    return torch.cat([part.flatten() for part in parts if part.is_floating_point()])


def reduced(case: Case) -> Case:
    """A few inputs and outputs of a sample that has many: the others are constants, or left out."""
    n, m = sum(part.numel() for part in case.x), len(flat(case, fresh(case.x)))
    if max(n, m) <= FEW:
        return case
    point = torch.cat([part.flatten() for part in case.x])
    inputs, outputs = (torch.linspace(0, size - 1, min(size, FEW)).long() for size in (n, m))

    def f(x: tuple[Tensor]) -> Tensor:
        parts = point.index_copy(0, inputs, x[0]).split([part.numel() for part in case.x])
        return flat(case, tuple(part.reshape(like.shape) for part, like in zip(parts, case.x, strict=True)))[outputs]

    return Case(f"{case.name} reduced", f, (point[inputs],), (len(inputs), len(outputs)))


def examples(case: Case) -> Arrangement:
    """A batch, one example after the other."""

    def f(x: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([flat(case, tuple(part[b] for part in x)) for b in range(EXAMPLES)])

    return Arrangement(f"{case.name} in a batch", f, _stacked(case))


def vmapped(case: Case) -> Arrangement:
    """A batch under torch.func.vmap: one operation for all examples."""
    f = torch.func.vmap(lambda x: flat(case, x), randomness="different")
    return Arrangement(f"{case.name} under vmap", f, _stacked(case))


def layer(case: Case) -> Arrangement:
    """A batch behind a linear layer whose weights all examples share."""
    count = sum(part.numel() for part in case.x)
    entering = torch.linspace(-1, 1, 2 * EXAMPLES, dtype=torch.float64).sin().reshape(EXAMPLES, 2)
    weights = torch.linspace(0, 3, 2 * count, dtype=torch.float64).cos().reshape(2, count)

    def f(x: tuple[Tensor]) -> Tensor:
        return torch.stack([flat(case, _moved(case, row)) for row in entering @ x[0]])

    return Arrangement(f"{case.name} behind a layer", f, (weights,))


def narrow(case: Case) -> Arrangement:
    """Everything flows through two numbers on its way to the operator."""
    count = sum(part.numel() for part in case.x)
    before = torch.linspace(-1, 2, 10, dtype=torch.float64).cos().reshape(2, 5)
    after = torch.linspace(0, 3, 2 * count, dtype=torch.float64).sin().reshape(2, count)

    def f(x: tuple[Tensor]) -> Tensor:
        return flat(case, _moved(case, (before @ x[0]).sin() @ after))

    return Arrangement(f"{case.name} behind a narrow place", f, (torch.linspace(-1, 1, 5, dtype=torch.float64),))


def arrow(case: Case) -> Arrangement:
    """A batch, a number that all examples read, and a number that reads all examples: a dense column and row."""

    def f(x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        *parts, shared = x
        less = 1 - STEP * shared.sin()
        found = torch.stack([flat(case, tuple(part[b] * less for part in parts)) for b in range(EXAMPLES)])
        return found, found.sum().sin()

    return Arrangement(
        f"{case.name} with a dense row and column", f, (*_stacked(case), torch.ones((), dtype=torch.float64))
    )


def hessian(case: Case) -> Arrangement:
    """The Hessian of a weighted sum of the outputs."""

    def f(x: tuple[Tensor, ...]) -> Tensor:
        found = flat(case, x)
        return (found * torch.linspace(1, 2, len(found), dtype=torch.float64)).sum()

    return Arrangement(f"{case.name}, Hessian", f, case.x, hessian=True)


ARRANGEMENTS: dict[str, Callable[[Case], Arrangement]] = {
    each.__name__: each for each in (examples, vmapped, layer, narrow, arrow, hessian)
}


def _stacked(case: Case) -> tuple[Tensor, ...]:
    """The sample's inputs and some nearby, stacked."""
    return tuple(torch.stack(parts) for parts in zip(*(nearby(case, b) for b in range(EXAMPLES)), strict=True))


def _moved(case: Case, by: Tensor) -> tuple[Tensor, ...]:
    """The sample's inputs plus a small part of a flat vector."""
    parts = by.split([part.numel() for part in case.x])
    return tuple(part + STEP * each.reshape(part.shape) for part, each in zip(case.x, parts, strict=True))
