"""Blame: which operation made a Jacobian that was built disagree with a plain reverse pass.

A batched pass is bisected along autograd's graph: each node is run on a few seeds at once, and on the same seeds one by
one; what came out one by one goes on, so a wrong rule is found where it is and not where its numbers arrive.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from pullback.autodiff.linearize import Deferred, Linearization, Recorded, Tensors, batched
from pullback.autodiff.program import View, is_alias, seeded_nodes, where
from pullback.autodiff.replay import recorded_coefficients, replay
from pullback.autodiff.watch import Answer, Call, Calls, Watch, Watched, apply, walk
from pullback.data.space import Space
from pullback.executors.local import Route
from pullback.jacobian.blame_forward import batched_forward, derivative_of_forward, forward_formula
from pullback.jacobian.compare import differ, pulled, stacked, stacks_of, tolerance_for, unequal
from pullback.jacobian.verify import inner, random_vector

if TYPE_CHECKING:
    from pullback.sparsity.structure import Structure

# The search is given up after so many seconds, and leaves out what has more elements.
LONGEST = 2.0
LARGEST = 2**22

Reason = Callable[[Recorded, float], str]


def blame(lin: Linearization, routes: Sequence[Route], structure: Structure | str | None = None) -> str:
    """What made the routes give wrong numbers, in words; ``""`` where it is not found.

    Never raises, and leaves no trace: the function is run again on copies of its state.

    Args:
        lin: The function at its point.
        routes: How the passes were run.
        structure: Where J can be non-zero, where that was relied on.
    """
    lin = lin.real if isinstance(lin, Deferred) else lin
    if not isinstance(lin, Recorded):
        return ""
    until = time.perf_counter() + LONGEST
    for reason in _reasons(routes, structure):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = reason(lin, until)
        except Exception:  # a function that cannot be watched keeps its secret
            continue
        if found:
            return found
    return ""


def _reasons(routes: Sequence[Route], structure: Structure | str | None) -> Iterator[Reason]:
    """What to look for, in order."""
    forward = any(route.name.startswith("forward") for route in routes)
    at_once = any(route.at_once for route in routes)
    if forward:
        yield forward_formula
        yield derivative_of_forward
    if at_once:
        yield batched_forward if forward else _batched_reverse
    if any("symmetric" in route.name for route in routes):
        yield _asymmetry
    if any("reverse-over-reverse" in route.name or "transposed" in route.name for route in routes):
        yield _transposed_reverse
    if structure is not None and not isinstance(structure, str):
        yield partial(_sparsity_rule, structure)
    yield _not_finite


def _batched_reverse(lin: Recorded, until: float) -> str:
    """A node that gives other numbers when seeds are sent at once."""
    with Watched(lin).graph() as (results, watch), torch.no_grad():
        for node, given, answers in walk(results, stacks_of(lin.rows)):
            if time.perf_counter() > until:
                return ""
            if not _small(given[0]):
                continue
            alone = [_present(answer) for answer in answers]
            if differ(batched(partial(_run, node))(stacked(given)), stacked(alone)):
                return f"{_inside(node, given)}{_at(watch, node)} is wrong"
    return ""


def _run(node: Node, gradients: Tensors) -> Tensors:
    return _present(apply(node, gradients))


def _inside(node: Node, given: Sequence[Tensors]) -> str:
    """The operation inside a node whose batching rule is wrong; the node itself where it is none of them."""
    runs: list[list[Call]] = []
    for each in given:
        with Calls() as calls:
            apply(node, each)
        runs.append(calls.calls)
    for same in zip(*runs, strict=True):
        try:
            if _call_differs(same):
                return f"the batching rule of {same[0].op._schema.name}"
        except Exception:  # an operation that cannot be batched by itself
            continue
    own = getattr(node, "_forward_cls", None)
    return f"the backward of {own.__name__} under vmap" if own is not None else f"the batching rule of {node.name()}"


def _call_differs(same: Sequence[Call]) -> bool:
    """Whether one operation gives other numbers when its operands come at once."""
    leaves = [pytree.tree_leaves((call.args, call.kwargs)) for call in same]
    spec = pytree.tree_structure((same[0].args, same[0].kwargs))
    places = [
        place
        for place, parts in enumerate(zip(*leaves, strict=True))
        if isinstance(parts[0], Tensor) and not all(torch.equal(parts[0], part) for part in parts)
    ]
    if not places:
        return False

    def one(operands: Tensors) -> Tensors:
        filled = list(leaves[0])
        for place, operand in zip(places, operands, strict=True):
            filled[place] = operand
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return tuple(part for part in pytree.tree_leaves(same[0].op(*args, **kwargs)) if isinstance(part, Tensor))

    stacks = stacked([[each[place] for place in places] for each in leaves])
    outs = [[part for part in pytree.tree_leaves(call.out) if isinstance(part, Tensor)] for call in same]
    return differ(batched(one)(stacks), stacked(outs))


def _asymmetry(lin: Recorded, until: float) -> str:
    """Whether a Hessian is not symmetric."""
    u, v = (random_vector(lin.columns, seed=k) for k in (100, 200))
    if not unequal(inner(u, lin.pull(v)), inner(lin.pull(u), v), tolerance_for(u)):
        return ""
    return "this Hessian is not symmetric: a backward in it is not the derivative of its forward"


def _transposed_reverse(lin: Recorded, until: float) -> str:
    """A node whose derivative by its seed is not its transpose."""
    with Watched(lin).graph() as (results, watch), torch.no_grad():
        for node, given, _ in walk(results, stacks_of(lin.rows, count=1)):
            if time.perf_counter() > until:
                return ""
            if not _small(given[0]):
                continue
            seeds = tuple(part.detach().requires_grad_() for part in given[0])
            with torch.enable_grad():
                answers = _present(apply(node, seeds))
            weights = random_vector(Space.of(answers), seed=7)
            back = pulled(list(zip(answers, weights, strict=True)), seeds)
            if unequal(inner(back, seeds), inner(weights, answers), tolerance_for(answers)):
                return f"the derivative of {node.name()}{_at(watch, node)} by its seed is wrong"
    return ""


def _not_finite(lin: Recorded, until: float) -> str:
    """Where numbers that are not finite come from."""
    watched = Watched(lin)
    if lin.problem.call is not None:
        with lin.again(), torch.no_grad():
            calls = watched.run(watched.points())
        for call in calls:
            if not bool(call.value.isfinite().all()):
                return f"{call.name} ({where(call.line)}) gives infinite or NaN numbers"
    with watched.graph() as (results, watch), torch.no_grad():
        before: Node | None = None
        for node, given, _ in walk(results, stacks_of(lin.rows, count=1)):
            if not all(bool(part.isfinite().all()) for part in given[0]):
                name = "a node" if before is None else f"{before.name()}{_at(watch, before)}"
                return f"the gradient that {name} passes on is infinite or NaN"
            if time.perf_counter() > until:
                return ""
            before = node
    return ""


def _sparsity_rule(structure: Structure, lin: Recorded, until: float) -> str:
    """A step of the recorded program whose result depends on seed elements that its rule leaves out."""
    from pullback.sparsity.detect import Trust, Walk  # noqa: PLC0415  it needs SciPy

    program = structure.program
    # What is overwritten later cannot be seen at the end.
    last = {node for node in seeded_nodes(program) if program.versions[node[0]] == node[1]}
    steps = [
        step
        for step in program.steps
        if not is_alias(step) and len(step.results) == 1 and (step.results[0].storage, step.results[0].version) in last
    ]
    graph = replay(program, [step.results[0] for step in steps])
    coefficients = recorded_coefficients(program, graph)
    masks = _masks(sum(seed.numel for seed in program.seeds))
    answers = [graph.linear(*coefficients, *_masked(program.seeds, mask)) for mask in masks]
    follow = Walk(program, Trust(structure.local, structure.about.varying))
    wanted = {id(step): place for place, step in enumerate(steps)}
    for step in program.steps:
        follow.run([step])
        if time.perf_counter() > until:
            return ""
        place = wanted.get(id(step))
        if place is None:
            continue
        claimed = follow.memory.read(step.results[0])
        for mask, answer in zip(masks, answers, strict=True):
            reached = torch.from_numpy(claimed.matrix() @ mask.numpy().astype(float)) if claimed else mask.new_zeros(1)
            if bool(((answer[place].reshape(-1) != 0) & (reached == 0)).any()):
                return f"the sparsity rule of {step.op._schema.name} ({where(step.line)}) leaves out dependences"
    return ""


def _masks(count: int) -> list[Tensor]:
    """Some of the seed elements: a random half, an eighth, and so on."""
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(17))
    return [(drawn * part) % 1 < 1 / part for part in (2.0, 8.0, 32.0, 128.0)]


def _masked(views: Sequence[View], mask: Tensor) -> Tensors:
    parts = torch.split(mask, [view.numel for view in views])
    ones = [torch.ones(view.shape, dtype=view.dtype, device=view.device) for view in views]
    return tuple(one * part.reshape(one.shape).to(one.device) for one, part in zip(ones, parts, strict=True))


def _present(answer: Answer) -> Tensors:
    """The gradients that there are."""
    return tuple(part for part in answer if part is not None)


def _at(watch: Watch, node: Node) -> str:
    line = watch.line_of(node)
    return f" ({where(line)})" if line else ""


def _small(parts: Tensors) -> bool:
    return sum(part.numel() for part in parts) <= LARGEST
