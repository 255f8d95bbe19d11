"""``pullback codes``: all causes and faults that are known."""

from __future__ import annotations

import json

import click

from pullback.diagnose.pages import known
from pullback.language import say, speak
from pullback.words import columns


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of the text.  [default: the environment's]")
def codes(as_json: bool, lang: str | None) -> None:
    """List the codes of all causes and silent faults."""
    if lang is not None:
        speak(lang)
    rows = known()
    if as_json:
        click.echo(json.dumps([row.told() for row in rows], indent=1, ensure_ascii=False))
        return
    heads = (say("code"), say("level"), say("family"), say("title"))
    table = [heads, *((row.code, row.level, row.family, say(row.title)) for row in rows)]
    click.echo("\n".join(columns(table)))
