"""A follower by ``sys.settrace``, for Python before 3.12; only here is known what its events are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import ref

from pullback.graph.recording.follower import (
    FUNCTIONS,
    MODULE_CALL,
    Calls,
    Follower,
    from_outermost,
    is_compiled,
)
from pullback.graph.recording.origins import NOWHERE, Table
from pullback.graph.recording.userfiles import UserFiles

TraceFunction = Callable[..., Any]
# What a call of some code does: it may return what is told of the events in it.
Action = Callable[[FrameType], TraceFunction | None]
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Both:
    """A local trace function for two: ours, and that of whoever traced before.

    Args:
        ours: Ours.
        theirs: What was there, or None.
        frame: The frame that is traced.
    """

    def __init__(self, ours: TraceFunction, theirs: TraceFunction | None, frame: FrameType) -> None:
        self.ours = ours
        self.theirs = theirs
        self._they_want_lines = frame.f_trace_lines
        frame.f_trace_lines = True

    def __call__(self, frame: FrameType, event: str, arg: Any) -> TraceFunction:
        self.ours(frame, event, arg)
        if self.theirs is not None and (event != "line" or self._they_want_lines):
            frame.f_trace_lines = self._they_want_lines
            answer = self.theirs(frame, event, arg)
            if answer is not None:
                self.theirs = answer
            elif frame.f_trace is not self:  # they have set it themselves
                self.theirs = frame.f_trace
            self._they_want_lines = frame.f_trace_lines
            frame.f_trace_lines = True
        return self

    def leave(self, frame: FrameType) -> None:
        """Leave the frame to them alone."""
        frame.f_trace_lines = self._they_want_lines
        frame.f_trace = self.theirs


class Tracer(Follower):
    """Follows one thread by its trace function."""

    __slots__ = ("_actions", "_apart", "_entry", "_kept", "_library", "_previous", "_within")

    def __init__(
        self, table: Table, files: UserFiles, *, modules: bool = True, met: Callable[[], None] | None = None
    ) -> None:
        super().__init__(table, files, modules=modules, met=met)
        self._library: set[int] = set()  # ids of code that is not the user's
        self._actions: dict[int, Action] = {}  # by ids of code
        self._kept: list[CodeType] = []  # so that their ids stay theirs
        self._previous: TraceFunction | None = None
        self._within: TraceFunction = self._within_program()
        self._apart: TraceFunction = _within_compiled
        self._entry = self._within

    @property
    def running(self) -> bool:
        return sys.gettrace() is self._entry

    def start(self, frame: FrameType | None, calls: Calls) -> None:
        self._reset()
        self._previous = previous = sys.gettrace()
        self._within, self._apart = self._within_program(), _within_compiled
        if previous is not None:
            self._within, self._apart = (self._after(previous, ours) for ours in (self._within, self._apart))
        self._entry = self._within
        self._begin()
        for each in from_outermost(frame):
            local = None if self._entry is self._apart else self._met(each)
            if local is not None:
                local(each, "line", None)
                each.f_trace = local if previous is None else Both(local, each.f_trace, each)
        self._follow(calls)
        sys.settrace(self._entry)

    def stop(self, frame: FrameType | None) -> Calls:
        """The thread is left to who followed it before, unless another has come since."""
        if self.running:
            self.look()
            sys.settrace(self._previous)
        for each in from_outermost(frame):
            _leave(each)
        calls = self._calls
        self.halt()
        return calls

    def pause(self) -> None:
        if self._previous is None and sys.gettrace() is self._entry:
            sys.settrace(None)

    def resume(self) -> None:
        if self._live and sys.gettrace() is None:
            sys.settrace(self._entry)

    def _within_program(self) -> TraceFunction:
        library, actions, meet = self._library, self._actions, self._meet

        def entry(frame: FrameType, event: str, arg: Any) -> TraceFunction | None:
            code = id(frame.f_code)
            if code in library:  # most calls: nothing else may be done for them
                return None
            return actions.get(code, meet)(frame)

        return entry

    def _after(self, previous: TraceFunction, ours: TraceFunction) -> TraceFunction:
        """An entry for two: whoever traced before, and ours."""

        def entry(frame: FrameType, event: str, arg: Any) -> TraceFunction | None:
            _leave(frame)  # a generator that goes on
            theirs = previous(frame, event, arg)
            if sys.gettrace() is previous and self._live:  # a tracer in C puts itself there at every call
                sys.settrace(self._entry)
            theirs = frame.f_trace if theirs is None else theirs
            own = ours(frame, event, arg)
            return theirs if own is None else Both(own, theirs, frame)

        return entry

    def _met(self, frame: FrameType) -> TraceFunction | None:
        """What is told of the events in a frame that runs already."""
        code = id(frame.f_code)
        return None if code in self._library else self._actions.get(code, self._meet)(frame)

    def _meet(self, frame: FrameType) -> TraceFunction | None:
        """A call of code that was not seen before."""
        code = frame.f_code
        if len(self._kept) >= FUNCTIONS:
            self._library.clear()
            self._actions.clear()
            self._kept.clear()
        self._kept.append(code)
        if code is MODULE_CALL and self._modules:
            action: Action = self._module_call
        elif is_compiled(code):
            _leave_uncompiled()
            action = self._compiled_call
        elif self._files.own(frame):
            action = self._user_call(code)
            if self._met_new is not None:
                self._met_new()
        else:
            self._library.add(id(code))
            return None
        self._actions[id(code)] = action
        return action(frame)

    def _user_call(self, code: CodeType) -> Action:
        base = self._function(code)

        def line(frame: FrameType, event: str, arg: Any) -> TraceFunction:
            now = self._read()
            if now != self._stop:
                self._note(now)
            if event == "line":
                self._place = base + frame.f_lineno
            elif event == "return":
                self._place = self._places.pop() if self._places else NOWHERE
            return line

        def call(frame: FrameType) -> TraceFunction | None:
            if not self._live:
                self._quit()
                return None
            self._places.append(self._place)
            return line

        def goes_on(frame: FrameType) -> TraceFunction | None:
            now = self._read()
            if now != self._stop:
                self._note(now)
            local = call(frame)
            self._place = base + frame.f_lineno  # it may go on in the middle of a line, of which there is no event
            return local

        return goes_on if code.co_flags & GENERATORS else call

    def _module_call(self, frame: FrameType) -> TraceFunction:
        now = self._read()
        if now != self._stop:
            self._note(now)
        self._calls.append((ref(frame.f_locals["self"]), 0))
        frame.f_trace_lines = False
        return self._module_end

    def _module_end(self, frame: FrameType, event: str, arg: Any) -> TraceFunction:
        if event == "return":
            now = self._read()
            if now != self._stop:
                self._note(now)
            if self._calls:
                self._calls.pop()
        return self._module_end

    def _compiled_call(self, frame: FrameType) -> TraceFunction:
        running, self._entry = self.running, self._apart
        if running:
            sys.settrace(self._entry)
        frame.f_trace_lines = False
        return self._compiled_end

    def _compiled_end(self, frame: FrameType, event: str, arg: Any) -> TraceFunction:
        if event == "return":
            running, self._entry = self.running, self._within
            if running:
                sys.settrace(self._entry)
        return self._compiled_end

    def _quit(self) -> None:
        """A call after another thread has ended the recording."""
        if self.running:
            sys.settrace(self._previous)


def _within_compiled(frame: FrameType, event: str, arg: Any) -> None:
    """The entry inside a compiled function: only what a generator brings from outside is taken off."""
    _leave(frame)


@cache
def _leave_uncompiled() -> None:
    """Tell Dynamo that what traces its functions is no part of them."""
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    own = [Follower, *(value for value in globals().values() if getattr(value, "__module__", None) == __name__)]
    functions = [each for value in own for each in (vars(value).values() if isinstance(value, type) else [value])]
    codes = [function.__code__ for function in functions if isinstance(function, FunctionType)]
    while codes:
        code = codes.pop()
        dynamo.skip_code(code)
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _is_ours(trace: Any) -> bool:
    function = getattr(trace, "__func__", trace)
    return getattr(function, "__module__", None) == __name__


def _leave(frame: FrameType) -> None:
    """Take what is ours from a frame, and leave what was there before."""
    trace = frame.f_trace
    if isinstance(trace, Both):
        trace.leave(frame)
    elif _is_ours(trace):
        frame.f_trace_lines = True
        frame.f_trace = None
