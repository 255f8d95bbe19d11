"""What a function holds besides its arguments: the modules and tensors that it closes over."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

# Deep enough for a lambda in a method of an object in a list; a bound that no honest function meets.
MAX_VISITED = 2000


@dataclass
class Held:
    """The modules, tensors and plain values that a function can reach without its arguments."""

    modules: list[nn.Module] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    values: list[bool | int | float | complex | str] = field(default_factory=list)


def held_by(f: Any) -> Held:
    """Search a callable's closure, defaults, bound object, partial arguments and the globals it names.

    The search is by inspection and may miss what is hidden deeper (inside C extensions, in attributes computed
    on the fly); nothing that decides about a number relies on it alone.
    """
    held = Held()
    seen: set[int] = set()
    stack: list[Any] = [f]
    while stack and len(seen) < MAX_VISITED:
        thing = stack.pop()
        if isinstance(thing, bool | int | float | complex | str):
            held.values.append(thing)
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            held.modules.append(thing)
            held.tensors.extend(thing.parameters())
            held.tensors.extend(thing.buffers())
            stack.extend(value for name, value in vars(thing).items() if not name.startswith("_"))
        elif isinstance(thing, Tensor):
            held.tensors.append(thing)
        else:
            stack.extend(_inside(thing))
    return held


def _inside(thing: Any) -> Iterator[Any]:
    if isinstance(thing, types.FunctionType):
        if not (thing.__module__ or "").startswith("torch"):
            yield from _inside_function(thing)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif not isinstance(thing, type | types.ModuleType | str | bytes | int | float | complex):
        yield from getattr(thing, "__dict__", {}).values()
        yield getattr(type(thing), "__call__", None)  # noqa: B004  the function itself is wanted


def _inside_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
