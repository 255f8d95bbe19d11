"""What ``pb.autocast_watch()`` costs a training step under autocast, beside the plain step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rich.table import Table
from torch import Tensor, nn

import pullback as pb
from benchmarks.timing import console, in_turns, one_thread

REPEATS, STEPS = 100, 10
BUDGET, QUICK_BUDGET = 3.0, 0.1
PLAIN, EVERY, TENTH = "plain", "every step", "every 10th"
Step = Callable[[], None]


def training(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step under CPU autocast in bfloat16, with a gradient scaler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x).float() - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def mlp(inputs: int, hidden: int, outputs: int, rows: int) -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
    return training(model, torch.randn(rows, inputs), torch.randn(rows, outputs))


def transformer(layers: int = 4, width: int = 64) -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return training(model, torch.randn(4, 16, width), torch.randn(4, 16, width))


PROGRAMS: dict[str, Callable[[], Step]] = {
    "MLP 16-32-32-4, 8 rows": partial(mlp, 16, 32, 4, 8),
    "MLP 256-512-512-10, 128 rows": partial(mlp, 256, 512, 10, 128),
    "transformer, 4 layers of 64": transformer,
}


def run(step: Step, every: int | None) -> None:
    """Some steps, watched or not."""
    if every is None:
        for _ in range(STEPS):
            step()
        return
    with pb.autocast_watch(every=every) as w:
        for _ in range(STEPS):
            step()
    assert not w.trouble


def main(*, quick: bool = False) -> None:
    table = Table(title="A training step inside autocast_watch(), times itself without (minima)", title_justify="left")
    table.add_column("program")
    for header in ("plain, µs", EVERY, TENTH):
        table.add_column(header, justify="right")
    with one_thread():
        for name, make in PROGRAMS.items():
            step = make()
            ways = {PLAIN: partial(run, step, None), EVERY: partial(run, step, 1), TENTH: partial(run, step, 10)}
            in_turns(ways, repeats=2)
            seconds = in_turns(ways, repeats=REPEATS, budget=QUICK_BUDGET if quick else BUDGET)
            least = {way: min(turns) / STEPS for way, turns in seconds.items()}
            ratios = [f"{least[way] / least[PLAIN]:.2f}" for way in (EVERY, TENTH)]
            table.add_row(name, f"{least[PLAIN] * 1e6:.0f}", *ratios)
    console().print(table)


if __name__ == "__main__":
    main()
