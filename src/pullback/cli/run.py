"""``pullback run``: a program runs as it would, and says why its backward failed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import click

import pullback
from pullback.diagnose.program import Ended, Program
from pullback.diagnose.reports.sarif import as_sarif
from pullback.diagnose.reports.show import emit, show, summary, unknown
from pullback.diagnose.session import Level, Session
from pullback.diagnose.values import Diagnosis, Report
from pullback.errors import PullbackError
from pullback.language import speak


class Ready(BaseException):
    """A program is ready to run: it is run outside of click, so that what it raises reaches Python as it is."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job


@dataclass
class Job:
    """A program, and what is to be done with its report.

    Attributes:
        program: The program.
        level: What is recorded.
        json_file: Where the report goes as JSON.
        sarif_file: Where it goes as SARIF.
        color: In colour or not; None for colour on a terminal.
        width: How wide the text is; None for that of the terminal.
    """

    program: Program
    level: Level
    json_file: Path | None
    sarif_file: Path | None
    color: bool | None
    width: int | None

    def run(self) -> None:
        """Run it; what it raises goes on, with its diagnosis printed after its traceback."""
        process, rank = os.getpid(), _rank()
        threads = _Threads(self)
        held = _Held()
        threads.start()
        ended = self.program.run(self.level, held.hold if rank is not None else lambda: None)
        threads.stop()
        report = _with(ended.report, threads.diagnoses).of_rank(rank)
        if os.getpid() == process:  # a child that the program forked writes no files
            self._write(report)
        said = replace(report, diagnoses=report.diagnoses[: len(ended.report.diagnoses)])
        if ended.error is None:
            self._say(said, None)
            return
        if isinstance(ended.error, SystemExit):
            self._say(said, ended.failed)
            held.release()
        else:
            self._hook(ended, said, held)
        raise ended.error

    def _hook(self, ended: Ended, report: Report, held: _Held) -> None:
        """Let Python show the error in the program's own way, without our frames, and then the diagnosis."""
        shown = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            if error is not ended.error:
                return shown(kind, error, trace)
            error.__traceback__ = ended.trace
            try:
                shown(kind, error, ended.trace)
            finally:  # the program's own hook may fail
                self._say(report, ended.failed)
                held.release()
            return None

        sys.excepthook = hook

    def _say(self, report: Report, error: BaseException | None) -> None:
        known = report.diagnoses or error is None or _explained(error)
        if error is not None and _explained(error):
            report = replace(report, diagnoses=())
        show(report, color=self.color, width=self.width)
        if not known and error is not None and (line := unknown(error)) and sys.stderr is not None:
            emit(line, sys.stderr)
        if self.level in {"audit", "strict"} and sys.stderr is not None:
            emit(summary(report), sys.stderr)

    def _write(self, report: Report) -> None:
        rank = _rank()
        texts: list[tuple[Path | None, Callable[[], str]]] = [
            (self.json_file, lambda: json.dumps(report.told(), indent=1, ensure_ascii=False)),
            (self.sarif_file, lambda: as_sarif(report, pullback.__version__)),
        ]
        for file, text in texts:
            if file is not None:
                try:
                    file_of(file, rank).write_text(text() + "\n", encoding="utf-8")
                except OSError as problem:
                    emit(f"pullback run: {problem}", sys.stderr)


class _Held:
    """Holds back the signal by which a launcher ends the other processes when one has failed, until all is said."""

    def __init__(self) -> None:
        self._holds = False
        self._came = False

    def hold(self) -> None:
        """Hold it back from now on, unless the program has its own way with it."""
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._note)
            self._holds = True

    def release(self) -> None:
        """Let it through, if it came."""
        if self._holds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._holds = False
            if self._came:
                os.kill(os.getpid(), signal.SIGTERM)

    def _note(self, number: int, frame: object) -> None:
        self._came = True


class _Threads:
    """Explains the errors of the program's other threads, where Python shows them."""

    def __init__(self, job: Job) -> None:
        self.diagnoses: tuple[Diagnosis, ...] = ()
        self._job = job
        self._former = threading.excepthook
        self._hook = self._shown

    def start(self) -> None:
        threading.excepthook = self._hook

    def stop(self) -> None:
        if threading.excepthook is self._hook:
            threading.excepthook = self._former

    def _shown(self, args: threading.ExceptHookArgs) -> None:
        self._former(args)
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            report = Session().report(args.exc_value).of_rank(_rank())
            self.diagnoses += report.diagnoses
            show(report, color=self._job.color, width=self._job.width)


class _Run(click.Command):
    """Options end with the script, or with the name of the module: what follows is the program's own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [each for each in self.params if isinstance(each, click.Option) and not each.is_flag]
        valued = {name for each in options for name in each.opts}
        place = 0
        while place < len(args) and args[place].startswith("-"):
            if args[place].startswith("-m"):
                if args[place] != "-m" or place + 1 < len(args):
                    args.insert(place + (2 if args[place] == "-m" else 1), "--")
                break
            place += 2 if args[place] in valued else 1
        return super().parse_args(ctx, args)


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.option("--level", type=click.Choice(get_args(Level)), default="default", show_default=True,
              help="What is recorded while it runs.")  # fmt: skip
@click.option("--trace", "level", flag_value="trace", help="Record the line of every call of torch.")
@click.option("--audit", "level", flag_value="audit", help="Look for silent faults too.")
@click.option("--strict", "level", flag_value="strict", help="The same, sparing no time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write diagnoses and findings as JSON.")
@click.option("--sarif", "sarif_file", type=click.Path(path_type=Path), help="Write them as SARIF 2.1.0.")
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of the text.  [default: the environment's]")
@click.option("--color/--no-color", default=None, help="Colour.  [default: on a terminal]")
@click.option("--width", type=click.IntRange(40), help="Width of the text.  [default: the terminal's, or 100]")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def run(
    level: Level,
    json_file: Path | None,
    sarif_file: Path | None,
    lang: str | None,
    color: bool | None,
    width: int | None,
    module: str | None,
    program: Sequence[str],
) -> None:
    """Run a program unchanged; when autograd fails, say why.

    The diagnosis follows the traceback on standard error. Options stand before the script; what follows it is the
    script's own.

    \b
    pullback run train.py --epochs 3
    pullback run --trace -m mypackage.train
    torchrun --nproc-per-node 2 -m pullback run train.py
    """  # noqa: D301
    if lang is not None:
        speak(lang)
    if module is None and not program:
        raise click.UsageError("name a script, or a module by -m")
    for file in filter(None, (json_file, sarif_file)):
        _check_writable(file_of(file, _rank()))
    target, arguments = (module, program) if module is not None else (program[0], program[1:])
    try:
        ready = Program(target, arguments, module=module is not None)
    except PullbackError as error:
        raise click.UsageError(str(error)) from error
    raise Ready(Job(ready, level, json_file, sarif_file, color, width))


def file_of(file: Path, rank: int | None) -> Path:
    """The file of one process of a distributed run: ``report.rank1.json``."""
    if rank is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return file
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}")


def _rank() -> int | None:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


def _with(report: Report, more: tuple[Diagnosis, ...]) -> Report:
    return replace(report, diagnoses=report.diagnoses + more)


def _explained(error: BaseException) -> bool:
    """Whether the diagnosis is part of the error's own text already."""
    from pullback.diagnose.doors import explained  # noqa: PLC0415

    return explained(error)


def _check_writable(file: Path) -> None:
    """The file can be written; it is left as it was."""
    there = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from error
    if not there:
        file.unlink(missing_ok=True)
