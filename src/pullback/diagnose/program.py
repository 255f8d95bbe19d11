"""Running a program as Python would, under watch: a script, a module, a folder or an archive."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from pullback.diagnose.session import Level, Session
from pullback.diagnose.traces import clean
from pullback.diagnose.values import Report
from pullback.errors import ValueMismatch
from pullback.language import say

# The modules that were ``__main__`` before: their functions still need their variables.
_former: list[ModuleType] = []


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        report: What there is to say.
        error: What it raised, or None; ``SystemExit`` too.
        trace: Its traceback, without our frames.
        failed: The error that the report is about: what led to a ``SystemExit`` that is not a success, if that was one.
    """

    report: Report
    error: BaseException | None
    trace: TracebackType | None = None
    failed: BaseException | None = None


class Program:
    """What is to be run.

    Args:
        target: A file, a folder or archive with a ``__main__``, or the name of a module.
        arguments: What the program finds in ``sys.argv[1:]``.
        module: Whether the target is the name of a module, as in ``python -m``.

    Attributes:
        session: What watches it, once it runs.

    Raises:
        ValueMismatch: There is no such program.
    """

    def __init__(self, target: str, arguments: Sequence[str] = (), *, module: bool = False) -> None:
        self.target = target
        self.arguments = list(arguments)
        self.module = module
        self.session: Session | None = None
        if module:
            self._check_module()
        else:
            self._check_file()

    def run(self, level: Level = "default", failing: Callable[[], None] = lambda: None) -> Ended:
        """Run it in this process, as ``__main__``; what it raises is returned.

        Args:
            level: What is recorded.
            failing: Called as soon as it has raised something.
        """
        session = self.session = Session(level)
        main = ModuleType("__main__")
        if sys.version_info < (3, 14):
            main.__annotations__ = {}
        error: BaseException | None = None
        session.start()
        try:
            code = self._prepared(main)
            self._become(main)
            exec(code, main.__dict__)
        except BaseException as raised:
            error = raised
            failing()
        finally:
            session.stop()
        failed = failure(error)
        report = session.report(failed, vars(main))
        if error is not None:
            clean(error)
        return Ended(report, error, error.__traceback__ if error is not None else None, failed)

    def _check_file(self) -> None:
        path = Path(self.target)
        if not path.exists():
            fix = "the name of a file, or -m and that of a module"
            raise ValueMismatch("There is no such program.", got=repr(self.target), fix=fix)
        if path.is_dir() and not any((path / f"__main__{end}").is_file() for end in (".py", ".pyc")):
            raise ValueMismatch(
                "A folder that has no __main__.py cannot be run.", got=repr(self.target), fix="name a file in it"
            )
        if path.is_file() and not self._is_archive():
            _check_text(path)

    def _check_module(self) -> None:
        top = self.target.partition(".")[0]
        here = [] if sys.flags.safe_path else [str(Path.cwd())]
        known = bool(top) and (importlib.machinery.PathFinder.find_spec(top, [*here, *sys.path]) or _spec(top))
        if not known:
            fix = "a module as it is imported, without .py"
            raise ValueMismatch("There is no such module.", got=repr(self.target), fix=fix)

    def _is_archive(self) -> bool:
        """Whether it is something on the path rather than a script: a folder, or an archive of modules."""
        return pkgutil.get_importer(self.target) is not None

    def _prepared(self, main: ModuleType) -> CodeType:
        """The code, with ``sys.argv``, ``sys.path`` and the module's own names as Python sets them."""
        sys.argv[:] = [self.target, *self.arguments]
        if self.module:
            return self._of_module(main)
        if self._is_archive():
            folder = os.path.abspath(self.target)  # noqa: PTH100
            self._put_first(folder)
            spec = importlib.machinery.PathFinder.find_spec("__main__", [folder])
            return self._of_spec(main, spec)
        file = os.path.abspath(self.target)  # noqa: PTH100 - links stay, as Python leaves them
        self._put_first(str(Path(self.target).resolve().parent))
        main.__dict__.update(__file__=file, __builtins__=__builtins__, __cached__=None, __spec__=None, __package__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
        with io.open_code(file) as stream:
            compiled: CodeType | None = pkgutil.read_code(stream)
        if compiled is not None:
            return compiled  # a .pyc
        return compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)

    def _of_module(self, main: ModuleType) -> CodeType:
        self._put_first(str(Path.cwd()))
        sys.argv[0] = "-m"
        name = self.target
        spec = _spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = _spec(name)
        code = self._of_spec(main, spec)
        sys.argv[0] = main.__file__ or name
        return code

    def _of_spec(self, main: ModuleType, spec: importlib.machinery.ModuleSpec | None) -> CodeType:
        loader: Any = spec.loader if spec is not None else None  # one of an archive is not of the abstract class
        code: CodeType | None = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            sys.exit(say("pullback run: there is no program in {target}", target=self.target))
        main.__dict__.update(
            __file__=spec.origin,
            __builtins__=__builtins__,
            __cached__=spec.cached,
            __spec__=spec,
            __package__=spec.parent,
            __loader__=loader,
        )
        return code

    @staticmethod
    def _put_first(folder: str) -> None:
        """Make a folder the first that is searched, in place of where our own command lies."""
        if sys.flags.safe_path:
            return
        if sys.path:
            sys.path[0] = folder
        else:
            sys.path.append(folder)

    @staticmethod
    def _become(main: ModuleType) -> None:
        if (former := sys.modules.get("__main__")) is not None:
            _former.append(former)
        sys.modules["__main__"] = main


def run_script(file: str, arguments: Sequence[str] = (), level: Level = "default") -> Ended:
    """Run a file as ``python file arguments`` would, in this process, as ``__main__``.

    Args:
        file: The file.
        arguments: What the program finds in ``sys.argv[1:]``.
        level: What is recorded.
    """
    return Program(file, arguments).run(level)


def _check_text(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            start = stream.read(1 << 16)
    except OSError as error:
        raise ValueMismatch("The program cannot be read.", got=str(error), fix="see its permissions") from error
    if b"\0" in start and path.suffix != ".pyc":
        raise ValueMismatch("The file is no Python program.", got=repr(str(path)), fix="the name of a .py file")


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # it is loaded, and does not say from where
        return None
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def failure(error: BaseException | None) -> BaseException | None:
    """The error to be explained: for a program that gave up with an exit status, the one that made it do so."""
    if isinstance(error, SystemExit) and not (error.code is None or (isinstance(error.code, int) and error.code == 0)):
        return error.__cause__ or error.__context__
    return None if isinstance(error, SystemExit | KeyboardInterrupt) else error
