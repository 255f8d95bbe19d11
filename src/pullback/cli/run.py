"""``pullback run``: a program runs as it would, and says why its backward failed."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import click

from pullback.diagnose.program import run_script


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--level", type=click.Choice(["default", "trace", "audit", "strict"]), default="default")
@click.option("--trace", "level", flag_value="trace")
@click.option("--audit", "level", flag_value="audit")
@click.option("--strict", "level", flag_value="strict")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(level: str, json_file: Path | None, script: str, arguments: tuple[str, ...]) -> None:
    """Run a program; when autograd fails, say why."""
    ended = run_script(script, arguments, level)  # type: ignore[arg-type]
    if json_file is not None:
        json_file.write_text(json.dumps(ended.report.told(), indent=1, ensure_ascii=False), encoding="utf-8")
    if ended.error is not None:
        if isinstance(ended.error, SystemExit):
            raise ended.error
        traceback.print_exception(ended.error)
    for each in (*ended.report.diagnoses, *ended.report.findings):
        click.echo(f"{each.code} {each.confidence}: {each.title}\n  {each.cause}", err=True)
        for mark in each.marks:
            click.echo(f"  {mark.place} {mark.span} {mark.what}\n    {mark.text.strip()}", err=True)
        click.echo(f"  fix ({each.fix.confidence}): {each.fix.text}\n    {each.fix.code}", err=True)
        for line in each.useless:
            click.echo(f"  does not help: {line}", err=True)
    for line in ended.report.trouble:
        click.echo(f"trouble: {line}", err=True)
    if ended.error is not None:
        sys.exit(1)
