"""A Jacobian held against the oracle: every strategy, products in every form, and what must stay untouched."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import pullback as pb
from pullback.errors import PullbackWarning, StrategyError

from .oracle import Truth, fresh, truth_of

STRATEGIES = ("rows", "columns", "auto")


@dataclass
class Findings:
    """What came out.

    Attributes:
        problems: Disagreements and errors: each is a fault.
        refused: Why ``strategy="columns"`` was refused, or ``""``.
        warned: The texts of Pullback's warnings: a batching rule or forward formula of torch was wrong.
    """

    problems: list[str] = field(default_factory=list)
    refused: str = ""
    warned: list[str] = field(default_factory=list)

    def note(self, what: str, wrong: str) -> None:
        """Record a problem, if there is one."""
        if wrong:
            self.problems.append(f"{what}: {wrong}")


@contextlib.contextmanager
def only_pullback_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record Pullback's warnings; those of torch about the operator under test are not the subject."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", PullbackWarning)
        yield caught


def examine(f: Callable[[Any], Any], x: Any, truth: Truth | None = None, *, seed: int = 0, **options: Any) -> Findings:
    """Build J in every way and push and pull through it, all against the oracle; options go to pb.jacobian."""
    with only_pullback_warnings():
        truth = truth_of(f, x, seed=seed) if truth is None else truth
    x = fresh(x)
    leaves = [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]
    return examine_call(lambda strategy: pb.jacobian(f, x, strategy=strategy, **options), truth, leaves, seed=seed)


def examine_call(
    make: Callable[[str], pb.Jacobian], truth: Truth, untouched: Sequence[Tensor], *, seed: int = 0
) -> Findings:
    """The same for a Jacobian made by a call, given the strategy; the tensors given must stay as they are."""
    findings = Findings()
    before = [(leaf._version, leaf.requires_grad) for leaf in untouched]
    with only_pullback_warnings() as caught:
        for strategy in STRATEGIES:
            torch.manual_seed(seed)
            with _faults(findings, f"matrix by {strategy}"):
                _check_matrix(make(strategy), truth, findings, strategy)
        torch.manual_seed(seed)
        with _faults(findings, "products"):
            check_products(make("auto"), truth, findings)
    for leaf, state in zip(untouched, before, strict=True):
        if (leaf._version, leaf.requires_grad) != state or leaf.grad is not None:
            findings.note("an input was touched", "written on, or its requires_grad or .grad changed")
    findings.warned = [str(warning.message) for warning in caught]
    return findings


@contextlib.contextmanager
def _faults(findings: Findings, what: str) -> Iterator[None]:
    """An exception under test is one more finding, so that all others are seen too."""
    try:
        yield
    except Exception as error:
        findings.note(what, f"{type(error).__name__}: {error}"[:600])


def _check_matrix(J: pb.Jacobian, truth: Truth, findings: Findings, strategy: str) -> None:
    """J.value, the matrix as one strategy builds it, and the generator."""
    for found, expected in zip(pytree.tree_leaves(J.value), pytree.tree_leaves(truth.value), strict=True):
        if isinstance(expected, Tensor):
            findings.note("J.value", truth.difference(found, expected))
    try:
        matrix = J.matrix()
    except StrategyError as error:
        if strategy != "columns":
            raise
        findings.refused = error.got
        return
    findings.note(f"matrix by {strategy}", truth.difference(matrix, truth.real))
    if matrix.dtype != truth.dtype:
        findings.note(f"matrix by {strategy}", f"{matrix.dtype} instead of {truth.dtype}")
    if not torch.equal(torch.get_rng_state(), truth.generator):
        findings.note(f"matrix by {strategy}", "the generator is not as after one evaluation")


def check_products(J: pb.Jacobian, truth: Truth, findings: Findings) -> None:
    """Flat vectors, stacks and structures through J and its transpose, and ⟨u, Jv⟩ = ⟨Jᵀu, v⟩."""
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(7)
    v, V = (_random(J.inputs, k, generator) for k in (None, _columns(J.inputs)))
    u, U = (_random(J.outputs, k, generator) for k in (None, _columns(J.outputs)))
    pushed, pulled = _flat(J.outputs, J @ v), _flat(J.inputs, J.T @ u)
    nested_v, nested_u = J.inputs.unflatten(_parts(J.inputs, v)), J.outputs.unflatten(_parts(J.outputs, u))
    for name, found, expected, size in (
        ("J @ v", pushed, truth.push(v), truth.size @ _abs(v)),
        ("J @ V", J @ V, truth.push(V), truth.size @ _abs(V)),
        ("J @ structure", _joined(J.outputs, J @ nested_v), truth.push(v), truth.size @ _abs(v)),
        ("J.T @ u", pulled, truth.pull(u), truth.size.mT @ _abs(u)),
        ("J.T @ U", J.T @ U, truth.pull(U), truth.size.mT @ _abs(U)),
        ("J.T @ structure", _joined(J.inputs, J.T @ nested_u), truth.pull(u), truth.size.mT @ _abs(u)),
    ):
        findings.note(name, truth.difference(found, expected, size, nonfinite=False))
    left, right, size = _inner(u, pushed), _inner(pulled, v), _abs(u) @ truth.size @ _abs(v)
    findings.note("⟨u, Jv⟩ = ⟨Jᵀu, v⟩", truth.difference(left, right, size, nonfinite=False))
    if not torch.equal(torch.get_rng_state(), state):
        findings.note("products", "they moved the generator")


def _columns(space: Any) -> int:
    """How many columns a stack has: not so many that an empty stack is shaped like the only, empty, leaf."""
    return 4 if space.treespec.is_leaf() and space.leaves[0].shape == (0, 3) else 3


def _random(space: Any, k: int | None, generator: torch.Generator) -> Tensor:
    """A random vector of a Space, flat or a stack; zero at integer leaves and real at real ones."""
    lead = () if k is None else (k,)
    parts = []
    for leaf in space.leaves:
        shape = (*lead, leaf.numel)
        if not (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
            parts.append(torch.zeros(shape))
        else:
            exact = torch.complex128 if leaf.dtype.is_complex else torch.float64
            parts.append(torch.randn(shape, generator=generator, dtype=exact).to(leaf.dtype))
    rows = torch.cat([part.to(space.dtype) for part in parts], dim=-1)
    return rows if k is None else rows.mT


def _parts(space: Any, flat: Tensor) -> list[Tensor]:
    """A flat vector cut into the leaves of a Space, each in its dtype."""
    parts = [flat[leaf.slice].reshape(leaf.shape) for leaf in space.leaves]
    return [
        (part.real if part.is_complex() and not leaf.dtype.is_complex else part).to(leaf.dtype)
        for part, leaf in zip(parts, space.leaves, strict=True)
    ]


def _flat(space: Any, vector: Any) -> Tensor:
    """A product with a flat vector: flat too, unless the vector's other space has it as its structure."""
    return vector if isinstance(vector, Tensor) and vector.shape == (space.size,) else _joined(space, vector)


def _joined(space: Any, tree: Any) -> Tensor:
    """The leaves of a structure end to end; the structure and every shape and dtype must be the Space's."""
    assert pytree.tree_structure(tree) == space.treespec, f"{pytree.tree_structure(tree)}"
    parts = space.flatten(tree)
    for part, leaf in zip(parts, space.leaves, strict=True):
        assert part.shape == leaf.shape, f"{leaf.name}: {tuple(part.shape)} instead of {tuple(leaf.shape)}"
    return torch.cat([part.flatten().to(space.dtype) for part in parts])


def _abs(tensor: Tensor) -> Tensor:
    return tensor.abs().double()


def _inner(left: Tensor, right: Tensor) -> Tensor:
    exact = torch.complex128 if left.is_complex() or right.is_complex() else torch.float64
    return (left.to(exact).conj() * right.to(exact)).real.sum()
