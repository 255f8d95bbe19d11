"""``python -m benchmarks``: all of them in one run, or those that are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import (
    backward_overhead,
    chart,
    check,
    dense,
    dense_peers,
    diagnose_cost,
    graph_models,
    graphs,
    import_time,
    losses,
    memory,
    precision_cost,
    record_cost,
    report,
    sparse,
    sparse_dense,
    sparse_tables,
    targets,
)
from benchmarks.dense_problems import PROBLEMS
from benchmarks.jax_peer import Peer
from benchmarks.problems import small_suite, suite
from benchmarks.timing import console, one_thread

ROOT = Path(__file__).parents[1]
FULL, OTHER = Path(__file__).with_name("results.json"), ROOT / "out" / "benchmarks.json"
CHART = ROOT / "docs" / "benchmarks.png"
SPARSE = tuple(problem.key for problem in suite(quick=True))
PARTS = (
    "import_time",
    "backward_overhead",
    "record_cost",
    "diagnose_cost",
    "precision_cost",
    "dense",
    "sparse",
    "graphs",
    "losses",
    "memory",
)
OVERHEAD = {
    "import_time": import_time.main,
    "backward_overhead": backward_overhead.main,
    "record_cost": record_cost.main,
    "diagnose_cost": diagnose_cost.main,
    "check": check.main,
    "precision_cost": precision_cost.main,
}


class Run:
    """One run: what was asked for, what was found, and where it is said.

    Args:
        only: The names that were asked for; none for all.
        quick: Whether the sizes are small.
        screen: Where tables are printed.
    """

    def __init__(self, only: tuple[str, ...], screen: Console, *, quick: bool) -> None:
        self.only = set(only) | ({*dense.keys()} if "dense" in only else set())
        self.only |= {*SPARSE, "waist"} if "sparse" in only else set()
        self.only |= {*graph_models.KEYS} if "graphs" in only else set()
        self.only |= {*losses.KEYS} if "losses" in only else set()
        self.quick = quick
        self.screen = screen
        self.peer, said = Peer.find()
        screen.print(said, report.missing(), sep="\n", highlight=False)
        self.targets: list[targets.Target] = []
        self.record: dict[str, Any] = {"about": report.about(self.peer, quick=quick), "dense": [], "sparse": []}
        self.record |= {"graphs": [], "losses": []}

    def wants(self, *names: str) -> bool:
        """Whether one of these is to be run."""
        return not self.only or bool(self.only & set(names))

    def all(self) -> None:
        """Run what was asked for."""
        for name, main in OVERHEAD.items():
            if self.wants(name):
                main(quick=self.quick)
        dense_peers.import_all()
        with one_thread(), self._saying() as say:
            self._dense(say)
            self._sparse(say)
            self._graphs(say)
            self._losses(say)
            self._memory(say)
        self.record["about"]["complete"] = True

    def finish(self) -> None:
        """Print the targets, and put them into the record."""
        if self.peer is not None:
            self.peer.close()
        found = [*targets.dense(self.record["dense"]), *self.targets]
        self.record["targets"] = [target.told() for target in found]
        failed = report.failures(self.record["dense"] + self.record["sparse"])
        if failed is not None:
            self.screen.print(failed)
        if found:
            self.screen.print(report.summary(found, quick=self.quick))

    def _dense(self, say: Callable[[str], None]) -> None:
        record = self.record["dense"]
        for problem in PROBLEMS:
            if self.wants(problem.key):
                for dtype in dense.DTYPES[: 1 if self.quick else None]:
                    dense.run(problem, dtype, self.peer, record, quick=self.quick, say=say)
                self.screen.print(report.table_of([each for each in record if each["key"] == problem.key]))

    def _sparse(self, say: Callable[[str], None]) -> None:
        record, found = self.record["sparse"], []
        if self.wants(*SPARSE):
            say("warming up")
            self.screen.print(sparse_tables.warm_up(self.peer, quick=self.quick), highlight=False)
            self.screen.print(sparse_tables.check_small([each for each in small_suite() if self.wants(each.key)]))
        for problem in suite(quick=self.quick):
            if self.wants(problem.key):
                say(str(problem))
                found.append(sparse.measure(problem, self.peer, quick=self.quick))
                record.append(found[-1].told())
                self.screen.print(report.table_of(record[-1:], sparse.PREPARED))
                self.targets += sparse_tables.targets_of(found[-1])
        if found:
            self.screen.print(sparse_tables.detection_table(found), sparse_tables.first_table(found), sep="\n")
            table, more = sparse_tables.coloring_table(found, quick=self.quick)
            self.screen.print(table)
            self.targets += more
        for waist in sparse_dense.suite(quick=self.quick):
            if self.wants("waist"):
                sparse_dense.run(waist, record, quick=self.quick, say=say)
                self.screen.print(report.table_of(record[-1:], sparse.PREPARED))
                self.targets.append(sparse_dense.target(record[-1]))

    def _graphs(self, say: Callable[[str], None]) -> None:
        if not self.wants(*graph_models.KEYS):
            return
        record = self.record["graphs"]
        for drawn in graph_models.suite(quick=self.quick):
            if self.wants(drawn.key):
                say(f"drawing the graph of the {drawn.title}")
                graphs.run(drawn, record, quick=self.quick)
        self.screen.print(*graphs.tables(record), sep="\n")
        self.targets += graphs.targets(record)

    def _losses(self, say: Callable[[str], None]) -> None:
        wanted = [key for key in losses.KEYS if self.wants(key)]
        if not wanted or not losses.INSTALLED:
            return
        record = self.record["losses"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # TorchJD's batched attention
            for key in wanted:
                say(f"combining the losses of {key}")
                losses.run(key, record, quick=self.quick)
        self.screen.print(losses.table(record))
        self.targets += losses.targets(record)

    def _memory(self, say: Callable[[str], None]) -> None:
        """Peak memory under a limit, each case in processes of its own; that takes minutes."""
        if "memory" in self.only or not (self.only or self.quick):
            say("peak memory under a limit")
            self.record["memory"] = memory.rows()
            self.screen.print(memory.table(self.record["memory"]))

    @contextmanager
    def _saying(self) -> Iterator[Callable[[str], None]]:
        """What says on a terminal what is being measured, and nothing elsewhere."""
        if not self.screen.is_terminal:
            yield lambda text: None
            return
        with self.screen.status("") as status:
            yield lambda text: status.update(text, spinner="dots")


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, few turns, float32, nothing compiled: a minute.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*PARTS, *dense.keys(), *SPARSE, "waist", *graph_models.KEYS, *losses.KEYS]),
    help="A part, or one problem of it; may be repeated.",
)
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures are written, and the chart beside it. A full run that ends: benchmarks/results.json and "
    "docs/benchmarks.png, else out/.",
)
def main(only: tuple[str, ...], path: Path | None, *, quick: bool) -> None:
    """Measure Pullback and every installed peer in one run, on one thread.

    JAX and asdex take part from an interpreter of their own, which PULLBACK_JAX_PYTHON names.
    """
    run = Run(only, console(), quick=quick)
    try:
        run.all()
    except KeyboardInterrupt:
        run.screen.print("\nInterrupted: what was measured so far is kept.", style="yellow")
    run.finish()
    done = run.record["about"]["complete"]
    full = done and not quick and not only
    path = path or (FULL if full else OTHER)
    report.write(run.record, path)
    drawn = CHART if path == FULL else path.with_suffix(".png")
    said = f"written to {path}" + (f" and {drawn}" if chart.draw(run.record, drawn) else "")
    run.screen.print(said, highlight=False, soft_wrap=True)
    if path == FULL:
        run.screen.print("python -m benchmarks.readme puts these figures into the READMEs.", highlight=False)
    raise SystemExit(0 if done else 130)


if __name__ == "__main__":
    main()
