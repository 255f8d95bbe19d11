"""``pullback explain``: the page of a code, or what an error text can mean."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax

from pullback.diagnose.check import Cause, Check, checks
from pullback.diagnose.pages import check_of, known, page, program
from pullback.diagnose.reports.cells import wrapped
from pullback.diagnose.reports.color import wants_colour
from pullback.language import say, speak

WIDTH = 96
# A piece of a message of so many characters is enough to find it.
PIECE = 8
_CODE = re.compile(r"\s*pba?\d*\s*", re.IGNORECASE)


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="CODE | TEXT")
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of the text.  [default: the environment's]")
@click.option("--color/--no-color", default=None, help="Colour.  [default: on a terminal]")
def explain(what: Sequence[str], lang: str | None, color: bool | None) -> None:
    """Print the page of a code, or say what an error text can mean.

    TEXT is what torch said, as it stands in a log; - reads it from standard input.

    \b
    pullback explain PB101
    pullback explain "element 0 of tensors does not require grad"
    """  # noqa: D301
    if lang is not None:
        speak(lang)
    text = " ".join(what)
    if text == "-":
        text = sys.stdin.read()
    if _CODE.fullmatch(text):
        _show_page(_known_code(text), wants_colour(sys.stdout) if color is None else color)
        return
    found = _announced(text)
    click.echo("\n".join(_causes(found)) if found else say("No cause that is known here is announced by this text."))
    if not found:
        sys.exit(1)


def _known_code(text: str) -> type[Check]:
    code = text.strip().upper()
    found = check_of(code)
    if found is None:
        near = difflib.get_close_matches(code, [each.code for each in known()], 3, 0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise click.UsageError(f"there is no code {code}{hint} (pullback codes lists them)")
    return found


def _show_page(check: type[Check], colour: bool) -> None:
    if not colour:
        click.echo(page(check).rstrip("\n"))
        return
    console = Console(force_terminal=True)
    console.print(f"[bold red]{check.code}[/] [bold]{say(check.title)}[/]\n", highlight=False)
    console.print(Markdown(check.page()))
    for label, function in ((say("wrong"), check.bad), (say("right"), check.good)):
        console.print(f"\n[bold]{label}[/]")
        console.print(Syntax(program(function), "python", background_color="default"))


def _announced(text: str) -> list[type[Cause]]:
    """The causes that an error text can have, those first whose words are more of it."""
    plain = _plain(text)
    said = {check: _said(check, plain) for check in checks() if issubclass(check, Cause)}
    most = max(said.values(), key=len)
    # whose words are a part only of what another knows of this text is too general
    found = [check for check, places in said.items() if places and not places < most]
    return sorted(found, key=lambda check: -len(said[check]))


def _said(check: type[Cause], plain: str) -> set[int]:
    """Where in an error text the words of a cause stand; all of it, if it is a piece of them."""
    words = [_plain(each) for each in check.says]
    if len(plain) >= PIECE and any(plain in each for each in words):
        return set(range(len(plain)))
    return {place for each in words if (at := plain.find(each)) >= 0 for place in range(at, at + len(each))}


def _plain(text: str) -> str:
    """Line ends and upper case in a log do not matter."""
    return " ".join(text.lower().split())


def _causes(found: Sequence[type[Check]]) -> list[str]:
    several = len(found) > 1
    lines = [say("This text has {count} known causes, the likeliest first:", count=len(found)), ""] if several else []
    for check in found:
        first = check.page().partition("\n\n")[0].replace("\n", " ")
        lines += [f"{check.code}  {say(check.title)}", *(f"    {line}" for line in wrapped(first, WIDTH))]
        if check.level != "default":
            lines.append("    " + say("Seen with `pullback run --{level}`.", level=check.level))
        lines += ["    " + say("page") + f": pullback explain {check.code}", ""]
    if several:
        how = say("Run the program with `pullback run --trace script.py`: it tells them apart, and names the line.")
    else:
        how = say("`pullback run script.py` names the line.")
    return [*lines, how]
