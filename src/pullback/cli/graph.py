"""``pullback graph``: what torch records while a function runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import pullback
from pullback.cli.target import Target, load, parse_input, read_inputs
from pullback.errors import PullbackError
from pullback.graph.graph import Graph


@click.command()
@click.argument("target")
@click.option("--input", "shapes", multiple=True, metavar="SHAPE", help="An input by shape, such as 8,3 or 8:int64.")
@click.option(
    "--inputs",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Inputs from the arrays of an .npz file.",
)
@click.option("--seed", default="ones", show_default=True, help="The seed to replay: ones, mean or a number.")
@click.option("--replay", "show_replay", is_flag=True, help="Print the backward pass, node by node.")
@click.option("--memory", "show_memory", is_flag=True, help="Print what the graph keeps in memory.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page that draws the graph.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write a drawing.")
@click.option("--dot", type=click.Path(path_type=Path), help="Write Graphviz text.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write nodes and edges as JSON.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
def graph(
    target: str,
    shapes: Sequence[str],
    file: Path | None,
    seed: str,
    show_replay: bool,
    show_memory: bool,
    html: Path | None,
    svg: Path | None,
    dot: Path | None,
    json_file: Path | None,
    lang: str,
) -> None:
    """Show the autograd graph of what TARGET returns.

    TARGET is module.py:function or package.module:name. A function is called with the inputs, which require grad; an
    nn.Module (or a class of them, made without arguments) is called with inputs that do not.

    \b
    pullback graph train.py:loss
    pullback graph model.py:Net --input 8,3,32,32 --html graph.html
    """  # noqa: D301
    if shapes and file:
        raise click.UsageError("give inputs by --input or by --inputs, not by both")
    inputs = [parse_input(shape) for shape in shapes] or (read_inputs(file) if file else [])
    made = _made(load(target), inputs)
    weight = _seed(seed)
    asked = any((show_replay, show_memory, html, svg, dot, json_file))
    console = Console()
    try:
        if not asked:
            if console.is_terminal:
                console.print(made)
            else:
                click.echo(made)
        if show_memory:
            click.echo(made.memory())
        if show_replay:
            click.echo(made.replay(weight))
        if html:
            made.html(html, seed=weight, language=lang)
        for path, write in ((svg, made.svg), (dot, made.dot), (json_file, made.to_json)):
            if path:
                path.write_text(write(), encoding="utf-8")
    except PullbackError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
    for path in filter(None, (html, svg, dot, json_file)):
        click.echo(f"wrote {path}")


def _made(target: Target, inputs: Sequence[Any]) -> Graph:
    with pullback.record(packages=(target.module.__name__.partition(".")[0],)):
        output, names = target.call(inputs)
    try:
        return pullback.graph(output, names)
    except PullbackError as error:
        raise click.ClickException(str(error)) from error


def _seed(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
