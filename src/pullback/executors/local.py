"""The local executor: passes in this process, in chunks that fit the memory limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass, Tensors, batched, looped
from pullback.data.space import Space
from pullback.executors.memory import default_limit, is_out_of_memory, measured, parse_bytes
from pullback.executors.progress import Progress

# The passes of the first chunks, whose memory is measured; below the first a chunk is not worth measuring.
PROBES = (8, 16)
# A chunk whose working set leaves the CPU's caches runs slower than two chunks that stay inside.
CPU_WORKING_SET = 8 * 2**20
SMALLEST_FAST_CHUNK = 16
# So much memory is taken without asking whether it is free, where the user set no limit.
SURELY_FREE = 64 * 2**20
# Passes whose memory is measured take at most so many times as long, if they are worth timing at all.
SLOWED_DOWN = 1.5
# So few seeds are made at once, also where their passes run one by one.
FEW_PASSES = 16
# Passes shorter than this are dominated by overhead, which a batch shares.
WORTH_SWITCHING = 1e-3


@dataclass(frozen=True)
class Route:
    """A way to run many passes: which kernel, and all at once or one by one."""

    name: str
    run: Pass
    at_once: bool


def routes(kernels: dict[str, Pass]) -> list[Route]:
    """Every way to run many passes of these kernels, the fastest first."""
    found = []
    for name, one in kernels.items():
        found.append(Route(f"{name}, batched by vmap", batched(one), at_once=True))
        found.append(Route(f"{name}, one pass at a time", looped(one), at_once=False))
    return found


@dataclass
class Run:
    """What an execution did.

    Attributes:
        route: The route that was taken.
        chunks: The sizes of the chunks.
        notes: Routes that failed on the way, chunks that had to be halved.
        each: The bytes that one pass of a batch takes at most, where they were measured.
        more: The bytes that one more pass takes: less than ``each`` where the passes of a batch share some.
        batch_is_slower: Whether a pass alone took less time than one in a batch.
    """

    route: Route | None = None
    chunks: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    each: float = 0.0
    more: float = 0.0
    batch_is_slower: bool = False

    def learn(self, passes: int, peak: int, before: int) -> None:
        """Learn from a chunk's peak, and from that of one with half the passes.

        The peak is the largest of several sums ``shared + passes * each``, so its mean bounds every ``each``.
        """
        self.each = max(peak / passes, 1.0)
        self.more = max((peak - before) / (passes / 2), 1.0) if before else self.each


@dataclass(frozen=True)
class LocalExecutor:
    """Runs passes in this process.

    Attributes:
        memory: The limit for the passes' working memory, in bytes or as text; None for a share of what is free.
        progress: Whether to show a progress bar; None: on a terminal, after a second.
        most: The most passes of a chunk; None: as many as fit.
    """

    memory: int | float | str | None = None
    progress: bool | None = None
    most: int | None = None

    def limit(self, device: torch.device) -> int:
        """The memory limit on a device, in bytes."""
        return default_limit(device) if self.memory is None else parse_bytes(self.memory)

    def run(
        self,
        ways: Sequence[Route],
        seeds: Callable[[int, int], Tensors],
        total: int,
        answer: Space,
        *,
        in_place: bool = True,
        each: float | None = None,
        more: float | None = None,
        alone: float | None = None,
        into: Callable[[int, Tensors], None] | None = None,
    ) -> tuple[Tensors, Run]:
        """Send ``total`` seeds through the first of the ways that works.

        Args:
            ways: The routes to try, in order.
            seeds: Makes the seeds ``start`` to ``stop``, stacked.
            total: How many seeds there are; at least one.
            answer: The Space that each pass answers in.
            in_place: Write chunks into one result; False keeps them differentiable and concatenates.
            each: The bytes that one pass takes at most, where they are known: then nothing is measured.
            more: The bytes that one more pass takes, where they are known.
            alone: The seconds that one pass takes alone, where they are known: should passes take longer in a
                batch (convolutions do, on a CPU), the rest runs one by one.
            into: Takes each chunk's answers and the number of its first pass, which may come again when a way fails;
                None: they are kept.

        Returns:
            One tensor ``(total, *leaf.shape)`` for each leaf of the answer, or none where ``into`` took them; and what
            was done.
        """
        report = Run(each=each or 0.0, more=more or each or 0.0)
        for index, way in enumerate(ways):
            report.route = way
            report.chunks = []
            try:
                by_one = next((other for other in ways[index + 1 :] if not other.at_once), None)
                rest = by_one if way.at_once and alone and alone > WORTH_SWITCHING else None
                return self._run_way(
                    way, seeds, total, answer, report, in_place=in_place, rest=rest, alone=alone, into=into
                ), report
            except Exception as error:
                if index == len(ways) - 1 or is_out_of_memory(error):
                    raise
                report.notes.append(f"{way.name}: {first_line(error)}")
        raise AssertionError("no way was given")

    def _run_way(
        self,
        way: Route,
        seeds: Callable[[int, int], Tensors],
        total: int,
        answer: Space,
        report: Run,
        *,
        in_place: bool,
        rest: Route | None,
        alone: float | None,
        into: Callable[[int, Tensors], None] | None,
    ) -> Tensors:
        collect = _Handed(into) if into is not None else _Buffer(total) if in_place else _Pieces()
        device = answer.device
        measurable = way.at_once and in_place and not report.each
        probes = [size for size in PROBES if size <= (self.most or size)] if measurable else []
        if probes:
            size = probes[0]
        elif way.at_once and in_place and report.each:
            size = self._chunk(report, device, total)
        else:
            size = total if way.at_once else 1
        if not way.at_once and total <= min(FEW_PASSES, self.most or total):
            every = seeds(0, total)
            seeds = lambda a, b: tuple(stack[a:b] for stack in every)  # noqa: E731  the same seeds, made at once
        smallest = 0
        start = 0
        with Progress(total, f"{total} passes, {way.name}", self.progress) as progress:
            while start < total:
                stop = min(start + min(size, self.most or size), total)
                began = time.perf_counter()
                slack = 1.0
                try:
                    if probes and stop < total:
                        # What is measured is slowed down, and what runs first warms up.
                        slack = math.inf if len(probes) == len(PROBES) else SLOWED_DOWN
                        results, peak = measured(partial(_send, way, seeds, start, stop), device)
                        report.learn(stop - start, peak, smallest)
                        smallest = peak
                        probes = [size for size in probes[1:] if size * report.each <= self.limit(device)]
                        size = probes[0] if probes else self._chunk(report, device, total)
                    else:
                        results = _send(way, seeds, start, stop)
                except Exception as error:
                    if stop - start == 1 or not is_out_of_memory(error):
                        raise
                    size, probes = (stop - start) // 2, []
                    report.notes.append(f"out of memory with {stop - start} passes at once: halved")
                    continue
                if rest and alone and time.perf_counter() - began > slack * alone * (stop - start):
                    report.notes.append(f"{way.name}: slower than {rest.name}, which did the rest")
                    report.batch_is_slower = True
                    way, size, rest, probes = rest, 1, None, []
                collect.put(start, results)
                del results  # else they would live on beside the next chunk's
                report.chunks.append(stop - start)
                start = stop
                progress.update(start)
        return collect.result()

    def _chunk(self, report: Run, device: torch.device, total: int) -> int:
        wanted = total
        if device.type == "cpu":
            wanted = min(total, int(max(CPU_WORKING_SET // report.more, SMALLEST_FAST_CHUNK)))
        # Asking how much memory is free takes longer than some Jacobians.
        if self.memory is None and wanted * report.each <= SURELY_FREE:
            return wanted
        return max(min(wanted, int(self.limit(device) // report.each)), 1)


def _send(way: Route, seeds: Callable[[int, int], Tensors], start: int, stop: int) -> Tensors:
    # vmap expands what did not depend on the seed; a result must not share memory with itself.
    return tuple(part.contiguous() if 0 in part.stride() else part for part in way.run(seeds(start, stop)))


class _Buffer:
    """Collects chunks by writing them into one result, which is allocated when the first arrives."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._tensors: list[Tensor] = []

    def put(self, start: int, results: Tensors) -> None:
        if start == 0 and results[0].shape[0] == self._total:
            self._tensors = list(results)
            return
        if not self._tensors:
            self._tensors = [
                torch.empty((self._total, *result.shape[1:]), dtype=result.dtype, device=result.device)
                for result in results
            ]
        for tensor, result in zip(self._tensors, results, strict=True):
            tensor[start : start + result.shape[0]] = result

    def result(self) -> Tensors:
        return tuple(self._tensors)


class _Pieces:
    """Collects chunks as they are, and concatenates them at the end: the graph stays."""

    def __init__(self) -> None:
        self._pieces: list[Tensors] = []

    def put(self, start: int, results: Tensors) -> None:
        self._pieces.append(results)

    def result(self) -> Tensors:
        return tuple(torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*self._pieces, strict=True))


class _Handed:
    """Hands chunks on to who writes them where they belong."""

    def __init__(self, take: Callable[[int, Tensors], None]) -> None:
        self.put = take

    def result(self) -> Tensors:
        return ()


def first_line(error: BaseException) -> str:
    """An error's kind and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
