"""The page of each cause and fault, from its class.

``python -m pullback.diagnose.pages docs/diagnoses`` writes them.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pullback.diagnose.check import Cause, Check, checks
from pullback.language import LANGUAGES, say, spoken

# The version of torch that the checks were tested with, and those whose texts the causes were held against.
TESTED = "2.13"
TEXTS = ("2.6", "2.13", "2.14")


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
    """The page of a check in the reader's language, in Markdown."""
    says = getattr(check, "says", ())
    heard = [_heard(says), ""] if says else []
    lines = [
        f"# {check.code}: {say(check.title)}",
        "",
        check.page(),
        "",
        *heard,
        *_shown(say("wrong"), check.bad),
        *_shown(say("right"), check.good),
        _found_by(entry_of(check)),
    ]
    return "\n".join(lines) + "\n"


def _heard(says: Sequence[str]) -> str:
    texts = ", ".join(f"`{each}`" for each in says)
    return say("torch says (in the versions {versions}): {texts}", versions=", ".join(TEXTS), texts=texts)


def _shown(label: str, function: Callable[[], None]) -> list[str]:
    return ["```python", f"# {label}", program(function), "```", ""]


def _found_by(entry: Entry) -> str:
    if entry.level == "default":
        how = say("`pullback run` finds it after the error, without any option.")
    else:
        how = say("`pullback run --{level}` finds it.", level=entry.level)
    return how + "\n" + say("Family: {family}. Tested with PyTorch {version}.", family=entry.family, version=TESTED)


def index() -> str:
    """The table of all pages in the reader's language, in Markdown."""
    lines = [
        "# " + say("What can be wrong"),
        "",
        say("`pullback run script.py` finds these; `pullback explain CODE` prints a page."),
        "",
        "| " + " | ".join((say("code"), say("level"), say("family"), say("what happened"))) + " |",
        "|---|---|---|---|",
    ]
    for each in known():
        title = say(each.title).replace("|", "\\|")
        lines.append(f"| [{each.code}]({each.code}.md) | {each.level} | {each.family} | {title} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """All files of the folder by name: the English ones, and a folder of them for each other language."""
    made: dict[str, str] = {}
    for language in LANGUAGES:
        folder = "" if language == "en" else f"{language}/"
        with spoken(language):
            made[f"{folder}README.md"] = index()
            made |= {f"{folder}{check.code}.md": page(check) for check in checks()}
    return made


def write(folder: Path) -> None:
    """Write the pages, and remove those of codes that are no more."""
    made = pages()
    for old in folder.rglob("PB*.md"):
        if old.relative_to(folder).as_posix() not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
