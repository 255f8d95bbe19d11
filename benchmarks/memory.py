"""Peak memory: whole Jacobians, blocks of rows within a limit and a file, against ``torch.func.jacrev``.

Each case runs in two fresh processes on one thread, in float32: one tells how much its peak resident memory grew
(``ru_maxrss``: allocator, work space and Python included), the other counts the bytes of the tensors that were alive
at the peak. Neither counts what was there before: inputs, weights, and the recorded graph.

    python -m benchmarks.memory
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import pullback as pb
from benchmarks.timing import console
from pullback.executors.memory import measured, parse_bytes

ROOT = Path(__file__).parents[1]
# ru_maxrss counts in units of so many bytes.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
CHUNK = 64


@dataclass(frozen=True)
class Problem:
    """A function of one structure of tensors, and the limit for its rows in blocks.

    Attributes:
        title: What a table calls it.
        f: The function.
        x: Where.
        limit: The limit.
    """

    title: str
    f: Callable[[Any], Tensor]
    x: Any
    limit: str


def attention(width: int = 64, tokens: int = 32) -> Problem:
    """A transformer block in plain operations, by its input: 2048 x 2048."""
    torch.manual_seed(0)
    mix = nn.Linear(width, 3 * width).requires_grad_(False)
    wide, narrow = (nn.Linear(a, b).requires_grad_(False) for a, b in ((width, 4 * width), (4 * width, width)))
    norm = nn.LayerNorm(width).requires_grad_(False)

    def f(x: Tensor) -> Tensor:
        q, k, v = (part.reshape(tokens, 4, -1).transpose(0, 1) for part in mix(norm(x)).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        x = x + (weights @ v).transpose(0, 1).reshape(tokens, width)
        return x + narrow(torch.nn.functional.gelu(wide(norm(x))))

    return Problem("D  transformer block, 2048 x 2048", f, torch.randn(tokens, width), "16MiB")


def tall() -> Problem:
    """Few inputs, many outputs: 10,000 x 4."""
    torch.manual_seed(0)
    w = torch.randn(10_000, 4)
    return Problem("F  R^4 → R^10000, sin(Wx)", lambda x: (w @ x).sin(), torch.randn(4), "1MiB")


def parameters() -> Problem:
    """The parameters of a network, 64 examples: 640 x 85,002."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for size, after in pairwise((64, 256, 256, 10)):
        layers += [nn.Linear(size, after), nn.Tanh()]
    net, batch = nn.Sequential(*layers[:-1]), torch.randn(64, 64)
    point = {name: each.detach() for name, each in net.named_parameters()}
    return Problem(
        "G  parameters of an MLP, 640 x 85,002", lambda p: torch.func.functional_call(net, p, batch), point, "64MiB"
    )


PROBLEMS = {"D": attention, "F": tall, "G": parameters}


def _neighbours(x: Tensor) -> Tensor:
    return x.sin() * x.roll(1)


def _dense(problem: Problem) -> None:
    pb.jacobian(problem.f, problem.x).dense()


def _over(problem: Problem) -> Callable[[], None]:
    J = pb.jacobian(problem.f, problem.x)
    out = J.dense()
    return lambda: pb.jacobian(problem.f, problem.x).dense(out=out)


def _blocks(problem: Problem) -> None:
    for _ in pb.jacobian(problem.f, problem.x).iter_rows(problem.limit):
        pass


def _file(problem: Problem) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pb.jacobian(problem.f, problem.x).save(Path(folder) / "J.npy", memory=problem.limit)


def _jacrev(problem: Problem) -> None:
    torch.func.jacrev(problem.f)(problem.x)


def _chunked(problem: Problem) -> None:
    torch.func.jacrev(problem.f, chunk_size=CHUNK)(problem.x)


WAYS: dict[str, Callable[[Problem], None]] = {
    "J.dense()": _dense,
    "J.iter_rows(limit)": _blocks,
    "J.save(path, memory=limit)": _file,
    "torch.func.jacrev": _jacrev,
    f"torch.func.jacrev, chunks of {CHUNK}": _chunked,
}
OVER = "J.dense(out=D)"


def run(key: str, way: str, kind: str) -> int:
    """The bytes of one case, in this process: ``"resident"`` or ``"tensors"``."""
    torch.set_num_threads(1)
    # What is imported when it is first needed is in memory before.
    small = Problem("warm-up", _neighbours, torch.ones(600), "8MiB")
    (_over(small) if way == OVER else partial(WAYS[way], small))()
    problem = PROBLEMS[key]()
    call = _over(problem) if way == OVER else partial(WAYS[way], problem)
    if kind == "tensors":
        return measured(call, torch.device("cpu"))[1]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * RSS_UNIT


def _apart(key: str, way: str, kind: str) -> int:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", key, way, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def rows() -> list[dict[str, Any]]:
    """Every case: the problem, the way, the bytes of J, of the limit, and of both kinds of peak."""
    found = []
    for key, make in PROBLEMS.items():
        problem = make()
        J = pb.jacobian(problem.f, problem.x)
        size = J.shape[0] * J.shape[1] * J.inputs.dtype.itemsize
        for way in [*WAYS, OVER]:
            limited = "limit" in way
            found.append({
                "problem": problem.title,
                "way": way,
                "jacobian": size,
                "limit": parse_bytes(problem.limit) if limited else None,
                "resident": _apart(key, way, "resident"),
                "tensors": _apart(key, way, "tensors"),
            })  # fmt: skip
    return found


def table(found: list[dict[str, Any]]) -> Table:
    """The cases, for a reader."""
    result = Table(title="Peak memory beyond what was there before, MB", title_justify="left")
    for header in ("problem", "way"):
        result.add_column(header)
    for header in ("J", "limit", "tensors", "resident"):
        result.add_column(header, justify="right")
    for row in found:
        columns = [row[key] for key in ("jacobian", "limit", "tensors", "resident")]
        sizes = ("" if size is None else f"{size / 1e6:.2f}" for size in columns)
        result.add_row(row["problem"], row["way"], *sizes, end_section=row["way"] == OVER)
    return result


def main() -> None:
    """Run one case that is named, or all of them."""
    if len(sys.argv) == 4:
        sys.stdout.write(f"{json.dumps(run(*sys.argv[1:]))}\n")
        return
    console().print(table(rows()))


if __name__ == "__main__":
    main()
