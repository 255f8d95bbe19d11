"""Singular values, the spectral norm and SciPy's view of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.errors import ValueMismatch

if TYPE_CHECKING:
    from pullback.jacobian.operator import Operator

# A matrix of this many entries is decomposed whole faster than products with it find a few singular values.
DENSE_ENTRIES = 1_000_000
# ARPACK is worth its products only for a small part of the spectrum.
FEW = 10


def singular_values(op: Operator, k: int | None) -> Tensor:
    """The k largest singular values, falling.

    Raises:
        ValueMismatch: k is not between 1 and min(m, n).
    """
    m, n = op.shape
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= min(m, n)):
        raise ValueMismatch(
            "k is not a number of singular values",
            got=repr(k),
            fix=f"1 to min(m, n) = {min(m, n)}, or None for all",
        )
    if k is None or m * n <= DENSE_ENTRIES or k * FEW > min(m, n):
        matrix = op.matrix()
        values: Tensor = torch.linalg.svdvals(_decomposable(matrix))[:k]
        return values.to(_real(matrix.dtype))
    return _largest(op, k)


def norm(op: Operator, order: int | str) -> Tensor:
    """The spectral norm, for 2.

    Raises:
        ValueMismatch: Another order.
    """
    if order != 2:
        raise ValueMismatch(
            "the norm of a Jacobian is spectral or Frobenius",
            got=f"ord={order!r}",
            fix='J.norm() or J.norm("fro"); others: torch.linalg.matrix_norm(J.matrix(), ord)',
        )
    if not min(op.shape):
        return torch.zeros((), dtype=_real(op.inputs.dtype), device=op.inputs.device)
    return singular_values(op, 1)[0]


def to_scipy(op: Operator) -> Any:
    """A ``scipy.sparse.linalg.LinearOperator`` with the operator's products."""
    import numpy as np  # noqa: PLC0415  SciPy and NumPy load where they are first used
    from scipy.sparse.linalg import LinearOperator  # noqa: PLC0415

    inputs, outputs = op.inputs, op.outputs
    dtype = _numpy_dtype(torch.promote_types(inputs.dtype, outputs.dtype))

    def tensor(array: Any, complex_space: bool, device: torch.device) -> Tensor:
        array = np.ascontiguousarray(array)
        if not complex_space and np.iscomplexobj(array):
            array = array.real
        return torch.as_tensor(array, device=device)

    def push(array: Any) -> Any:
        return _numpy(op @ tensor(array.reshape(op.shape[1], -1), inputs.is_complex, inputs.device))

    def pull(array: Any) -> Any:
        return _numpy(op.T @ tensor(array.reshape(op.shape[0], -1), outputs.is_complex, outputs.device))

    return LinearOperator(
        shape=op.shape,
        dtype=dtype,
        matvec=lambda v: push(v)[:, 0].astype(dtype),
        rmatvec=lambda u: pull(u)[:, 0].astype(dtype),
        matmat=lambda v: push(v).astype(dtype),
        rmatmat=lambda u: pull(u).astype(dtype),
    )


def _largest(op: Operator, k: int) -> Tensor:
    import numpy as np  # noqa: PLC0415
    from scipy.sparse.linalg import svds  # noqa: PLC0415

    start = np.random.default_rng(0).standard_normal(min(op.shape))
    values = svds(to_scipy(op), k=k, v0=start, return_singular_vectors=False)
    largest = np.sort(values)[::-1].copy()
    return torch.as_tensor(largest, dtype=_real(op.inputs.dtype), device=op.inputs.device)


def _numpy(tensor: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    if tensor.dtype in {torch.float16, torch.bfloat16}:
        tensor = tensor.float()
    return tensor.resolve_conj().numpy()


def _numpy_dtype(dtype: torch.dtype) -> Any:
    return _numpy(torch.empty(0, dtype=dtype)).dtype


def _decomposable(matrix: Tensor) -> Tensor:
    """LAPACK has no half precision."""
    return matrix.float() if matrix.dtype in {torch.float16, torch.bfloat16} else matrix


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real()
