"""The command ``pullback``."""

from __future__ import annotations

import click

import pullback
from pullback.cli.check import check
from pullback.cli.graph import graph
from pullback.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pullback.__version__, prog_name="pullback")
def main() -> None:
    """Jacobians and backward passes of PyTorch programs: look at them."""


main.add_command(check)
main.add_command(graph)
main.add_command(run)
