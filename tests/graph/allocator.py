"""How many bytes an object kept alive, by what the allocator takes back when it goes: torch's own count, not a walk.

On the CPU these are the allocator's events as torch's profiler records them, each with the size that was asked for;
on a CUDA device the allocator's own counter, which counts blocks of 512 bytes.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

RELEASE = "what is measured is let go of"
ROUNDING = {"cpu": 1, "cuda": 512}


def freed_by(make: Callable[[], Any], release: Callable[[Any], Any] = list.clear, device: str = "cpu") -> int:
    """The bytes that the allocator takes back when ``release`` is called with what ``make`` returns.

    Args:
        make: Makes an object that holds, alone, what is measured: by default a list, which is emptied.
        release: Lets go of it.
        device: Where its tensors lie.
    """
    if device != "cpu":
        return _freed_on_cuda(make, release, device)
    gc.freeze()  # what is there stays, and is not searched for garbage
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        warnings.simplefilter("ignore")
        held = make()  # here, for the profiler knows the size only of what it has seen allocated
        gc.collect()
        with record_function(RELEASE):
            release(held)
            gc.collect()
    gc.unfreeze()
    events = profiled.profiler.kineto_results.events()
    (since,) = (event.start_ns() for event in events if event.name() == RELEASE)
    return -sum(event.nbytes() for event in events if event.name() == "[memory]" and event.start_ns() >= since)


def _freed_on_cuda(make: Callable[[], Any], release: Callable[[Any], Any], device: str) -> int:
    held = make()
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    release(held)
    gc.collect()
    return before - torch.cuda.memory_allocated(device)
