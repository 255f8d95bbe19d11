"""From the entries of a pattern to a sparse matrix."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pullback.autodiff.linearize import Linearization
from pullback.data.pattern import Pattern
from pullback.data.space import Space
from pullback.errors import ArgumentError, ValueMismatch

if TYPE_CHECKING:
    from pullback.sparsity.structure import Structure

LAYOUTS = ("csr", "csc", "coo", "bsr", "scipy")


def full_pattern(lin: Linearization, found: Structure) -> Pattern:
    """The pattern of all outputs by all inputs, from that of the live ones."""
    from pullback.sparsity.explain import explain, fingerprint  # noqa: PLC0415  it needs SciPy

    shape = lin.outputs.size, lin.inputs.size
    indptr, indices = found.pattern.indptr, found.pattern.indices
    rows, columns = _live(lin.outputs, lin.live_outputs), _live(lin.inputs, lin.live_inputs)
    if found.shape != shape:
        counts = np.zeros(shape[0], dtype=np.int64)
        counts[rows] = np.diff(indptr)
        indptr, indices = np.concatenate([[0], np.cumsum(counts)]), columns[indices]

    def explained(i: int, j: int) -> str:
        places = np.flatnonzero(rows == i), np.flatnonzero(columns == j)
        return explain(found, lin.rows, lin.columns, int(places[0][0]), int(places[1][0]))

    return Pattern(
        shape,
        indptr,
        indices,
        fingerprint=fingerprint(found),
        scope="local" if found.local else "global",
        _explain=explained,
    )


def assemble(
    pattern: Pattern, values: Tensor, layout: str, blocksize: tuple[int, int] | None = None, *, share: bool = False
) -> Any:
    """A sparse matrix from the entries of a pattern, row after row.

    Args:
        pattern: Where.
        values: The entries, ``(nnz,)``.
        layout: ``"csr"``, ``"csc"``, ``"coo"`` or ``"bsr"`` for a torch tensor, ``"scipy"`` for a SciPy CSR array
            (half precision as float32).
        blocksize: For ``"bsr"``: the size of a block; None for the largest that the pattern is made of.
        share: Use the same index tensors for all matrices of this pattern.
    """
    if layout == "scipy":
        import scipy.sparse  # noqa: PLC0415  only where it is asked for

        numbers = values.detach().cpu().resolve_conj()
        if numbers.dtype in {torch.bfloat16, torch.float16}:  # SciPy has no sparse arithmetic in half precision
            numbers = numbers.float()
        return scipy.sparse.csr_array(
            (numbers.numpy(), pattern.indices.copy(), pattern.indptr.copy()), shape=pattern.shape
        )
    crow, column = _index_tensors(pattern, values.device) if share else pattern.to_torch(values.device)
    matrix = compressed(crow, column, values, pattern.shape)
    if layout == "csr":
        return matrix
    if layout == "coo":
        row = torch.repeat_interleave(crow.diff())
        return torch.sparse_coo_tensor(torch.stack([row, column]), values, pattern.shape, is_coalesced=True)
    if layout == "csc":
        return matrix.to_sparse_csc()
    height, width = blocksize or block_size(pattern)
    if pattern.shape[0] % height or pattern.shape[1] % width:
        raise ValueMismatch(
            "the blocks do not fill the matrix",
            got=f"blocksize={(height, width)} for a matrix {pattern.shape[0]} x {pattern.shape[1]}",
            fix="give divisors of its height and width, or leave blocksize out",
        )
    return matrix.to_sparse_bsr((height, width))


def compressed(crow: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR tensor of rows that are known to be right."""
    _announce_beta()
    return torch.sparse_csr_tensor(crow, column, values, shape, check_invariants=False)


def compressed_batch(pattern: Pattern, values: Tensor) -> Tensor:
    """A torch CSR tensor ``(B, m, n)`` from values ``(B, nnz)`` of one pattern."""
    _announce_beta()
    crow, column = _index_tensors(pattern, values.device)
    crows, columns = (part.expand(len(values), -1).contiguous() for part in (crow, column))
    size = (len(values), *pattern.shape)
    return torch.sparse_csr_tensor(crows, columns, values, size, check_invariants=False)


def check_layout(layout: str, blocksize: Any) -> None:
    """Refuse a layout that is none.

    Raises:
        ValueMismatch: There is no such layout.
        ArgumentError: A block size is given that is none, or for a layout without blocks.
    """
    if layout not in LAYOUTS:
        raise ValueMismatch(
            "there is no such layout", got=repr(layout), fix=f"layout= one of {', '.join(map(repr, LAYOUTS))}"
        )
    if blocksize is None:
        return
    two = isinstance(blocksize, tuple) and len(blocksize) == 2
    if layout != "bsr" or not two or not all(isinstance(size, int) and size > 0 for size in blocksize):
        raise ArgumentError(
            "blocksize is the height and width of the blocks of layout='bsr'",
            got=f"blocksize={blocksize!r}, layout={layout!r}",
            fix="J.sparse(layout='bsr', blocksize=(2, 3))",
        )


def block_size(pattern: Pattern) -> tuple[int, int]:
    """The largest blocks that a pattern is made of: full, and beginning at multiples of their size."""
    best = (1, 1)
    m, n = pattern.shape
    rows, columns = pattern.coordinates()
    for height in (size for size in range(1, min(m, 64) + 1) if m % size == 0):
        for width in (size for size in range(1, min(n, 64) + 1) if n % size == 0):
            if height * width <= best[0] * best[1] or pattern.nnz % (height * width):
                continue
            blocks = len(np.unique(rows // height * (n // width) + columns // width)) if pattern.nnz else 0
            if blocks * height * width == pattern.nnz:
                best = height, width
    return best


@functools.cache
def _announce_beta() -> None:
    """Let torch say once, unheard, that its CSR tensors are in beta: it would say so at the user's first one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


def _index_tensors(pattern: Pattern, device: torch.device) -> tuple[Tensor, Tensor]:
    """The pattern's index tensors, made once for a device: all matrices of one pattern share them."""
    if device not in pattern.shared:
        pattern.shared[device] = pattern.to_torch(device)
    return pattern.shared[device]


def _live(space: Space, live: tuple[int, ...]) -> np.ndarray:
    """The positions of the live leaves' elements in the whole space."""
    parts = [np.arange(space.leaves[k].offset, space.leaves[k].offset + space.leaves[k].numel) for k in live]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
