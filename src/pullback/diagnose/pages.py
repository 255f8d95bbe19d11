"""The page of each cause and fault, from its class.

``python -m pullback.diagnose.pages docs/diagnoses`` writes them.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pullback.diagnose.check import Cause, Check, checks

# The version of torch whose texts the causes were held against.
TESTED = "2.13"


@dataclass(frozen=True)
class Entry:
    """A cause or a fault, as a table shows it.

    Attributes:
        code: Its code.
        title: What happened, in English.
        level: The lowest level at which it is found.
        family: The folder that it stands in.
        kind: ``error``, or ``silent``.
    """

    code: str
    title: str
    level: str
    family: str
    kind: str

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return asdict(self)


def entry_of(check: type[Check]) -> Entry:
    """A check, as a table shows it."""
    kind = "error" if issubclass(check, Cause) else "silent"
    return Entry(check.code, check.title, check.level, check.__module__.split(".")[-2], kind)


def known() -> tuple[Entry, ...]:
    """All causes and faults, by code."""
    return tuple(map(entry_of, checks()))


def check_of(code: str) -> type[Check] | None:
    """The check with a code, in upper or lower case."""
    return next((check for check in checks() if check.code == code.strip().upper()), None)


def program(function: Callable[[], None]) -> str:
    """The statements of ``bad`` or ``good``, as a program."""
    lines = inspect.getsource(function).splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("def "))
    while not lines[start].rstrip().endswith(":"):
        start += 1
    return textwrap.dedent("\n".join(lines[start + 1 :])).strip("\n")


def page(check: type[Check]) -> str:
    """The page of a check, in Markdown."""
    entry = entry_of(check)
    says = getattr(check, "says", ())
    heard = ["", "torch says: " + "; ".join(f"`{each}`" for each in says) + "."] if says else []
    found = "after the error, without any option" if entry.level == "default" else f"with `--{entry.level}`"
    lines = [
        f"# {entry.code}: {entry.title}",
        "",
        check.page(),
        *heard,
        "",
        "```python",
        "# wrong",
        program(check.bad),
        "```",
        "",
        "```python",
        "# right",
        program(check.good),
        "```",
        "",
        f"Found by `pullback run` {found}. Family: {entry.family}. Tested with PyTorch {TESTED}.",
    ]
    return "\n".join(lines) + "\n"


def index() -> str:
    """The table of all pages, in Markdown."""
    lines = [
        "# What can be wrong",
        "",
        "`pullback run script.py` finds these; `pullback explain CODE` prints a page. The pages are written by",
        "`python -m pullback.diagnose.pages docs/diagnoses`.",
        "",
        "| code | found at level | family | what happened |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [{each.code}]({each.code}.md) | {each.level} | {each.family} | {each.title.replace('|', chr(92) + '|')} |"
        for each in known()
    ]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """All files of the folder, by name."""
    return {"README.md": index(), **{f"{check.code}.md": page(check) for check in checks()}}


def write(folder: Path) -> None:
    """Write the pages, and remove those of codes that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in folder.glob("PB*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
