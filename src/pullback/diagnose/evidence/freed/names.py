"""Where a program keeps tensors: variables of its frames, and what containers, modules and objects hold behind them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.evidence.frames import Frame

# So many things are looked at, so deep.
MOST = 20_000
DEEPEST = 5
ITEMS = 500


@dataclass(frozen=True)
class Held:
    """A tensor, and the way to it.

    Attributes:
        path: The way as it would be written: ``h``, ``self.state``, ``hidden[0]``.
        variable: The variable that it begins with.
        frame: The frame whose variable that is.
        tensor: The tensor.
        owner: The object whose attribute it is, or None.
        attribute: The name of that attribute, or an empty string.
        shared: Whether the variable is one of the module rather than of a function.
    """

    path: str
    variable: str
    frame: Frame
    tensor: Tensor
    owner: Any
    attribute: str
    shared: bool


def held_in(frames: Sequence[Frame]) -> Iterator[Held]:
    """All tensors that the variables of frames lead to: the innermost frame first, near ones before far ones."""
    seen: set[int] = set()
    left = MOST
    for frame in reversed(frames):
        waiting: deque[tuple[str, Any, int, str, Any, str, bool]] = deque()
        for shared, scope in ((False, frame.local), (True, frame.module)):
            for name, value in dict(scope).items():
                if name.isidentifier() and not name.startswith("__"):
                    waiting.append((name, value, 0, name, None, "", shared))
        while waiting and left:
            path, value, depth, variable, owner, attribute, shared = waiting.popleft()
            left -= 1
            if issubclass(type(value), Tensor):
                yield Held(path, variable, frame, value, owner, attribute, shared)
                continue
            if depth >= DEEPEST or id(value) in seen:
                continue
            for step, part, name in _inside(value):
                whose = (value, name) if name else (owner, attribute)
                waiting.append((path + step, part, depth + 1, variable, *whose, shared))
            if not isinstance(value, str | int | float | bool | type(None)):
                seen.add(id(value))


def things_in(frames: Sequence[Frame], kind: type) -> Iterator[tuple[str, Any]]:
    """The things of a kind that the variables of frames lead to, the innermost frame first, each once."""
    seen: set[int] = set()
    left = MOST
    for frame in reversed(frames):
        waiting: deque[tuple[str, Any, int]] = deque(
            (name, value, 0)
            for scope in (frame.local, frame.module)
            for name, value in dict(scope).items()
            if name.isidentifier() and not name.startswith("__")
        )
        while waiting and left:
            path, value, depth = waiting.popleft()
            left -= 1
            if id(value) in seen or isinstance(value, str | int | float | bool | type(None) | type):
                continue
            seen.add(id(value))
            if issubclass(type(value), kind):
                yield path, value
            elif depth < DEEPEST:
                waiting += [(path + step, part, depth + 1) for step, part, _ in _inside(value)]


def _inside(value: Any) -> Iterator[tuple[str, Any, str]]:
    """What a thing holds: how it is written, the part, and the attribute's name if it is one; nothing is called."""
    kind = type(value)
    if issubclass(kind, dict):
        for key, part in list(dict.items(value))[-ITEMS:]:
            if isinstance(key, str | int):
                yield f"[{key!r}]", part, ""
    elif issubclass(kind, list | tuple):
        base: Any = list if issubclass(kind, list) else tuple
        for index, part in enumerate(itertools.islice(base.__iter__(value), ITEMS)):
            yield f"[{index}]", part, ""
    elif kind is deque:
        for index, part in enumerate(list(value)[:ITEMS]):
            yield f"[{index}]", part, ""
    elif issubclass(kind, nn.Module):
        for scope in (value.__dict__, value._parameters, value._buffers, value._modules):
            for name, part in list(scope.items()):
                if name not in {"_parameters", "_buffers", "_modules"} and not name.endswith("_hooks"):
                    yield _step(value, name), part, name
    elif getattr(kind, "__module__", "").partition(".")[0] not in {"torch", "numpy", "builtins", "pullback"}:
        own = getattr(value, "__dict__", None) if not isinstance(value, type) else None
        if type(own) is dict:
            for name, part in list(own.items()):
                yield f".{name}", part, name


def _step(module: nn.Module, name: str) -> str:
    return f"[{name}]" if name.isdigit() and isinstance(module, nn.Sequential | nn.ModuleList) else f".{name}"
