"""A watch over a training loop: do autograd graphs accumulate, who keeps them, and which line does it.

After a backward pass it looks at the tensors with a graph that the program's names lead to. Torch numbers the nodes
in the order they are made, so what was there at the look before is told from what is new without holding anything.
What a holder keeps of the old, look after look and ever more of it, accumulates; what levels off, is let go, or is
new each time does not.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import FrameType, ModuleType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pullback.errors import ValueMismatch
from pullback.graph.engine import forget, listen
from pullback.graph.leaks.growth import Growth
from pullback.graph.leaks.holders import Held, Holder, Search, keeper_of, lost_tensors, user_frames, user_modules
from pullback.graph.leaks.keeps import hook_places, keeps_of
from pullback.graph.leaks.leak import MOST_NODES, Kind, Leak, advice, fix_of, weigh
from pullback.graph.recording.record import origin_of, record
from pullback.graph.values import Place
from pullback.words import many

# A look is taken when there were this many times the steps of the look before, and between as often as it takes no
# more than this share of the time.
FACTOR = 1.3
SHARE = 0.05
# A look through all objects of the program costs far more than one through its names; so many are taken at once where
# the user says how often to look.
SCANS_AT_ONCE = 6
SCAN_SHARE = 0.03
# So many of the tensors that no name leads to are asked for who refers to them.
ASKED = 4


@dataclass
class _Seen:
    """What one holder had at a look.

    Attributes:
        holder: The holder, by the first way to it.
        members: Its tensors with the ways to them.
        tips: torch's numbers of the nodes that made them.
        old: How many nodes behind them are older than the look before.
        nodes: How many there are in all.
        crossings: The old nodes that newer ones lead to, each with its newer one.
    """

    holder: Holder
    members: list[Held] = field(default_factory=list)
    tips: set[int] = field(default_factory=set)
    old: int = 0
    nodes: int = 0
    crossings: dict[int, int] = field(default_factory=dict)


@dataclass
class _Track:
    """How one holder went over the looks.

    Attributes:
        holder: The holder, by the first way to it.
        tensors: How many tensors it had, if any of them was old.
        nodes: How many old nodes were behind it.
        carried: How often nodes that were new led to those that made its tensors of the look before.
        consumer: The number of the last such new node.
        tips: The numbers of the nodes that made its tensors.
    """

    holder: Holder
    tensors: Growth = field(default_factory=Growth)
    nodes: Growth = field(default_factory=Growth)
    carried: int = 0
    consumer: int | None = None
    tips: set[int] = field(default_factory=set)


@dataclass
class _Thread:
    """What is known of one thread: nodes are numbered for each thread by itself.

    Attributes:
        began: The number of the next node when it was met; what is older does not concern us.
        boundary: The number of the next node at the last look.
        ticks: Its backward passes and steps.
        looked: How many there were at the last look.
        tracks: How the holders went, by `Holder.key`.
        lost_boundary: The number of the next node at the last look through all objects.
        lost: How many tensors from before that no name leads to.
        leaks: What accumulates, by `Holder.key`.
    """

    began: int = field(default_factory=lambda: _next_number())
    boundary: int | None = None
    ticks: int = 0
    looked: int = 0
    tracks: dict[tuple[object, ...], _Track] = field(default_factory=dict)
    lost_boundary: int = 0
    lost: Growth = field(default_factory=Growth)
    leaks: dict[tuple[object, ...], Leak] = field(default_factory=dict)


class GraphWatch:
    """What :func:`watch_graphs` gives.

    Attributes:
        passes: How many backward passes there were.
        steps: How often :meth:`step` was called.
        samples: How often the program was looked at.
        trouble: What went wrong in looking; the program does not notice.
    """

    def __init__(self, every: int | None = None) -> None:
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ValueMismatch(
                "The spacing of the looks is a number of steps.", got=f"every={every!r}", fix="every=10, or every=None"
            )
        self.passes = 0
        self.steps = 0
        self.samples = 0
        self.trouble: tuple[str, ...] = ()
        self._every = every
        self._own = threading.local()
        self._threads: list[_Thread] = []
        self._looking = threading.Lock()
        self._imported = 0
        self._modules: list[ModuleType] = []
        self._began = time.perf_counter()
        self._spent = 0.0
        self._scans = 0
        self._scanning = 0.0
        self._recording = record()

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The graphs that accumulate, as far as the looks so far tell; the largest first."""
        found: dict[tuple[str, str], Leak] = {}
        for thread in list(self._threads):
            for leak in list(thread.leaks.values()):
                known = found.get((leak.holder, leak.kind))
                if known is None or known.nodes < leak.nodes:
                    found[leak.holder, leak.kind] = leak
        return tuple(sorted(found.values(), key=lambda leak: (-leak.nodes, leak.holder)))

    def step(self) -> None:
        """Say that a step of a loop without a backward pass, such as an evaluation, has ended."""
        self.steps += 1
        self._tick(sys._getframe(1))

    def __enter__(self) -> Self:
        self._recording.__enter__()
        self._began = time.perf_counter()
        self._thread()
        listen(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forget(self)
        self._look(sys._getframe(1))
        self._recording.__exit__(kind, error, trace)

    def __str__(self) -> str:
        over = f"{many(self.samples, 'sample')} over {many(self.passes, 'backward pass', 'backward passes')}"
        if self.steps:
            over += f" and {many(self.steps, 'step')}"
        leaks = self.leaks
        if not leaks:
            return f"no graph accumulates ({over})"
        heading = "graphs accumulate in one place" if len(leaks) == 1 else f"graphs accumulate in {len(leaks)} places"
        return "\n".join([f"{heading} ({over})", *(leak.text for leak in leaks)])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {many(len(self.leaks), 'leak')}>"

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """Nothing is looked at before a pass."""

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """A backward pass has ended: look at what it left, if a look is due."""
        if not failed:
            self.passes += 1
            self._tick(frame)

    def _tick(self, frame: FrameType) -> None:
        thread = self._thread()
        thread.ticks += 1
        if self._every is not None:
            due = thread.ticks % self._every == 0
        else:
            affordable = self._spent <= SHARE * (time.perf_counter() - self._began)
            due = thread.ticks >= FACTOR * thread.looked or affordable
        if due:
            self._look(frame)

    def _look(self, frame: FrameType) -> None:
        """Look at the program once, unless another thread does so now; whatever goes wrong stays here."""
        if not self._looking.acquire(blocking=False):
            return
        begin = time.perf_counter()
        try:
            with torch._C.DisableTorchFunction():
                self._sample(frame, self._thread())
        except Exception as problem:  # the user's loop must go on
            self.trouble += (f"{type(problem).__name__}: {problem}",)
        finally:
            self._spent += time.perf_counter() - begin
            self._looking.release()

    def _thread(self) -> _Thread:
        if not hasattr(self._own, "thread"):
            self._own.thread = _Thread()
            self._threads.append(self._own.thread)
        thread: _Thread = self._own.thread
        return thread

    def _sample(self, frame: FrameType, thread: _Thread) -> None:
        self.samples += 1
        if len(sys.modules) != self._imported:  # going through all modules takes far longer than through the user's
            self._imported, self._modules = len(sys.modules), user_modules()
        search = Search(user_frames(frame), self._modules, (self,))
        seen = _grouped(search.found, thread.boundary)
        for key, one in seen.items():
            if key not in thread.tracks:
                thread.tracks[key] = _Track(one.holder)
        for key, track in thread.tracks.items():
            now = seen.get(key)
            if now is None and track.holder.root not in search.roots:
                continue  # its function has returned: what was found of it stands
            self._follow(track, now or _Seen(track.holder), thread.ticks)
        self._judge(thread, seen, search)
        self._scan(search, thread)
        thread.boundary = _next_number()
        thread.looked = thread.ticks

    def _follow(self, track: _Track, now: _Seen, tick: int) -> None:
        is_old = now.old > 0
        track.tensors.add(tick, len(now.members) if is_old else 0)
        track.nodes.add(tick, now.old, at_limit=now.nodes >= MOST_NODES)
        if taken_up := track.tips & now.crossings.keys():
            track.carried += 1
            track.consumer = max(now.crossings[tip] for tip in taken_up)
        elif not is_old:
            track.carried = 0
        track.tips = now.tips

    def _judge(self, thread: _Thread, seen: dict[tuple[object, ...], _Seen], search: Search) -> None:
        present = {key: track for key, track in thread.tracks.items() if track.holder.root in search.roots}
        kept = {key for key, track in present.items() if track.tensors.is_steady}
        growing = {key for key, track in present.items() if track.nodes.is_steady} - kept
        carrying = {key for key in growing if present[key].carried >= 3}
        if growing and not carrying and not kept:
            carrying = {min(growing, key=lambda key: min(present[key].tips, default=0))}
        for key in present:
            if key not in kept | carrying:
                thread.leaks.pop(key, None)
        files = tuple(dict.fromkeys(frame.f_code.co_filename for frame in search.frames))
        for key in kept | carrying:
            if key in seen:
                thread.leaks[key] = self._leak(present[key], seen[key], "kept" if key in kept else "growing", files)

    def _leak(self, track: _Track, now: _Seen, kind: Kind, files: tuple[str, ...]) -> Leak:
        holder = now.holder
        nodes, size = weigh([held.tensor for held in now.members])
        keeps = keeps_of(holder, files)
        number = max(now.tips, default=None) if kind == "kept" else track.consumer
        paths = {held.path for held in now.members}
        name = paths.pop() if len(paths) == 1 else holder.name
        return Leak(
            holder=str(replace(holder, name=name)),
            kind=kind,
            tensors=len(now.members),
            nodes=nodes,
            bytes=size,
            per_step=(track.tensors if kind == "kept" else track.nodes).rate,
            created=_place(number),
            kept_at=tuple(keep.place for keep in keeps),
            fix=fix_of(holder, name, kind, keeps, len(now.members)),
        )

    def _scan(self, search: Search, thread: _Thread) -> None:
        """Look through all objects for tensors that no name leads to."""
        at_once = 1 if self._every is None else SCANS_AT_ONCE
        if self._scans >= at_once and self._scanning > SCAN_SHARE * (time.perf_counter() - self._began):
            return
        begin = time.perf_counter()
        self._scans += 1
        lost = lost_tensors({id(held.tensor) for held in search.found})
        ages = range(thread.began, thread.lost_boundary)
        old = [tensor for tensor in lost if _number(tensor.grad_fn) in ages]
        thread.lost.add(thread.ticks, len(old))
        thread.lost_boundary = _next_number()
        if thread.lost.is_steady:
            old.sort(key=lambda tensor: _number(tensor.grad_fn))
            self._ask(thread, old, (lost, old, search.found))
        elif not thread.lost.peak:  # it levels off; where it fell, the garbage collector has found the cycles
            thread.leaks = {key: leak for key, leak in thread.leaks.items() if leak.kind != "cycle"}
        self._scanning += time.perf_counter() - begin

    def _ask(self, thread: _Thread, old: list[Tensor], ours: tuple[object, ...]) -> None:
        """Find who keeps the tensors that no name leads to; those that their graph alone keeps belong to another."""
        for tensor in old[-ASKED:]:
            holder = keeper_of(tensor, ours)
            if holder is None:
                continue
            keeps = keeps_of(holder, ())
            hooks = hook_places(holder) if holder.where == "closure" else ()
            nodes, size = weigh(old)
            thread.leaks["lost", *holder.key] = Leak(
                holder=str(holder),
                kind="cycle",
                tensors=len(old),
                nodes=nodes,
                bytes=size,
                per_step=thread.lost.rate,
                created=_place(_number(tensor.grad_fn)),
                kept_at=hooks or tuple(keep.place for keep in keeps),
                fix=advice(holder, holder.name, "cycle"),
            )
            return


def watch_graphs(every: int | None = None) -> GraphWatch:
    """Watch a training loop for autograd graphs that accumulate, and say which line keeps them.

    Such a loop slows down or runs out of memory step by step, and torch says nothing: a loss put into a list with its
    graph, a total to which each loss is added, a hidden state that is never detached. The loop runs as it would
    without; nothing is kept alive and no saved-tensor hook is used. It is looked at after backward passes, and at
    ``w.step()`` in a loop that has none.

    Args:
        every: Look at every so many steps; None to begin with a few looks and then space them, so that they take less
            than a tenth of the time.

    Returns:
        A context manager whose ``leaks`` say what accumulates; ``print`` shows it.

    Raises:
        ValueMismatch: If ``every`` is not a positive whole number.

    Example:
        >>> import torch, pullback as pb
        >>> model, losses = torch.nn.Linear(3, 1), []
        >>> with watch_graphs() as w:
        ...     for _ in range(20):
        ...         loss = model(torch.ones(5, 3)).square().mean()
        ...         loss.backward()
        ...         losses.append(loss.detach())
        >>> print(w)
        no graph accumulates (... samples over 20 backward passes)
    """
    return GraphWatch(every)


def _grouped(found: list[Held], boundary: int | None) -> dict[tuple[object, ...], _Seen]:
    """What each holder has; the graphs behind them are only walked apart if any of them has something old."""
    if boundary is None:
        return {}
    seen: dict[tuple[object, ...], _Seen] = {}
    for held in found:
        one = seen.setdefault(held.holder.key, _Seen(held.holder))
        one.members.append(held)
        one.tips.add(_number(held.tensor.grad_fn))
    everything = _Seen(found[0].holder, list(found)) if found else None
    if everything is not None:
        _walk(everything, boundary)
        if everything.old:
            for one in seen.values():
                _walk(one, boundary)
    return seen


def _walk(one: _Seen, boundary: int) -> None:
    """Count the nodes behind a holder, and those older than the look before."""
    nodes = [held.tensor.grad_fn for held in one.members]
    stack: list[Node] = [node for node in dict.fromkeys(nodes) if node is not None]
    met = set(stack)
    while stack and len(met) < MOST_NODES:
        node = stack.pop()
        number = _number(node)
        one.old += number < boundary
        for after, _ in node.next_functions:
            if after is None:
                continue
            if number >= boundary > (past := _number(after)):
                one.crossings[past] = number
            if after not in met:
                met.add(after)
                stack.append(after)
    one.nodes = len(met)


def _place(number: int | None) -> Place | None:
    origin = None if number is None else origin_of(number)
    return None if origin is None else origin.place


def _number(node: Node | None) -> int:
    """Torch's number of a node: in the order they are made; larger than any for a leaf's."""
    return sys.maxsize if node is None else int(node._sequence_nr())


def _next_number() -> int:
    """The number that torch gives to the next node of this thread."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
