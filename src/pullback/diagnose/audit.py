"""The audit: a program is listened to while it runs, and every fault of the folder ``checks`` is told what happens."""

from __future__ import annotations

import functools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pullback.autodiff.deep import free_gently
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Frame, Spot
from pullback.diagnose.recorders.passes import Pass, Passes
from pullback.diagnose.recorders.spots import spot_here, spot_of
from pullback.diagnose.recorders.tape import Call, Tape, is_traced
from pullback.diagnose.values import Diagnosis, Mark, Subject
from pullback.graph.engine import forget, listen
from pullback.graph.names import Names
from pullback.graph.recording.record import origin_of
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place

# What is only done now and then takes no more than this share of the program's time.
SHARE = 0.2
# So many findings of one code are told.
FINDINGS = 5
# A graph is walked so far.
NODES = 20_000
# So many threads are remembered.
THREADS = 1000
EVENTS = (
    "before_backward", "after_backward", "before_step", "after_step", "after_zero_grad", "before_load", "warned",
    "at_end",
)  # fmt: skip


@dataclass
class Backward:
    """A backward pass, while it is about to run or has just run: what it holds is live and must not be kept.

    Attributes:
        record: What is remembered of it.
        roots: Where it began: tensors or edges.
        seeds: The cotangents, as torch made them: one tensor for each root.
        inputs: By which inputs, empty for all leaves.
        frame: The frame that called the engine.
        had_grad: The leaves that had a ``.grad`` before, by id.
    """

    record: Pass
    roots: Sequence[Any]
    seeds: Sequence[Any]
    inputs: Sequence[Any]
    frame: FrameType
    had_grad: set[int] = field(default_factory=set)

    @property
    def spot(self) -> Spot | None:
        """The line that asked for it."""
        return self.record.spot

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes behind the roots, each once, the first ``NODES`` of them."""
        roots = [root.grad_fn if isinstance(root, Tensor) else getattr(root, "node", None) for root in self.roots]
        return nodes_behind(node for node in roots if node is not None)

    @cached_property
    def leaves(self) -> list[Tensor]:
        """The leaves that it reaches: those that get a gradient."""
        return accumulated(self.nodes) + [root for root in self.roots if isinstance(root, Tensor) and root.is_leaf]


@dataclass
class Step:
    """A call of an optimizer: what it holds is live and must not be kept.

    Attributes:
        optimizer: The optimizer.
        spot: The line of the user's.
        number: How many steps of this optimizer there were before.
        closure: What ``step()`` was given, or None.
    """

    optimizer: Optimizer
    spot: Spot | None
    number: int
    closure: Any = None

    @property
    def parameters(self) -> Iterator[Tensor]:
        """What the optimizer trains."""
        for group in self.optimizer.param_groups:
            yield from group["params"]


@dataclass(frozen=True)
class Wrapped:
    """A parameter that was made of a computed tensor.

    Attributes:
        spot: Where.
        made: The parameter.
        sources: The leaves that the tensor was computed from.
    """

    spot: Spot
    made: ref[Tensor]
    sources: list[ref[Tensor]]


def nodes_behind(starts: Iterable[Node]) -> list[Node]:
    """Some nodes and those behind them, each once, the first ``NODES`` of them."""
    seen = dict.fromkeys(starts)
    stack = list(seen)
    while stack and len(seen) < NODES:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in seen:
                seen[child] = None
                stack.append(child)
    order = list(seen)
    free_gently(order)
    return order


def accumulated(nodes: Iterable[Node]) -> list[Tensor]:
    """The leaves whose gradients some nodes accumulate."""
    return [node.variable for node in nodes if node.name() == "torch::autograd::AccumulateGrad"]  # type: ignore[attr-defined]


def leaves_behind(starts: Iterable[Node]) -> list[Tensor]:
    """The leaves behind some nodes."""
    return accumulated(nodes_behind(starts))


@dataclass(frozen=True)
class Started:
    """A thread that was started where grad mode was off, and has ended.

    Attributes:
        spot: Where it was started.
        nodes: How many nodes of autograd it made.
        passes: Whether it ran a backward pass.
    """

    spot: Spot
    nodes: int
    passes: bool


class Audit:
    """Listens to a program for all faults.

    Args:
        faults: Who is told; one object of each.
        passes: The light record.

    Attributes:
        tape: The tape of all calls of torch.
        optimizers: The optimizers that were met.
        made: Where they were made, as far as that was heard.
        trouble: What went wrong in a fault; the program does not notice.
        level: ``audit``, or ``strict``: what takes more time is done only then.
        over: Whether the program has ended.
        crashed: Whether it ended with an exception.
        variables: Those of the main module, once the program has ended.
        wrapped: The parameters that were made of computed tensors.
        threads: The threads that started where grad mode was off, and have ended.
    """

    def __init__(self, faults: Iterable[Fault], passes: Passes) -> None:
        self.faults = tuple(faults)
        self.passes = passes
        self._was_heard = False
        self.threads: list[Started] = []
        self.optimizers: WeakSet[Optimizer] = WeakSet()
        self.wrapped: list[Wrapped] = []
        self.made: WeakKeyDictionary[Optimizer, Spot | None] = WeakKeyDictionary()
        self.trouble: list[str] = []
        self.level = "audit"
        self.over = False
        self.crashed = False
        self._findings: dict[tuple[str, str, int, str], Diagnosis] = {}
        self._by_call, self._by_event = _told(self.faults)
        names = None if "*" in self._by_call else frozenset(self._by_call)
        self.tape = Tape(self._heard, names=names)
        self._open = threading.local()
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._until_rest: list[Callable[[], Any]] = []
        self._until_stop: list[Callable[[], Any]] = []
        self.variables: Mapping[str, Any] = {}
        self._names: Names | None = None
        self._began = time.perf_counter()
        self._spent = 0.0

    @property
    def findings(self) -> tuple[Diagnosis, ...]:
        """What was found, in the order of the lines of each file."""
        found = sorted(self._findings.values(), key=lambda each: each.marks[0].place[:2] if each.marks else ("", 0))
        kept: dict[str, list[Diagnosis]] = {}
        for each in found:
            kept.setdefault(each.code, []).append(each)
        return tuple(each for each in found if each in kept[each.code][:FINDINGS])

    def report(self, finding: Diagnosis) -> None:
        """Say that something was found; the same at the same line about the same tensor is said once."""
        mark = finding.marks[0].place if finding.marks else Place("", 0, "")
        about = finding.tensors[0].name if finding.tensors else ""
        self._findings.setdefault((finding.code, mark.file, mark.line, about), finding)

    def withdraw(self, code: str, line: Place | None = None) -> None:
        """Take back what was found of a code, at a line or everywhere."""
        for key in list(self._findings):
            if key[0] == code and (line is None or key[1:3] == (line.file, line.line)):
                del self._findings[key]

    def reported(self, code: str) -> bool:
        """Whether something was found of a code."""
        return any(key[0] == code for key in self._findings)

    @property
    def affordable(self) -> bool:
        """Whether something that takes time may be done now: the audit's share is not used up, or it has just begun."""
        elapsed = time.perf_counter() - self._began
        return self._spent < 0.5 or self._spent < SHARE * elapsed

    def frames(self) -> list[Frame]:
        """The user's frames that run now, the innermost first; none when the program has ended."""
        if self.over:
            return []
        files = user_files(())
        found, frame = [], sys._getframe(1)
        here: FrameType | None = frame
        while here is not None:
            if files.own(here):
                found.append(Frame(here, here.f_lasti, here.f_lineno))
            here = here.f_back
        return found

    @property
    def names(self) -> Names:
        """What the user calls tensors and modules now: by the frames that run, or at the end by the main module."""
        if self._names is not None:
            return self._names
        names = Names()
        scopes = [{**frame.local, **frame.module} for frame in self.frames()] or [dict(self.variables)]
        for scope in scopes:
            for name, thing in scope.items():
                if name.isidentifier() and not name.startswith("_"):
                    names.add(name, thing)
        self._names = names  # until the end of this event: it holds nodes
        return names

    def name_of(self, tensor: Tensor, otherwise: str = "a tensor") -> str:
        """What the user calls a tensor now."""
        return self.names.name_of(tensor) or otherwise

    def subject(self, tensor: Tensor, role: str = "", otherwise: str = "") -> Subject:
        """A tensor as a diagnosis shows it."""
        return Subject.of(tensor, self.name_of(tensor, otherwise or role or "a tensor"), role)

    def modules(self) -> list[tuple[str, nn.Module]]:
        """The outermost modules that the user's names lead to now, by name."""
        scopes = [{**frame.local, **frame.module} for frame in self.frames()] or [dict(self.variables)]
        found: dict[int, tuple[str, nn.Module]] = {}
        for scope in scopes:
            for name, thing in scope.items():
                if issubclass(type(thing), nn.Module):
                    found.setdefault(id(thing), (name, thing))
        inner = {id(part) for _, module in found.values() for part in module.modules() if part is not module}
        return [each for key, each in found.items() if key not in inner]

    def line_of(self, node: Node | None) -> Place | None:
        """The user's line that made a node, if it was recorded."""
        number = -1 if node is None else node._sequence_nr()
        origin = origin_of(number) if 0 <= number < 2**63 else None
        return origin.place if origin is not None else None

    def turned(self, hears: bool) -> None:
        """Passes, steps and calls are heard from now on, or no longer.

        What a fault remembers does not hold across a gap, so after one new ones are told of what comes; the first ones
        are told of the end.
        """
        if hears:
            if self._was_heard:
                self._by_call, by_event = _told([type(fault)() for fault in self.faults])
                self._by_event = {**by_event, "at_end": self._by_event["at_end"]}
            self._was_heard = True
            listen(self)
            self._until_rest = [
                lambda: forget(self),
                register_optimizer_step_pre_hook(self._steps_now).remove,
                register_optimizer_step_post_hook(self._has_stepped).remove,
                self._wrap_zero_grad(),
            ]
        else:
            _undo(self._until_rest)

    def start(self) -> None:
        """Listen from now on, in this thread, to what is seldom; to the rest when it is its turn."""
        self._until_stop = [
            self._wrap_parameters(),
            self._wrap_init(),
            self._wrap_load(),
            self._wrap_warnings(),
            self._wrap_threads(),
        ]
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Listen no more."""
        _undo(self._until_rest)
        _undo(self._until_stop)

    def finish(self, variables: Mapping[str, Any], *, crashed: bool) -> None:
        """The program has ended: tell all, with the variables of its main module."""
        if not self.over:
            self.over, self.crashed, self.variables = True, crashed, variables
            self._tell("at_end")
            self.variables = {}

    def begins(self, roots: Sequence[Any], seeds: Sequence[Any], options: Sequence[Any], frame: FrameType) -> None:
        """A backward pass begins."""
        backward = None
        with torch._C.DisableTorchFunction():
            record = self.passes.latest()
            if record is not None and not any(map(is_traced, roots)):
                backward = Backward(record, roots, seeds, options[2] if len(options) > 2 else (), frame)
                with suppress(RuntimeError):
                    backward.had_grad = {id(leaf) for leaf in backward.leaves if leaf.grad is not None}
                self._tell("before_backward", backward)
        if not hasattr(self._open, "passes"):
            self._open.passes = []
        self._open.passes.append(backward)

    def ended(self, frame: FrameType, *, failed: bool) -> None:
        """A backward pass has ended."""
        backward = self._open.passes.pop() if getattr(self._open, "passes", None) else None
        if backward is not None and not failed:
            self._tell("after_backward", backward)

    def _heard(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        with torch._C.DisableTorchFunction():
            for fault in (*self._by_call.get(call.name, ()), *self._by_call.get("*", ())):
                try:
                    fault.after_call(self, call, args, kwargs, result)
                except Exception as problem:
                    self._failed(fault, problem)
        self._names = None

    def _tell(self, what: str, *about: Any) -> None:
        begin = time.perf_counter()
        with torch._C.DisableTorchFunction():
            for fault in self._by_event[what]:
                try:
                    getattr(fault, what)(self, *about)
                except Exception as problem:
                    self._failed(fault, problem)
        self._names = None
        self._spent += time.perf_counter() - begin

    def _failed(self, fault: Fault, problem: Exception) -> None:
        if len(self.trouble) < 20:
            self.trouble.append(f"{fault.code}: {type(problem).__name__}: {problem}")

    def steps(self, optimizer: Optimizer) -> int:
        """How many steps of an optimizer were heard."""
        return self._steps.get(optimizer, 0)

    def _step(self, optimizer: Optimizer, given: Iterable[Any] = ()) -> Step:
        self.optimizers.add(optimizer)
        closure = next((each for each in given if each is not None), None)
        return Step(optimizer, spot_here(2), self.steps(optimizer), closure)

    # hooks are given the optimizer as the first of the arguments too
    def _steps_now(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._tell("before_step", self._step(optimizer, (*args[1:], *kwargs.values())))

    def _has_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._tell("after_step", self._step(optimizer, (*args[1:], *kwargs.values())))
        self._steps[optimizer] = self.steps(optimizer) + 1

    def _wrap_parameters(self) -> Callable[[], None]:
        """Note the parameters that are made of what is computed: they do not depend on it."""
        original = nn.Parameter.__new__

        def new(kind: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
            made = original(kind, data, *args, **kwargs)
            try:
                if issubclass(type(data), Tensor) and data.grad_fn is not None and len(self.wrapped) < THREADS:
                    spot = spot_here(2)
                    if spot is not None:
                        sources = [ref(leaf) for leaf in leaves_behind([data.grad_fn])]
                        self.wrapped.append(Wrapped(spot, ref(made), sources))
            except Exception as problem:
                self.trouble.append(f"parameter: {type(problem).__name__}: {problem}")
            return made

        nn.Parameter.__new__ = new  # type: ignore[assignment, method-assign]

        def undo() -> None:
            nn.Parameter.__new__ = staticmethod(original)  # type: ignore[method-assign]

        return undo

    def _wrap_init(self) -> Callable[[], None]:
        original = Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            with suppress(TypeError):
                self.optimizers.add(optimizer)
                self.made[optimizer] = spot_here(2)

        Optimizer.__init__ = init  # type: ignore[assignment, method-assign]

        def undo() -> None:
            Optimizer.__init__ = original  # type: ignore[method-assign]

        return undo

    def _wrap_load(self) -> Callable[[], None]:
        original = nn.Module.load_state_dict

        @functools.wraps(original)
        def load_state_dict(module: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            spot = spot_here(2)
            if spot is not None:
                self._tell("before_load", module, state_dict, spot)
            return original(module, state_dict, *args, **kwargs)

        nn.Module.load_state_dict = load_state_dict  # type: ignore[assignment, method-assign]

        def undo() -> None:
            nn.Module.load_state_dict = original  # type: ignore[method-assign]

        return undo

    def _wrap_zero_grad(self) -> Callable[[], None]:
        original = Optimizer.zero_grad

        @functools.wraps(original)
        def zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self._tell("after_zero_grad", self._step(optimizer))
            return result

        Optimizer.zero_grad = zero_grad  # type: ignore[assignment, method-assign]

        def undo() -> None:
            Optimizer.zero_grad = original  # type: ignore[method-assign]

        return undo

    def _wrap_warnings(self) -> Callable[[], None]:
        original = warnings.showwarning

        def showwarning(message: Any, category: Any, filename: str, lineno: int, *rest: Any, **named: Any) -> None:
            original(message, category, filename, lineno, *rest, **named)
            spot = spot_of(sys._getframe(1))
            mark = Mark.at(Place(filename, lineno, ""), "") if spot is None else spot.mark("")
            self._tell("warned", str(message), category, mark)

        warnings.showwarning = showwarning

        def undo() -> None:
            if warnings.showwarning is showwarning:
                warnings.showwarning = original

        return undo

    def _wrap_threads(self) -> Callable[[], None]:
        """Note what becomes of threads that start where grad mode is off: they do not inherit that."""
        start = threading.Thread.start
        run_all = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
        waiting: dict[int, Spot | None] = {}

        @functools.wraps(start)
        def starts(thread: threading.Thread) -> None:
            if not torch.is_grad_enabled():
                waiting[id(thread)] = spot_here(2)
            start(thread)

        @functools.wraps(run_all)
        def runs(thread: threading.Thread) -> None:
            spot = waiting.pop(id(thread), None)
            run_all(thread)
            made = torch._C._autograd._get_sequence_nr()
            if spot is not None and made and len(self.threads) < THREADS:
                passes = self.passes.latest() is not None
                self.threads.append(Started(spot, made, passes))

        threading.Thread.start = starts  # type: ignore[assignment, method-assign]
        threading.Thread._bootstrap_inner = runs  # type: ignore[attr-defined]

        def undo() -> None:
            threading.Thread.start = start  # type: ignore[method-assign]
            threading.Thread._bootstrap_inner = run_all  # type: ignore[attr-defined]

        return undo


def _told(faults: Iterable[Fault]) -> tuple[dict[str, list[Fault]], dict[str, list[Fault]]]:
    """Which faults are told of a call of torch, by its name, and of an event."""
    by_call: dict[str, list[Fault]] = {}
    for fault in faults:
        for name in fault.hears:
            by_call.setdefault(name, []).append(fault)
    by_event = {
        event: [fault for fault in faults if getattr(type(fault), event) is not getattr(Fault, event)]
        for event in EVENTS
    }
    return by_call, by_event


def _undo(actions: list[Callable[[], Any]]) -> None:
    while actions:
        actions.pop()()
