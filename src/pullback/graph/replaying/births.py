"""Where in a backward pass the numbers went wrong: each node's incoming cotangents beside what it passed on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from pullback.graph.replaying.statistics import Statistics
from pullback.graph.replaying.steps import Birth, Kind, Step, share
from pullback.words import dtype_name

MOST = 8  # Births told of each kind: one cause has many places in a batch of layers, and the first ones name it.

# A layer that is scaled well changes the norm of a cotangent by less than ten. A thousand is what two nodes in a row
# need to carry a cotangent through the whole range of float16's normal numbers, and no healthy node does it: the sum
# over a batch raises the largest number, a broadcast the norm, and only a badly scaled node raises both.
GROWTH = 1e3
FLOOR = 1.0  # Growth that stays below this only undoes what made the numbers small, such as a mean over a batch.

LOST = 0.01  # Share of a half-precision cotangent that may become subnormal, or zero in a cast, before it is told.

_HALF = (torch.float16, torch.bfloat16)
Edges = Sequence[tuple[int, int] | None]
Seed = tuple[int, int, Statistics]


def find_births(steps: Iterable[Step], edges: Mapping[int, Edges], seeds: Sequence[Seed]) -> tuple[Birth, ...]:
    """The births in the order of the steps, at most ``MOST`` of each kind.

    Args:
        steps: The pass in the order of the engine.
        edges: For each node, where each of its arguments comes from: a node and which of its outputs, or None.
        seeds: Where the pass began: a node, which of its outputs, and what the cotangent there looks like.
    """
    told: Counter[Kind] = Counter()
    found = []
    for birth in _all_births(steps, edges, seeds):
        told[birth.kind] += 1
        if told[birth.kind] <= MOST:
            found.append(birth)
    return tuple(found)


def _all_births(steps: Iterable[Step], edges: Mapping[int, Edges], seeds: Sequence[Seed]) -> Iterator[Birth]:
    arrived: dict[tuple[int, int], list[Statistics]] = {}
    for node, output, seed in seeds:
        arrived.setdefault((node, output), []).append(seed)
        for kind, what in _wrong(seed):
            yield Birth(node, kind, f"the seed itself has {what}")
    for step in steps:
        for output, figures in enumerate(step.incoming):
            if figures is not None:
                yield from _on_the_way(step.node, output, arrived.pop((step.node, output), []), figures)
        incoming = [each for each in step.incoming if each is not None and each.numel]
        outgoing = [(number, each) for number, each in enumerate(step.outgoing) if each is not None and each.numel]
        if incoming:
            yield from _in_the_node(step.node, incoming, outgoing)
        for number, figures in outgoing:
            edge = edges[step.node][number]
            if edge is not None:
                arrived.setdefault(edge, []).append(figures)


def _wrong(figures: Statistics) -> Iterator[tuple[Kind, str]]:
    """What a cotangent has that does no good, whatever it came from."""
    if figures.nans:
        yield "nan", f"NaN ({_count(figures.nans, figures)})"
    if figures.infs:
        yield "inf", f"inf ({_count(figures.infs, figures)})"
    if figures.zeros == 1:
        yield "zero", "nothing but exact zeros"
    if figures.dtype in _HALF and figures.subnormal >= LOST:
        yield "subnormal", f"subnormal numbers ({_count(figures.subnormal, figures)})"


def _on_the_way(node: int, output: int, sent: Sequence[Statistics], figures: Statistics) -> Iterator[Birth]:
    """What is wrong with a cotangent, and with none of those that it is the sum of."""
    found = list(_wrong(figures))
    if not found:
        return
    before = _had(sent)
    by = "the sum of several, or a tensor hook" if len(sent) > 1 else "a tensor hook"
    for kind, what in found:
        if kind not in before:
            yield Birth(node, kind, f"{what} born on the way into output {output} of this node, by {by}")


def _in_the_node(
    node: int, incoming: Sequence[Statistics], outgoing: Sequence[tuple[int, Statistics]]
) -> Iterator[Birth]:
    """What is wrong with a cotangent that a node passed on, and with none that it received; each kind once."""
    had: set[Kind] | None = None
    for number, figures in outgoing:
        told = dict(_wrong(figures))
        lost = _lost_in_cast(incoming, figures)
        if lost and "subnormal" not in told:
            told["subnormal"] = lost
        if _exploded(incoming, figures):
            told["explosion"] = f"a norm of {figures.norm:.4g}, from {_norm(incoming):.4g},"
        for kind, what in told.items():
            had = _had(incoming) if had is None else had
            if kind not in had:
                had.add(kind)
                yield Birth(node, kind, f"{what} born here, for argument {number}{_because(kind, incoming, figures)}")


def _had(figures: Sequence[Statistics]) -> set[Kind]:
    """What one of several cotangents has; zero only if all of them are."""
    had = {kind for each in figures for kind, _ in _wrong(each)} - {"zero"}
    return had | {"zero"} if all(each.zeros == 1 for each in figures) else had


def _because(kind: Kind, incoming: Sequence[Statistics], figures: Statistics) -> str:
    dtype = dtype_name(figures.dtype)
    if kind == "nan" and any(each.infs for each in incoming):
        return ": an inf came in, and 0 · inf and inf - inf are NaN"
    if kind == "inf" and figures.dtype in _HALF:
        return f": {dtype} ends at {torch.finfo(figures.dtype).max:.4g}"
    if kind in {"zero", "subnormal"} and figures.dtype in _HALF:
        return f": normal numbers of {dtype} begin at {torch.finfo(figures.dtype).tiny:.4g}"
    return ""


def _lost_in_cast(incoming: Sequence[Statistics], figures: Statistics) -> str:
    """What a cast to half precision made zero."""
    if figures.dtype not in _HALF or any(each.dtype in _HALF for each in incoming):
        return ""
    lost = figures.zeros - max(each.zeros for each in incoming)
    return f"zeros where there were none ({_count(lost, figures)})" if lost >= LOST else ""


def _exploded(incoming: Sequence[Statistics], figures: Statistics) -> bool:
    norm, peak = _norm(incoming), max(each.peak for each in incoming)
    return 0 < GROWTH * norm < figures.norm < float("inf") and 0 < GROWTH * peak < figures.peak and figures.norm > FLOOR


def _norm(figures: Sequence[Statistics]) -> float:
    return math.hypot(*(each.norm for each in figures))


def _count(part: float, figures: Statistics) -> str:
    return f"{round(part * figures.numel):,} of {figures.numel:,} numbers, {share(part)}"
