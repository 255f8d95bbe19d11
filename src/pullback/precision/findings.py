"""What a watch finds in one backward pass, by the exponents of the cotangents that came to each node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pullback.graph.replaying.steps import share
from pullback.graph.text import short
from pullback.graph.values import Node, Place
from pullback.precision.exponents import LOW, SHARE, Exponents, rounds_away
from pullback.precision.places import located
from pullback.words import dtype_name

Kind = Literal["overflow", "underflow", "rounding", "skipped step", "zero gradient"]
Arrived = Mapping[int, Sequence[Exponents | None]]

NEAR = 0.25  # Of the range of a dtype: products of what lies there are likely to be too small.
_SCALES = frozenset({"Mul", "Div"})
# What passes on nothing but zeros without losing anything: it only chooses among numbers.
_CHOOSES = frozenset(
    {
        "Abs",
        "Amax",
        "Amin",
        "Clamp",
        "ClampMax",
        "ClampMin",
        "Embedding",
        "Gather",
        "Hardtanh",
        "Index",
        "IndexSelect",
        "LeakyRelu",
        "MaskedFill",
        "MaskedSelect",
        "Max",
        "MaxPool2DWithIndices",
        "Maximum",
        "Median",
        "Min",
        "Minimum",
        "NativeDropout",
        "Relu",
        "Select",
        "Slice",
        "Threshold",
        "Topk",
        "Where",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a backward pass lost.

    Attributes:
        kind: What happened: ``"skipped step"`` for a gradient that is not finite, so that a scaler skips the step.
        operation: The operation whose backward did it; for a gradient, the name of the parameter or input.
        module: The innermost module around it, by its path; empty outside modules.
        place: The line that made it, if known.
        dtype: The dtype of what was lost.
        share: How much of it, in [0, 1].
        text: What happened, in a sentence.
        first: The number of the backward pass in which it was seen first, from 1.
        times: In how many passes it was seen.
        scale: The loss scale in the last of them; None if there was none.
    """

    kind: Kind
    operation: str
    module: str
    place: Place | None
    dtype: torch.dtype
    share: float
    text: str
    first: int = 1
    times: int = 1
    scale: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What two findings of the same in different passes have in common."""
        return self.kind, self.operation, self.module, self.place, self.dtype

    def __str__(self) -> str:
        inside = f" in {self.module}" if self.module and self.kind not in {"skipped step", "zero gradient"} else ""
        line = f"  {short(self.place)}" if self.place else ""
        often = f" (in {self.times} passes)" if self.times > 1 else ""
        return f"{self.operation}{inside}{line}: {self.text}{often}"


def find(
    nodes: Sequence[Node],
    makers: Mapping[int, Sequence[int]],
    arrived: Arrived,
    parts: Mapping[tuple[int, int], Sequence[Exponents]],
    kept: Mapping[int, Exponents],
) -> Iterator[Finding]:
    """What was lost, in the order of the pass.

    Args:
        nodes: The graph, producers before users.
        makers: For each node, those whose backward made the cotangents that came to it: the users of its results.
        arrived: The exponents of the cotangents that came to each node.
        parts: The cotangents of which one is the sum, by node and output, where there are several.
        kept: The exponents of the gradients that were in ``.grad`` before, by leaf.
    """
    lost: set[int] = set()
    for node in reversed(nodes):
        found = [each for each in arrived.get(node.index, ()) if each is not None]
        if not found:
            continue
        made_by = makers.get(node.index, ())
        maker = nodes[max(made_by)] if made_by else node
        before = [each for index in made_by for each in arrived.get(index, ()) if each is not None]
        worst = max(found, key=lambda each: (each.bad, each.subnormal, each.zero))
        if any(each.zero == 1 for each in found) and lost.intersection(made_by):
            lost.add(node.index)
        for kind, part, text in _born(worst, before, maker, is_seed=not made_by):
            if kind == "underflow" and part == 1 and worst.zero == 1:
                lost.add(node.index)
            yield Finding(kind, *located(maker), worst.dtype, part, text)
        yield from _rounded(node, arrived[node.index], parts)
        if node.sequence is None:
            yield from _of_gradient(node, worst, kept.get(node.index), is_lost=node.index in lost)


def _born(
    worst: Exponents, before: Sequence[Exponents], maker: Node, *, is_seed: bool
) -> Iterator[tuple[Kind, float, str]]:
    """What a cotangent has that none of those had from which it was made."""
    dtype, held = dtype_name(worst.dtype), torch.finfo(worst.dtype)
    whose = "the seed" if is_seed else "its cotangent"
    if worst.bad:
        if not any(each.bad for each in before):
            yield (
                "overflow",
                worst.bad,
                f"{whose} overflows in {dtype}, which ends at {held.max:.4g} ({share(worst.bad)})",
            )
        return
    if worst.dtype not in LOW:
        return
    zeros, small = (max((part(each) for each in before), default=0.0) for part in (_zero, _small))
    all_zero = worst.zero == 1 and zeros < 1 and not is_seed and _may_vanish(maker, before)
    in_cast = worst.zero - zeros >= SHARE and bool(before) and not any(each.dtype in LOW for each in before)
    if all_zero or (in_cast and maker.operation == "ToCopy"):
        yield "underflow", worst.zero, f"{whose} underflows to zero in {dtype} ({share(worst.zero)} of it is zero)"
    elif worst.subnormal - small >= SHARE:
        begin = f"{dtype}, whose normal numbers begin at {held.smallest_normal:.4g}"
        yield "underflow", worst.subnormal, f"{whose} is subnormal in {begin} ({share(worst.subnormal)})"


def _may_vanish(maker: Node, before: Sequence[Exponents]) -> bool:
    """Whether what a node made may have been too small, when it is all zeros: activations can be zero themselves."""
    if maker.operation in _CHOOSES:
        return False
    near = max((_place(each) for each in before), default=0.0)
    return maker.operation in _SCALES or near < NEAR


def _place(each: Exponents) -> float:
    """Where the largest number lies in the range of its dtype, from 0 to 1."""
    return (each.top or 0) / each.last


def _zero(each: Exponents) -> float:
    return each.zero


def _small(each: Exponents) -> float:
    return each.subnormal if each.dtype in LOW else 0.0


def _rounded(
    node: Node, found: Sequence[Exponents | None], parts: Mapping[tuple[int, int], Sequence[Exponents]]
) -> Iterator[Finding]:
    """Cotangents that a sum in low precision does not notice."""
    for output, whole in enumerate(found):
        summed = parts.get((node.index, output), ())
        if whole is not None and whole.dtype in LOW and any(rounds_away(part, whole) for part in summed):
            text = (
                "one of the cotangents that are summed here is too small beside the others for "
                f"{dtype_name(whole.dtype)}"
            )
            yield Finding("rounding", *located(node), whole.dtype, 1.0, text)


def _of_gradient(node: Node, now: Exponents, before: Exponents | None, *, is_lost: bool) -> Iterator[Finding]:
    """What is wrong with what came to a leaf: the gradient of this pass."""
    name, (_, module, place) = node.name or "an unnamed input", located(node)
    if now.bad:
        text = f"its gradient is inf or NaN ({share(now.bad)}): a GradScaler skips this step"
        yield Finding("skipped step", name, module, None, now.dtype, now.bad, text)
    elif is_lost and now.zero == 1:
        yield Finding("zero gradient", name, module, None, now.dtype, 1.0, "its gradient underflowed to zero wholly")
    elif before is not None and before.dtype is now.dtype and now.dtype in LOW and rounds_away(now, before):
        text = f"its gradient is too small beside what .grad holds already: {dtype_name(now.dtype)} rounds the sum"
        yield Finding("rounding", name, module, place, now.dtype, 1.0, text)
