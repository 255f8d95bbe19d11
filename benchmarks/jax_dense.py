"""The dense problems in JAX, jitted; with what XLA says of their memory. PyTorch need not be installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks import dense_numbers

Function = Callable[[Any], Any]


def network(numbers: dict[str, Any], x: Any) -> Any:
    """Linear layers with tanh between them."""
    import jax.numpy as jnp

    for k in range(sum(name.startswith("w") for name in numbers)):
        x = (jnp.tanh(x) if k else x) @ numbers[f"w{k}"].T + numbers[f"b{k}"]
    return x


def cnn(numbers: dict[str, Any], x: Any) -> Any:
    """Two convolutions with ReLU and pooling, and a linear layer."""
    import jax
    from jax import lax

    for k in range(2):
        x = lax.conv_general_dilated(x, numbers[f"c{k}"], (1, 1), "SAME") + numbers[f"d{k}"][:, None, None]
        x = lax.reduce_window(jax.nn.relu(x), -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(len(x), -1) @ numbers["w"].T + numbers["b"]


def block(numbers: dict[str, Any], heads: int, x: Any) -> Any:
    """A transformer's block."""
    import jax
    import jax.numpy as jnp

    def linear(name: str, y: Any) -> Any:
        return y @ numbers[f"{name}_w"].T + numbers[f"{name}_b"]

    def normal(y: Any) -> Any:
        mean = y.mean(-1, keepdims=True)
        return (y - mean) / jnp.sqrt(((y - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    tokens, width = x.shape
    q, k, v = linear("qkv", normal(x)).reshape(tokens, 3, heads, -1).transpose(1, 2, 0, 3)
    scores = jax.nn.softmax(q @ k.transpose(0, 2, 1) / np.asarray((width // heads) ** 0.5, x.dtype), -1)
    x = x + linear("out", (scores @ v).transpose(1, 0, 2).reshape(tokens, width))
    return x + linear("down", jax.nn.gelu(linear("up", normal(x)), approximate=True))


def loss(sizes: tuple[int, ...], numbers: dict[str, Any], parameters: Any) -> Any:
    """The mean square error of a network, as a function of all its parameters in one vector."""
    layers, start = {}, 0
    for k, (before, after) in enumerate(pairwise(sizes)):
        layers[f"w{k}"] = parameters[start : start + before * after].reshape(after, before)
        start += before * after
        layers[f"b{k}"] = parameters[start : start + after]
        start += after
    return ((network(layers, numbers["data"]) - numbers["target"]) ** 2).mean()


def ways(key: str, sizes: tuple[int, ...], numbers: dict[str, Any]) -> tuple[dict[str, Function], Any]:
    """What is jitted, by name, and what it is called with."""
    import jax
    import jax.numpy as jnp

    x = numbers.pop("x")
    if key in {"G", "G2"}:
        blocks = jax.vmap(jax.jacrev(network), (None, 0))

        def gram(numbers: Any) -> Any:
            found = [each.reshape(len(x) * each.shape[1], -1) for each in blocks(numbers, x).values()]
            J = jnp.concatenate(found, 1)
            return J @ J.T

        if key == "G2":
            return {"jit(vmap(jacrev), then J Jᵀ)": gram}, numbers
        return {"jit(vmap(jacrev))": lambda numbers: blocks(numbers, x)}, numbers
    if key == "C2":
        return {"jit(jacrev)": jax.jacrev(lambda numbers: cnn(numbers, x))}, numbers
    if key == "H":

        def f(x: Any) -> Any:
            return loss(sizes[1:], numbers, x)

        return {"jit(hessian)": jax.hessian(f), "jit(jacrev(jacrev))": jax.jacrev(jax.jacrev(f))}, x
    # Neighbours by index: XLA fuses their derivatives, and takes ten times as long with jnp.roll.
    before, after = np.roll(np.arange(len(x)), 1), np.roll(np.arange(len(x)), -1)
    functions: dict[str, Function] = {
        "S": lambda x: jnp.sin(x) * x[before] + x[after] ** 2,
        "A": lambda x: network(numbers, x),
        "C": lambda x: cnn(numbers, x),
        "D": lambda x: block(numbers, sizes[2], x),
        "F": lambda x: jnp.sin(numbers["w"] @ x),
    }
    functions |= {"B": functions["A"], "E": functions["S"]}
    forward, reverse = jax.jacfwd(functions[key]), jax.jacrev(functions[key])
    if key == "B":
        return {"jit(vmap(jacfwd))": jax.vmap(forward), "jit(vmap(jacrev))": jax.vmap(reverse)}, x
    if key == "C":
        return {"jit(jacrev)": reverse}, x
    if key == "F":
        return {"jit(jacfwd)": forward}, x
    return {"jit(jacrev)": reverse, "jit(jacfwd)": forward}, x


class Dense:
    """JAX on one dense problem after another; every method answers with what JSON can hold.

    Args:
        jax: The module, on one thread.
    """

    def __init__(self, jax: Any) -> None:
        self.jax = jax

    def make(self, key: str, sizes: list[int], dtype: str) -> dict[str, Any]:
        """Take another problem, and say what ways there are."""
        made = dense_numbers.ALL[key](*sizes)
        numbers = {name: self.jax.numpy.asarray(each, dtype) for name, each in made.items()}
        self.ways, self.at = ways(key, tuple(sizes), numbers)
        # The parameters in the order that the model of PyTorch has them.
        self.order = [name for name in made if name != "x"] if key in {"C2", "G"} else None
        self.compiled: dict[str, Any] = {}
        return {"ways": list(self.ways)}

    def compile(self, way: str) -> dict[str, Any]:
        """Jit one way; the seconds of that, and the bytes that XLA takes for its result and on the way to it."""
        began = time.perf_counter()
        jitted = self.jax.jit(self.ways[way])
        memory = jitted.lower(self.at).compile().memory_analysis()
        self.jax.block_until_ready(jitted(self.at))
        self.compiled[way] = jitted
        return {
            "seconds": time.perf_counter() - began,
            "bytes": memory.output_size_in_bytes + memory.temp_size_in_bytes,
        }

    def entries(self, way: str, path: str) -> dict[str, Any]:
        """Save what one way gives, parameters side by side."""
        found = self.compiled[way](self.at)
        if self.order is not None:
            m = int(np.prod(found[self.order[0]].shape[: -self.at[self.order[0]].ndim]))
            found = np.concatenate([np.asarray(found[name]).reshape(m, -1) for name in self.order], 1)
        np.save(path, np.asarray(found))
        return {}

    def time(self, way: str) -> dict[str, Any]:
        """The seconds of one call."""
        began = time.perf_counter()
        self.jax.block_until_ready(self.compiled[way](self.at))
        return {"seconds": time.perf_counter() - began}
