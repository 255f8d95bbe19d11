"""``pullback check``: whether the derivatives of a function, a Function or a module are right."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from pullback.check.door import check as check_function
from pullback.check.report import Report
from pullback.cli.target import load, parse_input, read_inputs
from pullback.errors import PullbackError

# What each argument of a custom Function is tried with where no shape is given.
PLAUSIBLE: tuple[tuple[int, ...], ...] = ((3, 4), (4, 4), (4,), ())


@click.command()
@click.argument("target")
@click.option("--input", "shapes", multiple=True, metavar="SHAPE", help="An input by shape, such as 8,3 or 8:int64.")
@click.option("--inputs", "file", type=click.Path(path_type=Path), help="Inputs from the arrays of an .npz file.")
@click.option("--order", type=click.IntRange(1, 2), default=1, show_default=True, help="2: second derivatives too.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs and directions.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report as JSON.")
def check(target: str, shapes: Sequence[str], file: Path | None, order: int, seed: int, json_file: Path | None) -> None:
    """Check the derivatives of TARGET against finite differences, and forward mode against reverse mode.

    TARGET is module.py:name or package.module:name of a function, of an nn.Module (or a class of them, made without
    arguments), or of a torch.autograd.Function. Inputs are random numbers of the shapes given; those of a Function
    are tried out where none is given. The exit code is 1 if a derivative is wrong.

    \b
    pullback check ops.py:MySigmoid
    pullback check model.py:Net --input 8,3 --order 2
    """  # noqa: D301
    torch.manual_seed(seed)
    thing = load(target).thing
    if inspect.isclass(thing) and issubclass(thing, nn.Module):
        thing = thing()
    if not callable(thing):
        raise click.BadParameter(f"{target} is {type(thing).__name__}, which cannot be called")
    inputs = [parse_input(shape) for shape in shapes] or (read_inputs(file) if file else _generated(thing))
    _check_count(thing, target, inputs)
    try:
        report = check_function(thing, *inputs, order=order, seed=seed)
    except PullbackError as error:
        raise click.ClickException(str(error)) from error
    _say(report, json_file)
    raise SystemExit(0 if report else 1)


def _say(report: Report, json_file: Path | None) -> None:
    click.echo(report)
    if json_file is None:
        return
    try:
        json_file.write_text(json.dumps(report.told(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write: {error}") from error
    click.echo(f"wrote {json_file}")


def _generated(thing: Any) -> list[Tensor]:
    """Inputs for a function that takes some: tensors of one shape, tried out until it takes them."""
    count = _required(thing)
    if not count:
        return []
    call = thing.apply if _is_function(thing) else thing
    for shape in PLAUSIBLE:
        inputs = [torch.randn(shape) for _ in range(count)]
        try:
            call(*(each.clone() for each in inputs))
        except Exception:  # whatever a function raises at a shape that it does not take
            continue
        return inputs
    tried = ", ".join(map(str, PLAUSIBLE))
    raise click.UsageError(
        f"{count} inputs are needed and none is given; random tensors of the shapes {tried} do not fit. "
        "Give one --input SHAPE for each, such as --input 8,3"
    )


def _required(thing: Any) -> int:
    """How many arguments must be given."""
    parameters = _parameters(thing)
    given = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return sum(each.kind in given and each.default is inspect.Parameter.empty for each in parameters)


def _parameters(thing: Any) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(_called(thing)).parameters.values())
    except (TypeError, ValueError):
        return []
    # forward(ctx, x, y), unless the context is set up apart
    apart = _is_function(thing) and thing.setup_context is not torch.autograd.Function.setup_context
    return parameters[1:] if _is_function(thing) and not apart else parameters


def _called(thing: Any) -> Callable[..., Any]:
    called: Callable[..., Any] = thing.forward if isinstance(thing, nn.Module) or _is_function(thing) else thing
    return called


def _is_function(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, torch.autograd.Function)


def _check_count(thing: Any, target: str, inputs: Sequence[Tensor]) -> None:
    parameters = _parameters(thing)
    if parameters:
        try:
            inspect.Signature(parameters).bind(*inputs)
        except TypeError as error:
            raise click.UsageError(
                f"{target} cannot be called with {len(inputs)} inputs: {error}. Give one --input SHAPE for each"
            ) from error
