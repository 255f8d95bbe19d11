"""``pullback run``: a program runs as it would, and says why its backward failed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import process
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import click

import pullback
from pullback.diagnose.children import Children, Held, How, Left, all_left, leave, text_of
from pullback.diagnose.program import Ended, Program
from pullback.diagnose.reports.sarif import as_sarif
from pullback.diagnose.reports.show import emit, show, summary, tell
from pullback.diagnose.session import Level
from pullback.diagnose.uncaught import Uncaught
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
        language: The language that was asked for; None for that of the environment.
    """

    program: Program
    level: Level
    json_file: Path | None
    sarif_file: Path | None
    color: bool | None
    width: int | None
    language: str | None = None

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._folder = str(Path(tempfile.gettempdir()) / f"pullback-{secrets.token_hex(16)}")
        self._report = Report(level=self.level)
        self._more: tuple[Diagnosis, ...] = ()
        self._uncaught = Uncaught(lambda: self.program.session, self._passing)

    def run(self) -> None:
        """Run it; what it raises goes on, with its diagnosis printed after its traceback."""
        rank, held = _rank(), Held()
        self._uncaught.start()
        how = How(self.level, self._folder, self.color, self.width, self.language)
        Children(how, lambda: self.program.session).start()
        ended = self.program.run(self.level, held.hold if rank is not None else lambda: None)
        self._report = ended.report.of_process(rank)
        if os.getpid() == self._process:  # a child that the program forked writes no files
            self._write()
            # multiprocessing does this when all children have ended
            Finalize(None, self._end, exitpriority=-100)
        if ended.error is None:
            self._say(self._report, None)
        elif isinstance(ended.error, SystemExit):
            self._say(self._report, ended.failed)
            held.release()
        self._hook(ended, held)
        if ended.error is not None:
            raise ended.error

    def _hook(self, ended: Ended, held: Held) -> None:
        """Let Python show the error in the program's own way, without our frames, and then the diagnosis."""
        shown = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            if error is not ended.error:  # that of a finalizer, at the exit
                result = shown(kind, error, trace)
                self._uncaught.explain(error)
                return result
            error.__traceback__ = ended.trace
            try:
                shown(kind, error, ended.trace)
            finally:  # the program's own hook may fail
                self._say(self._report, ended.failed)
                held.release()
            return None

        sys.excepthook = hook

    def _say(self, report: Report, error: BaseException | None) -> None:
        by_itself = error is not None and text_of(error) and any(not each.text for each in all_left(self._folder))
        tell(report, None if by_itself else error, color=self.color, width=self.width)
        if self.level in {"audit", "strict"} and sys.stderr is not None:
            emit(summary(report), sys.stderr)

    def _passing(self, report: Report) -> None:
        """Tell of an error that did not end the program."""
        report = report.of_process(_rank())
        show(report, color=self.color, width=self.width)
        if os.getpid() == self._process:
            self._more += report.diagnoses
        else:
            leave(self._folder, Left("", report.of_process(None, process.current_process().name)))

    def _end(self) -> None:
        """All children have ended, and all functions that were to run at the exit."""
        if self._more or Path(self._folder).is_dir():
            self._write()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        """Write what is known by now: of this process, and of its children."""
        if self.json_file is None and self.sarif_file is None:
            return
        reports = [self._report, *(left.report for left in all_left(self._folder) if not left.text)]
        diagnoses = (*(each for report in reports for each in report.diagnoses), *self._more)
        findings = tuple(each for report in reports for each in report.findings)
        report = replace(self._report, diagnoses=diagnoses, findings=findings)
        texts: list[tuple[Path | None, Callable[[], str]]] = [
            (self.json_file, lambda: json.dumps(report.told(), indent=1, ensure_ascii=False)),
            (self.sarif_file, lambda: as_sarif(report, pullback.__version__)),
        ]
        for file, text in texts:
            if file is not None:
                try:
                    file_of(file, _rank()).write_text(text() + "\n", encoding="utf-8")
                except OSError as problem:
                    emit(f"pullback run: {problem}", sys.stderr)


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
    raise Ready(Job(ready, level, json_file, sarif_file, color, width, lang))


def file_of(file: Path, rank: int | None) -> Path:
    """The file of one process of a distributed run: ``report.rank1.json``."""
    if rank is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return file
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}")


def _rank() -> int | None:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


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
