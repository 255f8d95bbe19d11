"""What ``pb.record()`` costs a program, beside PyTorch's anomaly mode, which notes where nodes are made too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import console, in_turns, one_thread, verdict
from pullback.graph.recording.record import record

TARGET = 1.5  # times the small step without
REPEATS, STEPS = 200, 10
BUDGET, QUICK_BUDGET = 3.0, 0.1
SMALL = "MLP 16-32-32-4, 8 rows"
PLAIN, EACH, AROUND, ANOMALY, CHECKED = "plain", "each step", "around", "anomaly", "anomaly, NaN"
Step = Callable[[], None]


class MLP(nn.Module):
    """A network of two hidden layers, written line by line."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = torch.relu(self.second(h))
        return self.third(h)


def training(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step of training: forward, loss, backward, and the optimizer's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        out = model(x)
        loss = ((out - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def mlp(inputs: int, hidden: int, outputs: int, rows: int) -> Step:
    torch.manual_seed(0)
    return training(MLP(inputs, hidden, outputs), torch.randn(rows, inputs), torch.randn(rows, outputs))


def transformer(layers: int = 4, width: int = 64) -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return training(model, torch.randn(4, 16, width), torch.randn(4, 16, width))


def lines(count: int = 60, size: int = 16) -> Step:
    """Lines of one small operation each, as a script has them."""
    body = "".join("    x = x * 1.01\n" if i % 2 else "    x = x.sin()\n" for i in range(count))
    names: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(f"def f(x):\n{body}    return x.sum()\n", names)
    x = torch.linspace(0, 1, size, requires_grad=True)
    return lambda: names["f"](x).backward()


PROGRAMS: dict[str, Callable[[], Step]] = {
    SMALL: partial(mlp, 16, 32, 4, 8),
    "MLP 256-512-512-10, 128 rows": partial(mlp, 256, 512, 10, 128),
    "transformer, 4 layers of 64": transformer,
    "60 elementwise lines": lines,
}


def plain(step: Step) -> None:
    for _ in range(STEPS):
        step()


def around(context: Callable[[], AbstractContextManager[object]], step: Step) -> None:
    with context():
        for _ in range(STEPS):
            step()


def each(context: Callable[[], AbstractContextManager[object]], step: Step) -> None:
    for _ in range(STEPS):
        with context():
            step()


def contestants(step: Step) -> dict[str, Step]:
    """The ways to run some steps of a program."""
    return {
        PLAIN: partial(plain, step),
        AROUND: partial(around, record, step),
        EACH: partial(each, record, step),
        ANOMALY: partial(around, partial(torch.autograd.detect_anomaly, check_nan=False), step),
        CHECKED: partial(around, torch.autograd.detect_anomaly, step),
    }


def main(*, quick: bool = False) -> None:
    table = Table(title="A program inside record(), times itself without (minima)", title_justify="left")
    table.add_column("program")
    for header in ("plain, µs", "record() around", "record() each step", ANOMALY, CHECKED, f"target {TARGET}"):
        table.add_column(header, justify="right")
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        for name, make in PROGRAMS.items():
            ways = contestants(make())
            in_turns(ways, repeats=2)
            seconds = in_turns(ways, repeats=REPEATS, budget=QUICK_BUDGET if quick else BUDGET)
            least = {way: min(turns) / STEPS for way, turns in seconds.items()}
            ratios = {way: least[way] / least[PLAIN] for way in least}
            target = verdict(ratios[AROUND] <= TARGET) if name == SMALL else ""
            numbers = [f"{ratios[way]:.2f}" for way in (AROUND, EACH, ANOMALY, CHECKED)]
            table.add_row(name, f"{least[PLAIN] * 1e6:.0f}", *numbers, target)
    console().print(table)


if __name__ == "__main__":
    main()
