"""A watch over training steps in mixed precision: where cotangents leave the range of their dtype."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from pullback.errors import ArgumentError, ValueMismatch
from pullback.graph.engine import forget, listen
from pullback.graph.recording.record import record
from pullback.graph.text import short
from pullback.graph.values import Place
from pullback.precision.exponents import LOW
from pullback.precision.findings import Finding, find
from pullback.precision.looks import Looking, Seeing, multiplier
from pullback.precision.places import located
from pullback.words import columns, dtype_name, many

MARGIN = 3  # Doublings that are left above the largest cotangent when a scale is advised: steps differ.
BACK_OFF = 4  # Halvings advised after an overflow, of which nobody knows how far it went.
UNKNOWN = 16  # The doublings advised where only zeros came, which say nothing of how far they went.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Range:
    """How the cotangents that come to a node in low precision lie in the range of their dtype, at their worst.

    Attributes:
        operation: The node.
        module: The innermost module around it.
        place: The line that made it.
        dtype: The dtype.
        up: The doublings that the largest number takes before it overflows; -1 if it has overflowed; None where only
            zeros came.
        down: The halvings that leave all but 1 % of the numbers normal; -1 if they are not now; None likewise.
    """

    operation: str
    module: str
    place: Place | None
    dtype: torch.dtype
    up: int | None
    down: int | None


class AutocastWatch:
    """What :func:`autocast_watch` gives.

    Attributes:
        passes: How many backward passes there were.
        looks: At how many of them it looked.
        nodes: How many nodes the graphs had by the dtype of what they made, in the last look.
        ranges: The nodes in low precision, with how far their cotangents are from the ends of the range.
        findings: What was lost, in the order in which it was seen first.
        scale: The loss scale of the last look; None if there is none.
        trouble: What went wrong in looking; the program does not notice.
    """

    def __init__(self, scaler: Any = None, every: int = 1) -> None:
        if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
            raise ArgumentError(
                "scaler= is no gradient scaler", got=type(scaler).__name__, fix="the torch.amp.GradScaler of the loop"
            )
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueMismatch("every= is a number of backward passes.", got=f"every={every!r}", fix="every=10")
        self.passes = 0
        self.looks = 0
        self.nodes: Counter[torch.dtype] = Counter()
        self.scale: float | None = None
        self.trouble: tuple[str, ...] = ()
        self._scaler = scaler
        self._every = every
        self._ranges: dict[tuple[object, ...], Range] = {}
        self._findings: dict[tuple[object, ...], Finding] = {}
        self._now = threading.local()
        self._lock = threading.Lock()
        self._recording = record()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The nodes in low precision, those nearest to the ends of their range first."""
        return tuple(sorted(self._ranges.values(), key=lambda each: _least(each.up, each.down) or 0))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was lost."""
        return tuple(self._findings.values())

    @property
    def headroom(self) -> tuple[int, int] | None:
        """The doublings and halvings that the scale in use takes; -1 where it is beyond; None where nothing tells."""
        up = _least(*(each.up for each in self._ranges.values()))
        down = _least(*(each.down for each in self._ranges.values()))
        return None if up is None else (up, -1 if down is None else down)

    @property
    def is_safe(self) -> bool:
        """Whether no cotangent left the range of its dtype under the scale of the last look."""
        return not any(each.kind != "rounding" for each in self._present)

    @property
    def _present(self) -> list[Finding]:
        """What was lost under the scale of the last look."""
        return [each for each in self.findings if each.scale == self.scale]

    @property
    def advised(self) -> float | None:
        """A better loss scale, a power of two; None if that in use is safe, or none helps."""
        kinds = {each.kind for each in self._present}
        scale = self.scale or 1.0
        power = math.floor(math.log2(abs(scale)))
        if "overflow" in kinds and "underflow" not in kinds:
            return 2.0 ** (power - BACK_OFF)
        up = self.headroom[0] if self.headroom else UNKNOWN
        if "underflow" in kinds and "overflow" not in kinds and up > MARGIN:
            return 2.0 ** (power + up - MARGIN)
        return None

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, a sentence each."""
        if self.is_safe:
            return ()
        if self.advised is not None:
            power = round(math.log2(self.advised))
            verb = "raise" if self.advised > (self.scale or 1.0) else "lower"
            return (
                f"{verb} the loss scale to 2^{power}, torch.amp.GradScaler(init_scale=2.0**{power}); then look again",
            )
        lost = [each for each in self._present if each.kind in {"overflow", "underflow"}]
        modules = dict.fromkeys(each.module for each in lost if each.module)
        said = [
            f"keep {module} in float32, which no loss scale helps: with torch.autocast(device, enabled=False): "
            "call it with x.float()"
            for module in modules
        ]
        lines = dict.fromkeys(short(each.place) for each in lost if not each.module and each.place)
        return (*said, *(f"compute {line} in float32: no loss scale helps there" for line in lines))

    def __enter__(self) -> Self:
        self._recording.__enter__()
        listen(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forget(self)
        self._recording.__exit__(kind, error, trace)

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """A backward pass is about to begin: put hooks on its nodes, if a look is due."""
        with self._lock:
            self.passes += 1
            due = (self.passes - 1) % self._every == 0
        if not due or torch._C._functorch.maybe_current_level() is not None or any(map(_is_batched, seeds)):
            return
        looking = Looking()
        try:
            with torch._C.DisableTorchFunction():
                scale = self._scale_of(roots, seeds)
                if scale != self.scale:  # how far the cotangents are from the ends is told for one scale
                    self._ranges.clear()
                self.scale = scale
                looking.begin(roots, frame)
            self._now.looking = looking
        except Exception as problem:  # the user's loop must go on
            looking.end()
            self._troubled(problem)

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """It has ended: take the hooks off, and read what they saw."""
        looking: Looking | None = getattr(self._now, "looking", None)
        if looking is None:
            return
        self._now.looking = None
        looking.end()
        try:
            for problem in looking.trouble[:1]:
                self._troubled(problem)
            if not failed:
                with torch._C.DisableTorchFunction(), self._lock:
                    self._learn(looking.seen())
        except Exception as problem:
            self._troubled(problem)

    def __str__(self) -> str:
        lines = [f"autocast watch: looked at {self.looks} of {many(self.passes, 'backward pass', 'backward passes')}"]
        if self.nodes:
            every = sum(self.nodes.values())
            shares = (f"{count} of {every} nodes in {dtype_name(dtype)}" for dtype, count in self.nodes.most_common())
            lines.append(", ".join(shares))
        lines += self._scale_lines()
        lines += [self._told(each) for each in self.findings]
        if self.looks and not self.findings:
            lines.append("nothing is lost: no cotangent leaves the range of its dtype")
        lines += [f"advice: {text}" for text in self.advice]
        if self._ranges:
            lines += ["", *self._table()]
        lines += [f"trouble: {text}" for text in dict.fromkeys(self.trouble)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {many(len(self.findings), 'finding')}>"

    def _told(self, finding: Finding) -> str:
        other = "" if finding.scale == self.scale or finding.scale is None else f" (at scale {_power(finding.scale)})"
        return f"{finding}{other}"

    def _scale_lines(self) -> list[str]:
        if not self.looks:
            return []
        scale = "working without a loss scale" if self.scale is None else f"loss scale {_power(self.scale)}"
        if not self._ranges:
            return [f"{scale}: no node is in low precision"]
        if self.headroom is None:
            return [f"{scale}: nothing but zeros comes to the nodes in low precision"]
        up, down = self.headroom
        rooms = [
            f"{max(up, 0)} up" if up >= 0 else "it overflows",
            f"{max(down, 0)} down" if down >= 0 else "it underflows",
        ]
        return [f"{scale} is {'safe' if self.is_safe else 'not safe'}; headroom in powers of two: {', '.join(rooms)}"]

    def _table(self) -> list[str]:
        rows = [("node in low precision", "dtype", "up", "down")]
        for each in self.ranges[:_ROWS]:
            inside = f" in {each.module}" if each.module else ""
            name = f"{each.operation}{inside}" + (f"  {short(each.place)}" if each.place else "")
            rows.append((name, dtype_name(each.dtype), _count(each.up), _count(each.down)))
        more = len(self._ranges) - _ROWS
        rest = [f"and {more} more, farther from the ends"] if more > 0 else []
        return [*columns(rows, right=range(1, len(rows[0]))), *rest]

    def _scale_of(self, roots: Sequence[Any], seeds: Sequence[Any]) -> float | None:
        if self._scaler is not None:
            return float(self._scaler.get_scale())
        if len(roots) != 1:
            return None
        return multiplier(roots[0], seeds[0] if len(seeds) else None)

    def _troubled(self, problem: Exception) -> None:
        self.trouble += (f"{type(problem).__name__}: {problem}",)

    def _learn(self, seen: Seeing) -> None:
        self.looks += 1
        self.nodes = Counter(
            node.produces[0].dtype for node in seen.nodes if node.sequence is not None and node.produces
        )
        for node in seen.nodes:
            for one in seen.arrived.get(node.index, ()):
                if one is not None and one.dtype in LOW:
                    self._range(Range(*located(node), one.dtype, one.up, one.down))
        for finding in find(seen.nodes, seen.makers, seen.arrived, seen.parts, seen.kept):
            known = self._findings.get(finding.key)
            if known is None:
                self._findings[finding.key] = replace(finding, first=self.passes, scale=self.scale)
            else:
                worst = finding if finding.share > known.share else known
                self._findings[finding.key] = replace(worst, first=known.first, times=known.times + 1, scale=self.scale)

    def _range(self, new: Range) -> None:
        key = (new.operation, new.module, new.place, new.dtype)
        known = self._ranges.get(key)
        if known is None:
            self._ranges[key] = new
        elif (new.up, new.down) != (known.up, known.down):
            self._ranges[key] = replace(new, up=_least(new.up, known.up), down=_least(new.down, known.down))


def autocast_watch(scaler: Any = None, every: int = 1) -> AutocastWatch:
    """Watch training steps in mixed precision, and say where cotangents overflow, underflow or round away.

    Used as ``with pb.autocast_watch(scaler) as w:`` around steps with ``torch.autocast`` and a gradient scaler. Hooks
    on the nodes of each backward pass count the exponents of what comes by and change nothing; they are taken off
    when it ends. No second pass runs: :func:`pullback.precision` compares with float64.

    Args:
        scaler: The ``torch.amp.GradScaler`` of the loop, whose scale is judged; None to take the number by which the
            loss is multiplied.
        every: Look at every so many backward passes. A look takes as long as several steps of a small model.

    Returns:
        A context manager. ``print(w)`` shows which nodes run in low precision, how many powers of two the scale in use
        is away from overflow and underflow, what was lost where, and what to do; ``w.findings``, ``w.headroom``,
        ``w.advised`` and ``w.advice`` are for programs.

    Raises:
        ArgumentError: ``scaler`` is no scaler.
        ValueMismatch: ``every`` is no positive whole number.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 1)
        >>> with autocast_watch() as w:
        ...     with torch.autocast("cpu", torch.bfloat16):
        ...         loss = model(torch.ones(5, 3)).float().square().mean()
        ...     loss.backward()
        >>> w.is_safe, w.findings
        (True, ())
    """
    return AutocastWatch(scaler, every)


def _is_batched(seed: Any) -> bool:
    """Whether a seed stands for many, as with ``is_grads_batched=True``."""
    return isinstance(seed, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(seed)


def _least(*numbers: int | None) -> int | None:
    """The least of those that are known."""
    return min((each for each in numbers if each is not None), default=None)


def _count(number: int | None) -> str:
    return "zeros" if number is None else str(number)


def _power(scale: float) -> str:
    """A scale as a power of two, if it is one."""
    power = math.log2(abs(scale))
    return f"2^{power:.0f}" if power == round(power) and scale > 0 else f"{scale:g}"
