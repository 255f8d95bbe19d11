"""Runs Python, and ``pullback run``, as a user would: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pullback

SOURCE = Path(pullback.__file__).parents[1]


def python(folder, *arguments, given="", timeout=120, **environment):
    """What a command of Python writes and how it ends."""
    variables = {
        **{
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTEST", "PYTHONUNBUFFERED", "FORCE_COLOR", "LC_", "LANG"))
        },
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
        **environment,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables,
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run(folder, *arguments, **more):
    """The same of ``pullback run``."""
    return python(folder, "-m", "pullback", "run", *arguments, **more)


def written(folder, **files):
    """Write files; ``__`` in a name is a folder."""
    for name, text in files.items():
        path = Path(folder) / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder
