"""The command ``pullback``."""

from __future__ import annotations

from typing import Any

import click

import pullback
from pullback.cli.check import check
from pullback.cli.codes import codes
from pullback.cli.explain import explain
from pullback.cli.graph import graph
from pullback.cli.run import Ready, run


class Commands(click.Group):
    """The commands; a program that one of them makes ready runs after click is done."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Read the command line and do as it says."""
        try:
            return super().main(*args, **extra)
        except Ready as ready:
            job = ready.job
        return job.run()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pullback.__version__, prog_name="pullback")
def main() -> None:
    """Jacobians and backward passes of PyTorch programs: look at them, and see why they fail."""


for command in (check, codes, explain, graph, run):
    main.add_command(command)
