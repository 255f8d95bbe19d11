"""One backward pass for several losses, combined by UPGrad: side by side with TorchJD's own engine, and a plain sum.

Everyone is given the losses of one forward pass, which is not timed, and has to leave the same gradients in ``.grad``:
UPGrad's in the shared trunk, each loss's own in its head. Memory is what the backward pass takes beyond what was there.

    python -m benchmarks.losses
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import pullback as pb
from benchmarks.measure import greatest_error, nothing_to_collect, peak
from benchmarks.report import milliseconds
from benchmarks.targets import Entry, Target, ratio, way
from benchmarks.timing import console, one_thread, turns

OURS, PLAIN = "pullback", "plain backward of the sum"
WHOLE, GRAM, SINGLE = "torchjd", "torchjd, Gramian", "torchjd, Gramian, one by one"
REPEATS, BUDGET, QUICK_BUDGET = 100, 3.0, 0.1
TOLERANCE = 1e-4
INSTALLED = all(importlib.util.find_spec(name) for name in ("torchjd", "qpsolvers", "quadprog"))


@dataclass(frozen=True)
class Network:
    """A trunk that tasks share, and a head for each.

    Attributes:
        key: Its short name.
        title: What a table calls it.
        trunk: The trunk.
        heads: The heads.
        x: The batch.
    """

    key: str
    title: str
    trunk: nn.Module
    heads: nn.ModuleList
    x: Tensor

    def losses(self) -> tuple[Tensor, list[Tensor]]:
        """The features and the losses of one forward pass."""
        features = self.trunk(self.x)
        return features, [(head(features) - scale).square().mean() for scale, head in enumerate(self.heads, 1)]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.trunk.parameters(), *self.heads.parameters()]

    def gradients(self) -> Tensor:
        """All gradients, end to end."""
        return torch.cat([each.grad.flatten() for each in self.parameters if each.grad is not None])

    def clear(self) -> None:
        for each in self.parameters:
            each.grad = None


def mlp(key: str, title: str, width: int, depth: int, batch: int, tasks: int) -> Network:
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return Network(key, title, nn.Sequential(*layers), _heads(width, tasks), torch.randn(batch, 64))


def convolutions(tasks: int = 3) -> Network:
    trunk = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    return Network("losses-cnn", "CNN, 3 tasks", trunk, _heads(64, tasks), torch.randn(32, 3, 32, 32))


def transformer(layers: int = 4, width: int = 64, tasks: int = 2) -> Network:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
    trunk = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return Network("losses-transformer", "transformer, 2 tasks", trunk, _heads(width, tasks), torch.randn(8, 16, width))


def _heads(width: int, tasks: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, 5) for _ in range(tasks))


NETWORKS: dict[str, Callable[[], Network]] = {
    "losses-small": partial(mlp, "losses-small", "MLP 64-64-64, 2 tasks", 64, 2, 64, 2),
    "losses-mlp": partial(mlp, "losses-mlp", "MLP 64-512-512-512, 2 tasks", 512, 3, 128, 2),
    "losses-wide": partial(mlp, "losses-wide", "MLP 64-1024-1024-1024, batch of 16, 4 tasks", 1024, 3, 16, 4),
    "losses-many": partial(mlp, "losses-many", "MLP 64-256-256-256, 8 tasks", 256, 3, 128, 8),
    "losses-deep": partial(mlp, "losses-deep", "MLP of 20 layers of 32, 4 tasks", 32, 20, 32, 4),
    "losses-cnn": convolutions,
    "losses-transformer": transformer,
}
KEYS = tuple(NETWORKS)
Descend = Callable[[Network, Tensor, list[Tensor]], Any]


def contestants() -> dict[str, Descend]:
    """Who finds the gradients, by name; the plain sum finds others, and is there for its time."""
    from torchjd.aggregation import UPGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    upgrad = UPGrad()

    def ours(network: Network, features: Tensor, losses: list[Tensor]) -> None:
        pb.backward(losses, combine=upgrad)

    def torchjd(network: Network, features: Tensor, losses: list[Tensor], *, gram: bool, chunk: int | None) -> None:
        mtl_backward(losses, features=features, parallel_chunk_size=chunk)
        jac_to_grad(network.trunk.parameters(), upgrad, optimize_gramian_computation=gram)

    def plain(network: Network, features: Tensor, losses: list[Tensor]) -> None:
        torch.autograd.backward(losses)

    return {
        OURS: ours,
        WHOLE: partial(torchjd, gram=False, chunk=None),
        GRAM: partial(torchjd, gram=True, chunk=None),
        SINGLE: partial(torchjd, gram=True, chunk=1),
        PLAIN: plain,
    }


def once(network: Network, descend: Descend) -> float:
    """The seconds of one backward pass, from no gradients and a new graph."""
    network.clear()
    features, losses = network.losses()
    began = time.perf_counter()
    descend(network, features, losses)
    return time.perf_counter() - began


def run(key: str, record: list[Entry], *, quick: bool = False) -> None:
    """Measure one network, and put what is found into the record."""
    torch.manual_seed(0)
    network = NETWORKS[key]()
    everyone = contestants()
    once(network, everyone[WHOLE])
    expected = network.gradients().double()[None]
    entry: Entry = {"key": key, "title": network.title, "ways": []}
    record.append(entry)
    for name, descend in everyone.items():
        once(network, descend)
        error = greatest_error(network.gradients()[None], expected)
        kind = {OURS: "ours", PLAIN: "floor"}.get(name, "peer")
        right = name == PLAIN or error <= TOLERANCE
        entry["ways"].append({"name": name, "kind": kind, "status": "right" if right else "wrong", "error": error})
    with nothing_to_collect():
        for each in entry["ways"]:
            network.clear()
            features, losses = network.losses()
            each["bytes"], _ = peak(partial(everyone[each["name"]], network, features, losses))
            del features, losses
    timed = {name: partial(once, network, descend) for name, descend in everyone.items()}
    seconds = turns(timed, repeats=REPEATS, budget=QUICK_BUDGET if quick else BUDGET)
    for each in entry["ways"]:
        found = seconds[each["name"]] if each["status"] == "right" else []
        each |= {"min": min(found, default=None), "turns": len(found),
                 "median": statistics.median(found) if found else None}  # fmt: skip


def targets(record: list[Entry]) -> Iterator[Target]:
    """On every network as fast as TorchJD's fastest way, and in no more memory than its leanest."""
    for entry in record:
        ours = way(entry, OURS)
        peers = [each for each in entry["ways"] if each["kind"] == "peer" and each["min"]]
        fastest = min(peers, key=lambda each: float(each["min"]), default=None)
        yield Target(f"{entry['title']}: torchjd's fastest / ours", 1.0, ratio(fastest, ours))
        least = min((each["bytes"] for each in peers), default=None)
        share = ours["bytes"] / least if ours and least else None
        yield Target(f"{entry['title']}: memory, ours / torchjd's least", 1.0, share, at_least=False)


def table(record: list[Entry]) -> Table:
    """Milliseconds and megabytes of each network."""
    title = "A backward pass for several losses: milliseconds (least of many turns), megabytes at its peak"
    found = Table(title=title, title_justify="left")
    found.add_column("network")
    for name in (OURS, WHOLE, GRAM, SINGLE, PLAIN):
        found.add_column(name, justify="right")
    for entry in record:
        by_name = {each["name"]: each for each in entry["ways"]}
        found.add_row(entry["title"], *(_cell(by_name[name]) for name in (OURS, WHOLE, GRAM, SINGLE, PLAIN)))
    return found


def _cell(each: dict[str, Any]) -> str:
    if each["status"] != "right":
        return f"[red]{each['status']}[/]"
    return f"{milliseconds(each['min'])} ms\n{each['bytes'] / 1e6:,.2f} MB"


def main(*, quick: bool = False) -> None:
    """Measure all of them, and print what was found."""
    record: list[Entry] = []
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # TorchJD's batched attention
        for key in KEYS:
            run(key, record, quick=quick)
    console().print(table(record))
    for target in targets(record):
        console().print(target.what, f"{target.measured:.2f}", "ok" if target.met else "missed", highlight=False)


if __name__ == "__main__":
    main()
