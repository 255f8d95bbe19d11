"""The tape: which call of torch made each tensor from which others, and where in the user's program.

A ``TorchFunctionMode`` at the bottom of the stack hears every call. Tensors are held by weak references only; what is
kept of each is its shape, dtype and whether it required grad.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.callers import as_caller
from pullback.diagnose.recorders.spots import spot_of

# So many calls are remembered.
CALLS = 1 << 16
# Calls that make and change nothing.
SILENT = frozenset({
    "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "storage_offset", "is_contiguous", "type",
    "data_ptr", "untyped_storage", "__len__", "ndimension", "nelement", "element_size", "__repr__", "__format__",
    "__hash__", "__dir__", "__get__", "backward", "_is_view", "is_inference", "get_device", "is_pinned",
    "_set_grad_enabled",
})  # fmt: skip
SETTERS = frozenset({"data", "grad", "requires_grad"})
TRACED = frozenset({"FakeTensor", "FunctionalTensor"})
GETTERS = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
# Of those that make and change nothing, those at which torch may warn.
WARNING = frozenset({"backward", "grad", "volatile"})
CONTAINERS = (list, tuple, dict)
# So many functions are remembered by their names.
FUNCTIONS = 10_000


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
        self.shape = () if tensor.is_nested or is_lazy(tensor) else tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.requires_grad = tensor.requires_grad
        try:
            self.leaf = tensor.is_leaf
        except RuntimeError:  # a view made without grad, whose base was written to since: torch refuses to tell
            self.leaf = False
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
        heard: Told of calls after them, with their arguments and results; whatever it raises stays here.
        most: So many calls are remembered.
        names: The names of the calls that ``heard`` is told of; None for all.

    Attributes:
        calls: The latest calls, the oldest first.
        trouble: What went wrong in noting.
        running: Whether it hears.
    """

    def __init__(self, heard: Heard | None = None, most: int = CALLS, names: Container[str] | None = None) -> None:
        super().__init__()
        self.calls: deque[Call] = deque()
        self.trouble: list[str] = []
        self.running = False
        self._most = most
        self._heard = heard
        self._tells = names
        self._names: dict[Any, str | None] = {}
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
        """Hear no more; only in the thread that started it, and not from inside a call that it hears."""
        if self.running and threading.get_ident() == self._thread:
            modes = self._popped()
            self._replace([mode for mode in modes if mode is not self])
            self.running = self not in modes

    def wrote(self, name: str, spot: Spot | None, before: list[tuple[Tensor, int]]) -> None:
        """Note one call for much that was not heard.

        Args:
            name: What it is called.
            spot: Where it was.
            before: What it may have written to, each with its version before.
        """
        try:
            number = torch._C._autograd._get_sequence_nr()
            call = Call(self._count, name, spot, torch.is_grad_enabled(), number)
            self._count += 1
            changed = [(each, old, new) for each, old in before if (new := version_of(each)) != old]
            call.inputs = tuple(self._known(each) for each, _, _ in changed)
            call.writes = tuple((self._new(each, call), old, new) for each, old, new in changed)
            self._keep(call)
        except Exception as problem:
            self._failed(problem)

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
        # Written out at length: it runs at every call of torch, under a trace function, where each call of Python's
        # costs as much again.
        kwargs = kwargs or {}
        try:
            name = self._names[func]
        except (KeyError, TypeError):
            name = self._name(func)
        if not name or torch.compiler.is_compiling():
            if name is None and not torch.compiler.is_compiling():
                return as_caller(sys._getframe(1))(func, args, kwargs)
            return func(*args, **kwargs)
        frame = sys._getframe(1)
        given: list[Tensor] = []
        before: list[int] = []
        try:
            for each in args:
                if isinstance(each, Tensor):
                    given.append(each)
                elif isinstance(each, CONTAINERS):
                    given.extend(_tensors((each,)))
            for each in kwargs.values():
                if isinstance(each, Tensor):
                    given.append(each)
                elif isinstance(each, CONTAINERS):
                    given.extend(_tensors((each,)))
            if any(map(is_traced, given)):
                return func(*args, **kwargs)
            call = Call(
                self._count,
                name,
                spot_of(frame),
                torch.is_grad_enabled(),
                torch._C._autograd._get_sequence_nr(),
            )
            self._count += 1
            inputs = []
            for tensor in given:
                known = self._values.get(id(tensor))
                if known is None or known.tensor() is not tensor or known.requires_grad != tensor.requires_grad:
                    known = self._known(tensor)
                inputs.append(known)
                try:
                    before.append(tensor._version)
                except RuntimeError:  # inference tensors have none
                    before.append(-1)
            call.inputs = tuple(inputs)
        except Exception as problem:  # the program must go on
            self._failed(problem)
            return func(*args, **kwargs)
        result = as_caller(frame)(func, args, kwargs)
        try:
            self._note(call, given, before, result)
            if self._heard is not None and (self._tells is None or name in self._tells):
                self._heard(call, args, kwargs, result)
        except Exception as problem:
            self._failed(problem)
        return result

    def _note(self, call: Call, given: list[Tensor], before: list[int], result: Any) -> None:
        sets = call.name.startswith("set ")
        for index, tensor in enumerate(given):
            try:
                now = tensor._version
            except RuntimeError:
                now = -1
            if sets or now != before[index]:
                call.writes = (*call.writes, (self._new(tensor, call), before[index], now))
        outputs = [result] if isinstance(result, Tensor) else list(_tensors((result,)))
        if outputs:
            made = []
            for tensor in outputs:
                known = self._values.get(id(tensor))
                same = known is not None and known.tensor() is tensor and known.requires_grad == tensor.requires_grad
                # it may return what it has written, or what it was given as it was
                if known is None or not same or (known.maker is not call and known not in call.inputs):
                    known = self._new(tensor, call)
                made.append(known)
            call.outputs = tuple(made)
        else:
            call.escaped = result is not None and bool(given)
        self._keep(call)

    def _keep(self, call: Call) -> None:
        self.calls.append(call)
        if len(self.calls) > self._most:
            # Values remember what made them: what is not on the tape any more must not lead further back.
            self.calls.popleft().inputs = ()

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

    def _name(self, func: Callable[..., Any]) -> str | None:
        """The name of a function as the tape has it; empty for those that make and change nothing.

        None if it may warn, though.
        """
        name: str | None = getattr(func, "__name__", "?")
        if name == "__set__":
            what = getattr(getattr(func, "__self__", None), "__name__", "?")
            name = f"set {what}" if what in SETTERS else None
        elif name == "__get__":
            what = getattr(getattr(func, "__self__", None), "__name__", "?")
            name = f"get {what}" if what in GETTERS else (None if what in WARNING else "")
        elif name in SILENT:
            name = None if name in WARNING else ""
        try:
            if len(self._names) < FUNCTIONS:
                self._names[func] = name
        except TypeError:  # it has no hash
            pass
        return name

    def _failed(self, problem: Exception) -> None:
        if len(self.trouble) < 20:
            self.trouble.append(f"tape: {type(problem).__name__}: {problem}")

    @staticmethod
    def _popped() -> list[Any]:
        from torch.overrides import _pop_mode  # noqa: PLC0415

        modes = []
        while torch._C._len_torch_function_stack():
            modes.append(_pop_mode())  # type: ignore[no-untyped-call]
        return modes[::-1]

    @staticmethod
    def _replace(modes: list[Any]) -> None:
        from torch.overrides import _push_mode  # noqa: PLC0415

        for mode in modes:
            _push_mode(mode)  # type: ignore[no-untyped-call]


def _tensors(values: Iterable[Any], depth: int = 0) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth < 3 and isinstance(value, list | tuple):
            yield from _tensors(value, depth + 1)
        elif depth < 3 and isinstance(value, dict):
            yield from _tensors(value.values(), depth + 1)


def is_traced(tensor: Any) -> bool:
    """Whether it stands for a tensor while a compiler traces the program: what it does is none of the program's."""
    return type(tensor).__name__ in TRACED


def version_of(tensor: Tensor) -> int:
    """How often a tensor's memory was written to; -1 where torch does not count."""
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have none
        return -1
