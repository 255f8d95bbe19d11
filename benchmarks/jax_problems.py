"""The sparse problems in JAX, with asdex; and a server that times JAX where PyTorch need not be installed.

``python -m benchmarks.jax_problems`` reads commands as lines of JSON and answers each with a line of JSON, so that an
interpreter with JAX can take turns with one that has PyTorch. Both do the same work on one thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import problem_numbers
from benchmarks.jax_dense import Dense

ALPHA = 10.0


def on_one_thread() -> Any:
    """JAX, whose pool of threads is made while the process may use one core; afterwards it may use any."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if before:
        os.sched_setaffinity(0, {min(before)})
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.jit(lambda x: x + 1)(jax.numpy.zeros(3)).block_until_ready()
    if before:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), before)
    return jax


def function(key: str, sizes: tuple[int, ...], numbers: dict[str, Any]) -> Callable[[Any], Any]:
    """A problem's function in JAX."""
    import jax.numpy as jnp
    from jax import lax

    def brusselator(x: Any) -> Any:
        n = sizes[0]

        def laplacian(w: Any) -> Any:
            return jnp.roll(w, 1, 0) + jnp.roll(w, -1, 0) + jnp.roll(w, 1, 1) + jnp.roll(w, -1, 1) - 4 * w

        u, v = x[: n * n].reshape(n, n), x[n * n :].reshape(n, n)
        of_u = 1 + u * u * v - 4.4 * u + ALPHA * n * n * laplacian(u)
        of_v = 3.4 * u - u * u * v + ALPHA * n * n * laplacian(v)
        return jnp.concatenate([of_u.ravel(), of_v.ravel()])

    def broyden(x: Any) -> Any:
        around = jnp.pad(x, 1)
        return (3 - 2 * x) * x - around[:-2] - 2 * around[2:] + 1

    def conv(x: Any) -> Any:
        def layer(y: Any, w: Any) -> Any:
            return lax.conv_general_dilated(y, w, (1, 1), "SAME")

        y = x.reshape(1, 3, sizes[0], sizes[0])
        y = jnp.tanh(layer(y, numbers["w0"]))
        return layer(jnp.tanh(layer(y, numbers["w1"])), numbers["w2"]).ravel()

    def bundle(x: Any) -> Any:
        cameras, points = sizes[:2]
        c = x[: 9 * cameras].reshape(cameras, 9)[numbers["camera"]]
        X = x[9 * cameras :].reshape(points, 3)[numbers["point"]]
        w, t, focal, k1, k2 = c[:, :3], c[:, 3:6], c[:, 6:7], c[:, 7:8], c[:, 8:9]
        angle = jnp.sqrt((w * w).sum(1, keepdims=True) + 1e-12)
        e = w / angle
        along = (e * X).sum(1, keepdims=True)
        P = X * jnp.cos(angle) + jnp.cross(e, X) * jnp.sin(angle) + e * along * (1 - jnp.cos(angle)) + t
        q = -P[:, :2] / P[:, 2:3]
        r2 = (q * q).sum(1, keepdims=True)
        return (focal * (1 + k1 * r2 + k2 * r2 * r2) * q - numbers["seen"]).ravel()

    def arrowhead(x: Any) -> Any:
        return jnp.concatenate([(x * x).sum()[None], x[0] * x[1:] + x[1:] ** 2])

    def rosenbrock(x: Any) -> Any:
        return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()

    return {f.__name__: f for f in (brusselator, broyden, conv, bundle, arrowhead, rosenbrock)}[key]


class Asdex:
    """asdex on one sparse problem after another; every method answers with numbers that JSON can hold.

    Args:
        jax: The module, on one thread.
    """

    def __init__(self, jax: Any) -> None:
        import asdex

        self.jax = jax
        self.asdex = asdex
        warnings.simplefilter("ignore")  # that a coloring is dense is seen in its count

    def make(self, key: str, sizes: list[int], of: str) -> dict[str, Any]:
        """Take another problem."""
        self.hessian = of == "hessian"
        numbers = problem_numbers.ALL[key](*sizes)
        constants = {name: self.jax.numpy.asarray(each) for name, each in numbers.items()}
        self.f = function(key, tuple(sizes), constants)
        self.x = constants["x"]
        self.forward = self.jax.jit(self.f)
        return {}

    def first(self) -> dict[str, Any]:
        """Detection, coloring and the first Jacobian, not jitted; and the seconds to jit it."""
        a = self.asdex
        began = time.perf_counter()
        pattern = (a.hessian_sparsity if self.hessian else a.jacobian_sparsity)(self.f, self.x)
        detected = time.perf_counter()
        color = a.hessian_coloring_from_sparsity if self.hessian else a.jacobian_coloring_from_sparsity
        self.coloring = color(pattern)
        colored = time.perf_counter()
        make = a.hessian_from_coloring if self.hessian else a.jacobian_from_coloring
        self.bcoo = make(self.f, self.coloring)
        self.bcoo(self.x).data.block_until_ready()
        done = time.perf_counter()
        self.bcoo = self.jax.jit(self.bcoo)
        self.bcoo(self.x).data.block_until_ready()
        jitted = time.perf_counter()
        memory = self.bcoo.lower(self.x).compile().memory_analysis()
        self.csr = make(self.f, self.coloring, output_format="scipy_csr")
        self.csr(self.x)
        self.forward(self.x).block_until_ready()
        return {
            "detect": detected - began,
            "color": colored - detected,
            "first": done - began,
            "jit": jitted - done,
            "colors": int(self.coloring.num_colors),
            "nnz": int(pattern.nnz),
            "bytes": memory.output_size_in_bytes + memory.temp_size_in_bytes,
        }

    def time(self, way: str) -> dict[str, Any]:
        """The seconds of one call: ``"bcoo"``, ``"csr"`` or ``"forward"``."""
        began = time.perf_counter()
        if way == "csr":
            self.csr(self.x)
        elif way == "bcoo":
            self.bcoo(self.x).data.block_until_ready()
        else:
            self.forward(self.x).block_until_ready()
        return {"seconds": time.perf_counter() - began}

    def product(self, path: str) -> dict[str, Any]:
        """Save J v for a random v."""
        v = np.random.default_rng(2).normal(size=len(self.x))
        np.save(path, self.csr(self.x) @ v)
        return {}


class Server:
    """JAX, and asdex where it is installed: a command names the one that it is for, ``"dense.make"``."""

    def __init__(self) -> None:
        self.jax = on_one_thread()
        self.rooms: dict[str, Any] = {"dense": Dense(self.jax)}
        self.missing = ""
        try:
            self.rooms["sparse"] = Asdex(self.jax)
        except ImportError as error:
            self.missing = str(error)

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Carry out one command.

        Raises:
            ImportError: It is for asdex, which is missing.
        """
        if what == "versions":
            names = ["jax"] + ["asdex"] * ("sparse" in self.rooms)
            return {name: version(name) for name in names}
        room, method = what.split(".")
        if room not in self.rooms:
            raise ImportError(self.missing)
        answer: dict[str, Any] = getattr(self.rooms[room], method)(**arguments)
        return answer


def main() -> None:
    """Answer commands until there are none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints is no answer
    server = Server()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = server.do(command.pop("do"), **command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
