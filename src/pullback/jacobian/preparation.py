"""Preparation: a Jacobian's structure, plan and kernel, found at one point and used at others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass, Recorded, Tensors, batched, looped
from pullback.autodiff.program import NotRecordable, where
from pullback.autodiff.replay import laid_like
from pullback.errors import StrategyError, VerificationError, warn
from pullback.executors.local import first_line
from pullback.jacobian.build import build, entries_of, facts_of, verify_entries
from pullback.jacobian.guards import Guards
from pullback.jacobian.passes import Passes
from pullback.jacobian.sparse import full_pattern
from pullback.plan import Plan, choose
from pullback.sparsity.structure import Structure
from pullback.strategies.base import STRATEGIES, Bid, Facts, Grid
from pullback.strategies.compressed import Compressed, Sender, spread

Values = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


@dataclass
class Kernel:
    """A strategy's passes through a recorded program, and the entries picked from their answers.

    Attributes:
        captured: The tensors that the program found outside when it was recorded.
        run: ``(points, captured) -> entries``.
        name: How it runs, for the plan.
    """

    captured: tuple[Tensor, ...]
    run: Values
    name: str

    @classmethod
    def of(
        cls,
        senders: Sequence[Sender],
        seeds: Sequence[Tensors],
        pick: Callable[[list[Tensor]], Tensor],
        many: Callable[[Pass], Pass],
    ) -> Kernel:
        """The kernel as torch runs it, operation after operation.

        Args:
            senders: How each part of the passes runs.
            seeds: The seeds of each part, stacked.
            pick: The entries from all answers.
            many: How several passes are made of one: at once, or one by one.
        """
        counts = [len(sender.graph.captured) for sender in senders]

        def run(points: Sequence[Tensor], captured: Sequence[Tensor]) -> Tensor:
            answers: list[Tensor] = []
            start = 0
            for sender, stacks, count in zip(senders, seeds, counts, strict=True):
                one = sender.one(sender.graph.coefficients(*points, *captured[start : start + count]))
                start += count
                if stacks and stacks[0].shape[0] == 1:
                    answers.extend(answer[None] for answer in one(tuple(stack[0] for stack in stacks)))
                elif stacks:
                    answers.extend(many(one)(stacks))
            return pick(answers)

        every = tuple(tensor for sender in senders for tensor in sender.graph.captured)
        return cls(every, run, "recorded program")

    def compiled(self, points: Sequence[Tensor]) -> Kernel:
        """The kernel as one function compiled by torch.compile."""
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  heavy, and for this only

        with torch.no_grad():
            flat = make_fx(self.run)(list(points), list(self.captured))
        function = torch.compile(flat, dynamic=False, fullgraph=True)
        return Kernel(self.captured, function, f"{self.name}, compiled")

    def __call__(self, points: Sequence[Tensor], captured: Sequence[Tensor]) -> Tensor:
        kind = points[0].device.type if points else "cpu"
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if torch.is_autocast_enabled(kind):  # the casts were recorded
                stack.enter_context(torch.autocast(kind, enabled=False))
            return self.run(list(points), list(captured[: len(self.captured)]))


@dataclass(frozen=True)
class Call:
    """A preparation at one call.

    Attributes:
        preparation: The preparation.
        captured: The tensors that the program finds outside, at this call.
        suspicious: Whether something has changed that may matter: then the entries are verified.
    """

    preparation: Preparation
    captured: tuple[Tensor, ...]
    suspicious: bool

    def entries(self, passes: Passes) -> tuple[Tensor, Plan]:
        """The entries of the pattern, and how they were made."""
        return self.preparation.entries(passes, self.captured, suspicious=self.suspicious)

    def grid(self, passes: Passes) -> tuple[Grid, Plan]:
        """The entries among zeros: a matrix for each live output and input."""
        values, plan = self.entries(passes)
        return spread(facts_of(passes, "sparse", holomorphic=False), self.preparation.structure, values), plan


@dataclass(frozen=True)
class Way:
    """How a strategy's entries are evaluated at other points.

    Attributes:
        name: The strategy.
        guards: What has to hold.
        before_course: How many of the guarded tensors come before those that the program's course needs.
        kernel: The recorded program and the recovery; None where the function is called.
        why: Why there is no kernel.
    """

    name: str
    guards: Guards
    before_course: int = 0
    kernel: Kernel | None = None
    why: str = ""


class Preparation:
    """What was found at one point and holds at others.

    Args:
        passes: The passes at the point.
        args: All arguments of the function there.
        strategy: The strategy's name, or ``"auto"``.
        compile: Whether to compile the kernel, where that is faster.
        every: Hold the entries against a plain reverse pass at the first call, and at every so many-th; 0: never.
    """

    def __init__(
        self, passes: Passes, args: tuple[Any, ...], strategy: str, *, compile: bool, every: int | None
    ) -> None:
        lin = passes.linearization
        found = passes.structure()
        assert isinstance(lin, Recorded)
        assert isinstance(found, Structure)
        self.structure = found
        self.pattern = full_pattern(lin, found)
        self.like = lin
        self._strategy = strategy
        self._every = every
        self._calls = 0
        facts = facts_of(passes, "sparse", holomorphic=False)
        self.plan = choose(facts, self.pattern.shape, strategy, passes.seconds)
        for note in (*lin.notes, *passes.notes, *found.notes):
            self.plan.note(note)
        self._kernel: Kernel | None = None
        self._limit = passes.executor.limit(lin.inputs.device)
        taken = self._way(facts, args, self.plan.chosen)
        self._use(taken)
        if self.no_replay:
            self.plan.note(f"the program is not replayed, the function is called at each point: {self.no_replay}")
        if compile:
            self._compile(taken, facts, args)

    def at(self, args: tuple[Any, ...]) -> Call:
        """The preparation at a call, after its arguments were checked.

        Raises:
            GuardError: It does not hold there.
        """
        return Call(self, *self.guards.admit(args))

    def entries(self, passes: Passes, captured: Sequence[Tensor], *, suspicious: bool) -> tuple[Tensor, Plan]:
        """The entries of the pattern at another point, and how they were made."""
        self._calls += 1
        plan = replace(self.plan, notes=list(self.plan.notes), chunks=[])
        points = self.points(passes.linearization.problem.leaves)
        if suspicious and not passes.verifier.active:
            raise self.guards.refuse_values()
        if self.guards.watched:
            self.guards.check_course(self._course(points, captured))
        if self._kernel is None:
            return self._build_with_care(passes) if suspicious else _build(passes, self._strategy)
        values = self._kernel(points, captured)
        plan.route, plan.chunks = self._kernel.name, [plan.passes]
        due = self._every is not None and (self._calls == 1 or (self._every and self._calls % self._every == 0))
        if (due or suspicious) and passes.verifier.active:
            facts = facts_of(passes, "sparse", holomorphic=False)
            wrong = verify_entries(passes, facts, values)
            if wrong is not None and suspicious:
                raise self.guards.refuse_values()
            if wrong is not None:
                return self._distrust(passes, f"{plan.route} disagrees with a plain reverse pass {wrong}")
            self.guards.accept_values()
            plan.checked = "a random seed times J equals a plain reverse pass"
        return values, plan

    def points(self, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs in the memory layout that the program was recorded with."""
        views = self.structure.program.points
        pairs = zip(leaves, views, strict=True)
        return tuple(laid_like(leaf.detach(), view.shape, view.stride) for leaf, view in pairs)

    def _build_with_care(self, passes: Passes) -> tuple[Tensor, Plan]:
        """The function itself is called, and something has changed that the pattern may rest on."""
        try:
            found = _build(passes, self._strategy)
        except StrategyError as error:
            raise self.guards.refuse_values() from error
        self.guards.accept_values()
        return found

    def _distrust(self, passes: Passes, wrong: str) -> tuple[Tensor, Plan]:
        """The kernel gave wrong numbers: call the function itself, now and from now on."""
        text = f"{wrong}; Pullback calls the function itself instead"
        if passes.strict:
            raise VerificationError(
                "a prepared Jacobian disagrees with a plain reverse pass", got=wrong, fix="prepare again at this point"
            )
        warn(text)
        self._kernel, self.no_replay = None, wrong
        self.plan.note(text)
        return _build(passes, "auto")

    def _use(self, way: Way) -> None:
        """Evaluate in this way from now on."""
        self.guards, self._kernel, self.no_replay = way.guards, way.kernel, way.why
        self._before_course = way.before_course
        self.plan.chosen = way.name

    def _way(self, facts: Facts, args: tuple[Any, ...], name: str) -> Way:
        """A strategy's kernel and guards, or why there is no kernel."""
        program, chosen = self.structure.program, STRATEGIES.all()[name]
        offer = self.plan.bid(name)
        unguarded = Guards(self.like.problem.f, args, self.like.problem.leaves, ())
        why = self.structure.about.no_replay
        if why:
            return Way(name, unguarded, why=why)
        if not isinstance(chosen, Compressed):
            return Way(name, unguarded, why=f"{chosen.name} knows no recorded program")
        try:
            senders = chosen.senders(facts, self.structure)
            graphs = [sender.graph for sender in senders] + [self.structure.course]
        except (NotRecordable, KeyError) as error:
            return Way(name, unguarded, why=f"the recorded program cannot be cut down: {error}")
        about = self.structure.about
        # The pattern and the constant factor rest on constants that no graph needs any more.
        constants = [index for index, tensor in program.captured.items() if id(tensor) in about.constants]
        captured = tuple(tensor for graph in graphs for tensor in graph.captured)
        captured += tuple(program.captured[index] for index in constants)
        literals = tuple(literal for graph in graphs for literal in graph.literals)
        literals += tuple(index in program.literals for index in constants)
        guards = Guards(
            self.like.problem.f,
            args,
            self.like.problem.leaves,
            captured,
            literals,
            tuple(id(tensor) in about.constants for tensor in captured),
            tuple(about.watched),
            tuple(program.tensors[view.tensor].detach().clone() for view in about.watched),
            tuple(where(line) for line in about.lines),
        )
        if guards.unseen:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in guards.unseen[:3])
            return Way(name, unguarded, why=f"tensors were used whose origin is not seen: shape {shapes}")
        before = sum(len(graph.captured) for graph in graphs[:-1])
        if not senders and offer.passes:
            return Way(name, guards, before, why=f"{name} runs forward passes, which are not recorded")
        if offer.bytes * WORKING_SET > self._limit:
            return Way(name, guards, before, why="its passes do not fit into memory all at once")
        seeds = [chosen.seeds(facts, offer, start, stop) for _, start, stop in offer.parts]

        def pick(answers: list[Tensor]) -> Tensor:
            return chosen.values(facts, offer, self.structure, answers)

        for many in (batched, looped):
            kernel = Kernel.of(senders if offer.passes else [], seeds, pick, many)
            try:
                kernel(self.points(self.like.problem.leaves), captured)
            except Exception as error:  # an operation that vmap, or a replay, does not know
                why = f"the recorded program does not run again: {first_line(error)}"
                continue
            return Way(name, guards, before, kernel)
        return Way(name, guards, before, why=why)

    def _course(self, points: Sequence[Tensor], captured: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the program's course depends on, at another point."""
        graph = self.structure.course
        own = captured[self._before_course : self._before_course + len(graph.captured)]
        with torch.no_grad():
            return tuple(graph.coefficients(*points, *own))

    def _compile(self, taken: Way, facts: Facts, args: tuple[Any, ...]) -> None:
        """Take a compiled kernel, of the chosen strategy or its rival, where it gives the same numbers in less time."""
        plain = taken.kernel
        if plain is None:
            self.plan.note("not compiled: there is no recorded program to compile")
            return
        points = self.points(self.like.problem.leaves)
        best, want = _seconds(plain, points), plain(points, plain.captured)
        self.plan.note(f"{self.plan.chosen}, as recorded: {best * 1e3:.2f} ms")
        for way in [taken, *(self._way(facts, args, name) for name in self._rivals(facts))]:
            if way.kernel is None:
                continue
            try:
                fast = way.kernel.compiled(points)
                have = fast(points, fast.captured)
            except Exception as error:  # whatever the compiler stumbles over, the kernel runs without it
                self.plan.note(f"{way.name}, not compiled: {first_line(error)}")
                continue
            if not torch.allclose(want, have, rtol=1e-3, atol=1e-6 * float(want.abs().max()), equal_nan=True):
                self.plan.note(f"{way.name}, not compiled: the compiled program gave other numbers")
                continue
            seconds = _seconds(fast, points)
            self.plan.note(f"{way.name}, compiled: {seconds * 1e3:.2f} ms")
            if seconds < best:
                best = seconds
                self._use(replace(way, kernel=fast))

    def _rivals(self, facts: Facts) -> list[str]:
        """The next strategy, where its passes are so few more that compiled it may be the faster one."""
        if self._strategy != "auto":
            return []
        most = RIVAL_PASSES * self.plan.passes
        for name in self.plan.by_cost():
            offer = self.plan.bid(name)
            if not offer.firm and offer.passes <= most:
                settled = self.plan.offers[name] = STRATEGIES.all()[name].settle(facts, offer)
                if not isinstance(settled, Bid):
                    continue
                offer = settled
            if name != self.plan.chosen and 0 < offer.passes <= most and offer.side == "reverse" and not offer.split:
                return [name]
        return []


def _build(passes: Passes, strategy: str) -> tuple[Tensor, Plan]:
    built, plan = build(passes, "sparse", strategy, holomorphic=False)
    return entries_of(built, passes.linearization.inputs), plan


def _seconds(kernel: Kernel, points: Sequence[Tensor]) -> float:
    best = float("inf")
    for _ in range(TIMED_CALLS):
        began = time.perf_counter()
        kernel(points, kernel.captured)
        if points and points[0].device.type not in {"cpu", "meta"}:
            torch.accelerator.synchronize(points[0].device)
        best = min(best, time.perf_counter() - began)
    return best


# Compiled and not compiled are each timed so often, and the fastest counts.
TIMED_CALLS = 7
# A strategy with so many times the passes is tried too: compiled, its simpler recovery may win.
RIVAL_PASSES = 2
# Passes all at once take about so many times the memory of their answers.
WORKING_SET = 4
