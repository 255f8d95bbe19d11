"""From the user's function and arguments to a Problem."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.autodiff.gradient import gradient_problem
from pullback.data.problem import Problem
from pullback.data.space import Space, is_differentiable_dtype
from pullback.errors import ArgumentError, ValueMismatch

Wrt = int | str | tuple[int, ...] | tuple[str, ...]


def problem_of(f: Callable[..., Any], args: tuple[Any, ...], wrt: Wrt, *, has_aux: bool) -> Problem:
    """The Problem of differentiating f at args by what ``wrt`` names.

    Raises:
        ArgumentError: f is no function, or there is nothing to differentiate by.
        ValueMismatch: ``wrt`` has no meaning here.
    """
    if not callable(f):
        raise ArgumentError(
            "f is not a function",
            got=f"{type(f).__name__}",
            fix="pb.jacobian(f, x); for a tensor that is computed already: pb.jacobian_of(y, x)",
        )
    if isinstance(wrt, str) or (isinstance(wrt, tuple) and wrt and all(isinstance(name, str) for name in wrt)):
        problem = _by_parameters(f, args, wrt, has_aux)  # type: ignore[arg-type]
    else:
        problem = _by_arguments(f, args, wrt, has_aux)
    check_inputs(problem.tree, problem.inputs)
    return problem


def hessian_problem(f: Callable[..., Any], args: tuple[Any, ...], wrt: Wrt, *, has_aux: bool) -> Problem:
    """The Problem of differentiating f's gradient."""
    return gradient_problem(problem_of(f, args, wrt, has_aux=has_aux))


def _by_arguments(f: Callable[..., Any], args: tuple[Any, ...], wrt: Any, has_aux: bool) -> Problem:
    single = not isinstance(wrt, tuple | list)
    indices = [_argument_index(index, len(args)) for index in ([wrt] if single else wrt)]
    if not indices or len(set(indices)) != len(indices):
        raise ValueMismatch(
            "wrt names no argument, or one twice",
            got=f"wrt={wrt!r}",
            fix="wrt=0, or a tuple such as wrt=(0, 1)",
        )
    names = argument_names(f, len(args))
    if single:
        tree = args[indices[0]]
        space = Space.of(tree, name=names[indices[0]])
    else:
        tree = tuple(args[index] for index in indices)
        space = Space.of(tree, names={place: names[index] for place, index in enumerate(indices)})

    leaves = pytree.tree_leaves(tree)

    def call(points: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for position, point in zip(space.positions, points, strict=True):
            filled[position] = point
        given = pytree.tree_unflatten(filled, space.treespec)
        every = list(args)
        for index, value in zip(indices, [given] if single else given, strict=True):
            every[index] = value
        return f(*every)

    return Problem(call, f, tree, space, has_aux)


def _by_parameters(f: Any, args: tuple[Any, ...], wrt: str | tuple[str, ...], has_aux: bool) -> Problem:
    if not isinstance(f, nn.Module):
        raise ArgumentError(
            f"wrt={wrt!r} needs an nn.Module",
            got=f"{type(f).__name__}",
            fix="pb.jacobian(module, x, wrt='parameters'); for a function, wrt is the index of an argument",
        )
    every = dict(f.named_parameters(remove_duplicate=False))
    if wrt == "parameters":
        chosen = dict(f.named_parameters())
    else:
        chosen = {name: _parameter(every, name) for name in ([wrt] if isinstance(wrt, str) else wrt)}
    if not chosen:
        raise ValueMismatch(
            "the module has no parameters", got=f"{type(f).__name__}", fix="wrt=0 differentiates by its input"
        )
    space = Space.of(chosen, names={name: name for name in chosen})

    def call(points: Sequence[Tensor]) -> Any:
        return torch.func.functional_call(f, dict(zip(space.names, points, strict=True)), args)

    return Problem(call, f, chosen, space, has_aux)


def _parameter(every: dict[str, nn.Parameter], name: str) -> nn.Parameter:
    if name not in every:
        close = difflib.get_close_matches(name, every, n=1)
        known = ", ".join(list(every)[:8]) + (" ..." if len(every) > 8 else "")
        raise ValueMismatch(
            "the module has no such parameter",
            got=repr(name),
            fix=f"wrt=({close[0]!r},)" if close else f"wrt='parameters', or one of {known or 'none: it has none'}",
        )
    return every[name]


def _argument_index(index: Any, count: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise ArgumentError(
            "wrt is an argument's index or parameter names",
            got=f"wrt={index!r}",
            fix='wrt=0, wrt=(0, 1), wrt="parameters", or wrt=("layer.weight",)',
        )
    if not -count <= index < count:
        raise ValueMismatch(
            "wrt counts beyond the arguments",
            got=f"wrt={index} for {count} argument{'s' * (count != 1)}",
            fix="pb.jacobian(f, x, y, wrt=1): arguments follow f" if count else "pb.jacobian(f, x)",
        )
    return index % count


def argument_names(f: Any, count: int) -> list[str]:
    """What f calls its arguments, where Python can tell."""
    names = [f"argument {index}" for index in range(count)]
    function = f.forward if isinstance(f, nn.Module) else f
    own = function.__func__ if isinstance(function, MethodType) else function
    if type(own) is FunctionType and not vars(own):  # what inspect would say, without its detours
        code, skip = own.__code__, int(own is not function)
        known = code.co_varnames[skip : code.co_argcount][:count]
        return [*known, *names[len(known) :]]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return names
    for index, parameter in enumerate(parameters):
        if index >= count or parameter.kind not in {
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        }:
            break
        names[index] = parameter.name
    return names


def check_inputs(tree: Any, space: Space) -> None:
    """Refuse inputs that cannot be differentiated by.

    Raises:
        ArgumentError: There is no floating-point tensor, or one that is not strided.
    """
    for leaf, tensor in zip(space.leaves, space.flatten(tree), strict=True):
        if tensor.layout is not torch.strided:
            raise ArgumentError(f"{leaf.name} is not a strided tensor", got=f"{tensor.layout}", fix="pass x.to_dense()")
    if space.leaves:
        return
    leaves = pytree.tree_leaves(tree)
    got = ", ".join(_described(leaf) for leaf in leaves[:4]) or "an empty structure"
    integers = any(isinstance(leaf, Tensor) and not is_differentiable_dtype(leaf.dtype) for leaf in leaves)
    raise ArgumentError(
        "there is no floating-point tensor to differentiate by",
        got=got,
        fix="pass x.float()" if integers else "pass a tensor: torch.tensor(2.0), torch.from_numpy(a)",
    )


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"a tensor of {leaf.dtype} and shape {tuple(leaf.shape)}"
    return type(leaf).__name__
