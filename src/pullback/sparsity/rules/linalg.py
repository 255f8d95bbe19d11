"""Linear algebra on batches of matrices: one matrix of the batch has nothing to do with another.

Within a matrix every element depends on all others, but a system's right-hand sides are solved each for itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import Sets, union

# Operands that are vectors where the operation's others are matrices: operation -> positions.
_VECTORS = {"linalg_householder_product": (1,), "ormqr": (1,), "lu_unpack": (1,), "linalg_ldl_solve": (1,)}


@rule("linalg_inv_ex", "inverse", "cholesky", "linalg_cholesky_ex", "cholesky_inverse", "linalg_lu", "_lu_with_info",
      "linalg_lu_factor_ex", "linalg_ldl_factor_ex", "linalg_qr", "geqrf", "linalg_householder_product", "ormqr",
      "_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_eigvals", "_linalg_det",
      "_linalg_slogdet", "linalg_matrix_exp", "linalg_lstsq", "linalg_pinv")  # fmt: skip
def matrices(call: Call) -> Any:
    """All elements of a matrix, or what else there is for it, depend on all elements of the operands for it."""
    vectors = _VECTORS.get(call.op._schema.name.removeprefix("aten::"), ())
    operands = [
        (operand, operand.ndim - (1 if place in vectors else 2))
        for place, operand in enumerate(call.args)
        if isinstance(operand, Operand)
    ]
    leading = np.broadcast_shapes(*(operand.shape[: max(batch, 0)] for operand, batch in operands))
    if len(operands) != len(call.operands) or any(shape[: len(leading)] != leading for shape in call.shapes):
        return NotImplemented
    seeded = [(operand, max(batch, 0)) for operand, batch in operands if operand.sets is not None]
    return [
        union(shape, [_each(operand, batch, shape, len(shape) - len(leading)) for operand, batch in seeded])
        for shape in call.shapes
    ]


@rule("_linalg_solve_ex", "linalg_lu_solve", "cholesky_solve", "linalg_ldl_solve")
def solve(call: Call) -> Any:
    """Each column of the solution (row, where the matrix is on the right) depends on that of the right-hand side."""
    named = call.named
    matrix, side = (named[name] for name in _SYSTEMS[call.op._schema.name.removeprefix("aten::")])
    if call.seeded != [side]:
        return matrices(call)
    shape, rest = call.shapes[0], [None] * (len(call.shapes) - 1)
    if side.ndim == 1 or (call.op._schema.name == "aten::_linalg_solve_ex" and side.shape == matrix.shape[:-1]):
        return [_each(side, side.ndim - 1, shape, 1), *rest]
    over = side.ndim - 2 if named.get("left", True) else side.ndim - 1
    return [side.sets.reduce([over], keepdim=True).scaled(None).expand(shape), *rest]


@rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(call: Call) -> Any:
    """The same, and only on the elements that substitution has passed before."""
    named = call.named
    old = "A" in named
    matrix, side = (named["A"], named["self"]) if old else (named["self"], named["B"])
    if call.seeded != [side]:
        return matrices(call)
    left, upper = named.get("left", True), named["upper"] != named.get("transpose", False)
    size = matrix.shape[-1]
    later, earlier = np.tril_indices(size)
    pairs = (earlier, later) if upper == left else (later, earlier)
    found = side.sets.relate(side.ndim - 2 if left else side.ndim - 1, *pairs, size)
    return [found.expand(call.shapes[0]), *[None] * (len(call.shapes) - 1)]


# The arguments that are the matrix and the right-hand side.
_SYSTEMS = {
    "_linalg_solve_ex": ("A", "B"), "linalg_lu_solve": ("LU", "B"), "cholesky_solve": ("input2", "self"),
    "linalg_ldl_solve": ("LD", "B"),
}  # fmt: skip


def _each(operand: Operand, batch: int, shape: tuple[int, ...], core: int) -> Sets:
    """All elements for one item of the batch depend on all elements of its operand."""
    assert operand.sets is not None
    items = operand.sets.reduce(range(batch, operand.ndim), keepdim=False).scaled(None)
    kept = (*operand.shape[:batch], *(1,) * core)
    return items.move(lambda part: part.reshape(kept)).expand(shape)
