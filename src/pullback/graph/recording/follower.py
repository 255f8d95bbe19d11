"""What follows one thread and notes where its nodes are made; how it hears of lines is left to those that extend it.

Before each line of the user's code, and at the end of each call of it, torch's counter of nodes is read: what was made
since the last reading was made by the line that ran until now. A line that calls a function is the line that ran again
when the function returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType, FrameType

from torch import nn
from torch._C import _autograd

from pullback.graph.recording.origins import NOWHERE, Module, Table
from pullback.graph.recording.userfiles import UserFiles

# Open calls of modules, outermost first, and their numbers; 0 for those in which nothing was made until now.
Calls = list[tuple[Module, int]]

MODULE_CALL: CodeType = nn.Module._call_impl.__code__
# The functions that torch.compile returns: what runs in them is not the program as it is written.
COMPILED_FILE, COMPILED_NAME = "eval_frame.py", "_TorchDynamoContext.__call__.<locals>."
# Of so many functions is remembered whose they are.
FUNCTIONS = 50_000


class Follower(ABC):
    """Follows one thread and notes where its nodes are made.

    Args:
        table: Where it is noted.
        files: Which lines are the user's.
        modules: Whether the calls of modules are noted too.
        met: Told of each function of the user's as it is called for the first time.
    """

    __slots__ = ("_calls", "_files", "_live", "_met_new", "_modules", "_place", "_places", "_read", "_stop", "_table")

    def __init__(
        self, table: Table, files: UserFiles, *, modules: bool = True, met: Callable[[], None] | None = None
    ) -> None:
        self._table = table
        self._files = files
        self._modules = modules
        self._met_new = met
        self._read: Callable[[], int] = self._still
        self._live = False
        self._reset()

    def _reset(self) -> None:
        self._stop = 0  # the last reading
        self._place = NOWHERE  # of the line that runs
        self._places: list[int] = []  # of the lines that called it
        self._calls: Calls = []  # the open calls of modules

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether this thread's events come here."""

    @abstractmethod
    def start(self, frame: FrameType | None, calls: Calls) -> None:
        """Begin to follow this thread.

        Args:
            frame: The innermost frame that is left to run.
            calls: The open calls of modules, if another has followed it until now.
        """

    @abstractmethod
    def stop(self, frame: FrameType | None) -> Calls:
        """Follow this thread no longer.

        Args:
            frame: The innermost frame that is left to run.

        Returns:
            The open calls of modules.
        """

    def halt(self) -> None:
        """Note nothing more; may be called from another thread, whose events end with its next call."""
        self._live = False
        self._read = self._still
        self._calls = []

    def look(self) -> None:
        """Note what was made since the last event, if it is this thread's turn."""
        if self.running and (now := self._read()) != self._stop:
            self._note(now)

    def soon(self, action: Callable[[], None]) -> None:
        """Do something once, at the next event of the user's code in this thread."""
        if not self._live:
            return
        read = self._read

        def read_and_act() -> int:
            self._read = read
            action()  # which may ask for another, at the next event
            return read()

        self._read = read_and_act

    def pause(self) -> None:  # noqa: B027 - where a library's code costs nothing, there is nothing to do
        """Hear nothing for a while in which only a library runs, if that saves anything."""

    def resume(self) -> None:  # noqa: B027
        """Hear again."""

    def _begin(self) -> None:
        """From here on, nodes are this follower's to note, once it reads."""
        self._stop = _autograd._get_sequence_nr()
        self._table.skip(self._stop)
        self._read, self._live = self._still, True

    def _follow(self, calls: Calls) -> None:
        """Read from now on; the calls are those of whoever followed before, if they are the ones that are open."""
        if len(calls) == len(self._calls):
            self._calls = calls
        self._read = _autograd._get_sequence_nr

    def _function(self, code: CodeType) -> int:
        """What is added to a line of this code to make a place of it."""
        return self._table.function(code.co_filename, code.co_qualname.rpartition("<locals>.")[2])

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


def is_compiled(code: CodeType) -> bool:
    """Whether code is what ``torch.compile`` returns: its calls run a program that is not as it is written."""
    if not code.co_filename.endswith(COMPILED_FILE):
        return False
    inner = code.co_qualname.removeprefix(COMPILED_NAME)
    return inner != code.co_qualname and "<locals>" not in inner


def from_outermost(frame: FrameType | None) -> list[FrameType]:
    """A frame and all that called it, the outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]
