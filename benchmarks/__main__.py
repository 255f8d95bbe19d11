"""``python -m benchmarks``: all of them, or those that are named."""

from __future__ import annotations

import click

from benchmarks import backward_overhead, dense, import_time, sparse

ALL = {
    "import_time": import_time.main,
    "backward_overhead": backward_overhead.main,
    "dense": dense.main,
    "sparse": sparse.main,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)))
@click.option("--quick", is_flag=True, help="Small sizes, for sparse.")
def main(names: tuple[str, ...], *, quick: bool) -> None:
    """Run the benchmarks named; without a name, all of them."""
    for name in names or ALL:
        ALL[name](quick=quick) if name == "sparse" else ALL[name]()


if __name__ == "__main__":
    main()
