"""When the tape runs: hearing every call of torch costs too much to do it always.

A fault is met at the first passes through the code that has it. So the tape runs for the first backward passes, and
again when a function of the user's runs for the first time; what comes later is known by its lines alone. An audit
comes back for a few passes now and then, as often as its share of the program's time allows. An optimizer's own calls
are never heard: its step is noted as one call that wrote to its parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pullback.diagnose.recorders.spots import spot_here
from pullback.diagnose.recorders.tape import Tape, version_of
from pullback.graph.recording.record import Recording

# So many passes without the tape tell what a pass takes.
MEASURED = 10


@dataclass(frozen=True)
class Attention:
    """How much is heard.

    Attributes:
        first: So many backward passes are heard after something new has begun.
        again: So many are heard each time the tape comes back.
        share: Coming back takes no more than this share of the program's time; 0 not to come back.
    """

    first: int
    again: int = 0
    share: float = 0.0


TRACE = Attention(first=3)
AUDIT = Attention(first=40, again=12, share=0.15)


class Focus:
    """Starts and stops a tape.

    Args:
        heard: The tape.
        attention: How much is heard.
        turned: Told when hearing begins again (True) and when it ends (False), for who listens to more than the tape.
    """

    def __init__(self, heard: Tape, attention: Attention, turned: Callable[[bool], None] | None = None) -> None:
        self._tape = heard
        self._attention = attention
        self._turned = turned
        self._left = attention.first
        self._started = self._hears = False
        self._rest = _Rest()
        self._before: list[tuple[Tensor, int]] = []
        self._undo: list[Callable[[], Any]] = []

    def start(self) -> None:
        """Begin, in the thread whose calls are heard."""
        self._started = True
        self._undo = [
            register_optimizer_step_pre_hook(self._step_begins).remove,
            register_optimizer_step_post_hook(self._step_ends).remove,
        ]
        self._hear()

    def stop(self) -> None:
        """End."""
        self._started = self._hears = False
        while self._undo:
            self._undo.pop()()
        self._quiet()

    def new(self) -> None:
        """Something runs for the first time."""
        self._left = self._attention.first
        if self._started and not self._hears:
            self._hear()

    def passed(self) -> None:
        """A pass has ended: enough is known, if nothing new has run since the passes before."""
        if not self._started:
            return
        self._rest.passes += 1
        if self._hears:
            self._left -= 1
            if self._left <= 0:
                self._hears = False
                if self._turned is not None:
                    self._turned(False)
                self._rest.rests(time.perf_counter())
                Recording.soon(self._quiet)  # the pass is itself a call that is heard
        elif self._attention.share and self._rest.is_over(time.perf_counter(), self._attention.share):
            self._left = self._attention.again
            self._hear()

    def _hear(self) -> None:
        self._hears = True
        self._rest.hears(time.perf_counter())
        if self._turned is not None:
            self._turned(True)
        self._tape.start()

    def _quiet(self) -> None:
        if self._hears:  # something new has begun meanwhile
            return
        self._tape.stop()
        if self._tape.running:
            Recording.soon(self._quiet)

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # hooks are given the optimizer as the first of the arguments too; a closure's calls are the user's
        if len(args) > 1 or kwargs:
            return
        Recording.pause()
        if self._hears:
            self._tape.stop()
            with torch._C.DisableTorchFunction():
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                self._before = [(each, version_of(each)) for each in parameters]

    def _step_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        Recording.resume()
        before, self._before = self._before, []
        if before and self._hears:
            with torch._C.DisableTorchFunction():
                self._tape.wrote("step", spot_here(2), before)
        if self._hears:
            self._tape.start()


class _Rest:
    """How long to rest: what hearing took beyond what the same passes take without is no more than a share of all.

    Attributes:
        passes: The passes since hearing or resting began.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._began = 0.0
        self._heard: tuple[float, int] = (0.0, 0)  # seconds and passes of hearing since the last rest

    def hears(self, now: float) -> None:
        """Hearing begins."""
        self._began, self.passes = now, 0

    def rests(self, now: float) -> None:
        """Resting begins."""
        self._heard = now - self._began, self.passes
        self._began, self.passes = now, 0

    def is_over(self, now: float, share: float) -> bool:
        """Whether the rest was long enough."""
        if self.passes < MEASURED:
            return False
        rested = now - self._began
        seconds, passes = self._heard
        extra = seconds - passes * rested / self.passes
        return rested >= extra / share
