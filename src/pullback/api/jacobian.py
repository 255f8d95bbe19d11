"""``pb.jacobian`` and ``pb.jacobian_of``: from a function, or from tensors that are computed already."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.autodiff.linearize import linearize, linearize_graph
from pullback.data.problem import Problem
from pullback.data.space import Space, is_differentiable_dtype
from pullback.errors import ArgumentError, GraphError, ValueMismatch
from pullback.jacobian.jacobian import Jacobian, Options

Wrt = int | str | tuple[int, ...] | tuple[str, ...]


def jacobian(
    f: Callable[..., Any],
    *args: Any,
    wrt: Wrt = 0,
    has_aux: bool = False,
    strategy: str = "auto",
    memory: int | float | str | None = None,
    progress: bool | None = None,
    create_graph: bool = False,
    verify: bool = True,
    strict: bool = False,
    holomorphic: bool = False,
) -> Jacobian:
    """The Jacobian of f at args, as one object.

    ``J[i, j] = ∂y_i / ∂x_j`` for ``y = f(*args)``, with the outputs' and inputs' tensors laid end to end. f is
    evaluated once, now; derivatives are computed when they are asked for. f's random numbers, buffers and the
    generators are as after that one evaluation, whatever is asked for later; no ``.grad`` and no
    ``requires_grad`` is changed.

    Args:
        f: A function of tensors, or an ``nn.Module``. It returns a tensor, or tensors in any structure that
            torch's pytree knows (dict, tuple, list, registered dataclass).
        *args: Its arguments; those in ``wrt`` are tensors or such structures. Integer tensors and
            non-tensors are constants.
        wrt: What to differentiate by: the index of an argument; a tuple of indices; ``"parameters"`` for all
            parameters of a module by name (tied ones once); or a tuple of parameter names.
        has_aux: f returns ``(output, aux)``; aux is not differentiated and becomes ``J.aux``.
        strategy: ``"auto"`` takes the cheapest; or one of the names that ``print(J.plan())`` shows.
        memory: The limit for building, in bytes or as ``"2GiB"``; None: half of what is free.
        progress: True shows a progress bar, False does not; None: on a terminal, after a second.
        create_graph: Keep the results differentiable.
        verify: Hold what is built in a batched or forward way against one plain reverse pass, once for each
            function and shapes (a branch of f that is first taken later is not looked at again).
        strict: Raise, rather than give zeros or take another way, where an output carries no graph, an input
            is not used, or a verification fails.
        holomorphic: f is complex-differentiable; entries are then its complex derivatives.

    Returns:
        The Jacobian, of shape (m, n).

    Raises:
        ArgumentError: An argument is of the wrong kind.
        ValueMismatch: ``wrt``, ``strategy`` or ``memory`` has no meaning here.
        GraphError: f reaches the tensor asked for by closure and not through its argument; raised when a
            derivative is first asked for.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html (the vector-Jacobian product, the
    convention for complex numbers).

    >>> import torch, pullback as pb
    >>> x = torch.tensor([2.0, 3.0])
    >>> J = pb.jacobian(lambda x: torch.stack([x[0] ** 2, x[1] ** 3]), x)
    >>> J.T @ torch.tensor([1.0, 1.0])
    tensor([ 4., 27.])
    >>> J.dense()
    tensor([[ 4.,  0.],
            [ 0., 27.]])
    """
    options = Options(strategy, memory, progress, create_graph, verify, strict, holomorphic)
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
    _check_inputs(problem.tree, problem.inputs)
    return Jacobian(linearize(problem, create_graph=create_graph), options)


def jacobian_of(
    outputs: Any,
    inputs: Any,
    *,
    strategy: str = "auto",
    memory: int | float | str | None = None,
    progress: bool | None = None,
    create_graph: bool = False,
    verify: bool = True,
    strict: bool = False,
    holomorphic: bool = False,
) -> Jacobian:
    """The Jacobian of tensors that are computed already, by the graph they carry.

    The graph is walked, never freed: ``outputs.backward()`` still works afterwards. Forward products take two
    reverse passes, since there is no function to run again.

    Args:
        outputs: A tensor with a graph, or a structure of them.
        inputs: The tensors to differentiate by: leaves that require grad, or intermediate results.
        strategy: As for :func:`jacobian`.
        memory: As for :func:`jacobian`.
        progress: As for :func:`jacobian`.
        create_graph: As for :func:`jacobian`.
        verify: As for :func:`jacobian`.
        strict: As for :func:`jacobian`.
        holomorphic: As for :func:`jacobian`.

    Returns:
        The Jacobian, of shape (m, n).

    Raises:
        GraphError: An input does not require grad, so no graph can lead to it.
        ArgumentError: There is no tensor where one is needed.

    >>> import torch, pullback as pb
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x ** 2
    >>> pb.jacobian_of(y, x).dense()
    tensor([[2., 0.],
            [0., 4.]])
    """
    options = Options(strategy, memory, progress, create_graph, verify, strict, holomorphic)
    space = Space.of(inputs, name="inputs")
    _check_inputs(inputs, space)
    for leaf, tensor in zip(space.leaves, space.flatten(inputs), strict=True):
        if not tensor.requires_grad:
            raise GraphError(
                f"{leaf.name} does not require grad, so no graph leads to it",
                got=f"shape {tuple(leaf.shape)}, requires_grad=False",
                fix="call .requires_grad_() on it before computing the outputs, or use pb.jacobian(f, x)",
            )
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(outputs)):
        raise ArgumentError(
            "outputs is no tensor and holds none",
            got=f"{type(outputs).__name__}",
            fix="pb.jacobian_of(y, x) with the tensor y itself; .item(), .numpy() and float() leave the graph",
        )
    problem = Problem(None, None, inputs, space)
    return Jacobian(linearize_graph(problem, outputs, create_graph=create_graph), options)


def _by_arguments(f: Callable[..., Any], args: tuple[Any, ...], wrt: Any, has_aux: bool) -> Problem:
    single = not isinstance(wrt, tuple | list)
    indices = [_argument_index(index, len(args)) for index in ([wrt] if single else wrt)]
    if not indices or len(set(indices)) != len(indices):
        raise ValueMismatch(
            "wrt names no argument, or one twice",
            got=f"wrt={wrt!r}",
            fix="wrt=0, or a tuple such as wrt=(0, 1)",
        )
    names = _argument_names(f, len(args))
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


def _argument_names(f: Any, count: int) -> list[str]:
    """What f calls its arguments, where Python can tell."""
    names = [f"argument {index}" for index in range(count)]
    function = f.forward if isinstance(f, nn.Module) else f
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


def _check_inputs(tree: Any, space: Space) -> None:
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
