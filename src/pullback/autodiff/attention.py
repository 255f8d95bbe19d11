"""Attention: torch's fused kernels have reverse passes only; the math formulation has every derivative."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from torch import Tensor
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel

from pullback.autodiff.reach import nodes

# The autograd nodes of scaled_dot_product_attention's kernels: ...ForCpu, ...Efficient, ...Cudnn and so on.
FUSED = "ScaledDotProduct"


def is_fused(outputs: Iterable[Tensor]) -> bool:
    """Whether a graph goes through one of torch's fused attention kernels."""
    return any(node.name().startswith(FUSED) for node in nodes(outputs))


def by_math(wanted: bool = True) -> AbstractContextManager[None]:
    """Inside: ``scaled_dot_product_attention`` is computed by its math formulation, if that is wanted."""
    return sdpa_kernel(SDPBackend.MATH) if wanted else contextlib.nullcontext()


@contextlib.contextmanager
def no_fast_path() -> Iterator[None]:
    """Inside: ``nn.TransformerEncoderLayer`` takes no inference kernel, which no derivative sees, when grad is off."""
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)
