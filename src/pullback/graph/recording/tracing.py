"""Python's line events, and what they say of where the nodes of autograd were made.

Before each line of the user's code, and at the end of each call of it, torch's counter of nodes is read: what was made
since the last reading was made by the line that ran until now. A line that calls a function is the line that ran again
when the function returns. Only here is known that the events are those of ``sys.settrace``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import ref

from torch import nn
from torch._C import _autograd

from pullback.graph.recording.origins import NOWHERE, Module, Table
from pullback.graph.recording.userfiles import UserFiles

TraceFunction = Callable[..., Any]
# What a call of some code does: it may return what is told of the events in it.
Action = Callable[[FrameType], TraceFunction | None]
# Open calls of modules, outermost first, and their numbers; 0 for those in which nothing was made until now.
Calls = list[tuple[Module, int]]

MODULE_CALL: CodeType = nn.Module._call_impl.__code__
# The functions that torch.compile returns: what runs in them is not the program as it is written.
COMPILED_FILE, COMPILED_NAME = "eval_frame.py", "_TorchDynamoContext.__call__.<locals>."
# Of so many functions is remembered whose they are.
FUNCTIONS = 50_000
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


class Tracer:
    """Follows one thread and notes where its nodes are made.

    Args:
        table: Where it is noted.
        files: Which lines are the user's.
    """

    __slots__ = (
        "_actions",
        "_apart",
        "_calls",
        "_entry",
        "_files",
        "_kept",
        "_library",
        "_live",
        "_place",
        "_places",
        "_previous",
        "_read",
        "_stop",
        "_table",
        "_within",
    )  # fmt: skip

    def __init__(self, table: Table, files: UserFiles) -> None:
        self._table = table
        self._files = files
        self._library: set[int] = set()  # ids of code that is not the user's
        self._actions: dict[int, Action] = {}  # by ids of code
        self._kept: list[CodeType] = []  # so that their ids stay theirs
        self._read: Callable[[], int] = self._still
        self._previous: TraceFunction | None = None
        self._within: TraceFunction = self._within_program()
        self._apart: TraceFunction = _within_compiled
        self._entry = self._within
        self._live = False
        self._reset()

    def _reset(self) -> None:
        self._stop = 0  # the last reading
        self._place = NOWHERE  # of the line that runs
        self._places: list[int] = []  # of the lines that called it
        self._calls: Calls = []  # the open calls of modules

    @property
    def running(self) -> bool:
        """Whether this thread's events come here."""
        return sys.gettrace() is self._entry

    def start(self, frame: FrameType | None, calls: Calls) -> None:
        """Begin to follow this thread.

        Args:
            frame: The innermost frame that is left to run.
            calls: The open calls of modules, if another tracer has followed it until now.
        """
        self._reset()
        self._previous = previous = sys.gettrace()
        self._within, self._apart = self._within_program(), _within_compiled
        if previous is not None:
            self._within, self._apart = (self._after(previous, ours) for ours in (self._within, self._apart))
        self._entry = self._within
        self._stop = _autograd._get_sequence_nr()
        self._table.skip(self._stop)
        self._read, self._live = self._still, True
        for each in _from_outermost(frame):
            local = None if self._entry is self._apart else self._met(each)
            if local is not None:
                local(each, "line", None)
                each.f_trace = local if previous is None else Both(local, each.f_trace, each)
        if len(calls) == len(self._calls):
            self._calls = calls
        self._read = _autograd._get_sequence_nr
        sys.settrace(self._entry)

    def stop(self, frame: FrameType | None) -> Calls:
        """Follow this thread no longer, and leave it to who followed it before, unless another has come since.

        Args:
            frame: The innermost frame that is left to run.

        Returns:
            The open calls of modules.
        """
        if self.running:
            self.look()
            sys.settrace(self._previous)
        for each in _from_outermost(frame):
            _leave(each)
        calls = self._calls
        self.halt()
        return calls

    def halt(self) -> None:
        """Note nothing more; may be called from another thread, whose events end with its next call."""
        self._live = False
        self._read = self._still
        self._calls = []

    def look(self) -> None:
        """Note what was made since the last event, if it is this thread's turn."""
        if self.running and (now := self._read()) != self._stop:
            self._note(now)

    def _note(self, now: int) -> None:
        call = 0
        if self._calls and not (call := self._calls[-1][1]):
            call = self._number_calls()
        self._table.note(now, self._place, call)
        self._stop = now

    def _number_calls(self) -> int:
        """Number the open calls in which nothing was made until now; the number of the innermost."""
        around = 0
        for i, (module, number) in enumerate(self._calls):
            if not number:
                number = self._table.call(around, module)
                self._calls[i] = module, number
            around = number
        return around

    def _still(self) -> int:
        """What is read when nothing more is noted: that nothing was made."""
        return self._stop

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
        if code is MODULE_CALL:
            action: Action = self._module_call
        elif code.co_filename.endswith(COMPILED_FILE) and _is_compiled(code):
            _leave_uncompiled()
            action = self._compiled_call
        elif self._files.own(frame):
            action = self._user_call(code)
        else:
            self._library.add(id(code))
            return None
        self._actions[id(code)] = action
        return action(frame)

    def _user_call(self, code: CodeType) -> Action:
        name = code.co_qualname.rpartition("<locals>.")[2]
        base = self._table.function(code.co_filename, name)

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
    own = [value for value in globals().values() if getattr(value, "__module__", None) == __name__]
    functions = [each for value in own for each in (vars(value).values() if isinstance(value, type) else [value])]
    codes = [function.__code__ for function in functions if isinstance(function, FunctionType)]
    while codes:
        code = codes.pop()
        dynamo.skip_code(code)
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _is_compiled(code: CodeType) -> bool:
    inner = code.co_qualname.removeprefix(COMPILED_NAME)
    return inner != code.co_qualname and "<locals>" not in inner


def _from_outermost(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


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
