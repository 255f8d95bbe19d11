"""Fourier transforms: full along the transformed dimensions, item by item along the others."""

from __future__ import annotations

from typing import Any

from pullback.sparsity.call import Call, rule


@rule("_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform(call: Call) -> Any:
    """Each element depends on all elements along the transformed dimensions."""
    source, dims = call.args[:2]
    assert source.sets is not None
    return source.sets.reduce(dims, keepdim=True).scaled(None).expand(call.shapes[0])
