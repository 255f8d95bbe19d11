"""A backward pass that tells what every node did: torch's own engine runs it, and hooks on the nodes look on.

The gradients are therefore torch's bit for bit, with the user's hooks, shared subgraphs, views written in place and
custom Functions as they are. The hooks are taken off again, whatever happens.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.autodiff.backward import raise_if_freed
from pullback.autodiff.reach import edge_of
from pullback.errors import GraphError
from pullback.graph.replaying.births import Edges, find_births
from pullback.graph.replaying.local import SMALL, Form, Local, conform, forms_of, is_small, local_jacobian
from pullback.graph.replaying.statistics import Statistics, Waiting, measure, settle, synchronize
from pullback.graph.replaying.steps import Figures, Replay, Step, Values

MATRICES = 500  # Steps that may show a local Jacobian: more than anybody reads, and a long chain stays quick.

_REENTRANT = "use_reentrant=True"
_MANY = f"only the first {MATRICES} small steps have one"
Measured = tuple[Statistics | Waiting | None, ...]
Look = tuple[Statistics | Waiting, Tensor | None]


@torch.inference_mode(False)
@torch.enable_grad()
def replay(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    leaves: Sequence[tuple[int, Tensor]],
    index_of: Mapping[Node, int],
    *,
    labels: Sequence[str] = (),
) -> Replay:
    """Run a backward pass and tell what every node did.

    ``.grad`` of no tensor changes, and the graph can be used again. Hooks of the user on tensors and nodes run as in
    any backward pass; those that run after a gradient was added to ``.grad`` do not, since none is added. The
    ``backward`` of a custom ``autograd.Function`` runs once more for each row of its local Jacobian if that is small.

    Args:
        outputs: Tensors that require grad.
        cotangents: One for each output, of its shape, dtype and device.
        leaves: The tensors in which the gradients end, each with the index of its node.
        index_of: Every node of the graph with its index.
        labels: What to call each node in the text, by its index.

    Returns:
        The steps in the order of the engine, the gradients, and where the numbers went wrong.

    Raises:
        GraphError: The graph has been freed, holds no numbers, or checkpoints in a way that allows no such pass.
    """
    _check(outputs)
    recorder = _Recorder()
    seeds = [measure(cotangent) for cotangent in cotangents]
    began = time.perf_counter()
    gradients = _run(recorder, outputs, cotangents, [leaf for _, leaf in leaves], index_of)
    arrived = [(index, gradient) for (index, _), gradient in zip(leaves, gradients, strict=True)]
    edges = {index: _edges(node, index_of) for node, index in index_of.items()}
    recorder.end_in(arrived, edges)
    steps, seed_figures = recorder.read(seeds)
    seconds = time.perf_counter() - began
    roots = [(index_of[node], number) for node, number in map(edge_of, outputs)]
    births = find_births(steps, edges, [(*root, found) for root, found in zip(roots, seed_figures, strict=True)])
    return Replay(steps, dict(arrived), births, seconds, tuple(labels))


def _check(outputs: Sequence[Tensor]) -> None:
    if any(output.device.type == "meta" for output in outputs):
        raise GraphError(
            "tensors on the meta device have no numbers to replay",
            got="an output on the meta device",
            fix="compute the output on a real device",
        )


def _run(
    recorder: _Recorder,
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    leaves: Sequence[Tensor],
    index_of: Mapping[Node, int],
) -> Sequence[Tensor | None]:
    """The gradients by torch's engine, watched by the recorder."""
    handles: list[Any] = []
    try:
        recorder.watch(index_of, handles)
        return torch.autograd.grad(outputs, leaves, cotangents, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise_if_freed(error)
        _raise_if_reentrant(error)
        raise
    finally:
        for handle in handles:
            handle.remove()


def _raise_if_reentrant(error: RuntimeError) -> None:
    if _REENTRANT in str(error):
        raise GraphError(
            "reentrant checkpointing runs only in a backward pass that adds to .grad, and a replay adds to none",
            got="torch.utils.checkpoint.checkpoint(..., use_reentrant=True)",
            fix="use_reentrant=False",
        ) from error


def _edges(node: Node, index_of: Mapping[Node, int]) -> Edges:
    return [None if child is None else (index_of[child], number) for child, number in node.next_functions]


@dataclass(slots=True)
class _Visit:
    """What was seen of a node, with its tensors' numbers still on their devices."""

    node: Node | None
    index: int
    operation: str
    incoming: Measured
    incoming_values: Values
    began: Any = 0.0
    ended: Any = 0.0
    outgoing: Measured = ()
    outgoing_values: Values = ()


@dataclass(slots=True)
class _Recorder:
    """Looks on while the engine runs.

    Attributes:
        visits: What was seen, in order.
        open: The visits of nodes that are running, by index.
        seen: What was seen last of a tensor that may come by again: most outgoing cotangents are incoming ones
            next, as the same tensor.
        task: torch's number of the pass that is watched. A hook of the user may run another through the same nodes,
            even before the first node of this one; it has a higher number.
    """

    visits: list[_Visit] = field(default_factory=list)
    open: dict[int, _Visit] = field(default_factory=dict)
    seen: dict[int, tuple[weakref.ref[Tensor], int, Look]] = field(default_factory=dict)
    task: int | None = None

    def watch(self, index_of: Mapping[Node, int], handles: list[Any]) -> None:
        """Put hooks on all nodes; their handles are added one by one, so that none is lost."""
        forms = {node: forms_of(node) for node in index_of}
        for node, index in index_of.items():
            arguments = node.next_functions
            if not arguments:  # nothing runs at a leaf: the engine hands its gradient out instead
                continue
            sent = [None if child is None else forms[child][number] for child, number in arguments]
            clock = _clock(forms[node])
            handles.append(node.register_prehook(functools.partial(self._enter, node, index, clock)))
            handles.append(node.register_hook(functools.partial(self._leave, index, sent, clock)))

    def _enter(self, node: Node, index: int, clock: Callable[[], Any], cotangents: Sequence[Tensor | None]) -> None:
        task = torch._C._current_graph_task_id()
        if self.task is None or task < self.task:
            self.task = task
            self.visits.clear()
            self.open.clear()
        if task != self.task:
            return
        visit = _Visit(node, index, node.name(), *self._look(cotangents))
        self.open[index] = visit
        self.visits.append(visit)
        visit.began = clock()

    def _leave(
        self,
        index: int,
        forms: Sequence[Form | None],
        clock: Callable[[], Any],
        returned: Sequence[Tensor | None],
        _: Sequence[Tensor | None],
    ) -> None:
        if torch._C._current_graph_task_id() != self.task:
            return
        visit = self.open.pop(index)
        visit.ended = clock()
        sent = [
            None if value is None or form is None else conform(value, form)
            for value, form in zip(returned, forms, strict=True)
        ]
        visit.outgoing, visit.outgoing_values = self._look(sent)

    def end_in(self, gradients: Sequence[tuple[int, Tensor | None]], edges: Mapping[int, Edges]) -> None:
        """Add a visit for each leaf, after the last node that added to its gradient, as the engine does."""
        found = dict(gradients)
        last: dict[int, int] = {}
        for place, visit in enumerate(self.visits):
            for edge in edges[visit.index]:
                if edge is not None and edge[0] in found:
                    last[edge[0]] = place
        after: dict[int, list[_Visit]] = {}
        for index, gradient in gradients:
            if gradient is not None:
                visit = _Visit(None, index, "leaf", *self._look([gradient]))
                after.setdefault(last.get(index, -1), []).append(visit)
        ordered = after.get(-1, [])
        for place, visit in enumerate(self.visits):
            ordered += [visit, *after.get(place, ())]
        self.visits = ordered

    def read(self, seeds: Sequence[Statistics | Waiting]) -> tuple[tuple[Step, ...], list[Statistics]]:
        """Fetch what is still on the devices, and compute the local Jacobians."""
        measured = [one for visit in self.visits for one in (*visit.incoming, *visit.outgoing)]
        waiting = {id(one): one for one in (*measured, *seeds) if isinstance(one, Waiting)}
        settled = dict(zip(waiting, settle(list(waiting.values())), strict=True))

        def figures(side: Measured) -> Figures:
            return tuple(settled[id(one)] if isinstance(one, Waiting) else one for one in side)

        synchronize({value.device for visit in self.visits for value in visit.incoming_values if value is not None})
        steps, matrices = [], 0
        for visit in self.visits:
            local = _local(visit, matrices)
            matrices += local is not None
            steps.append(
                Step(
                    node=visit.index,
                    operation=visit.operation,
                    incoming=figures(visit.incoming),
                    outgoing=figures(visit.outgoing),
                    incoming_values=_on_cpu(visit.incoming_values),
                    outgoing_values=_on_cpu(visit.outgoing_values),
                    local=local,
                    seconds=_elapsed(visit.began, visit.ended),
                )
            )
        return tuple(steps), [found for found in figures(tuple(seeds)) if found is not None]

    def _look(self, tensors: Sequence[Tensor | None]) -> tuple[Measured, Values]:
        looked = [(None, None) if tensor is None else self._look_at(tensor) for tensor in tensors]
        return tuple(one for one, _ in looked), tuple(value for _, value in looked)

    def _look_at(self, tensor: Tensor) -> Look:
        known = self.seen.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        look = measure(tensor), tensor.detach().clone() if _is_shown(tensor) else None
        if not tensor.is_inference():  # a seed may be one; they count no versions
            self.seen[id(tensor)] = (weakref.ref(tensor), tensor._version, look)
        return look


def _clock(forms: Sequence[Form]) -> Callable[[], Any]:
    """What reads the time where a node computes: on CUDA a mark in its stream, which nothing waits for."""
    device = next((form.device for form in forms if form.device.type == "cuda"), None)
    return time.perf_counter if device is None else functools.partial(_mark, device)


def _mark(device: torch.device) -> Any:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def _elapsed(began: Any, ended: Any) -> float:
    if isinstance(began, float):
        return float(ended - began)
    return float(began.elapsed_time(ended)) / 1e3


def _is_shown(tensor: Tensor) -> bool:
    return not tensor.is_nested and tensor.numel() <= SMALL and tensor.layout is torch.strided


def _on_cpu(values: Values) -> Values:
    return tuple(None if value is None else value.cpu() for value in values)


def _local(visit: _Visit, number: int) -> Local | None:
    """The local Jacobian of a node if all numbers on both sides were kept."""
    sides = ((visit.incoming, visit.incoming_values), (visit.outgoing, visit.outgoing_values))
    if visit.node is None or not all(_all_kept(*side) for side in sides) or not is_small(*(each[1] for each in sides)):
        return None
    if number >= MATRICES:
        return Local(None, _MANY)
    return local_jacobian(visit.node, visit.incoming_values, visit.outgoing_values)


def _all_kept(measured: Measured, values: Values) -> bool:
    return all(value is not None or one is None for one, value in zip(measured, values, strict=True))
