"""The ways in from a program, a notebook or a logger: around a block, or once for the whole process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator, suppress
from types import FrameType, TracebackType
from typing import Any

from pullback.diagnose.session import Level, Session
from pullback.diagnose.values import Report
from pullback.graph.recording.userfiles import user_files

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
_installed: list[Installed] = []


class Note(str):
    """The text of a diagnosis as a note of an exception; ``explained`` knows it by its class."""

    __slots__ = ()


def explained(error: BaseException) -> bool:
    """Whether the diagnosis of an exception is among its notes."""
    return any(isinstance(note, Note) for note in getattr(error, "__notes__", ()))


class explain_errors(ContextDecorator):  # noqa: N801 - used as a function is
    """Explain the errors of a block: ``with pb.explain_errors(): ...``, or of a function, as a decorator.

    An exception passes through unchanged, except that its diagnosis is a note of it (``add_note``): whoever prints the
    traceback - Python, a logger, pytest, Jupyter - prints it right below. With ``level="audit"`` the silent faults that
    were found are printed to standard error at the end of the block.

    Args:
        level: What is recorded in the block: ``default`` (nothing that costs time), ``trace``, ``audit``, ``strict``.

    Attributes:
        report: What was found, once the block has ended.

    Raises:
        ValueMismatch: If there is no such level.

    Example:
        >>> import torch
        >>> try:
        ...     with explain_errors():
        ...         torch.ones(3, requires_grad=True).mul(2).backward()
        ... except RuntimeError as error:
        ...     print(error.__notes__[0].partition(":")[0])
        error[PB101]
    """

    def __init__(self, level: Level = "default") -> None:
        self.report = Report(level=level)
        self._level: Level = level
        self._session = Session(level)

    def _recreate_cm(self) -> explain_errors:
        return explain_errors(self._level)  # a decorated function may call itself

    def __enter__(self) -> explain_errors:
        self._session.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.stop()
        failed = error if isinstance(error, Exception) else None
        self.report = self._session.report(failed, _variables())
        self._session = Session(self._level)  # for the next block
        _print_findings(self.report)
        if failed is not None:
            _clean(failed)
            if not explained(failed):
                _add_note(failed, self.report)


class Installed:
    """Explains every error that this process shows, until it is removed; made by ``install``.

    Attributes:
        level: What is recorded.
        active: Whether it still explains.
    """

    def __init__(self, level: Level) -> None:
        self.level = level
        self.active = True
        self._session = Session(level)
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        """Explain no more; the hooks that were there before are put back. A second time does nothing."""
        if not self.active:
            return
        self.active = False
        _installed.remove(self)
        self._session.stop()
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _hook_in(self) -> None:
        self._session.start()
        self._hook_sys()
        self._hook_threads()
        self._hook_shell()
        if self._session.audit is not None:
            import atexit  # noqa: PLC0415

            atexit.register(self._end)
            self._undo.append(lambda: atexit.unregister(self._end))

    def _hook_sys(self) -> None:
        former: Hook = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            former(kind, error, self._cleaned(error, trace))
            self._explain(error)

        sys.excepthook = hook

        def undo() -> None:
            if sys.excepthook is hook:  # else somebody hooked in after us, and calls us: we say nothing any more
                sys.excepthook = former

        self._undo.append(undo)

    def _hook_threads(self) -> None:
        former = threading.excepthook

        def hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None:
                trace = self._cleaned(args.exc_value, args.exc_traceback)
                args = threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread))
            former(args)
            if args.exc_value is not None:
                self._explain(args.exc_value)

        threading.excepthook = hook

        def undo() -> None:
            if threading.excepthook is hook:
                threading.excepthook = former

        self._undo.append(undo)

    def _hook_shell(self) -> None:
        shell = _shell()
        if shell is None:
            return
        former = (shell.custom_exceptions, shell.CustomTB)

        def handler(shell: Any, kind: Any, error: BaseException, trace: Any, tb_offset: int | None = None) -> None:
            shell.showtraceback((kind, error, self._cleaned(error, trace)), tb_offset=tb_offset)
            self._explain(error)

        shell.set_custom_exc((Exception,), handler)

        def undo() -> None:
            shell.custom_exceptions, shell.CustomTB = former

        self._undo.append(undo)

    def _cleaned(self, error: BaseException, trace: TracebackType | None) -> TracebackType | None:
        """The traceback of an error that is to be shown, without our frames."""
        if not self.active:
            return trace
        from pullback.diagnose.traces import clean, without_ours  # noqa: PLC0415 - not at import

        clean(error)
        return without_ours(trace)

    def _explain(self, error: BaseException) -> None:
        if not self.active or not isinstance(error, Exception) or explained(error):
            return
        from pullback.diagnose.reports.show import emit, show, unknown  # noqa: PLC0415 - not at import

        report = Report(self._session.diagnoses(error), level=self.level)
        if report:
            show(report)
        elif (line := unknown(error)) and sys.stderr is not None:
            emit(line, sys.stderr)

    def _end(self) -> None:
        if self.active:
            self._session.stop()
            _print_findings(self._session.report(None, vars(sys.modules["__main__"])))


def install(level: Level = "default") -> Installed:
    """Explain from now on every error that ends the program, a thread, or a cell of a notebook.

    The diagnosis is printed below the traceback, which is shown as it was before: the hooks that are there
    (``sys.excepthook``, ``threading.excepthook``, IPython's) are called first. To call it again with the same level
    does nothing; with another level, that level holds from then on.

    Args:
        level: What is recorded from now on: ``default`` (nothing that costs time), ``trace``, ``audit``, ``strict``.

    Returns:
        What undoes it: ``.remove()``, or ``with pb.install(): ...``.

    Raises:
        ValueMismatch: If there is no such level.

    Example:
        >>> hooks = install()
        >>> install() is hooks
        True
        >>> hooks.remove()
    """
    for known in list(_installed):
        if known.level == level:
            return known
    made = Installed(level)
    for known in list(_installed):
        known.remove()
    _installed.append(made)
    made._hook_in()
    return made


def _shell() -> Any:
    """The shell of IPython that this process is, if it is one."""
    ipython = sys.modules.get("IPython")
    with suppress(Exception):
        return ipython.get_ipython() if ipython is not None else None
    return None


def _variables() -> Mapping[str, Any]:
    """The variables of the innermost frame of the user's."""
    files = user_files(())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if files.own(frame):
            return {**frame.f_globals, **frame.f_locals}
        frame = frame.f_back
    return {}


def _print_findings(report: Report) -> None:
    if report.findings:
        from dataclasses import replace  # noqa: PLC0415

        from pullback.diagnose.reports.show import show  # noqa: PLC0415

        show(replace(report, diagnoses=(), trouble=()))


def _clean(error: Exception) -> None:
    from pullback.diagnose.traces import clean  # noqa: PLC0415

    clean(error)


def _add_note(error: Exception, report: Report) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from pullback.diagnose.reports.show import unknown  # noqa: PLC0415
    from pullback.diagnose.reports.text import plain  # noqa: PLC0415

    text = plain(replace(report, findings=(), trouble=())) if report.diagnoses else unknown(error)
    if text:
        error.add_note(Note(text))
