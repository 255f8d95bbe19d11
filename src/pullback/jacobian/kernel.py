"""Kernel: a strategy's passes through a recorded program, and what is made of their answers, as one function."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass, Tensors
from pullback.strategies.sender import Sender

# How many passes a part has, and what gives, from the answers of the parts before it, what makes the seeds of those
# from one number to another; None: they are the same at every point.
Seeds = tuple[int, Callable[[int, int], Tensors], Callable[[Sequence[Tensor]], Callable[[int, int], Tensors]] | None]
# Many passes at once, given the coefficients of the point and their seeds.
Sending = Callable[[Sequence[Tensor], Tensors], Tensors]
Values = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensors]
# torch.fx keeps a flag for all threads while it traces: one thread at a time.
TRACING = threading.RLock()
# A kernel is timed so often, and the fastest counts; what takes long is timed less often.
TIMED_CALLS = 7
LONG_ENOUGH = 0.5
HOPELESS = 2.0


@dataclass
class Kernel:
    """A strategy's passes through a recorded program.

    Attributes:
        captured: The tensors that the program found outside when it was recorded.
        run: ``(points, captured) -> results``.
        name: How it runs, for the plan.
        at_once: Whether all passes run at once.
    """

    captured: Tensors
    run: Values
    name: str
    at_once: bool

    @classmethod
    def of(
        cls,
        senders: Sequence[Sender],
        seeds: Sequence[Seeds],
        finish: Callable[[list[Tensor]], Tensors],
        send: Callable[[Sender], Sending],
        chunk: int = 0,
    ) -> Kernel:
        """The kernel as torch runs it, operation after operation.

        Args:
            senders: How each part of the passes runs.
            seeds: The seeds of each part.
            finish: The results from all answers.
            send: How several passes are made of one.
            chunk: How many run at once; 0: all.
        """
        counts = [len(sender.graph.captured) for sender in senders]
        sending = [send(sender) for sender in senders]
        # What is sent all at once is made once.
        kept = [None if follow or 0 < chunk < total else make(0, total) for total, make, follow in seeds]

        def run(points: Sequence[Tensor], captured: Sequence[Tensor]) -> Tensors:
            answers: list[Tensor] = []
            start = 0
            for k, sender in enumerate(senders):
                own = captured[start : start + counts[k]]
                coefficients = sender.graph.coefficients.forward(*points, *own)
                start += counts[k]
                (total, make, follow), all_seeds = seeds[k], kept[k]
                if all_seeds is not None:
                    answers.extend(sending[k](coefficients, all_seeds) if total else ())
                    continue
                make = follow(answers) if follow else make
                size = chunk or total
                ends = [(at, min(at + size, total)) for at in range(0, total, size)]
                parts = [sending[k](coefficients, make(a, b)) for a, b in ends]
                answers.extend(torch.cat(pieces) for pieces in zip(*parts, strict=True))
            return finish(answers)

        outside = tuple(tensor for sender in senders for tensor in sender.graph.captured)
        in_chunks = any(0 < chunk < total for total, _, _ in seeds)
        name = f"recorded program, {chunk} passes at a time" if in_chunks else "recorded program"
        return cls(outside, run, name, at_once=not in_chunks)

    def compiled(self, points: Sequence[Tensor]) -> Kernel:
        """The kernel as one function compiled by torch.compile."""
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  heavy, and for this only

        with torch.no_grad(), TRACING:
            flat = make_fx(self.run)(list(points), list(self.captured))
        function = torch.compile(flat, dynamic=False, fullgraph=True)
        return Kernel(self.captured, function, f"{self.name}, compiled", self.at_once)

    def __call__(self, points: Sequence[Tensor], captured: Sequence[Tensor]) -> Tensors:
        kind = points[0].device.type if points else "cpu"
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if torch.is_autocast_enabled(kind):  # the casts were recorded
                stack.enter_context(torch.autocast(kind, enabled=False))
            return tuple(self.run(list(points), list(captured[: len(self.captured)])))

    def seconds(self, points: Sequence[Tensor], rival: float = float("inf")) -> float:
        """The least time that it takes at a point; that of two runs where it cannot beat a rival's."""
        best, began = float("inf"), time.perf_counter()
        for turn in range(TIMED_CALLS):
            start = time.perf_counter()
            self(points, self.captured)
            if points and points[0].device.type not in {"cpu", "meta"}:
                torch.accelerator.synchronize(points[0].device)
            best = min(best, time.perf_counter() - start)
            if turn and (time.perf_counter() - began > LONG_ENOUGH or best > HOPELESS * rival):
                break
        return best


def as_they_are(many: Callable[[Pass], Pass]) -> Callable[[Sender], Sending]:
    """Passes through a sender by torch's own transforms: at once, or one by one."""

    def send(sender: Sender) -> Sending:
        def sent(coefficients: Sequence[Tensor], stacks: Tensors) -> Tensors:
            one = sender.one(coefficients)
            if stacks[0].shape[0] == 1:
                return tuple(answer[None] for answer in one(tuple(stack[0] for stack in stacks)))
            return many(one)(stacks)

        return sent

    return send


def flattened(send: Callable[[Sender], Sending]) -> Callable[[Sender], Sending]:
    """The same passes as one list of operations for each number of them: the transforms are gone through once."""

    def flat(sender: Sender) -> Sending:
        plain, graphs = send(sender), dict[int, Callable[..., Tensors]]()

        def sent(coefficients: Sequence[Tensor], stacks: Tensors) -> Tensors:
            count = stacks[0].shape[0]
            if count not in graphs:
                with TRACING:
                    graphs[count] = _listed(plain, coefficients, stacks)
            return graphs[count](*coefficients, *stacks)

        return sent

    return flat


def _listed(plain: Sending, coefficients: Sequence[Tensor], stacks: Tensors) -> Callable[..., Tensors]:
    """The operations of many passes, as one function of the coefficients and the seeds."""
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  heavy, and for this only

    cut = len(coefficients)
    graph = make_fx(lambda *every: plain(every[:cut], every[cut:]))(*coefficients, *stacks)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())  # arguments and results are flat: nothing has to be unpacked
    graph.recompile()
    run: Callable[..., Tensors] = graph.forward
    return run
