"""The state around a function: random numbers, autocast, and what its modules remember.

A function is evaluated once, with all its effects. Forward mode has to run it again; then it must see the same
random numbers and the same autocast, and leave no trace: buffers, attributes and the global generators are as
after the one evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pullback.autodiff.closures import held_by


@dataclass(frozen=True)
class Ambient:
    """The generators and the autocast setting at the moment a function was evaluated."""

    generators: tuple[tuple[torch.device, Tensor], ...]
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> Ambient:
        """The state now, for the CPU and the devices given."""
        every = {torch.device("cpu"), *(device for device in devices if device.type != "meta")}
        kinds = {device.type for device in every}
        return cls(
            tuple((device, _generator_state(device)) for device in every if _has_generator(device)),
            tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in sorted(kinds)
                if torch.amp.is_autocast_available(kind)
            ),
        )

    def rewind(self) -> None:
        """Set the generators back to this state."""
        for device, state in self.generators:
            _set_generator_state(device, state)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside: this state. Afterwards: the generators as they were."""
        current = [(device, _generator_state(device)) for device, _ in self.generators]
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            self.rewind()
            try:
                yield
            finally:
                for device, state in current:
                    _set_generator_state(device, state)


@contextlib.contextmanager
def fresh_modules(f: Any) -> Iterator[dict[int, Tensor]]:
    """Let the modules that f holds work on copies of their buffers, and forget what they set on themselves.

    Yields:
        For each copy, by its ``id``, the buffer that it stands for.
    """
    modules = {id(part): part for module in held_by(f).modules for part in module.modules()}.values()
    before = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
    copies: dict[int, Tensor] = {}
    try:
        for module, _, buffers in before:
            for name, buffer in buffers.items():
                if buffer is not None:
                    module._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
        every = [buffer for _, _, buffers in before for buffer in buffers.values() if buffer is not None]
        originals = {id(buffer): buffer for buffer in every}
        yield {id(copy): originals[key] for key, copy in copies.items()}
    finally:
        for module, attributes, buffers in before:
            _restore(module, attributes, buffers)


def _restore(module: nn.Module, attributes: dict[str, Any], buffers: dict[str, Tensor | None]) -> None:
    vars(module).clear()
    vars(module).update(attributes)
    module._buffers.clear()
    module._buffers.update(buffers)


def _has_generator(device: torch.device) -> bool:
    return device.type == "cpu" or hasattr(torch.get_device_module(device.type), "get_rng_state")


def _generator_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device.type).get_rng_state(device)
    return state


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device.type).set_rng_state(state, device)
