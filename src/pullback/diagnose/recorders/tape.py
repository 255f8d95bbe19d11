"""The tape: which call of torch made each tensor from which others, and where in the user's program.

A ``TorchFunctionMode`` at the bottom of the stack hears every call. Tensors are held by weak references only; what is
kept of each is its shape, dtype and whether it required grad.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.spots import spot_of

# So many calls are remembered.
CALLS = 1 << 16
# Calls that make and change nothing.
SILENT = frozenset({
    "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "storage_offset", "is_contiguous", "type",
    "data_ptr", "untyped_storage", "__len__", "ndimension", "nelement", "element_size", "__repr__", "__format__",
    "__hash__", "__dir__", "__get__", "backward", "_is_view", "is_inference", "get_device", "is_pinned",
    "register_hook", "_set_grad_enabled",
})  # fmt: skip
SETTERS = frozenset({"data", "grad", "requires_grad"})


class Value:
    """One tensor as it was after a call.

    Attributes:
        number: Its number on this tape.
        tensor: A weak reference to it.
        shape: Its shape.
        dtype: Its dtype.
        requires_grad: Whether it required grad.
        leaf: Whether it was a leaf of the graph.
        maker: The call that made it, or last wrote to it; None if it came from outside.
    """

    __slots__ = ("dtype", "leaf", "maker", "number", "requires_grad", "shape", "tensor")

    def __init__(self, number: int, tensor: Tensor, maker: Call | None) -> None:
        self.number = number
        self.tensor = ref(tensor)
        self.shape = tuple(tensor.shape) if not tensor.is_nested else ()
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad
        self.leaf = tensor.is_leaf
        self.maker = maker

    def __repr__(self) -> str:
        made = self.maker.name if self.maker else "?"
        return f"<{made} {self.shape} {self.dtype}{' requires_grad' if self.requires_grad else ''}>"


class Call:
    """One call of torch.

    Attributes:
        number: Its number, in order.
        name: The name of the function: ``add_``, ``detach``, ``cross_entropy``, ``set data``.
        spot: The point of the user's program that called it, or None.
        grad: Whether grad mode was on.
        inputs: The tensors among its arguments, as they were before.
        outputs: The tensors that it returned, as they were after.
        writes: The tensors among its arguments whose version it raised, each with its version before and after.
        sequence: The sequence number that the next node of this thread had before the call.
        escaped: Whether it returned numbers outside torch (``item``, ``numpy``, ``tolist``, ``float(x)``).
    """

    __slots__ = ("escaped", "grad", "inputs", "name", "number", "outputs", "sequence", "spot", "writes")

    def __init__(self, number: int, name: str, spot: Spot | None, grad: bool, sequence: int) -> None:
        self.number = number
        self.name = name
        self.spot = spot
        self.grad = grad
        self.sequence = sequence
        self.inputs: tuple[Value, ...] = ()
        self.outputs: tuple[Value, ...] = ()
        self.writes: tuple[tuple[Value, int, int], ...] = ()
        self.escaped = False

    def __repr__(self) -> str:
        where = f" at {self.spot.place}" if self.spot else ""
        return f"<{self.number} {self.name}{where}: {list(self.inputs)} -> {list(self.outputs)}>"


Heard = Callable[[Call, tuple[Any, ...], Mapping[str, Any], Any], None]


class Tape(TorchFunctionMode):
    """Hears the calls of torch of the thread that starts it.

    Args:
        heard: Told of every call after it, with its arguments and result; whatever it raises stays here.

    Attributes:
        calls: The latest calls, the oldest first.
        trouble: What went wrong in noting.
        running: Whether it hears.
    """

    def __init__(self, heard: Heard | None = None, most: int = CALLS) -> None:
        super().__init__()
        self.calls: deque[Call] = deque(maxlen=most)
        self.trouble: list[str] = []
        self.running = False
        self._heard = heard
        self._values: dict[int, Value] = {}
        self._numbers = 0
        self._count = 0
        self._thread = 0

    def start(self) -> None:
        """Hear the calls of this thread from now on, below all modes of the user's."""
        if not self.running:
            self._thread = threading.get_ident()
            self._replace([self, *self._popped()])
            self.running = True

    def stop(self) -> None:
        """Hear no more; only in the thread that started it."""
        if self.running and threading.get_ident() == self._thread:
            self._replace([mode for mode in self._popped() if mode is not self])
            self.running = False

    def value_of(self, tensor: Tensor) -> Value | None:
        """What is noted of a tensor as it is now, if anything."""
        found = self._values.get(id(tensor))
        return found if found is not None and found.tensor() is tensor else None

    def history(self, *starts: Value) -> Iterator[Call]:
        """The calls that values came from, the latest first, each once."""
        waiting = {value.maker.number: value.maker for value in starts if value.maker is not None}
        while waiting:
            call = waiting.pop(max(waiting))
            yield call
            for value in call.inputs:
                if value.maker is not None and value.maker.number < call.number:
                    waiting[value.maker.number] = value.maker

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "?")
        if name in SILENT or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if name == "__set__":
            name = f"set {getattr(getattr(func, '__self__', None), '__name__', '?')}"
            if name[4:] not in SETTERS:
                return func(*args, **kwargs)
        try:
            given = list(_tensors(args)) + list(_tensors(kwargs.values()))
            call = Call(
                self._count,
                name,
                spot_of(sys._getframe(1)),
                torch.is_grad_enabled(),
                torch.autograd._get_sequence_nr(),  # type: ignore[attr-defined]
            )
            self._count += 1
            call.inputs = tuple(map(self._known, given))
            before = [_version(tensor) for tensor in given]
        except Exception as problem:  # the program must go on
            self._failed(problem)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            self._note(call, given, before, result)
            if self._heard is not None:
                with torch._C.DisableTorchFunction():
                    self._heard(call, args, kwargs, result)
        except Exception as problem:
            self._failed(problem)
        return result

    def _note(self, call: Call, given: list[Tensor], before: list[int], result: Any) -> None:
        changed = [
            (tensor, old, new)
            for tensor, old in zip(given, before, strict=True)
            if (new := _version(tensor)) != old or call.name.startswith("set ")
        ]
        call.writes = tuple((self._new(tensor, call), old, new) for tensor, old, new in changed)
        outputs = list(_tensors((result,)))
        call.escaped = not outputs and result is not None and bool(given)
        call.outputs = tuple(
            known if (known := self.value_of(tensor)) is not None and known.maker is call else self._made(tensor, call)
            for tensor in outputs
        )
        self.calls.append(call)

    def _made(self, tensor: Tensor, call: Call) -> Value:
        known = self.value_of(tensor)
        if known is not None and any(known is value for value in call.inputs):
            if known.requires_grad == tensor.requires_grad:
                return known  # it returned what it was given
        return self._new(tensor, call)

    def _known(self, tensor: Tensor) -> Value:
        known = self.value_of(tensor)
        if known is None or known.requires_grad != tensor.requires_grad:
            known = self._new(tensor, known.maker if known is not None else None)
        return known

    def _new(self, tensor: Tensor, maker: Call | None) -> Value:
        self._numbers += 1
        if len(self._values) > 4 * CALLS:
            self._values = {key: value for key, value in self._values.items() if value.tensor() is not None}
        value = self._values[id(tensor)] = Value(self._numbers, tensor, maker)
        return value

    def _failed(self, problem: Exception) -> None:
        if len(self.trouble) < 20:
            self.trouble.append(f"tape: {type(problem).__name__}: {problem}")

    @staticmethod
    def _popped() -> list[Any]:
        from torch.overrides import _pop_mode  # noqa: PLC0415

        modes = []
        while torch._C._len_torch_function_stack():
            modes.append(_pop_mode())
        return modes[::-1]

    @staticmethod
    def _replace(modes: list[Any]) -> None:
        from torch.overrides import _push_mode  # noqa: PLC0415

        for mode in modes:
            _push_mode(mode)


def _tensors(values: Iterable[Any], depth: int = 0) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth < 3 and isinstance(value, list | tuple):
            yield from _tensors(value, depth + 1)
        elif depth < 3 and isinstance(value, dict):
            yield from _tensors(value.values(), depth + 1)


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return -1
