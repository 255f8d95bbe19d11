"""Watch: a function's torch calls one by one, and its reverse pass node by node; to find where numbers go wrong.

Nothing here runs while all is well. It sees what torch.func and autograd see: a custom ``autograd.Function`` or a
registered operator is one call and one node, whatever it runs inside.
"""

from __future__ import annotations

import bisect
import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pullback.autodiff.applied import caller_of_function
from pullback.autodiff.linearize import Recorded, Tensors, evaluate
from pullback.autodiff.program import Line, tensors_in, user_line
from pullback.autodiff.state import fresh_modules
from pullback.data.space import Space, is_differentiable_dtype

# What a node makes of the gradients that arrive; None where nothing flows.
Answer = tuple[Tensor | None, ...]
# The results that are kept to be looked at have no more elements in all.
MOST_ELEMENTS = 2**24


class Made(NamedTuple):
    """What one call made.

    Attributes:
        name: The operation.
        line: The line that called it.
        recorded: Whether gradients were recorded.
        value: The result, as it was before later in-place writes.
    """

    name: str
    line: Line | None
    recorded: bool
    value: Tensor


class Watch(TorchFunctionMode):
    """Notes the calls of torch functions inside it.

    Args:
        inputs: Where the function begins.
        keep: Whether to keep the differentiable results.

    Attributes:
        made: The results that were kept.
        hooks: The lines that registered a hook on a gradient.
    """

    def __init__(self, inputs: Sequence[Tensor] = (), *, keep: bool) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.hooks: list[Line | None] = []
        self._room = MOST_ELEMENTS if keep else 0
        self._seen = {id(tensor): tensor for tensor in inputs}
        self._numbers: list[int] = []
        self._lines: list[Line | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func, args)
        if name == "__get__":  # an attribute
            return func(*args, **(kwargs or {}))
        caller = caller_of_function(sys._getframe(1))
        if caller is not None:  # a part of a custom function, whose node is made already
            self._note(user_line(caller))
            return func(*args, **(kwargs or {}))
        line, recorded = user_line(), torch.is_grad_enabled()
        self.look((args, tuple((kwargs or {}).values())), line)
        if func is torch.autograd.grad and (kwargs or {}).get("create_graph"):
            return self._differentiate(func, *args, **kwargs)
        result = func(*args, **(kwargs or {}))
        if name == "register_hook":
            self.hooks.append(line)
        self._note(line)
        for tensor in tensors_in(result):
            self._keep(Made(name, line, recorded, tensor))
        return result

    def _note(self, line: Line | None) -> None:
        """The autograd nodes since the call before are of this line."""
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._lines.append(line)

    def look(self, value: Any, line: Line | None = None) -> None:
        """Notice tensors that no call made: a custom ``autograd.Function`` is none, and what it made comes out here."""
        for tensor in tensors_in(value):
            if id(tensor) not in self._seen:
                known = None if tensor.grad_fn is None else self.line_of(tensor.grad_fn)
                self._keep(Made(_maker(tensor), known or line, True, tensor))

    def _differentiate(self, grad: Any, outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        """A reverse pass that is to be differentiated: what it makes is of the lines that it is the derivative of."""
        results = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        given = [grad_outputs] if isinstance(grad_outputs, Tensor) else grad_outputs or [None] * len(results)
        seeds = [torch.ones_like(y) if seed is None else seed for y, seed in zip(results, given, strict=True)]
        if self._room:
            for node, _, answers in walk(results, [seed[None] for seed in seeds]):
                for tensor in answers[0]:
                    if tensor is not None:
                        self._keep(Made(node.name(), self.line_of(node), True, tensor))
        lines: list[Line | None] = [None]

        def enter(line: Line | None, *_: Any) -> None:
            self._note(lines[0])
            lines[0] = line

        nodes = in_order([get_gradient_edge(result).node for result in results])
        handles = [node.register_prehook(partial(enter, self.line_of(node))) for node in nodes]
        try:
            return grad(outputs, inputs, grad_outputs, **options)
        finally:
            for handle in handles:
                handle.remove()
            self._note(lines[0])

    def _keep(self, made: Made) -> None:
        tensor = made.value
        if is_differentiable_dtype(tensor.dtype) and tensor.numel() <= self._room:
            self._room -= tensor.numel()
            self._seen[id(tensor)] = tensor
            with torch.enable_grad():
                self.made.append(made._replace(value=tensor.clone()))

    def line_of(self, node: Node) -> Line | None:
        """The line that made an autograd node."""
        place = bisect.bisect_right(self._numbers, node._sequence_nr())
        return self._lines[place] if place < len(self._lines) else None


class Watched:
    """A function at one point, watched while it is run again; no trace of that is left.

    Args:
        lin: The function at its point.
    """

    def __init__(self, lin: Recorded) -> None:
        self.lin = lin
        self.hooks: list[Line | None] = []

    def run(self, points: Sequence[Tensor]) -> list[Made]:
        """The results of all calls, and of the function itself."""
        lin = self.lin
        every = list(lin.points)
        for index, point in zip(lin.live_inputs, points, strict=True):
            every[index] = point.clone() if lin.writes_inputs else point
        watch = Watch(every, keep=True)
        with fresh_modules(lin.problem.f), watch:
            value, _ = evaluate(lin.problem, every)
        leaves = Space.of(value, integers=True).flatten(value)
        watch.look([leaves[index] for index in lin.live_outputs])
        self.hooks = self.hooks or watch.hooks
        return watch.made

    def points(self) -> Tensors:
        """The live inputs."""
        live = (self.lin.points[index].detach() for index in self.lin.live_inputs)
        return tuple(point.contiguous() if 0 in point.stride() else point for point in live)

    @contextlib.contextmanager
    def graph(self) -> Iterator[tuple[Tensors, Watch]]:
        """The live outputs with a graph of their own, and who made its nodes."""
        lin, watch = self.lin, Watch(keep=False)
        if lin.problem.call is None:
            yield tuple(lin.results), watch
            return
        with lin.again(), fresh_modules(lin.problem.f):
            leaves = tuple(leaf.detach().requires_grad_() for leaf in lin.points)
            given = tuple(leaf.clone() for leaf in leaves) if lin.writes_inputs else leaves
            with watch:
                value, _ = evaluate(lin.problem, given)
            results = Space.of(value, integers=True).flatten(value)
            yield tuple(results[index] for index in lin.live_outputs), watch


class Call(NamedTuple):
    """One operation below autograd, with the numbers that it had."""

    op: Any
    args: Any
    kwargs: Any
    out: Any


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copied, named = pytree.tree_map_only(Tensor, torch.Tensor.clone, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, copied, named, pytree.tree_map_only(Tensor, torch.Tensor.clone, out)))
        return out


def walk(results: Sequence[Tensor], seeds: Sequence[Tensor]) -> Iterator[tuple[Node, list[Tensors], list[Answer]]]:
    """A reverse pass of several seeds, one after the other, through each node in turn.

    Args:
        results: Where it begins.
        seeds: For each of them a stack of seeds.

    Yields:
        A node; what arrives there for each seed; and what leaves it.
    """
    count = len(seeds[0])
    arrived: dict[tuple[Node, int], Tensor] = {}

    def deliver(node: Node, place: int, gradient: Tensor) -> None:
        before = arrived.get((node, place))
        arrived[node, place] = gradient if before is None else before + gradient

    for result, seed in zip(results, seeds, strict=True):
        edge = get_gradient_edge(result)
        deliver(edge.node, edge.output_nr, seed)
    for node in in_order([get_gradient_edge(result).node for result in results]):
        kinds = node._input_metadata
        if not kinds or not any((node, place) in arrived for place in range(len(kinds))):
            continue
        stacks = [arrived.pop((node, place), None) for place in range(len(kinds))]
        given = [
            tuple(
                torch.zeros(tuple(kind.shape), dtype=kind.dtype, device=kind.device)
                if stack is None
                else stack[k].sum_to_size(tuple(kind.shape)).to(kind.dtype)
                for stack, kind in zip(stacks, kinds, strict=True)
            )
            for k in range(count)
        ]
        answers = [apply(node, each) for each in given]
        yield node, given, answers
        for place, (child, number) in enumerate(node.next_functions):
            parts = [answer[place] for answer in answers if answer[place] is not None]
            if child is not None and len(parts) == count:
                deliver(child, number, torch.stack(parts))  # type: ignore[arg-type]


def apply(node: Node, gradients: Tensors) -> Answer:
    """What one node makes of the gradients that arrive there; None where nothing flows."""
    run: Any = node if callable(node) else getattr(node, "apply")  # noqa: B009  that of an ``autograd.Function``
    found = run(*gradients)
    return found if isinstance(found, tuple) else (found,)


def in_order(roots: Sequence[Node]) -> list[Node]:
    """The nodes of a graph, each before those that it leads to; without those that only store a gradient."""
    done: dict[Node, None] = {}
    entered: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, left = stack.pop()
        if left:
            done[node] = None
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child, _ in node.next_functions if child is not None)
    return [node for node in reversed(done) if node.next_functions]


def name_of(func: Any, args: Sequence[Any] = ()) -> str:
    """What an operation is called: ``aten::mul``, ``mylib::op``, or the name of an ``autograd.Function``."""
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name)
    name = str(getattr(func, "__name__", func))
    if name == "custom_function_call":
        return str(getattr(args[0], "__name__", args[0]))
    bare = name.strip("_")
    return f"aten::{bare}" if name != "__get__" and hasattr(torch.ops.aten, bare) else name


def _maker(tensor: Tensor) -> str:
    """What made a tensor that came out of no call."""
    own = getattr(tensor.grad_fn, "_forward_cls", None)
    return str(own.__name__) if own is not None else "a tensor from outside"
