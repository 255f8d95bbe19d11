"""The recorder: inside ``with pb.record():`` each node of autograd is noted with the line that made it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import FrameType, TracebackType
from typing import Any, Self

from pullback.graph.recording.follower import Follower
from pullback.graph.recording.monitoring import Monitor
from pullback.graph.recording.origins import Call as Call
from pullback.graph.recording.origins import Origin as Origin
from pullback.graph.recording.origins import known_origin, table_of_this_thread
from pullback.graph.recording.tracing import TraceFunction, Tracer
from pullback.graph.recording.userfiles import checked, user_files

# Lines are heard of by the cheapest means that this Python has.
FOLLOWER: type[Follower] = Monitor if sys.version_info >= (3, 12) else Tracer
# So many sets of packages keep what is known of the functions that were met.
TRACERS = 8


class _Thread:
    """A thread that is or was recorded: its table, and the recordings that are open in it, the latest last.

    Attributes:
        tracer: What follows it, if any recording is open.
    """

    def __init__(self) -> None:
        self.table = table_of_this_thread()
        self._open: list[_Entered] = []
        self.tracer: Follower | None = None
        self._tracers: dict[tuple[tuple[str, ...], bool], Follower] = {}

    def enter(self, entered: _Entered, frame: FrameType | None) -> None:
        """Record for one more; called in this thread, with the innermost frame that is left to run."""
        self._open.append(entered)
        self._follow(frame)

    def leave(self, entered: _Entered, frame: FrameType | None) -> None:
        """Record for one less, likewise."""
        if entered in self._open:
            self._open.remove(entered)
            self._follow(frame)

    def drop(self, entered: _Entered) -> None:
        """Record for one less; called in another thread."""
        if entered in self._open:
            self._open.remove(entered)
            if not self._open and self.tracer is not None:
                self.tracer.halt()

    def look(self) -> None:
        """Note what the line that runs now has made until now."""
        if self.tracer is not None:
            self.tracer.look()

    def soon(self, action: Callable[[], None]) -> None:
        """Do something once, at the next event of the user's code."""
        if self.tracer is not None:
            self.tracer.soon(action)

    def _follow(self, frame: FrameType | None) -> None:
        """Have the tracer that the open recordings need, and none if there is none."""
        packages = tuple(sorted({name for each in self._open for name in each.packages}))
        new = self._of(packages, any(each.modules for each in self._open)) if self._open else None
        old = self.tracer
        if new is not None and new is old and new.running:
            return
        calls = old.stop(frame) if old is not None else []
        self.tracer = new
        if new is not None:
            new.start(frame, calls)

    def _of(self, packages: tuple[str, ...], modules: bool) -> Follower:
        key = packages, modules
        if (found := self._tracers.get(key)) is None:
            if len(self._tracers) >= TRACERS:
                self._tracers.clear()
            found = self._tracers[key] = FOLLOWER(self.table, user_files(packages), modules=modules, met=self._met)
        return found

    def _met(self) -> None:
        for each in self._open:
            if each.met is not None:
                each.met()


class _Here(threading.local):
    """What there is for each thread."""

    def __init__(self) -> None:
        self.thread = _Thread()


_HERE = _Here()


class _Entered:
    """One entering of a recording.

    Args:
        packages: Installed packages whose lines count as the user's.
        modules: Whether the calls of modules are noted too.
        met: Told of each function of the user's as it is called for the first time.

    Attributes:
        thread: Where it was entered.
    """

    def __init__(self, packages: tuple[str, ...], modules: bool, met: Callable[[], None] | None) -> None:
        self.packages = packages
        self.modules = modules
        self.met = met
        self.thread = _HERE.thread
        self._threads: list[tuple[_Thread, int]] = []

    @property
    def seen(self) -> int:
        """How many nodes were noted since."""
        return sum(thread.table.seen - before for thread, before in self._threads)

    def enter(self, frame: FrameType | None) -> None:
        """Record in this thread."""
        thread = _HERE.thread
        thread.look()
        self._threads.append((thread, thread.table.seen))
        thread.enter(self, frame)

    def leave(self, frame: FrameType | None) -> None:
        """Record no more."""
        for thread, _ in self._threads:
            if thread is _HERE.thread:
                thread.leave(self, frame)
            else:
                thread.drop(self)


class _Starting:
    """What threads do as they start: they are recorded for all recordings that are open then."""

    def __init__(self) -> None:
        self._open: list[_Entered] = []
        self._before: TraceFunction | None = None
        self._lock = threading.Lock()

    def add(self, entered: _Entered) -> None:
        """Record the threads that start from now on."""
        with self._lock:
            if threading.gettrace() is not _start:
                self._before = threading.gettrace()
                threading.settrace(_start)
            self._open.append(entered)

    def remove(self, entered: _Entered) -> None:
        """Record no thread that starts from now on."""
        with self._lock:
            self._open.remove(entered)
            if not self._open and threading.gettrace() is _start:
                threading.settrace(self._before)
                self._before = None

    def first_call(self, frame: FrameType, event: str, arg: Any) -> TraceFunction | None:
        """The first call in a new thread."""
        sys.settrace(self._before)
        for entered in list(self._open):
            entered.enter(frame.f_back)
        trace: TraceFunction | None = sys.gettrace()
        return trace and trace(frame, event, arg)


_STARTING = _Starting()
_start: TraceFunction = _STARTING.first_call


class Recording(ContextDecorator):
    """Notes, while it is entered, where each node of autograd is made; what it noted can be read for ever after.

    It may be entered again, inside itself too, and may decorate a function. Its length is the number of nodes that it
    saw.

    Args:
        packages: Installed packages whose lines count as the user's.
        modules: Whether the calls of modules are noted too; lines alone take less time.
        met: Told of each function of the user's as it is called for the first time, in the thread that calls it.
    """

    def __init__(
        self, packages: Sequence[str] = (), *, modules: bool = True, met: Callable[[], None] | None = None
    ) -> None:
        self._modules = modules
        self._met = met
        self._packages = checked(packages)
        user_files(self._packages)
        self._entered: list[_Entered] = []
        self._seen = 0

    def __enter__(self) -> Self:
        entered = _Entered(self._packages, self._modules, self._met)
        self._entered.append(entered)
        entered.enter(sys._getframe(1))
        _STARTING.add(entered)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = [each for each in self._entered if each.thread is _HERE.thread]
        entered = (here or self._entered)[-1]
        self._entered.remove(entered)
        _STARTING.remove(entered)
        entered.leave(sys._getframe(1))
        if not self._entered:  # what was entered inside was counted outside
            self._seen += entered.seen

    @staticmethod
    def soon(action: Callable[[], None]) -> None:
        """Do something once, at the next event of the user's code in this thread, if it is recorded."""
        _HERE.thread.soon(action)

    @staticmethod
    def pause() -> None:
        """Hear nothing in this thread for a while in which only a library runs: an optimizer's step, say."""
        if (tracer := _HERE.thread.tracer) is not None:
            tracer.pause()

    @staticmethod
    def resume() -> None:
        """Hear again."""
        if (tracer := _HERE.thread.tracer) is not None:
            tracer.resume()

    def __len__(self) -> int:
        _HERE.thread.look()
        return self._seen + (self._entered[0].seen if self._entered else 0)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Recording of {len(self)} nodes{', open' if self._entered else ''}>"


def record(*, packages: Sequence[str] = ()) -> Recording:
    """Note where each node of autograd is made: the user's line, and the calls of modules around it.

    Used as ``with pb.record():`` around a program, or around one step of it; ``pb.graph`` tells what was noted, then or
    later. No tensor and no module is kept alive, and torch does the same work as without it. Lines of torch, of the
    standard library and of installed packages count as a part of the user's line that called them, and what runs in a
    function of ``torch.compile`` as a part of the line that called that.

    It listens to ``sys.monitoring`` (before Python 3.12 to :func:`sys.settrace`), beside a debugger or a measurement of
    coverage that does so already. Threads
    that are started inside are recorded too; each numbers its nodes from 0, and of a number that several may have
    given, nothing is told.

    Args:
        packages: Installed packages whose lines count as the user's.

    Raises:
        ArgumentError: If ``packages`` is not a sequence of names.
        ValueMismatch: If there is no such package.

    Example:
        >>> import torch
        >>> x = torch.ones(3, requires_grad=True)
        >>> with record() as recording:
        ...     y = x.sin().sum()
        >>> len(recording)
        2
        >>> origin_of(y.grad_fn._sequence_nr()).place.line
        2
    """
    return Recording(packages)


def origin_of(sequence: int) -> Origin | None:
    """Where the node with this sequence number was made; None if that was not recorded or is not certain.

    Args:
        sequence: The number that torch gave to it: ``node._sequence_nr()``.
    """
    _HERE.thread.look()
    return known_origin(sequence)
