"""Scans: an element of the result depends on the elements up to its own, along a dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.sparsity.call import Call, rule

# Half of a matrix is all of it where it would be longer than this.
LONGEST = 2**26


@rule("cumsum", "cumprod", "logcumsumexp", "_logcumsumexp", "cummax", "cummin", "_cummax_helper", "_cummin_helper")
def scan(call: Call) -> Any:
    """A sum, or any other function, of the elements so far."""
    source, dim = call.named["self"], call.named["dim"]
    weight = 1.0 if call.op._schema.name.startswith("aten::cumsum") else None
    found = source.sets if weight is not None else source.sets.scaled(None)
    if source.ndim:
        size = source.shape[dim]
        if size * source.numel > LONGEST:
            return [
                found.scaled(None).reduce((dim,), keepdim=True).expand(source.shape),
                *(None for _ in call.shapes[1:]),
            ]
        new, old = np.tril_indices(size)
        found = found.relate(dim, new, old, size, weight)
    return [found, *(None for _ in call.shapes[1:])]
