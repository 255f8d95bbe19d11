"""The numbers of the dense problems: the same for PyTorch and for JAX, and in every run. Only NumPy is needed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = dict[str, NDArray[Any]]


def _layers(rng: np.random.Generator, sizes: tuple[int, ...]) -> Numbers:
    """Weights and biases of linear layers."""
    numbers = {}
    for k, (before, after) in enumerate(pairwise(sizes)):
        numbers[f"w{k}"] = rng.normal(size=(after, before)) / np.sqrt(before)
        numbers[f"b{k}"] = 0.1 * rng.normal(size=after)
    return numbers


def small(n: int) -> Numbers:
    return {"x": np.random.default_rng(0).normal(size=n)}


def mlp(*sizes: int) -> Numbers:
    """One input of a network, and its layers."""
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=sizes[0]), **_layers(rng, sizes)}


def batch(examples: int, *sizes: int) -> Numbers:
    """A batch of inputs of a network, and its layers."""
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(examples, sizes[0])), **_layers(rng, sizes)}


def cnn(side: int, first: int, second: int) -> Numbers:
    """An image, two convolutions 3 x 3 of so many channels, each halved by pooling, and a layer of ten outputs."""
    rng = np.random.default_rng(0)
    features = second * (side // 4) ** 2
    return {
        "x": rng.normal(size=(1, 3, side, side)),
        "c0": rng.normal(size=(first, 3, 3, 3)) / np.sqrt(27),
        "d0": 0.1 * rng.normal(size=first),
        "c1": rng.normal(size=(second, first, 3, 3)) / np.sqrt(9 * first),
        "d1": 0.1 * rng.normal(size=second),
        "w": rng.normal(size=(10, features)) / np.sqrt(features),
        "b": 0.1 * rng.normal(size=10),
    }


def transformer(tokens: int, width: int, heads: int, hidden: int) -> Numbers:
    """Tokens, and the layers of one block: attention and a network of one hidden layer, each after a normalisation."""
    rng = np.random.default_rng(0)
    shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (hidden, width), "down": (width, hidden)}
    numbers = {"x": rng.normal(size=(tokens, width))}
    for name, shape in shapes.items():
        numbers[f"{name}_w"] = rng.normal(size=shape) / np.sqrt(shape[1])
        numbers[f"{name}_b"] = 0.1 * rng.normal(size=shape[0])
    return numbers


def neighbours(n: int) -> Numbers:
    return small(n)


def tall(n: int, m: int) -> Numbers:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=n), "w": rng.normal(size=(m, n))}


def loss(examples: int, *sizes: int) -> Numbers:
    """The parameters of a network, as one vector, and a batch that they are to fit."""
    rng = np.random.default_rng(0)
    parameters = np.concatenate([each.ravel() for each in _layers(rng, sizes).values()])
    return {
        "x": parameters,
        "data": rng.normal(size=(examples, sizes[0])),
        "target": rng.normal(size=(examples, sizes[-1])),
    }


ALL = {
    "S": small,
    "A": mlp,
    "B": batch,
    "C": cnn,
    "C2": cnn,
    "D": transformer,
    "E": neighbours,
    "F": tall,
    "G": batch,
    "G2": batch,
    "H": loss,
}
