"""How reports put things: bytes, counts, dtypes, and rows as columns."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch


def human(size: float) -> str:
    """A number of bytes for a reader: ``3.1 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(round(size, 1)) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def many(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype without its module: ``float32``."""
    return str(dtype).removeprefix("torch.")


def columns(rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
    """Rows as aligned columns; those whose place is in ``right`` to the right, the others to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
