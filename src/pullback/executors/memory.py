"""Bytes: reading a limit, knowing what is free, and measuring what a pass takes."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pullback.errors import ArgumentError, ValueMismatch

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
SHARE_OF_FREE = 0.5
ASSUMED_FREE = 4 * 2**30


def parse_bytes(memory: int | float | str) -> int:
    """A number of bytes from a number or a text such as ``"2GiB"``.

    Raises:
        ArgumentError: It is neither a number nor a text.
        ValueMismatch: The text is no amount of memory, or the amount is not positive.

    >>> parse_bytes("2GiB")
    2147483648
    """
    if isinstance(memory, bool) or not isinstance(memory, int | float | str):
        raise ArgumentError(
            "memory is not an amount of memory", got=repr(memory), fix='memory="2GiB", or a number of bytes'
        )
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", memory)
        unit = UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None or match[1].count(".") > 1 or match[1] == ".":
            raise ValueMismatch(
                "memory is not an amount of memory",
                got=repr(memory),
                fix='write a number and one of B, KB, MB, GB, KiB, MiB, GiB: memory="2GiB"',
            )
        memory = float(match[1]) * unit
    if not memory >= 1:
        raise ValueMismatch("memory must be at least one byte", got=repr(memory), fix='memory="2GiB"')
    return int(min(memory, 2**62))


def default_limit(device: torch.device) -> int:
    """A share of the memory that is free on a device now."""
    return int(SHARE_OF_FREE * free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """The memory that is free on a device now, within the control group's limit where there is one."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    if device.type != "cpu":
        return ASSUMED_FREE
    with contextlib.suppress(OSError, ValueError, IndexError):
        available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if available:
            return min(int(available[1]) * 1024, _control_group_free())
    return ASSUMED_FREE


def _control_group_free() -> int:
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            return max(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()), 0)
    return 2**62


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations create, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # What an operation is given and nobody made here was there before: a view of it takes nothing.
        for storage in _storages((args, kwargs)):
            self._count(storage, 0)
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            self._count(storage, storage.nbytes())
        return result

    def _count(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known[key] = size
            self.current += size
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.current -= self._known.pop(key, 0)


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    """The memory of the tensors in a tree."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()


def measured(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """Run something and say how many bytes it had alive at its peak, beyond those there before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        torch.cuda.synchronize(device)
        return result, int(torch.cuda.max_memory_allocated(device) - before)
    with _LiveBytes() as live:
        result = run()
    return result, live.peak


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text or "Cannot allocate memory" in text
    )


def chunk_ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of at most ``size`` that make up ``range(total)``."""
    for start in range(0, total, size):
        yield start, min(start + size, total)
