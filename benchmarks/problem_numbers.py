"""The numbers of the sparse problems: the same for PyTorch and for JAX, and in every run. Only NumPy is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = dict[str, NDArray[Any]]


def _within(low: float, high: float, size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two random points of a box."""
    rng = np.random.default_rng(0)
    return rng.uniform(low, high, size), rng.uniform(low, high, size)


def brusselator(n: int) -> Numbers:
    x, other = _within(0.5, 2.0, 2 * n * n)
    return {"x": x, "other": other}


def broyden(n: int) -> Numbers:
    x, other = _within(-1.0, 1.0, n)
    return {"x": x, "other": other}


def conv(size: int) -> Numbers:
    rng = np.random.default_rng(1)
    x, other = _within(-1.0, 1.0, 3 * size * size)
    channels = (3, 8, 8, 1)
    weights = {
        f"w{k}": rng.normal(size=(channels[k + 1], channels[k], 3, 3)) / np.sqrt(9 * channels[k]) for k in range(3)
    }
    return {"x": x, "other": other, **weights}


def bundle(cameras: int, points: int, observations: int) -> Numbers:
    """Cameras that look along -z at points about ten away; each camera and point is seen at least once."""
    rng = np.random.default_rng(0)
    camera = np.concatenate([np.arange(cameras), rng.integers(0, cameras, observations - cameras)])
    point = np.concatenate([np.arange(points), rng.integers(0, points, observations - points)])
    rng.shuffle(camera)
    rng.shuffle(point)
    seen = rng.normal(size=(observations, 2))

    def unknowns() -> NDArray[Any]:
        c = rng.normal(size=(cameras, 9)) * [0.3, 0.3, 0.3, 1, 1, 1, 0.1, 0.01, 0.001] + [0, 0, 0, 0, 0, -10, 1, 0, 0]
        return np.concatenate([c.ravel(), rng.normal(size=3 * points)])

    return {"x": unknowns(), "other": unknowns(), "camera": camera, "point": point, "seen": seen}


def arrowhead(n: int) -> Numbers:
    x, other = _within(0.5, 1.5, n)
    return {"x": x, "other": other}


def rosenbrock(n: int) -> Numbers:
    return broyden(n)


ALL = {
    "brusselator": brusselator,
    "broyden": broyden,
    "conv": conv,
    "bundle": bundle,
    "arrowhead": arrowhead,
    "rosenbrock": rosenbrock,
}
