"""Pattern: where a Jacobian can be non-zero.

An element outside the pattern is zero whatever the numbers are; one inside may be zero by chance. What is saved by
knowing it: rows (or columns) whose nonzeros do not meet share one pass, and only the nonzeros are stored.
"""

from __future__ import annotations

import io
import json
import operator
import os
import shutil
import sys
import uuid
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from torch import Tensor

from pullback.data.braille import Indices, picture, spy
from pullback.data.space import one_line
from pullback.errors import ArgumentError, GraphError, PullbackError, ValueMismatch

Scope = Literal["global", "local"]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Explain = Callable[[int, int], str]

# What a file says it is; a file of another kind or version is refused.
FORMAT = "pullback.Pattern 1"
# A printed pattern is no larger than this, in characters, nor wider than the terminal.
WIDEST, HIGHEST = 60, 30


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """The positions (i, j) of a matrix that can be non-zero, row after row.

    The set P ⊆ {0 … m-1} x {0 … n-1} with J[i, j] = 0 for every (i, j) outside P. Row i has its nonzeros in the
    columns ``indices[indptr[i]:indptr[i + 1]]``, in ascending order. Two patterns are equal if shape and positions are.

    Attributes:
        shape: The shape (m, n) of the matrix.
        indptr: Where each row begins in ``indices``: ``(m + 1,)``, int32 where that fits; read-only.
        indices: The columns of the nonzeros, ``(nnz,)``, of the same dtype; read-only.
        fingerprint: Identifies the program that it was found from; empty if there is none.
        scope: ``"global"`` if it holds for every x of this shape that takes the same branches, ``"local"`` if it
            holds at one x.

    Raises:
        ArgumentError: A part is of the wrong kind.
        ValueMismatch: The parts are not the rows of a matrix of this shape.

    >>> Pattern((2, 3), np.array([0, 2, 3]), np.array([0, 1, 2]))
    Pattern(2 x 3, 3 nonzeros, density 50%, global)
    """

    shape: tuple[int, int]
    indptr: Indices
    indices: Indices
    fingerprint: str = ""
    scope: Scope = "global"
    _explain: Explain | None = field(default=None)

    def __post_init__(self) -> None:
        shape = _shape(self.shape)
        indptr, indices = _integers(self.indptr, "indptr"), _integers(self.indices, "indices")
        _check_rows(shape, indptr, indices)
        if self.scope not in get_args(Scope):
            raise ValueMismatch("there is no such scope", got=repr(self.scope), fix="scope='global' or scope='local'")
        if not isinstance(self.fingerprint, str):
            raise ArgumentError("the fingerprint is not text", got=type(self.fingerprint).__name__, fix="give a str")
        small = max(*shape, len(indices)) <= np.iinfo(np.int32).max
        object.__setattr__(self, "shape", shape)
        for name, array in (("indptr", indptr), ("indices", indices)):
            owned = array.astype(np.int32 if small else np.int64)
            owned.flags.writeable = False
            object.__setattr__(self, name, owned)

    @classmethod
    def of(cls, matrix: Any) -> Pattern:
        """The pattern of a matrix.

        Args:
            matrix: A dense NumPy array or torch tensor, of which the nonzeros count; or a sparse SciPy array or torch
                tensor of any format, of which the stored elements count, also those that hold a zero: of stored blocks
                and diagonals, all. ``(m, n)``.

        Raises:
            ArgumentError: It is none of these.
            ValueMismatch: It is not two-dimensional.

        >>> Pattern.of(torch.eye(3))
        Pattern(3 x 3, 3 nonzeros, density 33.3%, global)
        """
        if isinstance(matrix, Pattern):
            return matrix
        sparse = sys.modules.get("scipy.sparse")
        is_scipy = sparse is not None and sparse.issparse(matrix)
        is_numeric = isinstance(matrix, np.ndarray) and (matrix.dtype == bool or np.issubdtype(matrix.dtype, np.number))
        if not (is_scipy or is_numeric or isinstance(matrix, Tensor)):
            dtype = f" of dtype {matrix.dtype}" if isinstance(matrix, np.ndarray) else ""
            raise ArgumentError(
                "a pattern is made from a matrix",
                got=type(matrix).__name__ + dtype,
                fix="give a NumPy array of numbers, a torch tensor or a scipy.sparse array: np.asarray(...)",
            )
        if len(matrix.shape) != 2:
            raise ValueMismatch("a pattern is two-dimensional", got=f"shape {tuple(matrix.shape)}", fix="give (m, n)")
        if isinstance(matrix, Tensor):
            rows, columns = _of_tensor(matrix.detach())
        elif is_scipy:
            rows, columns = _of_scipy(matrix)
        else:
            rows, columns = matrix.nonzero()
        return cls.from_coordinates(rows, columns, matrix.shape)

    @classmethod
    def from_coordinates(
        cls,
        rows: Any,
        columns: Any,
        shape: Sequence[int],
        *,
        fingerprint: str = "",
        scope: Scope = "global",
        explain: Explain | None = None,
    ) -> Pattern:
        """The pattern with a nonzero at each ``(rows[k], columns[k])``, in any order; repeated ones count once.

        Args:
            rows: The rows of the nonzeros, ``(k,)``: integers in a list, array or tensor.
            columns: Their columns, ``(k,)``.
            shape: The shape (m, n) of the matrix.
            fingerprint: Identifies the program that it was found from.
            scope: ``"global"`` or ``"local"``.
            explain: Says of a nonzero (i, j) how it comes about.

        Raises:
            ValueMismatch: There are more rows than columns, or the other way, or one lies outside the shape.

        >>> Pattern.from_coordinates([1, 0, 1], [2, 0, 2], (2, 3)).nnz
        2
        """
        from scipy.sparse import coo_array  # noqa: PLC0415  heavy, and `import pullback` needs none of it

        m, n = _shape(shape)
        i, j = _integers(rows, "rows"), _integers(columns, "columns")
        if len(i) != len(j):
            raise ValueMismatch(
                "rows and columns differ in length", got=f"{len(i)} and {len(j)}", fix="give one of each for a nonzero"
            )
        for name, values, size in (("row", i, m), ("column", j, n)):
            outside = (values < 0) | (values >= size)
            if outside.any():
                raise ValueMismatch(
                    f"a {name} lies outside the matrix",
                    got=f"{name} {values[outside.argmax()]}, shape ({m}, {n})",
                    fix=f"{name}s {_range(size)}",
                )
        csr = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(m, n)).tocsr()
        return cls((m, n), csr.indptr, csr.indices, fingerprint, scope, explain)

    @property
    def nnz(self) -> int:
        """The number of positions that can be non-zero."""
        return len(self.indices)

    @property
    def density(self) -> float:
        """Their share of all positions, nnz / (m n); 0 for a matrix without elements."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @cached_property
    def T(self) -> Pattern:
        """The pattern of the transposed matrix, ``(n, m)``.

        >>> (1, 0) in Pattern.of(np.array([[0, 1, 0]])).T
        True
        """
        csr = self.to_scipy().T.tocsr()
        name, mark, explain = self.fingerprint, ".T", self._explain
        swapped = name.removesuffix(mark) if name.endswith(mark) else name and name + mark
        return Pattern(
            self.shape[::-1], csr.indptr, csr.indices, swapped, self.scope, explain and (lambda i, j: explain(j, i))
        )

    @cached_property
    def shared(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        """What :meth:`to_torch` gave for a device, for matrices that share it."""
        return {}

    @property
    def max_row(self) -> int:
        """The largest number of nonzeros of a row: no colouring of the columns has fewer colours."""
        return int(np.diff(self.indptr).max(initial=0))

    @property
    def max_column(self) -> int:
        """The largest number of nonzeros of a column: no colouring of the rows has fewer colours."""
        return int(np.bincount(self.indices).max(initial=0))

    @property
    def symmetric(self) -> bool:
        """Whether (j, i) is a nonzero wherever (i, j) is one, as for every Hessian."""
        return self == self.T

    def coordinates(self) -> tuple[Indices, Indices]:
        """The row and the column of each nonzero, ``(nnz,)`` each, row after row."""
        return np.repeat(np.arange(self.shape[0], dtype=self.indptr.dtype), np.diff(self.indptr)), self.indices

    def row(self, i: int) -> Indices:
        """The columns of the nonzeros of row i, in ascending order.

        >>> Pattern.of(np.array([[1, 0, 1]])).row(0).tolist()
        [0, 2]
        """
        i = _inside(i, self.shape[0], "row")
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    def column(self, j: int) -> Indices:
        """The rows of the nonzeros of column j, in ascending order."""
        return self.T.row(_inside(j, self.shape[1], "column"))

    def to_scipy(self) -> Any:
        """A ``scipy.sparse.csr_array`` of bools, ``(m, n)``, that is the caller's own."""
        from scipy.sparse import csr_array  # noqa: PLC0415

        return csr_array((np.ones(self.nnz, dtype=bool), self.indices.copy(), self.indptr.copy()), shape=self.shape)

    def to_torch(self, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
        """``crow_indices`` ``(m + 1,)`` and ``col_indices`` ``(nnz,)``, int64, as ``torch.sparse_csr_tensor`` asks.

        >>> Pattern.of(torch.eye(2)).to_torch()
        (tensor([0, 1, 2]), tensor([0, 1]))
        """
        # What torch makes of an empty array has a stride of zero, which older torch refuses here.
        crow, col = (
            torch.empty(len(each), dtype=torch.int64).copy_(torch.from_numpy(each.astype(np.int64)))
            for each in (self.indptr, self.indices)
        )
        return crow.to(device), col.to(device)

    def issubset(self, other: Pattern) -> bool:
        """Whether every nonzero of this pattern is one of the other."""
        return (self | _same_shape(self, other)).nnz == other.nnz

    def covers(self, other: Pattern) -> bool:
        """Whether every nonzero of the other pattern is one of this: then this may be used in its place."""
        return _same_shape(self, other).issubset(self)

    def explain(self, i: int, j: int) -> str:
        """Why the element (i, j) is non-zero, or that it is not.

        Raises:
            GraphError: The pattern knows no program that could say so.

        >>> Pattern.of(torch.eye(2)).explain(0, 1)
        'entry (0, 1) is zero at every x of this shape that takes the same branches'
        """
        i, j = _inside(i, self.shape[0], "row"), _inside(j, self.shape[1], "column")
        if (i, j) not in self:
            every = "every x of this shape that takes the same branches"
            return f"entry ({i}, {j}) is zero at {'this x' if self.scope == 'local' else every}"
        if self._explain is None:
            raise GraphError(
                f"this pattern cannot explain entry ({i}, {j}): it knows no program",
                got="a pattern that was loaded from a file, or made from a matrix",
                fix="ask the pattern that was found from the program",
            )
        return self._explain(i, j)

    def spy(self, ax: Any = None, coloring: Any = None) -> Any:
        """Draw the nonzeros with matplotlib.

        Args:
            ax: The Axes to draw on; None for new ones.
            coloring: Something with ``axis`` (``"rows"`` or ``"columns"``, which it is without one) and ``colors`` (one
                integer for each of these, -1 for none): each nonzero is drawn in the colour of its row or column.

        Returns:
            The Axes. Nothing is shown or saved: that is ``ax.figure.savefig(...)`` or ``plt.show()``.

        Raises:
            StrategyError: matplotlib is not installed.
            ArgumentError: It is no colouring of one axis.
            ValueMismatch: The colouring is one of another matrix.
        """
        return spy(*self.coordinates(), self.shape, ax, coloring)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pattern to a file, in NumPy's ``.npz`` format; an interrupted save leaves the old file as it was.

        What explains its entries is not saved.
        """
        about = {"format": FORMAT, "shape": self.shape, "fingerprint": self.fingerprint, "scope": self.scope}
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with unfinished.open("xb") as file:
                text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
                np.savez_compressed(file, about=text, indptr=self.indptr, indices=self.indices)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], fingerprint: str | None = None) -> Pattern:
        """Read a pattern from a file that :meth:`save` wrote.

        Args:
            path: The file.
            fingerprint: That of the program it is meant for; None to read it whatever it was found from.

        Raises:
            ValueMismatch: The file is damaged or of another kind, or it belongs to a different program.
        """
        data = Path(path).read_bytes()
        try:
            found = cls(*_read(data))
        except Exception as error:
            reason = f"{error.what}: {error.got}" if isinstance(error, PullbackError) else one_line(error)
            raise ValueMismatch(
                "this file holds no pattern, or a damaged one",
                got=f"{path}: {reason}",
                fix="find the pattern anew and save it: pattern.save(path)",
            ) from error
        if fingerprint is not None and found.fingerprint != fingerprint:
            raise ValueMismatch(
                "this pattern belongs to a different program",
                got=f"fingerprint {found.fingerprint!r} in {path}, but the program has {fingerprint!r}",
                fix="find the pattern of this program anew and save it: pattern.save(path)",
            )
        return found

    def __contains__(self, entry: tuple[int, int]) -> bool:
        try:
            i, j = map(operator.index, entry)
        except (TypeError, ValueError):
            raise ArgumentError("an entry is two integers", got=repr(entry), fix="(i, j) in pattern") from None
        if not (0 <= i < self.shape[0] and 0 <= j < self.shape[1]):
            return False
        row = self.row(i)
        place = int(np.searchsorted(row, j))
        return place < len(row) and int(row[place]) == j

    def __or__(self, other: Pattern) -> Pattern:
        if not isinstance(other, Pattern):
            return NotImplemented
        csr = self.to_scipy() + _same_shape(self, other).to_scipy()
        return Pattern(
            self.shape,
            csr.indptr,
            csr.indices,
            self.fingerprint if self.fingerprint == other.fingerprint else "",
            "local" if "local" in {self.scope, other.scope} else "global",
            lambda i, j: (self if (i, j) in self and (self._explain or (i, j) not in other) else other).explain(i, j),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.indptr.tobytes(), self.indices.tobytes()))

    def __reduce__(self) -> tuple[object, ...]:
        return Pattern, (self.shape, self.indptr, self.indices, self.fingerprint, self.scope)

    def __repr__(self) -> str:
        return f"Pattern({self._header()})"

    def __str__(self) -> str:
        width = max(min(shutil.get_terminal_size((WIDEST, HIGHEST)).columns, WIDEST), 3)
        drawn = picture(*self.coordinates(), self.shape, width=width, height=HIGHEST)
        return f"Pattern {self._header()}" + ("\n" + drawn if drawn else "")

    def _header(self) -> str:
        m, n = self.shape
        return f"{m:,} x {n:,}, {self.nnz:,} nonzeros, density {100 * self.density:.3g}%, {self.scope}"


def _shape(shape: Any) -> tuple[int, int]:
    try:
        m, n = map(operator.index, shape)
    except (TypeError, ValueError):
        raise ArgumentError("a shape is two integers", got=repr(shape), fix="give shape (m, n)") from None
    if m < 0 or n < 0:
        raise ValueMismatch("a shape is not negative", got=f"({m}, {n})", fix="give shape (m, n)")
    return m, n


def _integers(values: Any, name: str) -> Int64s:
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except ValueError:
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ArgumentError(
            f"{name} are not one-dimensional integers",
            got=f"shape {array.shape}, dtype {array.dtype}",
            fix="give a list, array or tensor of integers",
        )
    return array.astype(np.int64, copy=False)


def _check_rows(shape: tuple[int, int], indptr: Int64s, indices: Int64s) -> None:
    """Refuse what are not the sorted rows of a matrix of this shape.

    Raises:
        ValueMismatch: They are not.
    """
    m, n = shape
    nnz, fix = len(indices), "Pattern.from_coordinates(rows, columns, shape) takes nonzeros in any order"
    if len(indptr) != m + 1:
        raise ValueMismatch("indptr does not fit the shape", got=f"{len(indptr)} numbers for {m} rows", fix=fix)
    falls = bool(np.any(indptr[1:] < indptr[:-1]))  # a difference could overflow
    if indptr[0] != 0 or indptr[-1] != nnz or falls:
        got = f"from {indptr[0]} to {indptr[-1]}" + (", with a step down" if falls else "")
        raise ValueMismatch(f"indptr does not rise from 0 to the {nnz} indices", got=got, fix=fix)
    if nnz and (indices.min() < 0 or indices.max() >= n):
        got = f"columns from {indices.min()} to {indices.max()}, shape ({m}, {n})"
        raise ValueMismatch("a column lies outside the matrix", got=got, fix=f"columns {_range(n)}")
    unsorted = indices[1:] <= indices[:-1]
    starts = indptr[(indptr > 0) & (indptr < nnz)]
    unsorted[starts - 1] = False
    if unsorted.any():
        row = int(np.searchsorted(indptr, unsorted.argmax(), side="right")) - 1
        raise ValueMismatch("the columns of a row do not ascend", got=f"row {row}", fix=fix)


def _of_tensor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and columns of what a tensor stores, or of its nonzeros if it is dense."""
    if matrix.layout in {torch.sparse_bsr, torch.sparse_bsc}:
        matrix = matrix.to_sparse(layout=torch.sparse_coo)
    if matrix.layout in {torch.sparse_csr, torch.sparse_csc}:
        by_row = matrix.layout == torch.sparse_csr
        starts = matrix.crow_indices() if by_row else matrix.ccol_indices()
        minor = matrix.col_indices() if by_row else matrix.row_indices()
        major = torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())
        return (major, minor) if by_row else (minor, major)
    if matrix.layout == torch.sparse_coo and matrix.sparse_dim() == 2:
        rows, columns = matrix._indices()
        return rows, columns
    rows, columns = matrix.to_dense().nonzero(as_tuple=True)
    return rows, columns


def _of_scipy(matrix: Any) -> tuple[Any, Any]:
    """The rows and columns of what a sparse array stores."""
    if matrix.format == "dia":  # whose stored zeros SciPy leaves out
        matrix = type(matrix)((np.ones_like(matrix.data, dtype=bool), matrix.offsets), shape=matrix.shape)
    coo = matrix.tocoo()
    return coo.row, coo.col


def _read(data: bytes) -> tuple[Any, ...]:
    """What a file holds, as the arguments of Pattern; the archive's checksums are compared on the way."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        text, indptr, indices = (
            np.lib.format.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
            for name in ("about", "indptr", "indices")
        )
    about = json.loads(text.tobytes())
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
    return about["shape"], indptr, indices, about["fingerprint"], about["scope"]


def _inside(index: Any, size: int, name: str) -> int:
    try:
        index = operator.index(index)
    except TypeError:
        raise ArgumentError(f"a {name} is an integer", got=repr(index), fix=f"{name}s {_range(size)}") from None
    if not 0 <= index < size:
        raise ValueMismatch(f"there is no {name} {index}", got=f"{size} {name}s", fix=f"{name}s {_range(size)}")
    return int(index)


def _range(size: int) -> str:
    return f"run from 0 to {size - 1}" if size else "there are none"


def _same_shape(one: Pattern, other: Any) -> Pattern:
    if not isinstance(other, Pattern):
        raise ArgumentError("the other is not a Pattern", got=type(other).__name__, fix="Pattern.of(matrix)")
    if one.shape != other.shape:
        raise ValueMismatch(
            "the patterns are of different shapes",
            got=f"{one.shape} and {other.shape}",
            fix="give two patterns of one shape; pattern.T is the transposed one",
        )
    return other
