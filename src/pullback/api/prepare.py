"""``pb.prepare``: find the structure of a Jacobian once, and use it at many points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.api.problem import Wrt, hessian_problem, problem_of
from pullback.autodiff.linearize import Deferred, Recorded, linearize
from pullback.data.pattern import Pattern
from pullback.data.problem import Problem
from pullback.data.space import is_differentiable_dtype
from pullback.errors import ArgumentError, StrategyError, ValueMismatch
from pullback.executors.local import LocalExecutor
from pullback.jacobian.jacobian import Jacobian, Options
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import Verifier
from pullback.plan import Plan


def prepare(
    f: Callable[..., Any],
    *args: Any,
    wrt: Wrt = 0,
    of: Literal["jacobian", "hessian"] = "jacobian",
    compile: bool = False,
    has_aux: bool = False,
    strategy: str = "auto",
    memory: int | float | str | None = None,
    progress: bool | None = None,
    verify: bool | int = True,
    strict: bool = False,
) -> Prepared:
    """Find the pattern, the coloring and the plan of a Jacobian once, to evaluate it at many points.

    f is recorded at args. What is returned is called with other arguments of the same shapes, and gives the Jacobian
    there; its ``sparse()``, ``dense()`` and ``blocks()`` replay the recorded program, cut down to what they need,
    without calling f. Where J has few zeros, the ways to its rows, columns or blocks are timed, and the fastest is
    taken. What cannot be replayed (random numbers, a module that changes its buffers) calls f at each point.

    Every call checks what was relied on: shapes, dtypes and devices; the tensors, parameters and plain values that f
    holds; the numbers that decided a branch, or which elements are selected.

    Args:
        f: A function of tensors, or an ``nn.Module``.
        *args: Its arguments at a point that is typical.
        wrt: What to differentiate by, as for :func:`pullback.jacobian`.
        of: ``"jacobian"``, or ``"hessian"`` for the second derivatives of a scalar function.
        compile: Compile the passes and the recovery with torch.compile (Inductor, which needs a C++ compiler); taken
            only where it is measured to be faster. Entries (or where J has few zeros, the matrix) are compiled now,
            blocks when they are first asked for.
        has_aux: f returns ``(output, aux)``.
        strategy: As for :func:`pullback.jacobian`.
        memory: As for :func:`pullback.jacobian`.
        progress: As for :func:`pullback.jacobian`.
        verify: Hold the entries against a plain reverse pass at the first call; an int k: and at every k-th.
        strict: Raise, rather than take another way, where a verification fails.

    Returns:
        What gives the Jacobian at other arguments.

    Raises:
        StrategyError: No pattern can be found from f's program.
        ValueMismatch: ``of`` or another argument has no meaning here.

    >>> import torch, pullback as pb
    >>> jac = pb.prepare(lambda x: x[1:] * x[:-1], torch.ones(3))
    >>> jac(torch.tensor([1.0, 2.0, 3.0])).sparse().to_dense()
    tensor([[2., 1., 0.],
            [0., 3., 2.]])
    """
    if of not in {"jacobian", "hessian"}:
        raise ValueMismatch("there is no such derivative", got=f"of={of!r}", fix="of='jacobian' or of='hessian'")
    if not isinstance(verify, int) or verify < 0:
        raise ArgumentError(
            "verify is True, False, or how many calls one verification is for", got=repr(verify), fix="verify=100"
        )
    options = Options(strategy, memory, progress, False, bool(verify), strict)
    return Prepared(f, args, wrt, of, options, has_aux=has_aux, compile=compile, every=_every(verify))


@final
class Prepared:
    """What :func:`pullback.prepare` returns: call it with arguments, and it gives the Jacobian there."""

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        wrt: Wrt,
        of: str,
        options: Options,
        *,
        has_aux: bool,
        compile: bool,
        every: int | None,
    ) -> None:
        from pullback.jacobian.preparation import Preparation  # noqa: PLC0415  it needs SciPy

        make = hessian_problem if of == "hessian" else problem_of
        self._make: Callable[[tuple[Any, ...]], Problem] = lambda args: make(f, args, wrt, has_aux=has_aux)
        self._options = options
        self._of = of
        lin = linearize(self._make(args), create_graph=False)
        if not isinstance(lin, Recorded):
            raise StrategyError(
                "nothing can be prepared inside a torch.func transform",
                got="grad, vmap or jvp around it",
                fix="prepare outside, and call what was prepared there",
            )
        executor = LocalExecutor(options.memory, options.progress)
        tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
        free = frozenset(id(tensor) for tensor in tensors if is_differentiable_dtype(tensor.dtype))
        passes = Passes(lin, executor, Verifier(lin, options.verify), options.strict, free=free)
        found = passes.structure() if lin.live_outputs and lin.live_inputs else "no output depends on the inputs"
        if isinstance(found, str):
            raise StrategyError(
                "the zeros of this Jacobian cannot be found from its program",
                got=found,
                fix="pb.jacobian(f, x) at each point",
            )
        self._preparation = Preparation(passes, args, options.strategy, compile=compile, every=every)

    def __call__(self, *args: Any) -> Jacobian:
        """The Jacobian at other arguments, of the same shapes; f itself is called only where its value is asked for.

        Raises:
            GuardError: What was relied on does not hold here.
        """
        call = self._preparation.at(args)
        return Jacobian(Deferred(self._make(args), self._preparation.like), self._options, call)

    def batch(self, *args: Any, in_dims: int | tuple[int | None, ...] | None = 0) -> Tensor:
        """The Jacobians at a batch of points, which share the pattern.

        Args:
            *args: The arguments, those of many points stacked along a dimension.
            in_dims: That dimension for all arguments, or one for each; None where all points share the argument.

        Returns:
            A sparse CSR tensor ``(B, m, n)``, whose values are ``(B, nnz)``.

        Raises:
            GuardError: What was relied on does not hold at one of the points.
            ValueMismatch: The stacks differ in length, or nothing is stacked.

        >>> import torch, pullback as pb
        >>> jac = pb.prepare(lambda x: x[1:] * x[:-1], torch.ones(3))
        >>> jac.batch(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).values()
        tensor([[2., 1., 3., 2.],
                [5., 4., 6., 5.]])
        """
        from pullback.jacobian.sparse import compressed_batch  # noqa: PLC0415

        points = _unstacked(args, in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args))
        values = [self(*point).sparse().values() for point in points]
        return compressed_batch(self.pattern, torch.stack(values))

    @property
    def pattern(self) -> Pattern:
        """Where the Jacobian can be non-zero, at every point that takes the same branches."""
        return self._preparation.pattern

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (m, n) of the Jacobian."""
        like = self._preparation.like
        return like.outputs.size, like.inputs.size

    def plan(self) -> Plan:
        """The bids of all strategies, and the choice."""
        return self._preparation.plan

    def __repr__(self) -> str:
        m, n = self.shape
        nonzeros = min(self._preparation.most_entries, m * n)
        return f"Prepared({self._of} {m:,} x {n:,}, {nonzeros:,} nonzeros, {self.plan().passes} passes)"


def _unstacked(args: tuple[Any, ...], in_dims: tuple[int | None, ...]) -> list[tuple[Any, ...]]:
    """The arguments of each point."""
    if len(in_dims) != len(args):
        raise ValueMismatch(
            "in_dims is one dimension for each argument",
            got=f"{len(in_dims)} for {len(args)} arguments",
            fix="in_dims=0, or in_dims=(0, None) for f(x, shared)",
        )
    lengths = {
        leaf.shape[dim]
        for arg, dim in zip(args, in_dims, strict=True)
        if dim is not None
        for leaf in pytree.tree_leaves(arg)
        if isinstance(leaf, Tensor) and leaf.ndim > dim
    }
    if len(lengths) != 1:
        raise ValueMismatch(
            "the points of a batch are stacked along one dimension of one length",
            got=f"lengths {sorted(lengths)}" if lengths else "nothing that is stacked",
            fix="jac.batch(torch.stack([x_1, x_2])), with in_dims=None for what all points share",
        )
    (length,) = lengths

    def pick(arg: Any, dim: int | None, index: int) -> Any:
        if dim is None:
            return arg
        return pytree.tree_map_only(Tensor, lambda leaf: leaf.select(dim, index), arg)

    return [tuple(pick(arg, dim, index) for arg, dim in zip(args, in_dims, strict=True)) for index in range(length)]


def _every(verify: bool | int) -> int | None:
    """After how many calls the entries are verified again: 0 for only the first time, None for never."""
    if not verify:
        return None
    return 0 if verify is True else int(verify)
