"""A function at one point: its value, and the passes through it.

:func:`linearize` evaluates the function once. A :class:`Linearization` then offers one reverse pass (``pull``: a
cotangent for each live output to a gradient for each live input), and one or more forward passes (``kernels``).
*Live* are the outputs that carry a graph and the inputs that this graph reaches; all other derivatives are zero.
"""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.autodiff.attention import by_math, is_fused, no_fast_path
from pullback.autodiff.closures import held_by
from pullback.autodiff.program import Escapes, NotRecordable, Program, Recorder, as_views, forget_seeded
from pullback.autodiff.reach import reached
from pullback.autodiff.state import Ambient, fresh_modules
from pullback.data.problem import Problem, Side
from pullback.data.space import Space, is_differentiable_dtype
from pullback.errors import ArgumentError, GraphError

Tensors = tuple[Tensor, ...]
Pass = Callable[[Tensors], Tensors]

_inside_evaluation = contextvars.ContextVar("inside_evaluation", default=False)


class Linearization(ABC):
    """A function at one point.

    Attributes:
        inputs: The Space of the tensors asked for.
        outputs: The Space of the function's value.
        value: The value, in the structure that the function returned.
        aux: What the function returned beside it.
        live_inputs: The indices, among the leaves of ``inputs``, of those that the graph reaches.
        live_outputs: The indices, among the leaves of ``outputs``, of those that carry a graph.
        create_graph: Whether the results of passes can be differentiated again.
        notes: What a reader of the plan should know about this function.
        writes_inputs: Whether the function writes on its own inputs, and must be given copies.
    """

    problem: Problem
    inputs: Space
    outputs: Space
    value: Any
    aux: Any
    live_inputs: tuple[int, ...]
    live_outputs: tuple[int, ...]
    create_graph: bool
    notes: list[str]
    writes_inputs: bool = False

    @cached_property
    def columns(self) -> Space:
        """The live inputs as a Space of their own."""
        return self.inputs.restrict(self.live_inputs)

    @cached_property
    def rows(self) -> Space:
        """The live outputs as a Space of their own."""
        return self.outputs.restrict(self.live_outputs)

    @property
    def transformed(self) -> bool:
        """Whether a torch.func transform is at work around it: then nothing may depend on a number."""
        return False

    @abstractmethod
    def pull(self, cotangents: Tensors) -> Tensors:
        """One reverse pass: ``uᵀJ`` for one cotangent ``u``, one tensor for each live output."""

    @property
    @abstractmethod
    def kernels(self) -> dict[str, Pass]:
        """The ways to compute ``Jv`` for one tangent ``v``, by name, the cheapest first."""


class Recorded(Linearization):
    """A function whose evaluation torch.autograd recorded: reverse passes walk that record."""

    def __init__(self, problem: Problem, value: Any, aux: Any, leaves: Tensors, *, create_graph: bool) -> None:
        self.problem = problem
        self.inputs = problem.inputs
        self.outputs = Space.of(value, name="output", integers=True)
        self.aux = aux
        self.create_graph = create_graph
        self.notes = []
        self.ambient: Ambient | None = None
        self._math = False
        self._leaves = leaves
        self._versions = [None if leaf.is_inference() else leaf._version for leaf in problem.leaves]
        self._results: Tensors = tuple(self.outputs.flatten(value))
        self.value = value if create_graph else pytree.tree_map_only(Tensor, torch.Tensor.detach, value)
        self.live_outputs = tuple(i for i, result in enumerate(self._results) if result.requires_grad)
        self._seed_gradient: tuple[Tensors, Tensors] | None = None
        self._live_inputs: tuple[int, ...] | None = None

    @property
    def live_inputs(self) -> tuple[int, ...]:  # type: ignore[override]
        """Found by a walk over the graph, when first asked for."""
        if self._live_inputs is None:
            found = reached(self._results, self._leaves)
            self._live_inputs = tuple(index for index, hit in enumerate(found) if hit)
            self._look_for_closures(found)
        return self._live_inputs

    def pull(self, cotangents: Tensors) -> Tensors:
        live = [self._leaves[index] for index in self.live_inputs]
        try:
            with by_math(self._math):  # a checkpoint computes again here
                gradients = torch.autograd.grad(
                    [self._results[index] for index in self.live_outputs],
                    live,
                    cotangents,
                    retain_graph=True,
                    create_graph=self.create_graph,
                    allow_unused=True,
                )
        except RuntimeError as error:
            self._check_unchanged(error)
            raise
        return tuple(map(_dense_or_zero, gradients, live))

    def pull_stack(self, stacks: Tensors) -> Tensors:
        """Reverse passes for a stack of cotangents, batched by torch.autograd itself: little overhead, older rules."""
        live = [self._leaves[index] for index in self.live_inputs]
        with _no_fallback_warning(), by_math(self._math):
            gradients = torch.autograd.grad(
                [self._results[index] for index in self.live_outputs],
                live,
                stacks,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        zeros = [leaf.detach().expand(stacks[0].shape[0], *leaf.shape) for leaf in live]
        return tuple(map(_dense_or_zero, gradients, zeros))

    @property
    def kernels(self) -> dict[str, Pass]:
        if self.problem.call is None:
            return {"reverse-over-reverse": self._push_by_pulling}
        found: dict[str, Pass] = {}
        if self.problem.symmetric and self.live_inputs == self.live_outputs:
            found["reverse of a symmetric matrix"] = self.pull
        found["forward"] = self._push_by_running
        if not self._math and is_fused(self._results):
            found["forward, attention by its math formulation"] = self._push_by_math
        return found | {"reverse-over-reverse": self._push_by_pulling}

    def _push_by_running(self, tangents: Tensors) -> Tensors:
        """Run the function again, with dual numbers."""
        self._check_unchanged(None)
        assert self.ambient is not None
        points = self._leaves if self.create_graph else tuple(leaf.detach() for leaf in self._leaves)
        with (
            self.ambient.again(),
            by_math(self._math),
            no_fast_path(),
            torch.inference_mode(False),
            torch.set_grad_enabled(self.create_graph),
        ):
            return _jvp(self, points, tangents)

    def _push_by_math(self, tangents: Tensors) -> Tensors:
        """As by running, where fused attention has no forward derivative."""
        note = "attention by its math formulation: the fused kernel has no forward derivative"
        if note not in self.notes:
            self.notes.append(note)
        with by_math():
            return self._push_by_running(tangents)

    def attend_by_math(self) -> None:
        """Evaluate again, with the derivatives of derivatives that fused attention lacks."""
        self._math = True
        with self.again(), fresh_modules(self.problem.f):
            given = tuple(leaf.clone() for leaf in self._leaves) if self.writes_inputs else self._leaves
            value, self.aux = evaluate(self.problem, given)
        self._results = tuple(self.outputs.flatten(value))
        self.value = value if self.create_graph else pytree.tree_map_only(Tensor, torch.Tensor.detach, value)
        self.notes.append("attention by its math formulation: the fused kernel has no second derivative")

    def _push_by_pulling(self, tangents: Tensors) -> Tensors:
        """Differentiate the reverse pass by its seed: ``uᵀJ`` is linear in u, with transpose ``Jv``."""
        seeds, gradients = self._pullback_of_seed()
        linear = [(g, t) for g, t in zip(gradients, tangents, strict=True) if g.requires_grad]
        if not linear:
            return tuple(torch.zeros_like(seed) for seed in seeds)
        results = torch.autograd.grad(
            [gradient for gradient, _ in linear],
            seeds,
            [tangent for _, tangent in linear],
            retain_graph=True,
            create_graph=self.create_graph,
            allow_unused=True,
        )
        return tuple(map(_dense_or_zero, results, seeds))

    @property
    def points(self) -> Tensors:
        """The inputs as the function saw them."""
        return self._leaves

    @property
    def results(self) -> Tensors:
        """The live outputs, with the graph that was recorded."""
        return tuple(self._results[index] for index in self.live_outputs)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside: the surroundings in which the function was evaluated."""
        self._check_unchanged(None)
        assert self.ambient is not None
        with self.ambient.again(), by_math(self._math), torch.inference_mode(False), torch.enable_grad():
            yield

    @property
    def fused(self) -> bool:
        """Whether the passes go through a fused attention kernel, which many of them run through one by one."""
        return is_fused(self._results)

    def record(self, side: Side, *, math: bool = False) -> Program:
        """The operations of one pass on a side, from the inputs and a seed to the answers.

        Args:
            side: The side.
            math: Attention is computed by its math formulation.

        Raises:
            NotRecordable: The pass cannot be seen as a program.
        """
        if any(leaf.is_meta for leaf in self._leaves):
            raise NotRecordable("meta tensors have no numbers to run a program with")
        recorder = Recorder(side)
        with contextlib.ExitStack() as stack:
            buffers: dict[int, Tensor] = {}
            if self.problem.call is not None:
                self._check_unchanged(None)
                assert self.ambient is not None
                stack.enter_context(self.ambient.again())
                stack.enter_context(by_math(self._math))
                buffers = stack.enter_context(fresh_modules(self.problem.f))
                stack.enter_context(by_math(math))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            return self._record(recorder, side, buffers)

    def _record(self, recorder: Recorder, side: Side, buffers: dict[int, Tensor]) -> Program:
        program = recorder.program
        fresh = self.problem.call is not None
        leaves = tuple(map(_apart, self._leaves)) if fresh else self._leaves
        points = tuple(recorder.view(leaf) for leaf in leaves)
        space = self.rows if side == "reverse" else self.columns
        seeds = tuple(torch.ones(leaf.shape, dtype=leaf.dtype, device=leaf.device) for leaf in space.leaves)
        cotangents = tuple(recorder.view(seed) for seed in seeds)
        program.captured.clear()
        with Escapes(program), recorder:
            if side == "forward":
                answers: Sequence[Tensor | None] = _jvp(self, leaves, seeds)
            else:
                results = self._results
                if fresh:
                    given = tuple(leaf.clone() for leaf in leaves) if self.writes_inputs else leaves
                    value, _ = evaluate(self.problem, given)
                    results = tuple(Space.of(value, integers=True).flatten(value))
                if tuple(result.shape for result in results) != self.outputs.shapes:
                    raise NotRecordable("the function returned other shapes when it ran again")
                answers = torch.autograd.grad(
                    [results[index] for index in self.live_outputs],
                    [leaves[index] for index in self.live_inputs],
                    seeds,
                    retain_graph=not fresh,
                    allow_unused=True,
                )
        program.points, program.seeds = points, cotangents
        program.answers = as_views(recorder, answers)
        ends = self.columns if side == "reverse" else self.rows
        program.sizes_of_answers = tuple(leaf.numel for leaf in ends.leaves)
        for index, tensor in program.captured.items():
            program.captured[index] = program.tensors[index] = buffers.get(id(tensor), tensor)
        forget_seeded(program)
        return program

    def _pullback_of_seed(self) -> tuple[Tensors, Tensors]:
        if self._seed_gradient is None:
            with torch.inference_mode(False), torch.enable_grad():
                results = [self._results[index] for index in self.live_outputs]
                seeds = tuple(torch.zeros_like(result, requires_grad=True) for result in results)
                live = [self._leaves[index] for index in self.live_inputs]
                gradients = torch.autograd.grad(results, live, seeds, create_graph=True, allow_unused=True)
                self._seed_gradient = seeds, tuple(map(_dense_or_zero, gradients, live))
        return self._seed_gradient

    def _check_unchanged(self, error: RuntimeError | None) -> None:
        for leaf, tensor, version in zip(self.inputs.leaves, self.problem.leaves, self._versions, strict=True):
            if version is not None and tensor._version != version:
                raise GraphError(
                    f"{leaf.name} was changed in place after its Jacobian was made",
                    got=f"version {tensor._version} of the tensor, the Jacobian is at version {version}",
                    fix="make a new Jacobian at the new point, or pass a copy: x.clone()",
                ) from error

    def _look_for_closures(self, found: list[bool]) -> None:
        """A function that uses the tensor asked for, but not through its argument, has a zero Jacobian."""
        if self.problem.call is None:
            return
        originals = self.problem.leaves
        # With create_graph the graph goes on through the argument to the original, which proves nothing.
        beside = [False] * len(found) if self.create_graph else reached(self._results, originals)
        # A module holds its parameters whether it uses them or not.
        search = not all(found) and not isinstance(self.problem.f, nn.Module)
        held = {id(tensor) for tensor in held_by(self.problem.f).tensors} if search else set()
        for leaf, original, used, also in zip(self.inputs.leaves, originals, found, beside, strict=True):
            if not used and (also or id(original) in held):
                raise _closes_over(leaf.name, leaf.shape)
            if not used:
                self.notes.append(f"the outputs do not depend on {leaf.name}: its derivatives are zero")
            elif also:
                self.notes.append(
                    f"the function also uses {leaf.name} beside its argument (a closure); that part is not in J"
                )


class Deferred(Linearization):
    """A function at a point where it need not be evaluated yet: its Spaces are known from another point.

    Args:
        problem: The function and the point.
        like: The same function at another point, with the same shapes.
    """

    def __init__(self, problem: Problem, like: Recorded) -> None:
        self.problem = problem
        self.inputs, self.outputs = problem.inputs, like.outputs
        self.live_inputs, self.live_outputs = like.live_inputs, like.live_outputs
        self.create_graph = like.create_graph
        self.notes = list(like.notes)
        self._real: Linearization | None = None

    @property
    def real(self) -> Linearization:
        """The function evaluated, when first asked for."""
        if self._real is None:
            self._real = linearize(self.problem, create_graph=self.create_graph)
            if (self._real.outputs.shapes, self._real.live_outputs) != (self.outputs.shapes, self.live_outputs):
                raise GraphError(
                    "the function returned something else here than where it was prepared",
                    got=f"{self._real.outputs.describe()}, prepared for {self.outputs.describe()}",
                    fix="pb.jacobian(f, x) at this point, or prepare again",
                )
        return self._real

    @property
    def value(self) -> Any:
        """The function's value, for which it is evaluated."""
        return self.real.value

    @property
    def aux(self) -> Any:
        """What the function returned beside it."""
        return self.real.aux

    @property
    def kernels(self) -> dict[str, Pass]:
        return self.real.kernels

    def pull(self, cotangents: Tensors) -> Tensors:
        return self.real.pull(cotangents)


class Transformed(Linearization):
    """A function inside a torch.func transform (grad, vmap, jvp ...): passes are torch.func's own."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.inputs = problem.inputs
        self.create_graph = True
        self.notes = ["inside a torch.func transform: not verified"]
        self._points = problem.leaves
        seen: list[Any] = []

        def run(*points: Tensor) -> tuple[Tensors, list[Any]]:
            value, aux = evaluate(problem, points)
            space = Space.of(value, name="output", integers=True)
            live = tuple(i for i, leaf in enumerate(space.leaves) if is_differentiable_dtype(leaf.dtype))
            leaves = space.flatten(value)
            auxiliary, auxiliary_spec = pytree.tree_flatten((value, aux))
            seen[:] = [space, live, auxiliary_spec, auxiliary]
            return tuple(leaves[i] for i in live), [a for a in auxiliary if isinstance(a, Tensor)]

        with by_math():  # the transform around may differentiate again
            evaluated: Any = torch.func.vjp(run, *self._points, has_aux=True)
        _, self._vjp, tensors = evaluated
        self.outputs, self.live_outputs, spec, others = seen
        remaining = iter(tensors)
        filled = [next(remaining) if isinstance(other, Tensor) else other for other in others]
        self.value, self.aux = pytree.tree_unflatten(filled, spec)
        self.live_inputs = tuple(range(len(self._points)))

    @property
    def transformed(self) -> bool:
        return True

    def pull(self, cotangents: Tensors) -> Tensors:
        gradients: Tensors = self._vjp(cotangents)
        return gradients

    @property
    def kernels(self) -> dict[str, Pass]:
        return {"forward": self._push}

    def _push(self, tangents: Tensors) -> Tensors:
        with by_math(), no_fast_path():
            return _jvp(self, self._points, tangents)


def linearize(problem: Problem, *, create_graph: bool) -> Linearization:
    """Evaluate the function of a problem once, and return it with the passes through that point.

    Raises:
        ArgumentError: The function returned no tensor, or not ``(output, aux)`` where ``has_aux`` promised it.
    """
    if torch._C._functorch.maybe_current_level() is not None:
        return Transformed(problem)
    create_graph = create_graph or _inside_evaluation.get()
    ambient = Ambient.now(leaf.device for leaf in problem.inputs.leaves)
    with torch.inference_mode(False), torch.enable_grad():
        leaves = tuple(_independent(leaf, connected=create_graph) for leaf in problem.leaves)
        writes_inputs = False
        try:
            value, aux = evaluate(problem, leaves)
        except RuntimeError as error:
            if "in-place operation" not in str(error) or "leaf Variable" not in str(error):
                raise
            # The function writes on its own input, which torch allows on a copy but not on a leaf.
            ambient.rewind()
            writes_inputs = True
            value, aux = evaluate(problem, tuple(leaf.clone() for leaf in leaves))
        recorded = Recorded(problem, value, aux, leaves, create_graph=create_graph)
    recorded.ambient = ambient
    recorded.writes_inputs = writes_inputs
    if (create_graph or problem.symmetric) and is_fused(recorded.results):
        recorded.attend_by_math()
    return recorded


def linearize_graph(problem: Problem, value: Any, *, create_graph: bool) -> Recorded:
    """The passes through a graph that exists already, from ``value`` to the tensors of the problem."""
    return Recorded(problem, value, None, problem.leaves, create_graph=create_graph)


def evaluate(problem: Problem, points: Sequence[Tensor]) -> tuple[Any, Any]:
    """Call the function of a problem: its value and its aux.

    Raises:
        ArgumentError: It returned no tensor, or not ``(output, aux)`` where ``has_aux`` promised it.
    """
    assert problem.call is not None
    token = _inside_evaluation.set(True)
    try:
        result = problem.call(points)
    finally:
        _inside_evaluation.reset(token)
    aux = None
    if problem.has_aux:
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(
                "has_aux=True needs a function that returns (output, aux)",
                got=f"{type(result).__name__}",
                fix="return a tuple of two, or leave has_aux out",
            )
        result, aux = result
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)):
        raise ArgumentError(
            "the function returned no tensor",
            got=f"{type(result).__name__}",
            fix="return a tensor or a structure of tensors; .item(), .numpy() and float() leave the graph",
        )
    return result, aux


def batched(one: Pass) -> Pass:
    """Many passes at once, over a leading dimension, by torch.func.vmap."""

    def many(stacks: Tensors) -> Tensors:
        with _no_fallback_warning():
            results: Tensors = torch.func.vmap(one, randomness="same")(stacks)
        return results

    return many


def looped(one: Pass) -> Pass:
    """Many passes one after the other, over a leading dimension."""

    def many(stacks: Tensors) -> Tensors:
        results = [one(tuple(stack[index] for stack in stacks)) for index in range(stacks[0].shape[0])]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    return many


@contextlib.contextmanager
def _no_fallback_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        yield


def _jvp(lin: Linearization, points: Tensors, tangents: Tensors) -> Tensors:
    def run(*live: Tensor) -> Tensors:
        every = list(points)
        for index, point in zip(lin.live_inputs, live, strict=True):
            every[index] = point
        if lin.writes_inputs:
            every = [point.clone() for point in every]
        with fresh_modules(lin.problem.f):
            value, _ = evaluate(lin.problem, every)
        leaves = Space.of(value, integers=True).flatten(value)
        return tuple(leaves[index] for index in lin.live_outputs)

    # torch makes a dual number of a tensor only where its elements do not share memory, as an expanded one's do.
    live = tuple(points[index] for index in lin.live_inputs)
    primals = tuple(point.contiguous() if 0 in point.stride() else point for point in live)
    dual: Any = torch.func.jvp(run, primals, tangents)
    return tuple(dual[1])


def _independent(leaf: Tensor, *, connected: bool) -> Tensor:
    """The same numbers as a variable of their own, so that nothing of the user's tensor is changed."""
    if leaf.is_inference():
        leaf = leaf.clone()
    if connected and leaf.requires_grad:
        return leaf.view_as(leaf)
    return leaf.detach().requires_grad_()


def _apart(leaf: Tensor) -> Tensor:
    """The same numbers as a leaf without a graph, whose elements do not share memory."""
    leaf = leaf.detach()
    return (leaf.contiguous() if 0 in leaf.stride() else leaf).requires_grad_()


def _dense_or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(like, requires_grad=False)
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def _closes_over(name: str, shape: torch.Size) -> GraphError:
    return GraphError(
        f"the function does not use its argument {name}, it closes over the same tensor",
        got=f"a function whose result depends on {name} {tuple(shape)} only by closure: its Jacobian would be zero",
        fix="compute with the argument; or pb.jacobian(module, x, wrt='parameters') for a module's parameters; "
        "or pb.jacobian_of(y, tensor) for a result that is already computed",
    )
