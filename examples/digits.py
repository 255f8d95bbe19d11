"""Which pixels move which class? The Jacobian of a small network on handwritten digits.

    make demo                                   # installs what it needs, then runs this file
    python examples/digits.py --help

The program trains a small convolutional network on the 1,797 handwritten digits that scikit-learn ships
(8 x 8 pixels), then differentiates its (360, 10) logits by the (360, 64) pixels of the test images:

1. why ``logits.backward()`` raises, and what a seed is;
2. the same backward with three seeds, each held against ``J.T @ u``;
3. the Jacobian of every test image, (360, 10, 64), in one call, and the plan that was chosen for it;
4. its time beside the ways people write today;
5. which images the network is most and least sensitive to, with a picture of the sensitivity maps.

Every number is measured when the program runs. Nothing is downloaded.
"""

# ruff: noqa: E402  the imports below the signal
from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# The imports take seconds: until they are done, Ctrl-C ends the program without a word.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import click
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import pullback as pb

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
EPOCHS = 40
BATCH = 64
TEST_IMAGES = 360
ROUNDS = 7
SHOWN = 4  # images at each end of the sensitivity scale

console = Console(highlight=False)


# ---------------------------------------------------------------------------------------------------------
# Data and network


class Digits(NamedTuple):
    """Images as (batch, 64) with pixels from 0 to 1, and their classes."""

    train_images: Tensor
    train_classes: Tensor
    images: Tensor
    classes: Tensor


def load(seed: int) -> Digits:
    """The digits that scikit-learn ships, split into 1,437 to learn from and 360 to test on."""
    data = load_digits()
    train, test = train_test_split(
        torch.arange(len(data.target)), test_size=TEST_IMAGES, stratify=data.target, random_state=seed
    )
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    classes = torch.tensor(data.target)
    return Digits(images[train], classes[train], images[test], classes[test])


def network() -> nn.Sequential:
    """Two convolutions and a linear layer: (batch, 64) pixels to (batch, 10) logits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(digits: Digits, seconds: float) -> nn.Sequential:
    """A trained network; the same one for the same seed, unless the time limit ends training early."""
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    began = time.perf_counter()
    bar = (TextColumn("training"), BarColumn(), TextColumn("epoch {task.completed} of {task.total}"))
    with Progress(*bar, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=EPOCHS)
        for epoch in range(1, EPOCHS + 1):
            for batch in torch.randperm(len(digits.train_images)).split(BATCH):
                optimizer.zero_grad()
                logits = net(digits.train_images[batch])
                loss = nn.functional.cross_entropy(logits, digits.train_classes[batch])
                loss.backward()
                optimizer.step()
            progress.update(task, completed=epoch)
            if time.perf_counter() - began > seconds:
                break
    early = "" if epoch == EPOCHS else f" (stopped by --seconds {seconds:g})"
    with torch.no_grad():
        right = (net(digits.images).argmax(1) == digits.classes).float().mean().item()
    console.print(
        f"Trained on {len(digits.train_images):,} images: {epoch} of {EPOCHS} epochs{early}, "
        f"{time.perf_counter() - began:.1f} s.\n"
        f"It names {100 * right:.1f} % of the {len(digits.images)} test images correctly."
    )
    return net.requires_grad_(False).eval()


# ---------------------------------------------------------------------------------------------------------
# 1 and 2: backward passes and seeds


def show_why_backward_raises(net: nn.Sequential, images: Tensor) -> None:
    """``backward()`` on logits raises: they are many numbers, and it does not know how to weigh them."""
    heading("1. Why backward() raises")
    x = images.clone().requires_grad_()
    logits = net(x)
    try:
        logits.backward()
    except RuntimeError as error:
        console.print(f"logits.backward()  ->  [red]RuntimeError[/]: {error}")
    rows, classes = logits.shape
    console.print(
        f"\nlogits holds {rows} x {classes} = {logits.numel():,} numbers, each with its own gradient by x. "
        "backward() adds one tensor to x.grad, so it must be told how to weigh them: "
        "one weight u for each number. These weights are the seed (PyTorch calls them grad_tensors), "
        "and what lands in x.grad is J.T @ u."
    )


def show_seeds(net: nn.Sequential, images: Tensor) -> None:
    """The same backward with three seeds, each held against the product that it is."""
    heading("2. The same backward with a seed")
    J = pb.jacobian(net, images)
    three = NAMES.index("three")
    weights = dict.fromkeys(NAMES, 0.0) | {"three": 1.0, "eight": -1.0}
    code(
        'pb.backward(logits, "ones")',
        f"pb.backward(logits, pb.seed.onehot((..., {three})))",
        "pb.backward(by_name, pb.seed.weights(three=1, eight=-1, zero=0, ...))",
    )
    # Each seed, as pb.backward takes it and written out as the u of J.T @ u: a weight for each class.
    one_class = nn.functional.one_hot(torch.tensor(three), len(NAMES)).float()
    tries: list[tuple[str, str, Callable[[Tensor], None], Tensor]] = [
        (
            "ones",
            "what moves the sum of all logits?",
            lambda y: pb.backward(y, "ones"),
            torch.ones(len(NAMES)),
        ),
        (
            "one class",
            "what makes each image a three?",
            lambda y: pb.backward(y, pb.seed.onehot((..., three))),
            one_class,
        ),
        (
            "weights by name",
            "... a three rather than an eight?",
            lambda y: pb.backward(by_name(y), pb.seed.weights(**weights)),
            torch.tensor(list(weights.values())),
        ),
    ]
    table = columns("seed", "asks", right=("norm of\nx.grad", "x.grad\n- J.T @ u"))
    for name, question, backward, of_classes in tries:
        x = images.clone().requires_grad_()
        backward(net(x))
        assert x.grad is not None
        u = of_classes.expand(J.value.shape)
        table.add_row(name, question, f"{x.grad.norm():.2f}", f"{largest(x.grad - J.T @ u):.1e}")
    console.print(table)
    console.print(
        "by_name is {'zero': logits[:, 0], 'one': ...}. The last column is the largest difference; "
        "one J serves all three."
    )


def by_name(logits: Tensor) -> dict[str, Tensor]:
    """The logits as ten named outputs."""
    return dict(zip(NAMES, logits.unbind(1), strict=True))


# ---------------------------------------------------------------------------------------------------------
# 3 and 4: the Jacobian of every image


def show_jacobian(net: nn.Sequential, images: Tensor) -> Tensor:
    """Every image's own Jacobian, in one call, and how it was done."""
    heading("3. The Jacobian of every test image in one call")
    J = pb.jacobian(net, images)
    blocks = J.blocks()
    code("J = pb.jacobian(net, x)", "J.blocks()")
    console.print(
        f"J has shape {J.shape}, {J.shape[0] * J.shape[1] / 1e6:.0f} million entries that are never built. "
        f"J.blocks() has shape {shape(blocks)}: a (10, 64) matrix for each image, "
        f"{blocks.numel() * blocks.element_size() / 1e6:.1f} MB. The plan:\n"
    )
    console.print(str(J.plan()), markup=False, soft_wrap=True)
    return blocks


def loop(net: nn.Sequential, images: Tensor) -> Tensor:
    """What people write today: row by row, image by image."""
    blocks = []
    for image in images:
        x = image[None].clone().requires_grad_()
        logits = net(x)[0]
        blocks.append(torch.cat([torch.autograd.grad(logit, x, retain_graph=True)[0] for logit in logits]))
    return torch.stack(blocks)


def summed(net: nn.Sequential, images: Tensor) -> Tensor:
    """What experts write: sum over the batch, one pass for each class. Wrong, silently, if the images mix."""
    x = images.clone().requires_grad_()
    logits = net(x)
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in logits.unbind(1)]
    return torch.stack(rows, dim=1)


def functional(net: nn.Sequential, images: Tensor) -> Tensor:
    """What torch.func offers."""
    return torch.func.vmap(torch.func.jacrev(lambda image: net(image[None])[0]))(images)


def show_times(net: nn.Sequential, images: Tensor, blocks: Tensor) -> None:
    """The time of that call beside the ways people write today."""
    heading("4. Its time beside the ways people write today")
    ours = "pb.jacobian(net, x).blocks()"
    measured = clock(
        {
            ours: lambda: pb.jacobian(net, images).blocks(),
            "autograd.grad, row by row": lambda: loop(net, images),
            "autograd.grad of each summed column": lambda: summed(net, images),
            "torch.func.vmap(jacrev)": lambda: functional(net, images),
        }
    )
    table = columns("", right=("time", "beside\nthe first", "largest\ndifference"))
    for name, (seconds, result) in measured.items():
        ratio = seconds / measured[ours][0]
        table.add_row(name, f"{1e3 * seconds:.1f} ms", f"{ratio:.2f} x", f"{largest(result - blocks):.1e}")
    console.print(table)
    console.print(
        f"Medians of up to {ROUNDS} rounds in turn after one that is not counted, one thread. "
        "Differences are from the blocks of step 3. "
        f"The row-by-row loop makes all of its {blocks[:, :, 0].numel():,} backward passes. "
        "The summed columns are right only because images do not mix in this network: "
        "assumed there, checked by J.blocks()."
    )


def clock(ways: dict[str, Callable[[], Tensor]]) -> dict[str, tuple[float, Tensor]]:
    """Each way's median time, and its result; in turns, so that a busy moment of the machine hits them all."""
    results = {name: way() for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            if sum(times[name]) < 2:
                began = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - began)
    return {name: (statistics.median(times[name]), results[name]) for name in ways}


# ---------------------------------------------------------------------------------------------------------
# 5: sensitivity


class Sensitivity(NamedTuple):
    """Each image's singular values, and the unit change of the image that moves its logits most."""

    values: Tensor
    directions: Tensor
    order: Tensor  # images, from the most sensitive to the least


def sensitivity(blocks: Tensor) -> Sensitivity:
    """One batched singular value decomposition of the (10, 64) blocks."""
    _, values, right = torch.linalg.svd(blocks, full_matrices=False)
    return Sensitivity(values, right[:, 0], values[:, 0].argsort(descending=True))


def show_sensitivity(net: nn.Sequential, digits: Digits, found: Sensitivity) -> None:
    """The largest singular values at both ends of the scale."""
    heading("5. What the network is most and least sensitive to")
    table = columns("", "image", "class", "answer", right=("probability", "s1", "s2", "s3"))
    probabilities = net(digits.images).softmax(1)
    for title, end in (("most sensitive", found.order[:SHOWN]), ("least sensitive", found.order[-SHOWN:])):
        for place, image in enumerate(end.tolist()):
            probability, answer = probabilities[image].max(0)
            table.add_row(
                "" if place else title,
                str(image),
                NAMES[digits.classes[image]],
                NAMES[answer],
                f"{100 * probability:.1f} %",
                *(f"{value:.1f}" for value in found.values[image, :3]),
                end_section=place == SHOWN - 1,
            )
    console.print(table)
    top = pb.jacobian(net, digits.images).singular_values(1)[0].item()
    console.print(
        "s1 is how far the logits move, to first order, for a change of the image of length 1 "
        f"in the direction that moves them most. The largest of all images is {found.values.max():.4f}; "
        f"J.singular_values(1), which never builds J, says {top:.4f}."
    )


def draw(net: nn.Sequential, digits: Digits, blocks: Tensor, found: Sensitivity, out: Path) -> None:
    """Save the picture: images, gradients of the answer's logit, directions that move the logits most."""
    answers = net(digits.images).argmax(1)
    gradients = blocks[torch.arange(len(blocks)), answers]
    # A singular vector has no sign of its own: take the one that raises the answer's logit.
    directions = found.directions * (gradients * found.directions).sum(1, keepdim=True).sign()
    shown = torch.cat([found.order[:SHOWN], found.order[-SHOWN:]]).tolist()

    layout = ConstrainedLayoutEngine(wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(13, 5.9), dpi=140, layout=layout)
    figure.suptitle("Which pixels move the network's answer?", fontsize=16, fontweight="bold")
    widths = [1.0] * SHOWN + [0.12] + [1.0] * SHOWN + [0.09]
    grid: Any = figure.subplots(3, len(widths), width_ratios=widths)
    for cell in (grid[0][-1], *grid[:, SHOWN]):
        cell.set_axis_off()
    places = [*range(SHOWN), *range(SHOWN + 1, 2 * SHOWN + 1)]
    for column, image in zip(places, shown, strict=True):
        name, answer = NAMES[digits.classes[image]], NAMES[answers[image]]
        told = name if name == answer else f"{name}, read as {answer}"
        grid[0][column].set_title(f"\n{told}\n$\\sigma_1$ = {found.values[image, 0]:.1f}", fontsize=11)
        picture(grid[0][column], digits.images[image], "gray_r", (0, 1))
        for row, maps in ((1, gradients), (2, directions)):
            limit = largest(maps[shown])
            drawn = picture(grid[row][column], maps[image], "PuOr_r", (-limit, limit))
            outline(grid[row][column], digits.images[image])
            if image == shown[-1]:
                figure.colorbar(drawn, cax=grid[row][-1])
    labels = ("image", "gradient of\nthe answer's logit", "unit change that\nmoves the logits most")
    for row, label in enumerate(labels):
        grid[row][0].set_ylabel(label, fontsize=11)
    for column, title in ((0, "most sensitive"), (SHOWN + 1, "least sensitive")):
        place = {"xy": (0, 1.36), "xycoords": "axes fraction", "fontsize": 13, "fontweight": "bold"}
        grid[0][column].annotate(title, **place).set_in_layout(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.supxlabel(
        "Middle row: more ink raises (orange) or lowers (purple) the answer's logit. "
        "Bottom row: more ink (orange), less ink (purple). The line is the digit.",
        fontsize=11,
    )
    figure.savefig(out)


def outline(axes: Axes, pixels: Tensor) -> None:
    """Draw where the digit is, over a map."""
    framed = nn.functional.pad(pixels.reshape(8, 8), (1, 1, 1, 1))
    axes.contour(range(-1, 9), range(-1, 9), framed, levels=[0.5], colors="black", linewidths=0.9, alpha=0.6)
    axes.set(xlim=(-0.5, 7.5), ylim=(7.5, -0.5))


def picture(axes: Axes, pixels: Tensor, colors: str, limits: tuple[float, float]) -> AxesImage:
    """Draw 64 pixels as an 8 x 8 picture without ticks."""
    axes.set(xticks=[], yticks=[])
    return axes.imshow(pixels.reshape(8, 8), cmap=colors, vmin=limits[0], vmax=limits[1])


# ---------------------------------------------------------------------------------------------------------
# Small things


def code(*lines: str) -> None:
    """Lines of code, indented."""
    console.print(*(f"  {line}" for line in lines), sep="\n", style="cyan", markup=False)


def heading(text: str) -> None:
    """A blank line and a rule with a title."""
    console.print()
    console.rule(f"[bold]{text}", align="left")


def columns(*left: str, right: tuple[str, ...]) -> Table:
    """An empty table: columns of words, then columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def shape(tensor: Tensor) -> str:
    """The shape as Python writes it."""
    return str(tuple(tensor.shape))


def largest(tensor: Tensor) -> float:
    """The largest absolute value."""
    return tensor.abs().max().item()


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="Stop training after this time, finished or not.")
@click.option(
    "--out",
    default="out/digits.png",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to save the picture.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the split, the first weights and the batches.")
def main(seconds: float, out: Path, seed: int) -> None:
    """Train a small network on handwritten digits and look at its Jacobian."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # such small work gains nothing from more, and loses much on a busy machine
    torch.manual_seed(seed)
    digits = load(seed)
    net = train(digits, seconds)
    show_why_backward_raises(net, digits.images)
    show_seeds(net, digits.images)
    blocks = show_jacobian(net, digits.images)
    show_times(net, digits.images, blocks)
    found = sensitivity(blocks)
    show_sensitivity(net, digits, found)
    draw(net, digits, blocks, found, out)
    console.print(f"\nThe sensitivity maps are saved in {out}")


if __name__ == "__main__":
    main()
