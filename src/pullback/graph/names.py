"""What the user calls the tensors and modules of a graph: names given, or those of the caller's own variables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from pullback.graph.frames import variables
from pullback.graph.saved import pieces

_CONTAINERS = (dict, MappingProxyType, list, tuple)
_FIRST_KEY = re.compile(r"^\['([^'\]\[\\]+)'\]")
_MOST_LOOKED_AT = 10_000
_DEEPEST = 100


@dataclass
class Names:
    """Names by what they name. No tensor is held: a name is found by identity while the tensor lives."""

    leaves: dict[int, str] = field(default_factory=dict)  # id of a tensor without grad_fn
    results: dict[tuple[Node, int], str] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)  # key of a storage that lives on without the graph
    modules: dict[int, str] = field(default_factory=dict)  # id of a module
    kinds: dict[str, type] = field(default_factory=dict)  # classes of modules by name
    parameters: set[int] = field(default_factory=set)  # ids of tensors that are parameters of a module

    def add(self, name: str, thing: Any) -> None:
        """Give a tensor, a module, or what a container holds its name, unless it has one."""
        kind = type(thing)  # isinstance would ask a proxy what it stands for
        if issubclass(kind, Tensor):
            self._add_tensor(name, thing)
        elif issubclass(kind, nn.Module):
            self._add_module(name, thing)
        elif issubclass(kind, _CONTAINERS):
            for path, part in _parts(thing):
                self.add(name + path if name else bare(path), part)

    def add_frame(self, frame: FrameType) -> None:
        """Name what the variables of a frame hold: its own first, then those of its module."""
        for name, thing in _in_scope(frame):
            self.add(name, thing)

    def name_of(self, tensor: Tensor) -> str | None:
        """What the user calls a tensor, if anything."""
        if tensor.grad_fn is None:
            return self.leaves.get(id(tensor))
        return self.results.get((tensor.grad_fn, tensor.output_nr))

    def _add_module(self, name: str, module: nn.Module) -> None:
        if id(module) in self.modules:
            return
        dot = f"{name}." if name else ""
        for inner, part in module.named_modules():
            full = dot + inner if inner else name
            self.modules.setdefault(id(part), full)
            self.kinds.setdefault(full, type(part))
        for inner, parameter in module.named_parameters(remove_duplicate=False):
            self.parameters.add(id(parameter))
            self._add_tensor(dot + inner, parameter)
        for inner, buffer in module.named_buffers(remove_duplicate=False):
            self._add_tensor(dot + inner, buffer)

    def _add_tensor(self, name: str, tensor: Tensor) -> None:
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view that torch refuses to differentiate: it is in no graph
            return
        if is_lazy(tensor):
            return
        if node is not None:
            self.results.setdefault((node, tensor.output_nr), name)
            return
        self.leaves.setdefault(id(tensor), name)
        for key, _, _ in pieces(tensor):
            self.owners.setdefault(key, name)


def _in_scope(frame: FrameType) -> Iterator[tuple[str, Any]]:
    local = variables(frame)
    yield from ((name, thing) for name, thing in local.items() if _is_name(name))
    for name, thing in list(frame.f_globals.items()):
        if name not in local and _is_name(name):
            yield name, thing


def _is_name(name: str) -> bool:
    """Whether a user wrote it: not ``_12`` of a notebook, and not what a compiler or a test runner adds."""
    return name.isidentifier() and not name.startswith("_")


def _parts(container: Any) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """The tensors and modules in a structure of containers, with the way to each; a huge one is searched in part."""
    stack = [("", container, 0)]
    seen = set()
    left = _MOST_LOOKED_AT
    while stack and left > 0:
        path, value, depth = stack.pop()
        left -= 1
        if issubclass(type(value), Tensor | nn.Module):
            yield path, value
        elif issubclass(type(value), _CONTAINERS) and id(value) not in seen and depth < _DEEPEST:
            seen.add(id(value))
            inside = [(path + step, part, depth + 1) for step, part in itertools.islice(_steps(value), left)]
            stack.extend(reversed(inside))


def _steps(container: Any) -> Iterator[tuple[str, Any]]:
    """What a container holds, each with how it is got from there; nothing of a subclass of the user's is called."""
    kind = type(container)
    if issubclass(kind, dict | MappingProxyType):
        items = dict.items(container) if issubclass(kind, dict) else container.items()
        yield from ((f"[{key!r}]", part) for key, part in items)
        return
    values = list.__iter__(container) if issubclass(kind, list) else tuple.__iter__(container)
    fields = getattr(kind, "_fields", None)
    steps = (f".{field}" for field in fields) if fields else (f"[{index}]" for index in itertools.count())
    yield from zip(steps, values, strict=False)


def bare(path: str) -> str:
    """``w[0]`` for the path ``['w'][0]``, and other paths as they are."""
    return _FIRST_KEY.sub(r"\1", path)
