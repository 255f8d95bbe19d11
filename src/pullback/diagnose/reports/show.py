"""A report on a stream: in colour on a terminal, plain elsewhere; and the one line where nothing is known."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from dis import opname
from typing import TextIO

from pullback.diagnose.case import message_of
from pullback.diagnose.children import text_of
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.reports.text import WIDTH, Line, joined, report_lines
from pullback.diagnose.values import Report
from pullback.graph.recording.userfiles import user_files
from pullback.language import say

# Where an error comes from when it is about autograd: the end of the path of torch's innermost frame.
_PARTS = ("/torch/autograd/", "/torch/_functorch/", "/torch/func/", "/torch/_tensor.py", "/torch/amp/")
# What such errors speak of when they are raised in C++, without a frame of torch's.
_WORDS = ("requires_grad", "requires grad", "autograd", "grad_fn", "backward", "derivative", "gradient",
          "leaf variable", "inference tensor", "in-place", "inplace")  # fmt: skip


def show(report: Report, stream: TextIO | None = None, *, color: bool | None = None, width: int | None = None) -> None:
    """Write a report; nothing if there is nothing to say.

    Args:
        report: The report.
        stream: Where to; standard error if it is left out.
        color: In colour or not; None for colour on a terminal.
        width: How wide; None for that of the terminal, or 100 elsewhere.
    """
    stream = sys.stderr if stream is None else stream
    if stream is not None and (lines := report_lines(report, width or width_of(stream))):  # None: without a console
        emit(shown(lines, stream, color), stream)


def tell(report: Report, error: BaseException | None, *, color: bool | None = None, width: int | None = None) -> None:
    """Write what there is to say of an error below its traceback: a report, or one line, or nothing.

    Args:
        report: The report.
        error: The error, if there was one.
        color: In colour or not; None for colour on a terminal.
        width: How wide; None for that of the terminal.
    """
    from pullback.diagnose.doors import explained  # noqa: PLC0415

    said = error is not None and explained(error)  # in the error's own text
    show(replace(report, diagnoses=()) if said else report, color=color, width=width)
    if not said and not report.diagnoses and error is not None and (line := unknown(error)) and sys.stderr is not None:
        emit(line, sys.stderr)


def shown(lines: list[Line], stream: TextIO, color: bool | None) -> str:
    """Lines as they are written to a stream."""
    from pullback.diagnose.reports.color import coloured, wants_colour  # noqa: PLC0415 - rich waits until it is needed

    if wants_colour(stream) if color is None else color:
        return coloured(lines)
    return joined(lines)


def emit(text: str, stream: TextIO) -> None:
    """Write a text in one go, so that those of several processes do not mix; what cannot be encoded is replaced."""
    with suppress(BrokenPipeError, ValueError):
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write((text + "\n").encode(encoding, "replace").decode(encoding))
        stream.flush()


def width_of(stream: TextIO) -> int:
    """How wide a report on a stream is."""
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        terminal = False
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, 60), 140) if terminal else WIDTH


def unknown(error: BaseException) -> str:
    """One line for an error of autograd of which nothing is known; empty for an error that is about something else."""
    if text := text_of(error):
        return _of_another(text, error)
    if not of_autograd(error):
        return ""
    return say(
        "pullback: this error comes from autograd, but no cause that is known here fits it (torch says: {message})",
        message=message_of(error).partition("\n")[0][:120],
    )


def _of_another(text: str, error: BaseException) -> str:
    """What can be said of an error by its text, where the process that it happened in has said nothing."""
    message = next((line for line in reversed(text.splitlines()) if line.strip(' "')), "").strip()
    if not any(word in message.lower() for word in _WORDS):
        return ""
    if "DataLoader worker" in message_of(error).partition("\n")[0]:
        return say("pullback: this error happened in a worker process; with num_workers=0 it can be explained")
    return say(
        "pullback: this error happened in another process, which could not explain it; "
        '`pullback explain "{message}"` says what its text can mean',
        message=message.partition(": ")[2][:120] or message[:120],
    )


def of_autograd(error: BaseException) -> bool:
    """Whether an error that torch raised is about autograd."""
    if not isinstance(error, RuntimeError | NotImplementedError):
        return False
    frames = list(frames_of(error.__traceback__))
    if not frames:
        return False
    frame, instruction, _ = frames[-1]
    if user_files(()).own(frame) and opname[frame.f_code.co_code[instruction]] == "RAISE_VARARGS":
        return False  # the program's own words
    file = frame.f_code.co_filename.replace("\\", "/")
    message = message_of(error).lower()
    return any(part in file for part in _PARTS) or any(word in message for word in _WORDS)


def summary(report: Report) -> str:
    """The one line with which an audit ends."""
    if not report.findings:
        return say("audit: nothing found")
    codes = ", ".join(dict.fromkeys(each.code for each in report.findings))
    return say("audit: {count} finding(s): {codes}", count=len(report.findings), codes=codes)
