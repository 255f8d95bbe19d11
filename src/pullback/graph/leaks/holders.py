"""Who holds a tensor: the variable, attribute or container of the user's program through which it stays alive.

The search goes from the names a program has (the variables of its running functions, the globals of its modules)
down into containers, attributes, closures and generators. It calls nothing of the user's and keeps nothing alive.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pullback.graph.frames import variables
from pullback.graph.recording.userfiles import user_files

Where = Literal["local", "global", "attribute", "closure", "generator", "gradient"]

# A search looks at no more objects than this, at no more of one container, and no deeper.
MOST_OBJECTS = 200_000
MOST_ITEMS = 50_000
DEEPEST = 24
PLAIN = (str, bytes, int, float, complex, bool, type(None), types.CodeType, types.FrameType, types.TracebackType)
LISTS = (list, tuple, set, frozenset, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)
# What IPython keeps of earlier cells under several names; `Out` is the one it documents.
IPYTHON = ("_", "__", "___", "_oh", "_ih", "_dh", "In", "_i", "_ii", "_iii")


@dataclass(frozen=True, slots=True)
class Holder:
    """A named thing of the user's program that holds tensors.

    Attributes:
        where: What kind of thing it is.
        name: As the program writes it, such as ``losses`` or ``self.history``.
        owner: The function, module or class it belongs to.
        file: The source file of the owner.
        line: The first line of the owner's function; 0 for a module or a class.
        bare: The last part of the name, as assignments and method calls spell it.
    """

    where: Where
    name: str
    owner: str
    file: str
    line: int
    bare: str

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same variable at another time; instances of one class count together."""
        if self.where in {"attribute", "gradient"}:
            return self.where, self.owner, self.file, self.bare
        return self.where, self.owner, self.file, self.line, self.bare

    @property
    def root(self) -> tuple[object, ...]:
        """What has to be running, or alive, for the holder to be there."""
        return self.where, self.owner, self.file

    @property
    def short_owner(self) -> str:
        """The owner without the functions that it is written in."""
        name = self.owner.split("<locals>.")[-1]
        return "a lambda" if name == "<lambda>" else name

    def __str__(self) -> str:
        match self.where:
            case "local":
                return f"`{self.name}` in {self.short_owner} ({Path(self.file).name})"
            case "global":
                return f"the global variable `{self.name}` of {self.owner}"
            case "attribute":
                return f"`{self.name}` of {self.short_owner}"
            case "closure":
                return f"`{self.name}`, which {self.short_owner} ({Path(self.file).name}) closes over"
            case "generator":
                return f"`{self.name}` in the generator {self.short_owner} ({Path(self.file).name})"
            case "gradient":
                return f"`{self.name}`, a gradient that has a graph of its own"


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor with a graph that was found: its holder and the way from there, such as ``cache['h']``."""

    tensor: Tensor
    holder: Holder
    path: str


def is_library(file: str | None) -> bool:
    """Whether a file is not the user's: the standard library, torch, an installed package, or no file at all.

    Code without a file is a notebook's cell, or a library's: what runs a program or a test is often run by ``exec``.
    """
    if file is None or file.startswith("<"):
        return file is None or not file.startswith("<ipython")
    return not user_files(()).own_file(file)


def user_frames(frame: types.FrameType | None) -> list[types.FrameType]:
    """The frames of the user's own functions, innermost first."""
    frames = []
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


class Search:
    """One search from the names of the program for tensors that have a graph.

    Args:
        frames: The frames to begin with, innermost first.
        modules: The modules whose globals to look at.
        skip: Objects that are not looked into.

    Attributes:
        found: The tensors with a graph, each once, at the shortest way to it.
        roots: What was there to hold something (`Holder.root`).
    """

    def __init__(
        self,
        frames: Sequence[types.FrameType],
        modules: Iterable[types.ModuleType],
        skip: Iterable[object] = (),
    ) -> None:
        self.frames = frames
        self.found: list[Held] = []
        self.roots: set[tuple[object, ...]] = set()
        self._seen: set[int] = set()
        self._queue: deque[tuple[Any, Holder, str, int]] = deque()
        self._seen.update(map(id, skip))
        for frame in frames:
            self._enter_frame(frame)
        for module in modules:
            self._enter_globals(vars(module))
        for frame in frames:
            self._enter_globals(frame.f_globals)  # of a program that no module stands for
        self._run()

    def _push(self, value: Any, holder: Holder, path: str, depth: int) -> None:
        if type(value) in PLAIN or depth > DEEPEST or id(value) in self._seen:
            return
        self.roots.add(holder.root)
        if len(self._seen) < MOST_OBJECTS:
            self._seen.add(id(value))
            self._queue.append((value, holder, path, depth))

    def _enter_frame(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class body: its variables are globals
            return
        base = Holder("local", "", code.co_qualname, code.co_filename, code.co_firstlineno, "")
        self.roots.add(base.root)
        values = variables(frame)
        self._seen.add(id(values))
        for name, value in values.items():
            self._push(value, replace(base, name=name, bare=name), name, 0)

    def _enter_globals(self, names: dict[str, Any]) -> None:
        if id(names) in self._seen:
            return
        self._seen.add(id(names))
        base = Holder("global", "", str(names.get("__name__")), str(names.get("__file__") or "<ipython"), 0, "")
        self.roots.add(base.root)
        interactive = "Out" in names and "In" in names
        for name, value in list(names.items()):
            if name.startswith("__") or (interactive and (name in IPYTHON or name.startswith("_i") or _is_cell(name))):
                continue
            self._push(value, replace(base, name=name, bare=name), name, 0)

    def _run(self) -> None:
        with torch._C.DisableTorchFunction():
            while self._queue:
                value, holder, path, depth = self._queue.popleft()
                try:
                    self._open(value, holder, path, depth + 1)
                except (RuntimeError, ValueError, AttributeError, TypeError):
                    continue  # changed by another thread while it was read, or an object that cannot be looked into

    def _open(self, value: Any, holder: Holder, path: str, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, Tensor):
            self._open_tensor(value, holder, path, depth)
        elif issubclass(kind, MAPPINGS):
            for key, item in _items(value):
                self._push(item, holder, f"{path}[{key!r}]" if type(key) in {str, int} else path, depth)
        elif issubclass(kind, LISTS):
            for item in _elements(value):
                self._push(item, holder, path, depth)
        elif kind is types.FunctionType:
            self._open_function(value, depth)
        elif kind is types.MethodType:
            self._push(value.__self__, holder, path, depth)
            self._push(value.__func__, holder, path, depth)
        elif issubclass(kind, functools.partial):
            for item in (value.func, *value.args, *value.keywords.values()):
                self._push(item, holder, path, depth)
        elif kind in {types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType}:
            self._open_generator(value, depth)
        elif issubclass(kind, type):
            if not is_library(_file_of_class(value)):
                self._open_names(dict(vars(value)), value, value.__name__, depth)
        elif not issubclass(kind, types.ModuleType):
            self._open_names(_attributes(value), kind, path, depth)
        if issubclass(kind, MAPPINGS + LISTS) and kind not in MAPPINGS + LISTS:
            self._open_names(_attributes(value), kind, path, depth)

    def _open_tensor(self, tensor: Tensor, holder: Holder, path: str, depth: int) -> None:
        if tensor.grad_fn is not None:
            self.found.append(Held(tensor, holder, path))
        elif tensor.requires_grad and (grad := tensor.grad) is not None and grad.grad_fn is not None:
            name = f"{path}.grad"
            owner = Holder("gradient", name, holder.owner, holder.file, holder.line, "grad")
            self.roots.add(owner.root)
            self._seen.add(id(grad))
            self.found.append(Held(grad, owner, name))
        if hooks := getattr(tensor, "_backward_hooks", None):
            self._push(hooks, holder, path, depth)
        if attributes := _attributes(tensor):
            self._open_names(attributes, type(tensor), path, depth)

    def _open_function(self, function: types.FunctionType, depth: int) -> None:
        code = function.__code__
        if is_library(code.co_filename):
            return
        base = Holder("closure", "", code.co_qualname, code.co_filename, code.co_firstlineno, "")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._push(value, replace(base, name=name, bare=name), name, depth)
        for value in function.__defaults__ or ():
            self._push(value, replace(base, name="a default argument"), "a default argument", depth)
        for name, value in vars(function).items():
            text = f"{function.__name__}.{name}"
            self._push(value, replace(base, where="attribute", name=text, bare=name), text, depth)

    def _open_generator(self, generator: Any, depth: int) -> None:
        frame = getattr(generator, "gi_frame", None) or getattr(generator, "cr_frame", None)
        if frame is None:
            return
        code = frame.f_code
        base = Holder("generator", "", code.co_qualname, code.co_filename, code.co_firstlineno, "")
        for name, value in variables(frame).items():
            self._push(value, replace(base, name=name, bare=name), name, depth)

    def _open_names(self, names: dict[str, Any], kind: type, path: str, depth: int) -> None:
        file = _file_of_class(kind) or ""
        for name, value in names.items():
            if name in {"_parameters", "_buffers", "_modules"} and type(value) in MAPPINGS:
                self._open_names(dict(value), kind, path, depth)
            elif type(name) is str and type(value) not in PLAIN:
                self._push(
                    value,
                    Holder("attribute", f"{path}.{name}", kind.__qualname__, file, 0, name),
                    f"{path}.{name}",
                    depth,
                )


def user_modules() -> list[types.ModuleType]:
    """The modules that the user wrote: all whose file is not in a library, and ``__main__``."""
    modules = []
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType:
            continue  # a lazy module would be imported by looking at it
        names = vars(module)
        if name == "__main__" or ("__file__" in names and not is_library(names["__file__"])):
            modules.append(module)
    return modules


def lost_tensors(known: set[int]) -> list[Tensor]:
    """The live tensors with a graph that no search found: in reference cycles, or inside the graphs themselves."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    tensors = list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))
    del objects
    with torch._C.DisableTorchFunction():
        return [tensor for tensor in tensors if id(tensor) not in known and tensor.grad_fn is not None]


def keeper_of(tensor: Tensor, ours: Iterable[object]) -> Holder | None:
    """The first named thing on the ways by which Python references reach a tensor, or None if only a graph keeps it.

    Args:
        tensor: The tensor.
        ours: Objects of the one who asks, which do not count.
    """
    skip = {id(value) for value in ours}
    level: list[Any] = [tensor]
    seen = {id(tensor)}
    for _ in range(5):
        skip |= {id(level), id(seen), id(skip)}
        above = [
            value
            for value in gc.get_referrers(*level)
            if id(value) not in skip and id(value) not in seen and type(value) is not types.FrameType
        ]
        for value in above:
            if (holder := _named(value, seen)) is not None:
                return holder
        seen |= {id(value) for value in above}
        level = above[:20]
        if not level:
            break
    return None


def _named(value: Any, inside: set[int]) -> Holder | None:
    """The holder that an object is: a function through a variable it closes over, an instance, a generator."""
    kind = type(value)
    if kind is types.FunctionType and not is_library(value.__code__.co_filename):
        code = value.__code__
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            if id(cell) in inside:
                return Holder("closure", name, code.co_qualname, code.co_filename, code.co_firstlineno, name)
    elif kind in {types.GeneratorType, types.CoroutineType} and value.gi_frame is not None:
        code = value.gi_frame.f_code
        for name, item in variables(value.gi_frame).items():
            if id(item) in inside:
                return Holder("generator", name, code.co_qualname, code.co_filename, code.co_firstlineno, name)
    elif not issubclass(kind, MAPPINGS + LISTS + (types.ModuleType, type)):
        context = issubclass(kind, torch.autograd.function.BackwardCFunction)
        owner = value._forward_cls if context else kind
        for name, item in _attributes(value).items():
            if id(item) in inside:
                text = f"{'ctx' if context else owner.__name__}.{name}"
                return Holder("attribute", text, owner.__qualname__, _file_of_class(owner) or "", 0, name)
    return None


def _is_cell(name: str) -> bool:
    """Whether a global is IPython's name for the result of a cell, such as ``_12``."""
    return name.startswith("_") and name[1:].isdigit()


def _items(mapping: Any) -> Iterator[tuple[Any, Any]]:
    items = list(dict.items(mapping))
    yield from items[-MOST_ITEMS:]


def _elements(values: Any) -> list[Any]:
    """The elements of a container by its own type's iteration; none of a long list of plain numbers or strings."""
    base = next(kind for kind in LISTS if issubclass(type(values), kind))
    elements = list(base.__iter__(values))
    if len(elements) > 100 and type(elements[0]) in PLAIN and type(elements[-1]) in PLAIN:
        return []
    return elements[-MOST_ITEMS:]


def _attributes(value: Any) -> dict[str, Any]:
    """What is in an instance's ``__dict__`` and slots, without running any code of its class."""
    kind = type(value)
    try:
        names = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        names = {}
    if is_library(_file_of_class(kind)):
        return names
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType:
                try:
                    names[name] = slot.__get__(value, kind)
                except AttributeError:  # not assigned yet
                    continue
    return names


def _file_of_class(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    file = vars(module).get("__file__") if module is not None else None
    return file if isinstance(file, str) else ("<ipython" if kind.__module__ == "__main__" else None)
