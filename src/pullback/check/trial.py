"""One evaluation of a function under test with a backward pass, and how two of them are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from pullback.autodiff.reach import nodes
from pullback.autodiff.state import Ambient, fresh_modules
from pullback.check.subject import Subject

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """An evaluation with its graph.

    Attributes:
        leaves: What it is differentiated by.
        given: What the function was given: made of the leaves.
        outputs: Those that have a graph.
    """

    leaves: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @staticmethod
    def of(
        subject: Subject, make: Callable[[Tensor], Tensor] = Tensor.clone, points: Sequence[Tensor] | None = None
    ) -> Trial:
        """Evaluate the function at its inputs, or at other points, each handed over as ``make`` turns it out."""
        chosen = subject.wrt.values() if points is None else points
        leaves = tuple(point.detach().clone().requires_grad_() for point in chosen)
        with torch.enable_grad():
            given = tuple(make(leaf) for leaf in leaves)
            outputs = tuple(output for output in subject.forward(*given) if output.requires_grad)
        return Trial(leaves, given, outputs)

    def seeds(self, subject: Subject) -> tuple[Tensor, ...]:
        """Random seeds, the same at every call."""
        generator = torch.Generator().manual_seed(subject.seed)
        return tuple(
            torch.randn(
                output.shape,
                generator=generator,
                dtype=torch.complex128 if output.is_complex() else torch.float64,
            ).to(output)
            for output in self.outputs
        )

    def pull(self, seeds: Sequence[Tensor], *, create_graph: bool = False) -> Gradients:
        """The gradients of the leaves, over a graph that stays; None where the pass does not arrive."""
        with kept(self.leaves):
            return self.pull_on(seeds, create_graph=create_graph)

    def pull_on(self, seeds: Sequence[Tensor], *, create_graph: bool = False) -> Gradients:
        """The same, where random numbers go on from the last pass."""
        if not self.outputs:
            return (None,) * len(self.leaves)
        return torch.autograd.grad(
            self.outputs, self.leaves, seeds, retain_graph=True, allow_unused=True, create_graph=create_graph
        )

    def custom(self) -> list[Node]:
        """The nodes of custom Functions; not of those that torch itself defines."""
        return [node for node in nodes(self.outputs) if _is_custom(node)]


@contextlib.contextmanager
def kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Afterwards the generators are as before."""
    with Ambient.now({tensor.device for tensor in tensors}).again():
        yield


def function_class(subject: Subject) -> type[torch.autograd.Function] | None:
    """The custom Function that is checked, given as a class or as its ``apply``; None if f is something else."""
    for each in (subject.f, getattr(subject.f, "__self__", None)):
        if isinstance(each, type) and issubclass(each, torch.autograd.Function):
            return each
    return None


def _is_custom(node: Node) -> bool:
    """Whether it is that of a custom Function which torch does not define itself."""
    kind = getattr(node, "_forward_cls", None)
    return kind is not None and not kind.__module__.startswith("torch.")


def draws(subject: Subject) -> bool:
    """Whether another draw of torch's generators gives other results."""

    def call() -> list[Tensor]:
        copies = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), subject.inputs)
        found = pytree.tree_leaves(subject.call(copies))
        return [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]

    try:
        with kept(tuple(subject.wrt.values())), torch.no_grad(), fresh_modules(subject.f):
            first = call()
        with kept(tuple(subject.wrt.values())), torch.no_grad(), fresh_modules(subject.f):
            torch.manual_seed(subject.seed + 1)
            return not same(first, call())
    except Exception:  # what the function says of other arguments is not the question here
        return False


def same(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> bool:
    """Whether two sequences of tensors agree but for rounding; None stands for zeros, NaN equals NaN."""
    every = [
        float(each.detach().abs().nan_to_num(0, 0, 0).max()) for each in second if each is not None and each.numel()
    ]
    largest = max(every, default=0.0)
    return len(first) == len(second) and all(
        _same(one, other, largest) for one, other in zip(first, second, strict=True)
    )


def largest_gap(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> float:
    """The largest difference of two sequences of tensors, where both are finite."""
    gaps = [
        float((one - other).abs().nan_to_num(0, 0).max())
        for one, other in map(_filled, first, second)
        if one is not None and other is not None and one.shape == other.shape and one.numel()
    ]
    return max(gaps, default=0.0)


def name_of(node_or_class: Any) -> str:
    """What the user calls a custom Function."""
    return str(getattr(node_or_class, "_forward_cls", node_or_class).__name__)


def said(error: BaseException) -> str:
    """The first line of an error, without the end of its sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(" .")


def _same(first: Tensor | None, second: Tensor | None, largest: float) -> bool:
    """Whether they are the same on their own scale, or differ by rounding on the scale of all."""
    one, other = _filled(first, second)
    if one is None or other is None:
        return True
    if one.shape != other.shape:
        return False
    if not one.numel():
        return True
    finite = torch.isfinite(one) & torch.isfinite(other)
    if bool((torch.isfinite(one) != torch.isfinite(other)).any()):
        return False
    eps = torch.finfo(first.dtype if first is not None else one.dtype).eps
    zero = torch.zeros((), dtype=one.dtype, device=one.device)
    scale = torch.where(finite, other, zero).abs().max()
    return bool(((one - other).abs() <= eps**0.5 * scale + 1e3 * eps * largest)[finite].all())


def _filled(first: Tensor | None, second: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Both in double precision, zeros for the one that is None."""
    if first is None and second is None:
        return None, None
    model = first if first is not None else second
    assert model is not None
    wide = torch.complex128 if model.is_complex() else torch.float64
    zeros = torch.zeros(model.shape, dtype=wide, device=model.device)
    return tuple(zeros if each is None else each.detach().to(wide) for each in (first, second))  # type: ignore[return-value]
