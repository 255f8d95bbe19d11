"""Reports in colour, by rich: for terminals."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from pullback.diagnose.reports.text import Line

STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "bold": "bold",
    "gutter": "bold blue",
    "secondary": "bold cyan",
    "label": "bold",
    "good": "bold green",
    "fix": "green",
    "dim": "dim",
    "code": "",
    "": "",
}


def coloured(lines: Sequence[Line]) -> str:
    """Lines with their styles as escape sequences, without a final line end."""
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, color_system="standard", width=1 << 16, no_color=False)
    for line in lines:
        text = Text()
        for piece, style in line:
            text.append(piece, STYLES[style])
        console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
    return buffer.getvalue().rstrip("\n")


def wants_colour(stream: TextIO) -> bool:
    """Whether colour is wanted on a stream: on a terminal, unless the environment says otherwise."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False
