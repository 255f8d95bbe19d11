"""The light record: where each backward pass began, and how many nodes there were then. No node is held."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._C import _autograd

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.spots import spot_of
from pullback.graph.engine import forget, listen

# So many passes are remembered.
PASSES = 1 << 12
GRAD = torch.autograd.grad.__code__
_numbers = itertools.count()


@dataclass(slots=True)
class Pass:
    """One backward pass.

    Attributes:
        number: Its number, in order.
        spot: The point of the user's program that asked for it, or None.
        thread: The thread.
        nodes: The sequence number of the next node when it began: nodes below are older than the pass.
        roots: The sequence numbers of the nodes that made its roots; -1 where there is none.
        retain_graph: Whether it left the graph as it was.
        create_graph: Whether it was recorded itself.
        accumulates: Whether it added to ``.grad``: not so for ``torch.autograd.grad``.
        ended: Whether it came to its end.
    """

    number: int
    spot: Spot | None
    thread: int
    nodes: int
    roots: tuple[int, ...]
    retain_graph: bool
    create_graph: bool
    accumulates: bool
    ended: bool = False


class Passes:
    """Hears of the backward passes of all threads while it is started.

    What is noted of a pass is a tuple, made in one go: under a trace function each call of a function of Python's
    costs as much as all else here.

    Args:
        after: Told of the end of each pass that did not fail.
    """

    def __init__(self, after: Callable[[], None] | None = None) -> None:
        self._after = after
        self._noted: deque[tuple[Any, ...]] = deque(maxlen=PASSES)
        self._ended: deque[int] = deque(maxlen=PASSES)
        self._open = threading.local()

    @property
    def all(self) -> list[Pass]:
        """The latest passes, the oldest first."""
        ended = set(self._ended)
        return [Pass(*each, ended=each[0] in ended) for each in list(self._noted)]  # type: ignore[misc]

    def latest(self) -> Pass | None:
        """The latest pass of this thread."""
        me = threading.get_ident()
        found = next((each for each in reversed(self._noted) if each[2] == me), None)
        return None if found is None else Pass(*found)

    def start(self) -> None:
        """Hear of passes from now on."""
        listen(self)

    def stop(self) -> None:
        """Hear no more."""
        forget(self)

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """A pass begins: note where."""
        number = self._open.number = next(_numbers)
        numbers = []
        for root in roots:
            node = root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None)
            numbers.append(-1 if node is None else node._sequence_nr())
        keep, record = options[:2] if len(options) > 1 else (False, False)
        # torch.autograd.grad says so by keyword, which the engine does not tell
        adds = frame.f_code is not GRAD and (len(options) < 5 or options[4])
        next_node = _autograd._get_sequence_nr()
        self._noted.append(
            (number, spot_of(frame), threading.get_ident(), next_node, tuple(numbers), bool(keep), bool(record), adds)
        )

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """It has ended."""
        if not failed:
            self._ended.append(self._open.number)
            if self._after is not None:
                self._after()
