"""``pb.jacobian`` and ``pb.jacobian_of``: from a function, or from tensors that are computed already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.api.problem import Wrt, check_inputs, hessian_problem, problem_of
from pullback.autodiff.linearize import linearize, linearize_graph
from pullback.data.problem import Problem
from pullback.data.space import Space
from pullback.errors import ArgumentError, GraphError
from pullback.jacobian.jacobian import Jacobian, Options


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
    local: bool = False,
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
            is not used, an operation has no sparsity rule, or a verification fails.
        holomorphic: f is complex-differentiable; entries are then its complex derivatives.
        local: The pattern of ``J.sparse()`` and ``J.pattern`` is that at this x, zeros of ``relu`` and ``where``
            included; else it holds at every x that takes the same branches.

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
    options = Options(strategy, memory, progress, create_graph, verify, strict, holomorphic, local)
    problem = problem_of(f, args, wrt, has_aux=has_aux)
    return Jacobian(linearize(problem, create_graph=create_graph), options)


def hessian(
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
    local: bool = False,
) -> Jacobian:
    """The Hessian of a scalar function at args: the Jacobian of its gradient, as one object.

    ``H[i, j] = ∂²y / ∂x_i ∂x_j`` for the scalar ``y = f(*args)``. ``H.value`` is the gradient; ``H @ v`` takes
    one pass; ``H.sparse()`` uses that H is symmetric. Keywords as for :func:`jacobian`.

    Args:
        f: A function that returns one real number as a tensor, or with ``has_aux`` that and something else.
        *args: Its arguments.
        wrt: As for :func:`jacobian`.
        has_aux: As for :func:`jacobian`.
        strategy: As for :func:`jacobian`.
        memory: As for :func:`jacobian`.
        progress: As for :func:`jacobian`.
        create_graph: As for :func:`jacobian`.
        verify: As for :func:`jacobian`.
        strict: As for :func:`jacobian`.
        local: As for :func:`jacobian`.

    Returns:
        The Hessian, of shape (n, n), nested like the inputs on both sides.

    Raises:
        ValueMismatch: f does not return one real number.

    Source: Gebremedhin, Tarafdar, Pothen, Walther, "Efficient Computation of Sparse Hessians Using Coloring and
    Automatic Differentiation", INFORMS Journal on Computing 21 (2009).

    >>> import torch, pullback as pb
    >>> pb.hessian(lambda x: (x[1:] * x[:-1]).sum(), torch.ones(3)).sparse().to_dense()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """
    options = Options(strategy, memory, progress, create_graph, verify, strict, local=local)
    return Jacobian(linearize(hessian_problem(f, args, wrt, has_aux=has_aux), create_graph=create_graph), options)


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
    # The graph is this one and no other, so its pattern is the one at this point.
    options = Options(strategy, memory, progress, create_graph, verify, strict, holomorphic, local=True)
    space = Space.of(inputs, name="inputs")
    check_inputs(inputs, space)
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
