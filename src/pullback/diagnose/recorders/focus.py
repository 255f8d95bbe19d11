"""When the tape runs: hearing every call of torch costs too much to do it always.

An optimizer's own calls are never heard: its step is noted as one call that wrote to its parameters. At the level
``trace`` the tape runs for the first backward passes, and again when a function of the user's runs for the first
time: a fault is met at the first passes through the code that has it. What comes later is known by its lines alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pullback.diagnose.recorders.spots import spot_here
from pullback.diagnose.recorders.tape import Tape, version_of
from pullback.graph.engine import forget, listen
from pullback.graph.recording.record import Recording

# The tape runs for so many backward passes after something new has begun.
PASSES = 3


class Focus:
    """Starts and stops a tape.

    Args:
        tape: The tape.
        always: Whether it runs all the time but for the optimizers' steps.
    """

    def __init__(self, tape: Tape, *, always: bool) -> None:
        self._tape = tape
        self._always = always
        self._left = PASSES
        self._wanted = False
        self._before: list[tuple[Tensor, int]] = []
        self._undo: list[Callable[[], Any]] = []

    def start(self) -> None:
        """Begin, in the thread whose calls are heard."""
        self._undo = [
            register_optimizer_step_pre_hook(self._step_begins).remove,
            register_optimizer_step_post_hook(self._step_ends).remove,
        ]
        if not self._always:
            listen(self)
            self._undo.append(lambda: forget(self))
        self._wanted = True
        self._tape.start()

    def stop(self) -> None:
        """End."""
        self._wanted = False
        while self._undo:
            self._undo.pop()()
        self._tape.stop()

    def new(self) -> None:
        """Something runs for the first time."""
        self._left = PASSES
        if self._undo and not self._wanted:
            self._wanted = True
            self._tape.start()

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """Nothing is done before a pass."""

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """A pass has ended: enough is known, if nothing new has run since the passes before."""
        if self._wanted and not failed:
            self._left -= 1
            if self._left <= 0:
                self._wanted = False
                Recording.soon(self._rest)  # the pass is itself a call that is heard

    def _rest(self) -> None:
        if not self._wanted:
            self._tape.stop()
            if self._tape.running:
                Recording.soon(self._rest)

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # hooks are given the optimizer as the first of the arguments too
        if self._wanted and not any(map(callable, [*args[1:], *kwargs.values()])):
            self._tape.stop()
            with torch._C.DisableTorchFunction():
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                self._before = [(each, version_of(each)) for each in parameters]

    def _step_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._wanted:
            return
        before, self._before = self._before, []
        with torch._C.DisableTorchFunction():
            if before:
                self._tape.wrote("step", spot_here(2), before)
        self._tape.start()
