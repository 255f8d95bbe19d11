"""What a function is differentiated by: argument checks, and names that the user knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.api.problem import Wrt, argument_names
from pullback.check.function import Chosen
from pullback.data.space import is_differentiable_dtype
from pullback.errors import ArgumentError, ValueMismatch


def choose(f: Any, args: tuple[Any, ...], wrt: Wrt | None) -> Chosen:
    """The tensors that ``wrt`` names; None: inputs that require grad, else all, and a module's parameters.

    Raises:
        ArgumentError: f is no function, or there is nothing to differentiate by.
        ValueMismatch: ``wrt`` has no meaning here.
    """
    if not callable(f):
        raise ArgumentError("f is not a function", got=type(f).__name__, fix="pb.check(f, x), f and then its arguments")
    inputs = list(_inputs(f, args))
    parameters = dict(f.named_parameters()) if isinstance(f, nn.Module) else {}
    if wrt is None:
        asked = [each for each in inputs if each[2].requires_grad]
        inputs = asked or inputs
        wanted = tuple(name for name, parameter in parameters.items() if _carries(parameter))
    elif _names_parameters(wrt):
        inputs, wanted = [], _parameters(parameters, wrt, f)
    else:
        indices = _indices(wrt, len(args))
        inputs, wanted = [each for each in inputs if each[3] in indices], ()
    if not inputs and not wanted:
        raise ArgumentError(
            "there is no floating-point tensor to differentiate by",
            got=", ".join(_described(leaf) for leaf in pytree.tree_leaves(args)[:4]) or "no arguments",
            fix="pass tensors: torch.tensor(2.0), torch.from_numpy(a), x.float()",
        )
    for name, _, tensor, _ in inputs:
        if tensor.layout is not torch.strided:
            raise ArgumentError(f"{name} is not a strided tensor", got=f"{tensor.layout}", fix="pass x.to_dense()")
    return Chosen((*(each[0] for each in inputs), *wanted), tuple(each[1] for each in inputs), wanted)


def _inputs(f: Any, args: tuple[Any, ...]) -> Iterator[tuple[str, int, Tensor, int]]:
    """The name, position, tensor and argument of each differentiable input."""
    names = argument_names(f, len(args))
    position = 0
    for index, argument in enumerate(args):
        for path, leaf in pytree.tree_flatten_with_path(argument)[0]:
            if _carries(leaf):
                yield names[index] + pytree.keystr(path), position, leaf, index
            position += 1


def _carries(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and is_differentiable_dtype(leaf.dtype)


def _names_parameters(wrt: Any) -> bool:
    return isinstance(wrt, str) or (isinstance(wrt, tuple) and bool(wrt) and all(isinstance(w, str) for w in wrt))


def _parameters(known: dict[str, nn.Parameter], wrt: Any, f: Any) -> tuple[str, ...]:
    names = tuple(known) if wrt == "parameters" else ((wrt,) if isinstance(wrt, str) else tuple(wrt))
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise ValueMismatch(
            "there is no such parameter",
            got=f"wrt={wrt!r} of {type(f).__name__}",
            fix=f"one of {', '.join(list(known)[:8])}" if known else "wrt=0: it has no parameters",
        )
    return names


def _indices(wrt: Any, count: int) -> set[int]:
    indices: Sequence[Any] = wrt if isinstance(wrt, tuple | list) else (wrt,)
    if not indices or not all(isinstance(index, int) and not isinstance(index, bool) for index in indices):
        raise ArgumentError(
            "wrt is an argument's index or parameter names",
            got=f"wrt={wrt!r}",
            fix='wrt=0, wrt=(0, 1), wrt="parameters", or wrt=("layer.weight",)',
        )
    if not all(-count <= index < count for index in indices):
        raise ValueMismatch(
            "wrt counts beyond the arguments", got=f"wrt={wrt!r} for {count}", fix="pb.check(f, x, y, wrt=1)"
        )
    return {index % count for index in indices}


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"a tensor of {leaf.dtype} and shape {tuple(leaf.shape)}"
    return type(leaf).__name__
