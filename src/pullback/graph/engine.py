"""Hearing of backward passes: torch calls its engine by a name in two modules, wrapped while anyone listens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """What hears of backward passes; those from inside another pass are not told. It must raise nothing."""

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """A pass is about to begin, in this thread.

        Args:
            roots: Where it begins: tensors, or edges of the graph.
            seeds: The cotangent for each.
            options: What torch tells its engine besides: whether to keep the graph, whether to record the pass, by
                which inputs (empty for all leaves), whether they may be unused, whether to add to ``.grad``.
            frame: What called the engine.
        """

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """It has ended, or raised."""


_listeners: list[Listener] = []
_originals: list[Callable[..., Any]] = []
_lock = threading.Lock()


def listen(listener: Listener) -> None:
    """Tell a listener of backward passes in all threads, from now on."""
    with _lock:
        _listeners.append(listener)
        if not _originals:
            _originals.append(torch.autograd.graph._engine_run_backward)
            _set(_hearing(_originals[0]))


def forget(listener: Listener) -> None:
    """Tell it no more."""
    with _lock:
        _listeners.remove(listener)
        if not _listeners:
            _set(_originals.pop())


def _set(run: Callable[..., Any]) -> None:
    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


def _hearing(original: Callable[..., Any]) -> Callable[..., Any]:
    def _engine_run_backward(roots: Any, seeds: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() != -1:  # from inside another backward pass
            return original(roots, seeds, *args, **kwargs)
        frame = sys._getframe(1)
        told = list(_listeners)
        for listener in told:
            listener.begins(roots, seeds, args, frame)
        failed = True
        try:
            result = original(roots, seeds, *args, **kwargs)
            failed = False
        finally:
            for listener in told:
                listener.ended(frame, failed=failed)
        return result

    return _engine_run_backward
