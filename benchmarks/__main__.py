"""``python -m benchmarks``: all of them, or those that are named."""

from __future__ import annotations

import click

from benchmarks import backward_overhead, dense, import_time

ALL = {"import_time": import_time.main, "backward_overhead": backward_overhead.main, "dense": dense.main}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)))
def main(names: tuple[str, ...]) -> None:
    """Run the benchmarks named; without a name, all of them."""
    for name in names or ALL:
        ALL[name]()


if __name__ == "__main__":
    main()
