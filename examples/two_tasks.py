"""Two tasks on one small network: which digit it is, and whether that is odd. How the losses are weighed decides.

    pip install "pullback[demo,multitask]"
    python examples/two_tasks.py

A trunk of a few units is shared by a head that names the digit and one that tells odd from even, on the 1,797
handwritten digits that scikit-learn ships. The parity's loss comes a hundred times as large, as if measured in another
unit. The network is trained several ways that differ in ``combine=`` and nothing else: same images, first weights,
batches and optimiser. What stands in the table is the mean over several seeds, on images that were not trained on.

Every number is measured when the program runs. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import pullback as pb
from pullback.api.conflicts import conflicts
from pullback.losses.average import DynamicWeightAverage
from pullback.losses.gradnorm import GradNorm
from pullback.losses.uncertainty import Uncertainty

SCALE = 100.0  # how many times too large the parity's loss is
UNITS = 6
EPOCHS, BATCH = 15, 64
RATE, RATE_OF_WEIGHTS = 5e-3, 0.1  # of Adam: for the network, and for weights that are learned
TEST_IMAGES = 360

console = Console(highlight=False)


class Digits(NamedTuple):
    """Images as (batch, 64) with pixels from 0 to 1, and their digits."""

    images: Tensor
    digits: Tensor


class Network(nn.Module):
    """A small trunk, and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, UNITS), nn.Tanh())
        self.digit = nn.Linear(UNITS, 10)
        self.parity = nn.Linear(UNITS, 1)

    def losses(self, batch: Digits, scale: float) -> dict[str, Tensor]:
        """The loss of each task; the parity's ``scale`` times as large."""
        features = self.trunk(batch.images)
        odd = (batch.digits % 2).float()
        return {
            "digit": nn.functional.cross_entropy(self.digit(features), batch.digits),
            "parity": scale * nn.functional.binary_cross_entropy_with_logits(self.parity(features)[:, 0], odd),
        }

    @torch.no_grad()
    def accuracies(self, test: Digits) -> tuple[float, float]:
        """How many percent of the digits and of the parities are right."""
        features = self.trunk(test.images)
        digit = self.digit(features).argmax(1) == test.digits
        parity = (self.parity(features)[:, 0] > 0) == (test.digits % 2).bool()
        return 100 * digit.float().mean().item(), 100 * parity.float().mean().item()


class Way(NamedTuple):
    """A way to train: what it is called, the scale of the parity's loss, and what ``combine=`` is given."""

    name: str
    scale: float
    combine: Callable[[Network], Any]


def ways() -> list[Way]:
    """What is compared; TorchJD's aggregators only if it is installed."""
    found = [
        Way("fixed, 1 : 1, both losses in one unit", 1.0, lambda network: pb.seed.weights(digit=1.0, parity=1.0)),
        Way("fixed, 1 : 1, which is 1 : 100", SCALE, lambda network: pb.seed.weights(digit=1.0, parity=1.0)),
        Way("Uncertainty", SCALE, lambda network: Uncertainty(2)),
        Way("GradNorm", SCALE, lambda network: GradNorm(2, network.trunk[2])),
        Way("DynamicWeightAverage", SCALE, lambda network: DynamicWeightAverage(2)),
    ]
    if all(importlib.util.find_spec(name) for name in ("torchjd", "qpsolvers", "quadprog")):
        from torchjd.aggregation import IMTLG, UPGrad  # noqa: PLC0415  an extra

        found.append(Way("UPGrad, of TorchJD", SCALE, lambda network: UPGrad()))
        found.append(Way("IMTL-G, of TorchJD", SCALE, lambda network: IMTLG()))
    return found


def load(seed: int) -> tuple[Digits, Digits]:
    """The digits, split into 1,437 to learn from and 360 to test on."""
    data = load_digits()
    images, digits = torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target)
    train, test = train_test_split(torch.arange(len(digits)), test_size=TEST_IMAGES, stratify=digits, random_state=seed)
    return Digits(images[train], digits[train]), Digits(images[test], digits[test])


def train(way: Way, seed: int, epochs: int) -> tuple[Network, tuple[float, float], Digits]:
    """A network trained one way, its accuracies, and what it was tested on."""
    learned, test = load(seed)
    torch.manual_seed(seed)
    network = Network()
    combine = way.combine(network)
    groups: list[dict[str, Any]] = [{"params": network.parameters()}]
    if isinstance(combine, nn.Module) and [*combine.parameters()]:
        groups.append({"params": combine.parameters(), "lr": RATE_OF_WEIGHTS})
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for _ in range(epochs):
        for batch in torch.randperm(len(learned.digits)).split(BATCH):
            losses = network.losses(Digits(learned.images[batch], learned.digits[batch]), way.scale)
            optimizer.zero_grad()
            pb.backward(losses, combine=combine)
            optimizer.step()
        if isinstance(combine, DynamicWeightAverage):
            combine.end_epoch()
    return network, network.accuracies(test), test


def compare(seeds: int, epochs: int) -> None:
    """Train every way with every seed, and print the accuracies."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("combine=", no_wrap=True)
    for name in ("digit\nright, %", "parity\nright, %", "seconds"):
        table.add_column(name, justify="right")
    for way in ways():
        began = time.perf_counter()
        found = [train(way, seed, epochs)[1] for seed in range(seeds)]
        digit, parity = (statistics.mean(each) for each in zip(*found, strict=True))
        table.add_row(way.name, f"{digit:.1f}", f"{parity:.1f}", f"{time.perf_counter() - began:.1f}",
                      end_section=way.scale == 1.0)  # fmt: skip
    console.print(table)
    console.print(
        f"Means over {seeds} seeds of {epochs} epochs each, on {TEST_IMAGES} images that were not trained on. "
        f"All but the first row are given the parity's loss {SCALE:g} times as large; a trunk of {UNITS} units has to "
        "serve both tasks. Uncertainty and GradNorm learn the scale, and IMTL-G is free of it by its construction; "
        "DynamicWeightAverage looks at how fast losses fall and UPGrad at conflicts, and neither takes a scale away."
    )


def show_conflicts(epochs: int) -> None:
    """Where the two tasks pull against each other in a network that was trained with the losses as they come."""
    network, _, test = train(ways()[1], 0, epochs)
    console.print("\nThe gradients of the network of the second row:\n")
    console.print(str(conflicts(network.losses(test, SCALE), network)), markup=False, soft_wrap=True)


@click.command()
@click.option("--seeds", default=3, show_default=True, help="How often each way is trained.")
@click.option("--epochs", default=EPOCHS, show_default=True, help="How often each sees every image.")
def main(seeds: int, epochs: int) -> None:
    """Train a small network on two tasks, weighed in several ways."""
    torch.set_num_threads(1)  # such small work gains nothing from more
    compare(seeds, epochs)
    show_conflicts(epochs)


if __name__ == "__main__":
    main()
