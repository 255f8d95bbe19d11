"""Every entry of Jacobians with a narrow waist, against torch.func and by hand. float32, one thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacfwd, jacrev

import pullback as pb
from benchmarks.dense_ours import CALLED, COMPILED, PREPARED
from benchmarks.dense_peers import Make, ready
from benchmarks.dense_problems import rows
from benchmarks.measure import Contestant, Here, Result, measure
from benchmarks.targets import Entry, Target, best, ratio, way

SIZE, WAIST = 1000, 8
NEEDED = 20.0


@dataclass(frozen=True)
class Autoencoder:
    """A network with a waist.

    Attributes:
        size: The number of inputs, and of outputs.
        width: The size of the layers before and after the waist.
    """

    size: int
    width: int

    @property
    def key(self) -> str:
        return f"waist-{self.width}"

    @property
    def title(self) -> str:
        return f"autoencoder {'-'.join(map(str, self.sizes))}, every entry"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.size, self.width, WAIST, self.width, self.size

    def network(self) -> nn.Sequential:
        """The network, with the same numbers every time."""
        torch.manual_seed(0)
        layers = [layer for size, after in pairwise(self.sizes) for layer in (nn.Linear(size, after), nn.Tanh())]
        return nn.Sequential(*layers[:-1]).requires_grad_(False)


def suite(*, quick: bool) -> list[Autoencoder]:
    return [Autoencoder(200, 32)] if quick else [Autoencoder(SIZE, width) for width in (64, 256, 1000)]


def contestants(problem: Autoencoder, x: Tensor, *, quick: bool) -> list[Contestant]:
    """The ways to every entry, and the product of two factors, which none can do without."""
    net = problem.network()
    encoder, decoder = net[:3], net[3:]

    def prepare(*, compile: bool) -> Callable[[], Any]:
        prepared = pb.prepare(net, x, compile=compile)
        return lambda: prepared(x).dense()

    ours: dict[str, Make] = {
        CALLED: ready(lambda: pb.jacobian(net, x).dense()),
        PREPARED: lambda: prepare(compile=False),
    }
    if not quick:
        ours[COMPILED] = lambda: prepare(compile=True)
    return [
        *(Here(name, "ours", make) for name, make in ours.items()),
        Here("func.jacrev", "peer", ready(lambda: jacrev(net)(x))),
        Here("func.jacfwd", "peer", ready(lambda: jacfwd(net)(x))),
        Here("by hand: jacfwd(decoder) @ jacrev(encoder)", "hand",
             ready(lambda: jacfwd(decoder)(encoder(x)) @ jacrev(encoder)(x))),
    ]  # fmt: skip


def run(problem: Autoencoder, record: list[Entry], *, quick: bool, say: Callable[[str], None]) -> None:
    """Measure one, and put what is found into the record, also where it is cut short."""
    torch.manual_seed(1)
    x = torch.randn(problem.size)
    at = x.double().requires_grad_()
    expected = rows(problem.network().double()(at), [at])
    results: list[Result] = []
    entry: Entry = {
        "key": problem.key,
        "title": problem.title,
        "dtype": "float32",
        "shape": [problem.size] * 2,
        "plan": "",
    }
    record.append(entry)
    try:
        everyone = contestants(problem, x, quick=quick)
        measure(everyone, expected, torch.float32, results, budget=0.1 if quick else 0.8, say=say)
    finally:
        entry["ways"] = [result.told() for result in results]


def target(entry: Entry) -> Target:
    """What the structure must bring."""
    found = ratio(best(entry, "peer"), way(entry, COMPILED))
    return Target(f"{entry['title']}: best of jacrev, jacfwd / compiled", NEEDED, found)
