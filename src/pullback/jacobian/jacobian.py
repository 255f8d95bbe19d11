"""The Jacobian of a function at a point."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from pullback.autodiff.linearize import Linearization, Tensors
from pullback.data.coloring import Coloring
from pullback.data.pattern import Pattern
from pullback.data.problem import Problem
from pullback.data.space import Form, Space
from pullback.errors import StrategyError, ValueMismatch
from pullback.executors.local import LocalExecutor
from pullback.executors.memory import parse_bytes
from pullback.jacobian import spectrum
from pullback.jacobian.build import build, check_size, entries_of
from pullback.jacobian.operator import Operator
from pullback.jacobian.passes import Passes
from pullback.jacobian.planning import plan_for
from pullback.jacobian.positions import positions_of, ranges_of
from pullback.jacobian.preallocated import check_blocks, check_matrix, dense_grid, matrix_grid
from pullback.jacobian.requirements import check_all_complex, check_all_live, check_cauchy_riemann
from pullback.jacobian.sparse import assemble, check_layout, full_pattern
from pullback.jacobian.store import checked_target, save
from pullback.jacobian.verify import Verifier, precise
from pullback.plan import Plan, check_name
from pullback.strategies.base import STRATEGIES, Grid, Want, split_blocks

if TYPE_CHECKING:
    from pullback.jacobian.normal import Normal
    from pullback.jacobian.preparation import Call
    from pullback.sparsity.structure import Structure


@dataclass(frozen=True)
class Options:
    """How a Jacobian is built; the keywords of :func:`pullback.jacobian`."""

    strategy: str = "auto"
    memory: int | float | str | None = None
    progress: bool | None = None
    create_graph: bool = False
    verify: bool = True
    strict: bool = False
    holomorphic: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_bytes(self.memory)
        check_name(self.strategy)


@final
class Jacobian(Operator):
    """The Jacobian of a function at a point, as an operator: ``(m, n)`` for m output and n input elements.

    Nothing is differentiated until it is asked for. ``J @ v`` and ``J.T @ u`` take one pass each; :meth:`dense`,
    :meth:`matrix`, :meth:`sparse` and :meth:`blocks` build it by the cheapest way, which :meth:`plan` shows.
    """

    def __init__(self, linearization: Linearization, options: Options, prepared: Call | None = None) -> None:
        self._lin = linearization
        self._prepared = prepared
        self._options = options
        self._passes = Passes(
            linearization,
            LocalExecutor(options.memory, options.progress),
            Verifier(linearization, options.verify),
            options.strict,
            options.local,
        )
        self._plan: Plan | None = None
        self._pattern: Pattern | None = None
        if prepared is not None:
            self._passes.take(prepared.preparation.structure)
        if options.holomorphic:
            check_all_complex(linearization)
        if options.strict:
            check_all_live(linearization)

    @property
    def value(self) -> Any:
        """The function's value at the point, in the structure it returned."""
        return self._lin.value

    @property
    def aux(self) -> Any:
        """What the function returned beside it, with ``has_aux=True``."""
        return self._lin.aux

    @property
    def inputs(self) -> Space:
        return self._lin.inputs

    @property
    def outputs(self) -> Space:
        return self._lin.outputs

    def push(self, tangents: Tensors) -> Tensors:
        return self._passes.push(tangents)

    def pull(self, cotangents: Tensors) -> Tensors:
        return self._passes.pull(cotangents)

    def push_stack(self, stacks: Tensors) -> Tensors:
        total = stacks[0].shape[0] if stacks else 0
        return self._passes.push_many(lambda a, b: tuple(stack[a:b] for stack in stacks), total)

    def pull_stack(self, stacks: Tensors) -> Tensors:
        total = stacks[0].shape[0] if stacks else 0
        return self._passes.pull_many(lambda a, b: tuple(stack[a:b] for stack in stacks), total)

    def plan(self) -> Plan:
        """How the Jacobian was built last, or would be built: every strategy's bid, the choice, what was done.

        >>> import torch, pullback as pb
        >>> pb.jacobian(torch.sin, torch.ones(3)).plan().passes
        3
        """
        if self._plan is None:
            _, self._plan = plan_for(
                self._passes, "matrix", self._options.strategy, holomorphic=self._options.holomorphic
            )
        for note in (*self._lin.notes, *self._passes.notes):
            self._plan.note(note)
        return self._plan

    def dense(self, *, out: Any = None) -> Any:
        """Every entry, nested and shaped as torch.func does it.

        Args:
            out: What an earlier call returned, of this Jacobian or of one with the same shapes: it is written over,
                once, and returned. It must share no memory with the inputs.

        Returns:
            The structure of the outputs; at each output of shape ``a`` the structure of the inputs; at each input
            of shape ``b`` a tensor of shape ``a + b`` in the input's dtype.

        Raises:
            ArgumentError: There is no tensor in ``out`` where one is needed.
            ValueMismatch: ``out`` does not fit, or results have to be differentiable.

        >>> import torch, pullback as pb
        >>> pb.jacobian(lambda x: x * x, torch.tensor([1.0, 2.0])).dense()
        tensor([[2., 0.],
                [0., 4.]])
        """
        if out is not None:
            self._write("matrix", dense_grid(out, self._lin))
            return out
        grid = self._grid()
        per_output = []
        for k, row in enumerate(self.outputs.leaves):
            blocks = [grid[k][j].reshape(row.shape + column.shape) for j, column in enumerate(self.inputs.leaves)]
            per_output.append(self.inputs.unflatten(blocks))
        return self.outputs.unflatten(per_output)

    def matrix(self, *, out: Tensor | None = None) -> Tensor:
        """Every entry as one matrix ``(m, n)``: outputs and inputs flattened and laid end to end.

        Args:
            out: A matrix to write over and return, as for :meth:`dense`.

        For complex tensors, row i is ``J.T @ e_i``: torch's convention, ``∂Re y/∂Re x + i ∂Re y/∂Im x``. With
        ``holomorphic=True`` entries are the complex derivatives ``∂y/∂x``.

        Raises:
            ArgumentError: ``out`` is no tensor.
            ValueMismatch: ``out`` does not fit, or results have to be differentiable.
        """
        if out is not None:
            check_matrix(out, self._lin)
        elif len(self.inputs.leaves) == len(self.outputs.leaves) == 1:
            return self._grid()[0][0]
        elif self._lin.create_graph:
            rows = [self.inputs.join(row) for row in self._grid()]
            return torch.cat(rows) if rows else self._room(self.shape)
        else:
            out = self._room(self.shape)
        self._write("matrix", matrix_grid(out, self.outputs, self.inputs))
        return out

    def rows(self, index: Any) -> Tensor:
        """Rows of :meth:`matrix` by reverse passes: the gradients of single output elements.

        Args:
            index: An int, giving ``(n,)``; or a slice, range, list or tensor of ints, giving ``(k, n)``.
        """
        positions, single = positions_of(index, self.shape[0], "row")
        found = (
            self._passes.pull_many(lambda a, b: self.outputs.onehots(positions[a:b]), len(positions))
            if not single
            else tuple(
                part.unsqueeze(0)
                for part in self._passes.pull(tuple(part[0] for part in self.outputs.onehots(positions)))
            )
        )
        if self._options.holomorphic:
            found = tuple(part.conj() for part in found)
        rows: Tensor = self.inputs.write(found, Form.STACK).mT
        return rows[0] if single else rows

    def columns(self, index: Any) -> Tensor:
        """Columns of :meth:`matrix` by forward passes: how all outputs change along single input elements.

        Args:
            index: An int, giving ``(m,)``; or a slice, range, list or tensor of ints, giving ``(m, k)``.
        """
        positions, single = positions_of(index, self.shape[1], "column")
        if (self.inputs.is_complex or self.outputs.is_complex) and not self._options.holomorphic:
            return self.matrix()[:, positions[0] if single else positions]
        found = self._passes.push_many(lambda a, b: self.inputs.onehots(positions[a:b]), len(positions))
        columns: Tensor = self.outputs.write(found, Form.STACK)
        columns = columns.to(self.inputs.dtype)
        return columns[:, 0] if single else columns

    def diagonal(self) -> Tensor:
        """The entries (i, i), ``(min(m, n),)``: one pass where no output reads another's input, else by rows."""
        count = min(self.shape)
        if self._elementwise():
            ones = tuple(torch.ones_like(part) for part in self.outputs.zeros())
            entries = self._passes.pull(ones)
            if self._is_diagonal(entries):
                return self.inputs.write(entries, Form.FLAT)  # type: ignore[no-any-return]
        parts = []
        for start in range(0, count, DIAGONAL_ROWS):
            index = torch.arange(start, min(start + DIAGONAL_ROWS, count))
            rows = self.rows(index)
            parts.append(rows[torch.arange(len(index), device=rows.device), index.to(rows.device)])
        return torch.cat(parts) if parts else self.matrix().diagonal()

    @property
    def pattern(self) -> Pattern:
        """Where J can be non-zero, found from the program; valid for every x that takes the same branches.

        ``print(J.pattern)`` draws it, ``J.pattern.explain(i, j)`` says why an entry is there. With ``local=True`` it
        is the pattern at this x.

        Raises:
            StrategyError: The program cannot be seen (inside a torch.func transform, or where numbers leave torch).

        >>> import torch, pullback as pb
        >>> pb.jacobian(lambda x: x[1:] * x[:-1], torch.ones(4)).pattern
        Pattern(3 x 4, 6 nonzeros, density 50%, global)
        """
        found = self._structure()
        if isinstance(found, str):
            raise StrategyError(
                "the zeros of this Jacobian cannot be found from its program",
                got=found,
                fix="J.sparse() still works, from dense rows; J.dense() has every entry",
            )
        if self._pattern is None:
            known = self._prepared.preparation.pattern if self._prepared is not None else None
            self._pattern = known or full_pattern(self._lin, found)
        return self._pattern

    def coloring(self, axis: str = "columns") -> Coloring:
        """Which columns of the pattern can share a forward pass, or which rows a reverse pass.

        ``J.pattern.spy(coloring=J.coloring())`` draws it. The cut needs fewer passes still; ``J.plan()`` says which way
        was taken.

        Args:
            axis: ``"columns"`` or ``"rows"``.

        Raises:
            ValueMismatch: There is no such axis.

        >>> import torch, pullback as pb
        >>> pb.jacobian(lambda x: x[1:] * x[:-1], torch.ones(9)).coloring()
        Coloring(2 passes for 9 columns (optimal, by natural order))
        """
        from pullback.coloring import color_columns, color_rows  # noqa: PLC0415  it needs SciPy

        if axis not in {"columns", "rows"}:
            raise ValueMismatch("there is no such axis", got=f"axis={axis!r}", fix="axis='columns' or axis='rows'")
        return (color_columns if axis == "columns" else color_rows)(self.pattern.to_scipy())

    def sparse(self, layout: str = "csr", *, blocksize: tuple[int, int] | None = None) -> Any:
        """J as a sparse matrix ``(m, n)``: the pattern's entries, a few compressed passes for all of them.

        Entries that the pattern holds are stored, also where they happen to be zero at this x. The torch matrices of
        one prepared Jacobian share their index tensors.

        Args:
            layout: ``"csr"``, ``"csc"``, ``"coo"`` or ``"bsr"`` for a torch tensor on the inputs' device, ``"scipy"``
                for a SciPy CSR array.
            blocksize: With ``"bsr"``: height and width of the blocks; None: the largest that the pattern is made of.

        Raises:
            ValueMismatch: There is no such layout.
            ArgumentError: A block size is given that is none.

        Source: Gebremedhin, Manne, Pothen, "What Color Is Your Jacobian?", SIAM Review 47 (2005).

        >>> import torch, pullback as pb
        >>> J = pb.jacobian(lambda x: x[1:] * x[:-1], torch.tensor([1.0, 2.0, 3.0]))
        >>> J.sparse().to_dense()
        tensor([[2., 1., 0.],
                [0., 3., 2.]])
        """
        check_layout(layout, blocksize)
        found = self._structure()
        if isinstance(found, str) and self._lin.transformed:
            raise StrategyError(
                "a sparse Jacobian cannot be made inside a torch.func transform", got=found, fix="J.dense() can"
            )
        if isinstance(found, str):
            return self._sparse_from_numbers(found, layout, blocksize)
        if self._prepared is not None:
            values, plan = self._prepared.entries(self._passes)
        else:
            try:
                built, plan = self._build("sparse")
            except StrategyError as error:
                if self._options.strategy != "auto" or self._options.strict:
                    raise
                return self._sparse_from_numbers(error.got, layout, blocksize)
            values = entries_of(built, self.inputs)
        self._plan = plan
        values = values.to(self.inputs.dtype)
        values = values if self._options.create_graph else values.detach()
        return assemble(self.pattern, values, layout, blocksize, share=self._prepared is not None)

    def iter_rows(
        self, memory: int | float | str | None = None, *, rows: int | None = None
    ) -> Iterator[tuple[range, Tensor]]:
        """:meth:`matrix` in blocks of rows, for a Jacobian that is larger than memory.

        Each block is made when it is asked for, by the way of the fewest passes for all blocks together: reverse
        passes for its rows, forward passes along all inputs, or entries that are made once and held. ``J.plan()`` says
        which.

        Args:
            memory: The limit for a block, the one before it, and the passes' working memory, in bytes or as ``"1GiB"``;
                None: the limit of this Jacobian.
            rows: At most so many rows in a block; None: as many as fit.

        Returns:
            An iterator over pairs: the ``range`` of row numbers, and those rows as a tensor ``(len(range), n)``.

        Raises:
            ArgumentError: ``memory`` or ``rows`` is of the wrong kind.
            ValueMismatch: ``memory`` or ``rows`` is no amount.
            MemoryLimitError: Not even one row is within the limit.
            StrategyError: Inside a torch.func transform.

        >>> import torch, pullback as pb
        >>> J = pb.jacobian(lambda x: x.cumsum(0), torch.ones(4))
        >>> [(rows, float(block.sum())) for rows, block in J.iter_rows("1MiB", rows=3)]
        [(range(0, 3), 6.0), (range(3, 4), 4.0)]
        """
        from pullback.jacobian.stream import checked_rows, deliver  # noqa: PLC0415  it needs SciPy

        most = checked_rows(rows)
        limit = self._passes.executor.limit(self.inputs.device) if memory is None else parse_bytes(memory)
        if self._options.holomorphic:
            check_cauchy_riemann(self._passes.verifier)
        delivery = deliver(
            self._passes,
            limit,
            most,
            self._options.strategy,
            holomorphic=self._options.holomorphic,
            prepared=self._prepared,
        )
        self._plan = delivery.plan
        return iter(delivery)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        layout: str = "dense",
        memory: int | float | str | None = None,
        progress: bool | None = None,
    ) -> Path:
        """Write :meth:`matrix` to a file, block by block, so that J need not fit into memory.

        The file is written beside its place and moved there when it is whole: a file that was there is not harmed by an
        error or by Ctrl-C.

        Args:
            path: Where. ``.npy`` for ``numpy.load(path, mmap_mode="r")``; ``.safetensors`` for the tensor
                ``"jacobian"``, with the inputs' and outputs' names and places in the metadata.
            layout: ``"dense"``, the only one.
            memory: As for :meth:`iter_rows`.
            progress: True shows a progress bar, False does not; None: as this Jacobian was told.

        Returns:
            The path of the file.

        Raises:
            ArgumentError: ``path`` or ``memory`` is of the wrong kind.
            ValueMismatch: The suffix, layout or folder will not do, or the format has no such dtype.
            MemoryLimitError: Not even one row is within the limit.

        Source: NumPy's NEP 1 (the npy format); https://huggingface.co/docs/safetensors (its format).
        """
        target = checked_target(path, layout, self.inputs.dtype)
        return save(
            self.iter_rows(memory),
            target,
            self.inputs,
            self.outputs,
            self._options.progress if progress is None else progress,
        )

    def blocks(self, *, out: Tensor | None = None) -> Tensor:
        """The per-example Jacobians ``(batch, m_i, n_i)`` of a batch whose examples do not mix.

        Inputs and outputs share a leading batch dimension; that no output reads another example's input is
        proved by a reverse pass, not assumed. By a module's parameters, or other inputs that have no batch dimension,
        the rows of each example are its Jacobian already: ``(batch, m_i, n)``.

        Args:
            out: A tensor to write over and return, as for :meth:`dense`.

        Raises:
            StrategyError: Examples mix (BatchNorm in training, say), or there is no batch dimension.
            ArgumentError: ``out`` is no tensor.
            ValueMismatch: ``out`` does not fit, or results have to be differentiable.
        """
        examples = self._examples_of_rows()
        if examples is not None:
            return self._rows_by_example(examples, out)
        sizes = self._sizes_of_blocks()
        if self._prepared is not None and out is None and sizes is not None and self._all_live():
            found, self._plan = self._prepared.blocks(self._passes)
            if isinstance(found, Tensor):
                return found
        if sizes is not None and (out is not None or not self._lin.create_graph):
            examples, heights, widths = sizes
            shape = examples, sum(heights), sum(widths)
            if out is None:
                out = self._room(shape)
            else:
                check_blocks(out, self._lin, shape)
            self._write("blocks", split_blocks(out, heights, widths))
            return out
        found, self._plan = self._build("blocks")
        if isinstance(found, Tensor) and self._all_live():
            return found
        return self._blocks_with_zeros(found)

    def gram(self) -> Tensor:
        """``J Jᵀ``, ``(m, m)``: how the outputs' gradients overlap (the empirical neural tangent kernel).

        By parameters that examples share it is made layer by layer, without J where that is less work: ``J.plan()``
        says how.

        Source: Novak, Sohl-Dickstein, Schoenholz, "Fast Finite Width Neural Tangent Kernel", ICML 2022.
        """
        self._refuse_real_linear("gram")
        from pullback.jacobian.gram import gram  # noqa: PLC0415  most Jacobians do without

        total, self._plan = gram(self, self._passes, self._options.strategy)
        return total.to(self.inputs.dtype)

    def row_norms(self) -> Tensor:
        """The norms of the rows, ``(m,)``: of losses by parameters, the norm of each example's gradient.

        By parameters that examples share they are made layer by layer, without J where that is less work.

        Source: Goodfellow, "Efficient Per-Example Gradient Computations", 2015, arXiv:1510.01799.

        >>> import torch, pullback as pb
        >>> pb.jacobian(lambda x: x * x, torch.tensor([1.0, 2.0])).row_norms()
        tensor([2., 4.])
        """
        self._refuse_real_linear("row_norms")
        return self._row_norms().to(self.inputs.dtype.to_real())

    def normal(self) -> Normal:
        """``JᵀJ`` as an operator ``(n, n)``: ``N @ v``, ``N.diagonal()``, ``N.matrix()``, ``N.to_scipy()``."""
        self._refuse_real_linear("normal")
        from pullback.jacobian import gram  # noqa: PLC0415  most Jacobians do without
        from pullback.jacobian.normal import Normal  # noqa: PLC0415

        def diagonal() -> Tensor:
            found, self._plan = gram.column_squares(self, self._passes, self._options.strategy)
            return found

        def matrix() -> Tensor:
            check_size(self._passes, self.shape[1] ** 2 * self.inputs.dtype.itemsize)
            found, self._plan = gram.normal_matrix(self, self._passes, self._options.strategy)
            return found

        return Normal(self, diagonal, matrix)

    def singular_values(self, k: int | None = None) -> Tensor:
        """The k largest singular values, falling; all ``min(m, n)`` of them by default.

        A small Jacobian is built and decomposed; for the first few of a large one, products with J and Jᵀ
        are enough (SciPy's ARPACK).

        Args:
            k: How many; None for all.
        """
        self._refuse_real_linear("singular_values")
        return spectrum.singular_values(self, k)

    def norm(self, ord: int | str = 2) -> Tensor:
        """The spectral norm (the largest singular value), or with ``ord="fro"`` the Frobenius norm."""
        self._refuse_real_linear("norm")
        if ord == "fro":
            norm: Tensor = torch.linalg.vector_norm(self._row_norms())
            return norm.to(self.inputs.dtype.to_real())
        return spectrum.norm(self, ord)

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.linalg.LinearOperator`` on flat NumPy vectors, whose products are passes."""
        self._refuse_real_linear("to_scipy")
        return spectrum.to_scipy(self)

    def _row_norms(self) -> Tensor:
        """The norms of the rows in the precision that they are made in."""
        from pullback.jacobian.gram import row_norms  # noqa: PLC0415  most Jacobians do without

        norms, self._plan = row_norms(self, self._passes, self._options.strategy)
        return norms

    def _grid(self) -> Grid:
        """``[k][j]``: a matrix for each output and input leaf, zeros for those that carry no graph."""
        if self._options.holomorphic:
            check_cauchy_riemann(self._passes.verifier)
        found, self._plan = self._prepared.grid(self._passes) if self._prepared is not None else self._build("matrix")
        live_outputs = {index: k for k, index in enumerate(self._lin.live_outputs)}
        live_inputs = {index: j for j, index in enumerate(self._lin.live_inputs)}
        grid: Grid = []
        for index, row in enumerate(self.outputs.leaves):
            blocks = []
            for other, column in enumerate(self.inputs.leaves):
                k, j = live_outputs.get(index), live_inputs.get(other)
                if isinstance(found, list) and k is not None and j is not None:
                    blocks.append(found[k][j])
                else:
                    blocks.append(torch.zeros((row.numel, column.numel), dtype=column.dtype, device=column.device))
            grid.append(blocks)
        return grid

    def _sparse_from_numbers(self, why: str, layout: str, blocksize: tuple[int, int] | None) -> Any:
        """Where no pattern can be relied on: every entry is computed, and those that are not zero are stored."""
        matrix = self.matrix()
        self.plan().note(f"every entry was computed, and the pattern is that of the numbers: {why}")
        return assemble(Pattern.of(matrix), matrix[matrix != 0], layout, blocksize)

    def _structure(self) -> Structure | str:
        """The structure of the live part; where nothing is live, that of nothing."""
        return self._passes.structure()

    def _all_live(self) -> bool:
        return len(self._lin.live_inputs) == len(self.inputs.leaves) and len(self._lin.live_outputs) == len(
            self.outputs.leaves
        )

    def _blocks_with_zeros(self, found: Grid | Tensor | None) -> Tensor:
        """Per-example blocks with zero rows and columns for the leaves that carry no graph."""
        sizes = self._sizes_of_blocks()
        if sizes is None:
            raise StrategyError(
                "there is no batch dimension for blocks",
                got=f"{self.inputs.describe()} -> {self.outputs.describe()}",
                fix="give inputs and outputs the same leading dimension, or use J.dense()",
            )
        examples, heights, widths = sizes
        result = torch.zeros((examples, sum(heights), sum(widths)), dtype=self.inputs.dtype, device=self.inputs.device)
        if isinstance(found, Tensor):
            rows = ranges_of(heights, self._lin.live_outputs)
            columns = ranges_of(widths, self._lin.live_inputs)
            result[:, rows[:, None].to(result.device), columns.to(result.device)] = found
        return result

    def _sizes_of_blocks(self) -> tuple[int, list[int], list[int]] | None:
        """The number of examples, and for one of them the elements of each output and input; None without a batch."""
        shapes = {leaf.shape[:1] for leaf in self.inputs.leaves + self.outputs.leaves}
        if len(shapes) != 1 or () in shapes:
            return None
        (examples,) = shapes.pop()
        heights, widths = (
            [math.prod(leaf.shape[1:]) for leaf in space.leaves] for space in (self.outputs, self.inputs)
        )
        return examples, heights, widths

    def _examples_of_rows(self) -> int | None:
        """The number of examples whose outputs depend on inputs that belong to none of them; None: there are none."""
        leads = {leaf.shape[:1] for leaf in self.outputs.leaves}
        if len(leads) != 1 or () in leads:
            return None
        (lead,) = leads
        shared = any(leaf.shape[:1] == lead for leaf in self.inputs.leaves)
        return None if shared and not _is_by_parameters(self._lin.problem) else lead[0]

    def _rows_by_example(self, examples: int, out: Tensor | None) -> Tensor:
        """:meth:`matrix` as ``(batch, m_i, n)``."""
        heights = [math.prod(leaf.shape[1:]) for leaf in self.outputs.leaves]
        shape = examples, sum(heights), self.shape[1]
        if out is not None:
            check_blocks(out, self._lin, shape)
        if len(heights) == 1 and (out is None or out.is_contiguous()):
            found = self.matrix(out=None if out is None else out.view(self.shape)).view(shape)
            return found if out is None else out
        parts = zip(torch.split(self.matrix(), [examples * height for height in heights]), heights, strict=True)
        found = torch.cat([rows.view(examples, height, self.shape[1]) for rows, height in parts], dim=1)
        return found if out is None else out.copy_(found)

    def _room(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor for a result, if it is within the memory limit."""
        check_size(self._passes, math.prod(shape) * self.inputs.dtype.itemsize)
        return torch.empty(shape, dtype=self.inputs.dtype, device=self.inputs.device)

    def _write(self, want: Want, grid: Grid) -> None:
        """Build over what stands in a grid ``[k][j]`` of all outputs and inputs."""
        lin = self._lin
        if want == "matrix" and self._options.holomorphic:
            check_cauchy_riemann(self._passes.verifier)
        live = [[grid[k][j] for j in lin.live_inputs] for k in lin.live_outputs]
        if want == "matrix" and self._prepared is not None:
            _, self._plan = self._prepared.grid(self._passes, live)
            written = True
        elif want == "blocks" and self._prepared is not None:
            found, self._plan = self._prepared.blocks(self._passes, live)
            written = found is not None
        else:
            found, self._plan = self._build(want, live)
            written = found is not None
        for k, row in enumerate(grid):
            for j, part in enumerate(row):
                if not written or k not in lin.live_outputs or j not in lin.live_inputs:
                    part.zero_()

    def _build(self, want: Want, into: Grid | None = None) -> tuple[Grid | Tensor | None, Plan]:
        """Build by the strategy that was asked for, where it gives what is wanted."""
        name = self._options.strategy
        able = name == "auto" or want in STRATEGIES.all()[name].gives
        return build(self._passes, want, name if able else "auto", holomorphic=self._options.holomorphic, into=into)

    def _elementwise(self) -> bool:
        """Whether inputs and outputs are one tensor of the same shape whose elements do not mix."""
        lin = self._lin
        if not self._all_live() or self.inputs.shapes != self.outputs.shapes or len(self.inputs.leaves) != 1:
            return False
        if self.inputs.is_complex or self.outputs.is_complex or lin.transformed:
            return False
        facts, _ = plan_for(self._passes, "blocks", "auto", holomorphic=False)
        return not facts.mixing(len(self.inputs.shapes[0]))

    def _is_diagonal(self, entries: Tensors) -> bool:
        """Whether a random seed times these entries is what a plain reverse pass gives for it."""
        verifier = self._passes.verifier
        if not verifier.active or not self.shape[0]:
            return True
        seed, expected = verifier.probe
        found = [weight * precise(entry.detach()) for weight, entry in zip(seed, entries, strict=True)]
        return verifier.disagreement(found, lambda: found, expected) is None

    def _refuse_real_linear(self, what: str) -> None:
        if (self.inputs.is_complex or self.outputs.is_complex) and not self._options.holomorphic:
            raise StrategyError(
                f"J.{what}() needs a complex matrix, and this function has none unless it is holomorphic",
                got=f"{self.inputs.describe()} -> {self.outputs.describe()}, holomorphic=False",
                fix="holomorphic=True, or view the function as real: torch.view_as_real",
            )


# How many rows the diagonal reads at a time: it needs one entry of each, so they are not kept.
DIAGONAL_ROWS = 256


def _is_by_parameters(problem: Problem) -> bool:
    """Whether a function is a module, and differentiated by its parameters."""
    leaves = problem.leaves
    return isinstance(problem.f, nn.Module) and all(isinstance(leaf, nn.Parameter) for leaf in leaves)
