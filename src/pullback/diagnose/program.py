"""Running a program as Python would, under watch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pullback.diagnose.session import Level, Session
from pullback.diagnose.values import Report


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        report: What there is to say.
        error: What it raised, or None; ``SystemExit`` too.
    """

    report: Report
    error: BaseException | None


def run_script(file: str, arguments: Sequence[str] = (), level: Level = "default") -> Ended:
    """Run a file as ``python file arguments`` would, in this process, as ``__main__``.

    Args:
        file: The file.
        arguments: What the program finds in ``sys.argv[1:]``.
        level: What is recorded.
    """
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__, __cached__=None, __spec__=None)
    session = Session(level)
    error: BaseException | None = None
    code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    sys.argv[:] = [file, *arguments]
    sys.path[0] = str(Path(file).resolve().parent)
    sys.modules["__main__"] = module
    session.start()
    try:
        exec(code, module.__dict__)  # noqa: S102
    except BaseException as raised:
        error = raised
    finally:
        session.stop()
    failed = error if not isinstance(error, SystemExit | KeyboardInterrupt) else None
    return Ended(session.report(failed, vars(module)), error)
