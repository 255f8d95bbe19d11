"""The light record: where each backward pass began, and how many nodes there were then. No node is held."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.spots import spot_of
from pullback.graph.engine import forget, listen

# So many passes are remembered.
PASSES = 1 << 12
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

    Attributes:
        all: The latest passes, the oldest first.
    """

    def __init__(self) -> None:
        self.all: deque[Pass] = deque(maxlen=PASSES)
        self._open = threading.local()

    def start(self) -> None:
        """Hear of passes from now on."""
        listen(self)

    def stop(self) -> None:
        """Hear no more."""
        forget(self)

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """A pass begins: note where."""
        made = Pass(
            next(_numbers),
            spot_of(frame),
            threading.get_ident(),
            torch.autograd._get_sequence_nr(),  # type: ignore[attr-defined]
            tuple(map(_number, roots)),
            bool(options[0]) if options else False,
            bool(options[1]) if len(options) > 1 else False,
            # torch.autograd.grad says so by keyword, which the engine does not tell
            frame.f_code is not torch.autograd.grad.__code__ and (bool(options[4]) if len(options) > 4 else True),
        )
        self._open.last = made
        self.all.append(made)

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """It has ended."""
        last = getattr(self._open, "last", None)
        if last is not None:
            last.ended = not failed


def _number(root: Any) -> int:
    node = root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None)
    return -1 if node is None else int(node._sequence_nr())
