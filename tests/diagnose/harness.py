"""Runs small programs under watch, each in a process of its own that is forked from this one."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import tempfile
import textwrap
import traceback
import warnings
from pathlib import Path

import torch

from pullback.diagnose.program import run_script


def told(source, level="default", *, arguments=()):
    """The report of a program (its text, or the path of its file) as JSON says it, and ``error``: what it raised."""
    folder = tempfile.mkdtemp()
    file = source if isinstance(source, Path) else Path(folder) / "program.py"
    if file is not source:
        file.write_text(textwrap.dedent(source))
    answer = Path(folder) / "answer.json"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            warnings.resetwarnings()  # as a program has them, not as the tests do
            torch.set_warn_always(True)  # what torch says once was said by another test, perhaps
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
                os.chdir(folder)
                ended = run_script(str(file), arguments, level)
            told = ended.report.told()
            told["error"] = None if ended.error is None else f"{type(ended.error).__name__}: {ended.error}"
            answer.write_text(json.dumps(told))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return json.loads(answer.read_text())


def body(function):
    """The statements of a check's ``bad`` or ``good``, as a program."""
    lines = inspect.getsource(function).splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("def ")) + 1
    return textwrap.dedent("\n".join(lines[start:])) + "\n"


def codes(report):
    """The codes of a report."""
    return [each["code"] for each in report["diagnoses"] + report["findings"]]
