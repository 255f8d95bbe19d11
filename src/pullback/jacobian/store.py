"""J in a file: written block by block in a public format, and moved to its place when it is whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from pullback.data.space import Space
from pullback.errors import ArgumentError, ValueMismatch
from pullback.executors.progress import Progress

LAYOUTS = ("dense",)
# The name of the tensor in a safetensors file.
NAME = "jacobian"
SAFETENSORS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
}
NUMPY = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.complex64: "<c8",
         torch.complex128: "<c16"}  # fmt: skip
FORMATS = {".npy": NUMPY, ".safetensors": SAFETENSORS}


def checked_target(path: str | os.PathLike[str], layout: str, dtype: torch.dtype) -> Path:
    """Where a Jacobian of a dtype is to be written.

    Raises:
        ArgumentError: It is no path.
        ValueMismatch: The suffix, layout or folder will not do, or the format has no such dtype.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise ArgumentError("path is no path", got=repr(path), fix='J.save("jacobian.npy")')
    target = Path(path)
    if layout not in LAYOUTS:
        raise ValueMismatch(
            "there is no such layout of a file", got=f"layout={layout!r}", fix="layout='dense'; J.pattern.save(path)"
        )
    if target.suffix not in FORMATS:
        raise ValueMismatch(
            "the suffix says the format, and this one is not known",
            got=repr(target.name),
            fix="a path that ends in .npy or .safetensors",
        )
    if dtype not in FORMATS[target.suffix]:
        others = [suffix for suffix, dtypes in FORMATS.items() if dtype in dtypes]
        fix = f"a path that ends in {others[0]}" if others else "a Jacobian by inputs in single precision"
        raise ValueMismatch(f"{target.suffix} has no such dtype", got=str(dtype).removeprefix("torch."), fix=fix)
    if not target.parent.is_dir():
        raise ValueMismatch("there is no such folder", got=str(target.parent), fix="make it first, or write elsewhere")
    if target.is_dir():
        raise ValueMismatch("this is a folder", got=str(target), fix="the path of a file in it")
    return target


def save(
    blocks: Iterable[tuple[range, Tensor]], target: Path, inputs: Space, outputs: Space, progress: bool | None
) -> Path:
    """Write blocks of rows to a file, which is there when it is whole and not before.

    It is written from its beginning to its end: a memory map would count as memory in use until it is flushed, and
    where the disk is full it would end the process rather than raise.
    """
    # A link stays a link, and leads to the new file.
    place = target.resolve()
    beside = place.with_name(f".{place.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with beside.open("xb") as file:
            _write(blocks, file, target.suffix, inputs, outputs, progress)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    return target


def _write(
    blocks: Iterable[tuple[range, Tensor]],
    file: BinaryIO,
    suffix: str,
    inputs: Space,
    outputs: Space,
    progress: bool | None,
) -> None:
    if suffix == ".npy":
        header = {"descr": NUMPY[inputs.dtype], "fortran_order": False, "shape": (outputs.size, inputs.size)}
        np.lib.format.write_array_header_1_0(file, header)
    else:
        file.write(_header(inputs, outputs))
    with Progress(outputs.size, f"rows of {NAME}{suffix}", progress) as bar:
        for rows, block in blocks:
            file.write(_bytes(block).data)
            del block  # else it would live on while the next one is made
            bar.update(rows.stop)


def _header(inputs: Space, outputs: Space) -> bytes:
    """The head of a safetensors file: its length in eight bytes, and JSON that ends where eight bytes do."""
    shape = [outputs.size, inputs.size]
    entry = {
        "dtype": SAFETENSORS[inputs.dtype],
        "shape": shape,
        "data_offsets": [0, math.prod(shape) * inputs.dtype.itemsize],
    }
    about = {"shape": json.dumps(shape), "rows": _places(outputs), "columns": _places(inputs)}
    text = json.dumps({"__metadata__": about, NAME: entry}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _places(space: Space) -> str:
    """Which rows or columns belong to which tensor, as JSON."""
    leaves = space.leaves
    ends = [[leaf.offset, leaf.offset + leaf.numel] for leaf in leaves]
    return json.dumps(
        [{"name": leaf.name, "shape": leaf.shape, "slice": end} for leaf, end in zip(leaves, ends, strict=True)]
    )


def _bytes(block: Tensor) -> np.ndarray:
    numbers = block.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return numbers.reshape(-1).view(torch.uint8).numpy()
