"""Small programs, each run in a process of its own, forked from this one: under watch, or as plain Python does."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # noqa: F401 - torch.optim imports it at first use: once here rather than in every child
from torch import Tensor

from pullback.diagnose.check import checks
from pullback.diagnose.program import run_script
from pullback.diagnose.session import Level

SECONDS = 120
DERIVATIVES = frozenset(
    {"grad", "grad_and_value", "vjp", "jvp", "jacobian", "jacrev", "jacfwd", "hessian", "hvp", "vhp"}
)


@dataclass(frozen=True)
class Ran:
    """How a program ran.

    Attributes:
        error: What it raised, or an empty string.
        report: What was said of it, as JSON says it.
        gradients: The gradients that were there at its end, by name.
    """

    error: str
    report: dict[str, Any]
    gradients: dict[str, Tensor]


def ran(program: Path, level: Level | None) -> Ran:
    """Run a program in a process of its own, forked from this one; with no level, as plain Python does."""
    checks()  # imported once, here
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.pt"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(SECONDS)
                torch.set_num_threads(1)
                warnings.resetwarnings()
                with open(os.devnull, "w") as nowhere:  # noqa: PTH123
                    os.dup2(nowhere.fileno(), 1)
                    os.dup2(nowhere.fileno(), 2)
                os.chdir(folder)
                torch.save(_in_child(program, level), answer)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status != 0:
            return Ran(f"the process ended with {status}", {}, {})
        return Ran(*torch.load(answer, weights_only=True))


def _in_child(program: Path, level: Level | None) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    torch.manual_seed(0)
    if level is None:
        error, variables = _plainly(program)
        return error, {}, gradients(variables, program.read_text())
    ended = run_script(str(program), (), level)
    error = "" if ended.error is None else f"{type(ended.error).__name__}: {ended.error}"
    told = json.loads(json.dumps(ended.report.told()))
    return error, told, gradients(vars(sys.modules["__main__"]), program.read_text())


def _plainly(program: Path) -> tuple[str, dict[str, Any]]:
    main = type(sys)("__main__")
    main.__file__ = str(program)
    sys.modules["__main__"] = main
    sys.argv[:] = [str(program)]
    try:
        exec(compile(program.read_bytes(), program, "exec", dont_inherit=True), vars(main))
    except BaseException as raised:
        return f"{type(raised).__name__}: {raised}", vars(main)
    return "", vars(main)


def gradients(variables: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """The gradients at the end of a program: of the leaves that its variables hold, and those that were assigned."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in _tensors(variables):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
                found[name] = tensor.grad
    assigned = _assigned(source)
    for name, tensor in _tensors({key: variables[key] for key in variables if key in assigned}):
        if id(tensor) not in seen and name not in found:
            found[name] = tensor
    return {name: _values(each) for name, each in found.items() if each.device.type != "meta"}


def _tensors(variables: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in list(variables.items()):
        if name.startswith("__"):
            continue
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{path}", each) for path, each in value.named_parameters())
        elif isinstance(value, Mapping):
            yield from _tensors({f"{name}[{key!r}]": each for key, each in value.items()})
        elif isinstance(value, list | tuple):
            yield from _tensors({f"{name}[{number}]": each for number, each in enumerate(value)})


def _assigned(source: str) -> set[str]:
    """The variables that are assigned the result of a derivative: ``g`` of ``(g,) = torch.autograd.grad(loss, x)``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and any(_derives(each) for each in ast.walk(node.value)):
            inside = (each for target in node.targets for each in ast.walk(target))
            names.update(each.id for each in inside if isinstance(each, ast.Name))
    return names


def _derives(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in DERIVATIVES


def _values(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        plain = tensor.detach()
        return (plain.to_dense() if plain.layout != torch.strided else plain).clone()
