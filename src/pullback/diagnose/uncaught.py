"""Errors that nobody catches and that do not end the program: of threads, of ``__del__``, of functions at its exit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pullback.diagnose.doors import explained
from pullback.diagnose.session import Session
from pullback.diagnose.traces import clean, without_ours
from pullback.diagnose.values import Report

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# So many are explained: a ``__del__`` may fail again and again.
MOST = 20


class Uncaught:
    """Explains the errors that Python shows without ending, below what it shows.

    Args:
        session: What watches the program, if anything does.
        tell: Told what there is to say of each.
    """

    def __init__(self, session: Callable[[], Session | None], tell: Callable[[Report], Any]) -> None:
        self._session = session
        self._tell = tell
        self._left = MOST

    def start(self) -> None:
        """Explain them from now on, until the process ends."""
        in_thread, in_passing = threading.excepthook, sys.unraisablehook

        def of_thread(args: threading.ExceptHookArgs) -> None:
            in_thread(_cleaned(args))
            self.explain(args.exc_value)

        def unraisable(args: UnraisableHookArgs) -> None:
            in_passing(_cleaned(args))
            self.explain(args.exc_value)

        threading.excepthook = of_thread
        sys.unraisablehook = unraisable

    def explain(self, error: BaseException | None) -> None:
        """Explain an error that was shown just now, unless its own text does."""
        if not isinstance(error, Exception) or not self._left or sys.is_finalizing() or explained(error):
            return
        with suppress(Exception):
            session = self._session() or Session()
            if report := Report(session.diagnoses(error), level=session.level):
                self._left -= 1
                self._tell(report)


def _cleaned(args: Any) -> Any:
    """What a hook is given, with our frames left out of the traceback."""
    with suppress(Exception):
        if args.exc_value is not None:
            clean(args.exc_value)
            return type(args)((*args[:2], without_ours(args.exc_traceback), *args[3:]))
    return args
