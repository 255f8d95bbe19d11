"""A follower by ``sys.monitoring``, for Python 3.12 and later: lines of the user's code cost, all other code nothing.

The events are those of the whole interpreter; each thread has its own follower. Debuggers and measurements of coverage
have tools of their own, and nothing here is in their way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from pullback.graph.recording.follower import FUNCTIONS, MODULE_CALL, Calls, Follower, from_outermost, is_compiled
from pullback.graph.recording.origins import NOWHERE, Table
from pullback.graph.recording.userfiles import UserFiles

_monitoring: Any = getattr(sys, "monitoring", None)
NAME = "pullback"
# The tools 0, 1, 2 and 5 are for debuggers, coverage, profilers and optimizers.
TOOLS = (3, 4)
USER, MODULE, COMPILED = range(3)


class Monitor(Follower):
    """Follows one thread by the interpreter's events."""

    __slots__ = ("_apart", "_bases")

    def __init__(
        self, table: Table, files: UserFiles, *, modules: bool = True, met: Callable[[], None] | None = None
    ) -> None:
        super().__init__(table, files, modules=modules, met=met)
        self._apart = 0  # so many compiled functions are open
        self._bases: dict[int, int] = {}  # of the user's functions, by ids of code

    @property
    def running(self) -> bool:
        return self._live and getattr(_HERE, "monitor", None) is self

    def start(self, frame: FrameType | None, calls: Calls) -> None:
        self._reset()
        self._apart = 0
        self._begin()
        _EVENTS.begin(self._files)
        _HERE.monitor = self
        for each in from_outermost(frame):
            kind = _EVENTS.kind_of(each, self)
            if kind is not None and (kind == COMPILED or not self._apart):
                self.called(each.f_code, kind, each)
                if kind == USER:
                    self.line(each.f_code, each.f_lineno)
        self._follow(calls)

    def stop(self, frame: FrameType | None) -> Calls:
        self.look()
        if getattr(_HERE, "monitor", None) is self:
            _HERE.monitor = None
        calls = self._calls
        self.halt()
        return calls

    def halt(self) -> None:
        if self._live:
            _EVENTS.end()
        super().halt()

    def wants(self, frame: FrameType) -> int | None:
        """What the code of a frame is to it; None for a library's."""
        code = frame.f_code
        if code is MODULE_CALL and self._modules:
            return MODULE
        if is_compiled(code):
            return COMPILED
        if self._files.own(frame):
            return USER
        return None

    def called(self, code: CodeType, kind: int, frame: FrameType | None) -> None:
        """A call began."""
        if kind == COMPILED:
            self._apart += 1
        elif self._apart or not self._live:
            return
        elif kind == MODULE:
            self._read_now()
            assert frame is not None
            self._calls.append((ref(frame.f_locals["self"]), 0))
        else:
            self._places.append(self._place)

    def goes_on(self, code: CodeType, line: int) -> None:
        """A generator goes on, maybe in the middle of a line, of which there is no event."""
        if not self._apart and self._live:
            self._read_now()
            self._places.append(self._place)
            self._place = self._base(code) + line

    def line(self, code: CodeType, line: int) -> None:
        """A line of the user's is about to run."""
        if not self._apart:
            now = self._read()
            if now != self._stop:
                self._note(now)
            self._place = self._base(code) + line

    def ended(self, code: CodeType, kind: int) -> None:
        """A call ended, or a generator paused."""
        if kind == COMPILED:
            self._apart = max(self._apart - 1, 0)
        elif not self._apart:
            self._read_now()
            if kind == USER:
                self._place = self._places.pop() if self._places else NOWHERE
            elif self._calls:
                self._calls.pop()

    def new(self) -> None:
        """A function of the user's runs for the first time."""
        if self._met_new is not None and self._live:
            self._met_new()

    def _read_now(self) -> None:
        now = self._read()
        if now != self._stop:
            self._note(now)

    def _base(self, code: CodeType) -> int:
        base = self._bases.get(id(code))
        if base is None:
            base = self._bases[id(code)] = self._function(code)
        return base


class _Here(threading.local):
    """What follows this thread, if anything does."""

    monitor: Monitor | None = None


class _Events:
    """The interpreter's events, wanted while any thread is followed.

    Attributes:
        kinds: What code was met, by id; what is not in it is a library's, or not met.
    """

    def __init__(self) -> None:
        self.kinds: dict[int, int] = {}
        self._kept: dict[int, CodeType] = {}
        self._followed = 0
        self._tool: int | None = None
        self._files: UserFiles | None = None
        self._alike = True
        self._lock = threading.Lock()

    def begin(self, files: UserFiles) -> None:
        """One more thread is followed."""
        with self._lock:
            if self._followed == 0:
                self._alike, self._files = True, files
                self._open()
            elif files is not self._files:
                self._alike = False  # what is a library's to one is not so to another
            self._followed += 1
            if self._tool is not None:
                _monitoring.restart_events()

    def end(self) -> None:
        """One less."""
        with self._lock:
            self._followed -= 1
            if self._followed == 0 and self._tool is not None:
                self._close()

    def kind_of(self, frame: FrameType, monitor: Monitor) -> int | None:
        """What the code of a frame is; what is the user's tells of its lines from now on."""
        code = frame.f_code
        kind = self.kinds.get(id(code))
        if kind is None and (kind := monitor.wants(frame)) is not None:
            self._meet(code, kind)
            if kind == USER:
                monitor.new()
        return kind

    def _meet(self, code: CodeType, kind: int) -> None:
        if len(self._kept) >= FUNCTIONS:
            self._forget()
        self.kinds[id(code)] = kind
        self._kept[id(code)] = code
        if self._tool is not None:
            events = _monitoring.events
            wanted = events.PY_RETURN | events.PY_YIELD | (events.LINE if kind == USER else 0)
            _monitoring.set_local_events(self._tool, code, wanted)

    def _forget(self) -> None:
        for code in self._kept.values():
            _monitoring.set_local_events(self._tool, code, 0)
        self.kinds.clear()
        self._kept.clear()

    def _open(self) -> None:
        self._tool = next((tool for tool in TOOLS if _monitoring.get_tool(tool) is None), None)
        if self._tool is None:  # others have taken both: nothing is noted
            return
        _monitoring.use_tool_id(self._tool, NAME)
        events = _monitoring.events
        for event, callback in (
            (events.PY_START, self._started),
            (events.PY_RESUME, self._resumed),
            (events.PY_THROW, self._thrown),
            (events.LINE, self._line),
            (events.PY_RETURN, self._returned),
            (events.PY_YIELD, self._returned),
            (events.PY_UNWIND, self._unwound),
        ):
            _monitoring.register_callback(self._tool, event, callback)
        _monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_UNWIND)

    def _close(self) -> None:
        _monitoring.set_events(self._tool, 0)
        self._forget()
        with suppress(ValueError):
            _monitoring.free_tool_id(self._tool)
        self._tool = None

    def _started(self, code: CodeType, offset: int) -> Any:
        monitor = _HERE.monitor
        if monitor is None:
            return None
        kind = self.kinds.get(id(code))
        if kind == USER:
            monitor.called(code, USER, None)
            return None
        frame = sys._getframe(1)
        if kind is None:
            kind = self.kind_of(frame, monitor)
        if kind is None:
            return _monitoring.DISABLE if self._alike else None
        monitor.called(code, kind, frame)
        return None

    def _resumed(self, code: CodeType, offset: int) -> Any:
        monitor = _HERE.monitor
        if monitor is None:
            return None
        frame = sys._getframe(1)
        kind = self.kind_of(frame, monitor)
        if kind is None:
            return _monitoring.DISABLE if self._alike else None
        if kind == USER:
            monitor.goes_on(code, frame.f_lineno)
        return None

    def _thrown(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._resumed(code, offset)

    def _line(self, code: CodeType, line: int) -> None:
        monitor = _HERE.monitor
        if monitor is not None:
            monitor.line(code, line)

    def _returned(self, code: CodeType, offset: int, value: Any) -> None:
        monitor = _HERE.monitor
        kind = self.kinds.get(id(code))
        if monitor is not None and kind is not None:
            monitor.ended(code, kind)

    def _unwound(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._returned(code, offset, error)


_HERE = _Here()
_EVENTS = _Events()
