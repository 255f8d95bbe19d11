"""The local executor: passes in this process, in chunks that fit the memory limit."""

from __future__ import annotations

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

# The passes of the first chunk, whose memory is measured; below it a chunk is not worth measuring.
FIRST_CHUNK = 8
# A chunk whose working set leaves the CPU's caches runs slower than two chunks that stay inside.
CPU_WORKING_SET = 32 * 2**20
SMALLEST_FAST_CHUNK = 16
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
        each: The bytes that one pass of a batch takes, where they were measured.
        batch_is_slower: Whether a pass alone took less time than one in a batch.
    """

    route: Route | None = None
    chunks: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    each: float = 0.0
    batch_is_slower: bool = False


@dataclass(frozen=True)
class LocalExecutor:
    """Runs passes in this process.

    Attributes:
        memory: The limit for the passes' working memory, in bytes or as text; None for a share of what is free.
        progress: Whether to show a progress bar; None: on a terminal, after a second.
    """

    memory: int | float | str | None = None
    progress: bool | None = None

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
        alone: float | None = None,
    ) -> tuple[Tensors, Run]:
        """Send ``total`` seeds through the first of the ways that works.

        Args:
            ways: The routes to try, in order.
            seeds: Makes the seeds ``start`` to ``stop``, stacked.
            total: How many seeds there are; at least one.
            answer: The Space that each pass answers in.
            in_place: Write chunks into one result; False keeps them differentiable and concatenates.
            each: The bytes that one pass takes, where they are known: then nothing is measured.
            alone: The seconds that one pass takes alone, where they are known: should passes take longer in a
                batch (convolutions do, on a CPU), the rest runs one by one.

        Returns:
            One tensor ``(total, *leaf.shape)`` for each leaf of the answer, and what was done.
        """
        report = Run(each=each or 0.0)
        for index, way in enumerate(ways):
            report.route = way
            report.chunks = []
            try:
                rest = ways[index + 1] if alone and alone > WORTH_SWITCHING and index + 1 < len(ways) else None
                return self._run_way(
                    way, seeds, total, answer, report, in_place=in_place, rest=rest, alone=alone
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
    ) -> Tensors:
        collect = _Buffer(total) if in_place else _Pieces()
        device = answer.device
        unmeasured = way.at_once and in_place and not report.each
        if unmeasured:
            size = FIRST_CHUNK
        elif way.at_once and in_place:
            size = self._chunk(report.each, device)
        else:
            size = total if way.at_once else 1
        start = 0
        with Progress(total, f"{total} passes, {way.name}", self.progress) as progress:
            while start < total:
                stop = min(start + size, total)
                began = time.perf_counter()
                try:
                    if unmeasured and stop < total:
                        unmeasured = False
                        results, peak = measured(partial(_send, way, seeds, start, stop), device)
                        report.each = max(peak / (stop - start), 1.0)
                        size = self._chunk(report.each, device)
                    else:
                        results = _send(way, seeds, start, stop)
                except Exception as error:
                    if stop - start == 1 or not is_out_of_memory(error):
                        raise
                    size = (stop - start) // 2
                    report.notes.append(f"out of memory with {stop - start} passes at once: halved")
                    continue
                if rest and alone and way.at_once and time.perf_counter() - began > alone * (stop - start):
                    report.notes.append(f"{way.name}: slower than {rest.name}, which did the rest")
                    report.batch_is_slower = True
                    way, size = rest, 1
                collect.put(start, results)
                report.chunks.append(stop - start)
                start = stop
                progress.update(start)
        return collect.result()

    def _chunk(self, each: float, device: torch.device) -> int:
        fits = self.limit(device) // each
        if device.type == "cpu":
            fits = min(fits, max(CPU_WORKING_SET // each, SMALLEST_FAST_CHUNK))
        return max(int(fits), 1)


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


def first_line(error: BaseException) -> str:
    """An error's kind and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
