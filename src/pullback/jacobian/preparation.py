"""Preparation: a Jacobian's structure, plan and kernels, found at one point and used at others."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.autodiff.linearize import Recorded, Tensors, batched, looped
from pullback.autodiff.program import NotRecordable, where
from pullback.autodiff.replay import laid_like
from pullback.data.pattern import Pattern
from pullback.data.space import Space
from pullback.errors import StrategyError, VerificationError, warn
from pullback.executors.local import Route, first_line
from pullback.jacobian.build import build, entries_of
from pullback.jacobian.guards import Guards
from pullback.jacobian.kernel import Kernel, Seeds, as_they_are, flattened
from pullback.jacobian.passes import Passes
from pullback.jacobian.planning import facts_of
from pullback.jacobian.products import verify_result
from pullback.jacobian.sparse import full_pattern
from pullback.plan import Plan, choose
from pullback.sparsity.structure import Structure
from pullback.strategies.base import STRATEGIES, Bid, Facts, Grid, Strategy, Want, split_blocks
from pullback.strategies.compressed import spread, spread_into

Admitted = tuple[Tensors, bool]


@dataclass(frozen=True)
class Call:
    """A preparation at one call.

    Attributes:
        preparation: The preparation.
        args: The arguments.
        checked: What they were checked for.
        admitted: The tensors that the program finds outside, at this call; and whether something has changed that
            may matter: then what is built is verified.
    """

    preparation: Preparation
    args: tuple[Any, ...]
    checked: Want
    admitted: Admitted

    def entries(self, passes: Passes) -> tuple[Tensor, Plan]:
        """The entries of the pattern, and how they were made."""
        found, plan = self.preparation.evaluate("sparse", passes, self._admitted_for("sparse"))
        assert isinstance(found, Tensor)
        return found, plan

    def blocks(self, passes: Passes, into: Grid | None = None) -> tuple[Grid | Tensor | None, Plan]:
        """The matrices of each example, written where one says; and how they were made."""
        found, plan = self.preparation.evaluate("blocks", passes, self._admitted_for("blocks"))
        if into is None or not isinstance(found, Tensor):
            return found, plan
        parts = split_blocks(found, [row[0].shape[1] for row in into], [part.shape[2] for part in into[0]])
        _copy(parts, into)
        return into, plan

    def grid(self, passes: Passes, into: Grid | None = None) -> tuple[Grid, Plan]:
        """A matrix for each live output and input, written where one says; and how they were made."""
        if not self.preparation.has_zeros:
            found, plan = self.preparation.evaluate("matrix", passes, self._admitted_for("matrix"))
            assert isinstance(found, list)
            if into is None:
                return found, plan
            _copy(found, into)
            return into, plan
        values, plan = self.entries(passes)
        facts, structure = facts_of(passes, "sparse", holomorphic=False), self.preparation.structure
        if into is None:
            return spread(facts, structure, values), plan
        spread_into(facts, structure, values, into)
        return into, plan

    def _admitted_for(self, want: Want) -> Admitted:
        guards = self.preparation.taken(want).way.guards
        return self.admitted if want == self.checked else guards.admit(self.args)


@dataclass(frozen=True)
class Way:
    """How what a strategy gives is evaluated at other points.

    Attributes:
        name: The strategy.
        guards: What has to hold.
        before_course: How many of the guarded tensors come before those that the program's course needs.
        kernel: The recorded program and the recovery; None where the function is called.
        why: Why there is no kernel.
        chunk: How many passes run at once; 0: all.
        offer: The strategy's bid that it carries out.
    """

    name: str
    guards: Guards
    before_course: int = 0
    kernel: Kernel | None = None
    why: str = ""
    chunk: int = 0
    offer: Bid | None = None

    @property
    def side(self) -> str:
        """Which way its passes run, for a strategy that has both."""
        return f" ({self.offer.side})" if self.offer is not None and self.offer.lead else ""

    @property
    def label(self) -> str:
        """What it is, for a reader of the plan."""
        return f"{self.name}{self.side}, {self.kernel.name if self.kernel is not None else 'f itself'}"


@dataclass
class Taken:
    """The way that is taken to what is wanted."""

    way: Way
    plan: Plan
    calls: int = field(default=0, init=False)

    def use(self, way: Way) -> None:
        """Evaluate in another way from now on."""
        self.way = way
        self.plan.chosen = way.name
        if way.offer is not None:
            self.plan.offers[way.name] = way.offer


class Preparation:
    """What was found at one point and holds at others.

    Args:
        passes: The passes at the point.
        args: All arguments of the function there.
        strategy: The strategy's name, or ``"auto"``.
        compile: Whether to compile kernels, where that is faster.
        every: Hold what is built against a plain reverse pass at the first call, and at every so many-th; 0: never.
    """

    def __init__(
        self, passes: Passes, args: tuple[Any, ...], strategy: str, *, compile: bool, every: int | None
    ) -> None:
        lin = passes.linearization
        found = passes.structure()
        assert isinstance(lin, Recorded)
        assert isinstance(found, Structure)
        self.structure = found
        self.like = lin
        self._origin = passes
        self._args = args
        self._strategy = strategy
        self._compile = compile
        self._every = every
        self._limit = passes.executor.limit(lin.inputs.device)
        self._taken: dict[Want, Taken] = {}
        self._taking = threading.RLock()
        self._first: Want = "sparse" if self.has_zeros else "matrix"
        self._latest: Want = self._first
        self.taken(self._first)

    @property
    def plan(self) -> Plan:
        """How the entries of the pattern are made, or where it has few zeros how the matrix is."""
        return self._taken[self._first].plan

    @cached_property
    def pattern(self) -> Pattern:
        """Where the Jacobian can be non-zero."""
        return full_pattern(self.like, self.structure)

    @cached_property
    def has_zeros(self) -> bool:
        """Whether dense results are made from the entries of the pattern."""
        return self.most_entries * DENSE <= self.structure.shape[0] * self.structure.shape[1]

    @cached_property
    def most_entries(self) -> int:
        """How many entries the pattern has, or where there are many a number that it does not exceed."""
        most = self.structure.most_entries
        return most if most > MANY_ENTRIES else int(self.structure.pattern.nnz)

    def at(self, args: tuple[Any, ...]) -> Call:
        """The preparation at a call, after its arguments were checked.

        Raises:
            GuardError: It does not hold there.
        """
        return Call(self, args, self._latest, self._taken[self._latest].way.guards.admit(args))

    def taken(self, want: Want) -> Taken:
        """The way to what is wanted, found when first asked for."""
        with self._taking:
            if want not in self._taken:
                taken = self._take(want)
                if self._compile:
                    self._compile_way(want, taken)
                self._taken[want] = taken
        self._latest = want
        return self._taken[want]

    def evaluate(self, want: Want, passes: Passes, admitted: Admitted) -> tuple[Grid | Tensor | None, Plan]:
        """What is wanted at another point, and how it was made."""
        taken, (captured, suspicious) = self.taken(want), admitted
        taken.calls += 1
        plan = replace(taken.plan, notes=list(taken.plan.notes), chunks=[])
        points = self.points(passes.linearization.problem.leaves)
        guards, kernel = taken.way.guards, taken.way.kernel
        if suspicious and not passes.verifier.active:
            raise guards.refuse_values()
        if guards.watched:
            guards.check_course(self._course(taken.way, points, captured))
        if kernel is None:
            return self._build_with_care(want, taken, passes) if suspicious else self._build(want, passes)
        result = self._shaped(want, kernel(points, captured))
        plan.route, plan.chunks = kernel.name, [plan.passes]
        due = self._every is not None and (taken.calls == 1 or (self._every and taken.calls % self._every == 0))
        if (due or suspicious) and passes.verifier.active:
            wrong = verify_result(passes, facts_of(passes, want, holomorphic=False), result)
            if wrong is not None and suspicious:
                raise guards.refuse_values()
            if wrong is not None:
                return self._distrust(want, taken, passes, f"{plan.route} disagrees with a plain reverse pass {wrong}")
            guards.accept_values()
            plan.checked = "a random seed times J equals a plain reverse pass"
        return result, plan

    def points(self, leaves: Sequence[Tensor]) -> Tensors:
        """The inputs in the memory layout that the program was recorded with."""
        views = self.structure.program.points
        pairs = zip(leaves, views, strict=True)
        return tuple(laid_like(leaf.detach(), view.shape, view.stride) for leaf, view in pairs)

    def _shaped(self, want: Want, results: Tensors) -> Grid | Tensor:
        """The results of a kernel as a strategy gives them."""
        if want != "matrix":
            return results[0]
        width = len(self.like.live_inputs)
        return [list(results[at : at + width]) for at in range(0, len(results), width)]

    def _build(self, want: Want, passes: Passes, strategy: str = "") -> tuple[Grid | Tensor | None, Plan]:
        """Call the function itself."""
        built, plan = build(passes, want, strategy or self._asked(want), holomorphic=False)
        return (entries_of(built, passes.linearization.inputs) if want == "sparse" else built), plan

    def _build_with_care(self, want: Want, taken: Taken, passes: Passes) -> tuple[Grid | Tensor | None, Plan]:
        """The function itself is called, and something has changed that the pattern may rest on."""
        try:
            found = self._build(want, passes)
        except StrategyError as error:
            raise taken.way.guards.refuse_values() from error
        taken.way.guards.accept_values()
        return found

    def _distrust(self, want: Want, taken: Taken, passes: Passes, wrong: str) -> tuple[Grid | Tensor | None, Plan]:
        """The kernel gave wrong numbers: call the function itself, now and from now on."""
        wrong = passes.explained(wrong, [Route("recorded program", passes.pull, at_once=True)])
        text = f"{wrong}; Pullback calls the function itself instead"
        if passes.strict:
            raise VerificationError(
                "a prepared Jacobian disagrees with a plain reverse pass", got=wrong, fix="prepare again at this point"
            )
        warn(text)
        taken.way = replace(taken.way, kernel=None, why=wrong)
        taken.plan.note(text)
        return self._build(want, passes, "auto")

    def _facts(self, want: Want) -> Facts:
        """What the strategies are told about the point where it was prepared."""
        return replace(facts_of(self._origin, want, self._asked(want), holomorphic=False), recorded=True)

    def _asked(self, want: Want) -> str:
        """The strategy that was asked for, where it gives what is wanted."""
        able = self._strategy == "auto" or want in STRATEGIES.all()[self._strategy].gives
        return self._strategy if able else "auto"

    def _take(self, want: Want) -> Taken:
        """The plan and the way to what is wanted, as recorded."""
        lin, passes = self.like, self._origin
        facts = self._facts(want)
        plan = choose(facts, (lin.outputs.size, lin.inputs.size), self._asked(want), passes.seconds)
        for note in (*lin.notes, *passes.notes, *self.structure.notes):
            plan.note(note)
        in_chunks = want == "matrix" and plan.passes > ALL_AT_ONCE
        taken = Taken(self._way(facts, plan, plan.chosen, CHUNKS[-1] if in_chunks else 0), plan)
        if want != "sparse":
            self._race(facts, taken)
        if taken.way.why:
            plan.note(f"the program is not replayed, the function is called at each point: {taken.way.why}")
        return taken

    def _race(self, facts: Facts, taken: Taken) -> None:
        """Take the fastest of the kernels for a dense result, as measured at this point."""
        points = self.points(self.like.problem.leaves)
        best = float("inf")
        for way in self._contestants(facts, taken):
            if way.kernel is None:
                continue
            seconds = way.kernel.seconds(points, best)
            taken.plan.note(f"{way.label}: {seconds * 1e3:.2f} ms")
            if seconds < best:
                best = seconds
                taken.use(way)

    def _contestants(self, facts: Facts, taken: Taken) -> Iterator[Way]:
        """The ways that may be the fastest: the chosen strategy, the others of few passes, and those in chunks."""
        plan, first = taken.plan, taken.way
        yield first
        for name in [plan.chosen] if self._strategy != "auto" else plan.by_cost():
            offer = self._firm(facts, plan, name)
            if offer is None or offer.passes > CONTESTANT_PASSES * plan.passes:
                continue
            if name != first.name and offer.passes <= ALL_AT_ONCE:
                yield self._way(facts, plan, name)
            for other in STRATEGIES.all()[name].others(facts, offer):
                yield self._way(facts, plan, name, other=other)
            for chunk in CHUNKS if facts.want == "matrix" else ():
                if chunk < offer.passes and (name, chunk) != (first.name, first.chunk):
                    yield self._way(facts, plan, name, chunk)

    @staticmethod
    def _firm(facts: Facts, plan: Plan, name: str) -> Bid | None:
        """A strategy's bid with the number of passes that it takes; None where it cannot say."""
        offer = plan.bid(name)
        if not offer.firm:
            plan.offers[name] = STRATEGIES.all()[name].settle(facts, offer)
        settled = plan.offers[name]
        return settled if isinstance(settled, Bid) else None

    def _way(self, facts: Facts, plan: Plan, name: str, chunk: int = 0, other: Bid | None = None) -> Way:
        """A strategy's kernel and guards, or why there is no kernel.

        Args:
            facts: What is wanted.
            plan: The bids.
            name: The strategy.
            chunk: How many passes run at once; 0: all.
            other: Another bid of the strategy's than that of the plan.
        """
        leaves = self.like.problem.leaves
        unguarded = Guards(self.like.problem.f, self._args, leaves, ())
        if not name:
            return Way(name, unguarded, why=f"nothing can build it as {facts.want} here")
        chosen, offer = STRATEGIES.all()[name], other or plan.bid(name)
        why = self.structure.about.no_replay
        if offer.lead and not why and not apart(self.structure, facts.rows, facts.columns, offer.lead):
            why = "that examples do not mix does not follow from the program"
        if why:
            return Way(name, unguarded, why=why)
        try:
            senders = chosen.senders(facts, offer, self.structure)
            graphs = [sender.graph for sender in senders] + [self.structure.course]
            _ = [graph.coefficients for graph in graphs]  # each is built now, while another way can still be taken
        except (NotRecordable, KeyError) as error:
            return Way(name, unguarded, why=f"the recorded program cannot be cut down: {error}")
        guards = self._guards(graphs)
        if guards.unseen:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in guards.unseen[:3])
            return Way(name, unguarded, why=f"tensors were used whose origin is not seen: shape {shapes}")
        before = sum(len(graph.captured) for graph in graphs[:-1])
        if not senders and offer.passes:
            return Way(name, guards, before, why=f"{name} knows no recorded program")
        if not chunk and offer.bytes * WORKING_SET > self._limit:
            return Way(name, guards, before, why="its passes do not fit into memory all at once")
        seeds = [_seeds(chosen, facts, offer, part) for part in range(len(offer.parts))]

        def finish(answers: list[Tensor]) -> Tensors:
            if facts.want == "sparse":
                entries = chosen.entries_of(facts, offer, answers)
                assert entries is not None
                return (entries,)
            found = chosen.recover(facts, offer, answers)
            return (found,) if isinstance(found, Tensor) else tuple(part for row in found for part in row)

        points = self.points(leaves)
        if not offer.passes:
            senders, seeds = [], []
        for many in (batched, looped):
            kernel = Kernel.of(senders, seeds, finish, as_they_are(many), chunk)
            try:
                wanted = kernel(points, kernel.captured)
            except Exception as error:  # an operation that vmap, or a replay, does not know
                why = f"the recorded program does not run again: {first_line(error)}"
                continue
            try:
                flat = Kernel.of(senders, seeds, finish, flattened(as_they_are(many)), chunk)
                same = all(map(_close, wanted, flat(points, flat.captured)))
            except Exception:  # whatever tracing stumbles over, the kernel runs without it
                same = False
            return Way(name, guards, before, flat if same else kernel, chunk=chunk, offer=offer)
        return Way(name, guards, before, why=why)

    def _guards(self, graphs: Sequence[Any]) -> Guards:
        """What has to hold for some cut-down programs to be the function's."""
        about, program = self.structure.about, self.structure.program
        # The pattern and the constant factor rest on constants that no graph needs any more.
        constants = [index for index, tensor in program.captured.items() if id(tensor) in about.constants]
        captured = tuple(tensor for graph in graphs for tensor in graph.captured)
        captured += tuple(program.captured[index] for index in constants)
        literals = tuple(literal for graph in graphs for literal in graph.literals)
        literals += tuple(index in program.literals for index in constants)
        return Guards(
            self.like.problem.f,
            self._args,
            self.like.problem.leaves,
            captured,
            literals,
            tuple(id(tensor) in about.constants for tensor in captured),
            tuple(about.watched),
            tuple(program.tensors[view.tensor].detach().clone() for view in about.watched),
            tuple(where(line) for line in about.lines),
        )

    def _course(self, way: Way, points: Sequence[Tensor], captured: Sequence[Tensor]) -> Tensors:
        """What the program's course depends on, at another point."""
        graph = self.structure.course
        own = captured[way.before_course : way.before_course + len(graph.captured)]
        with torch.no_grad():
            return tuple(graph.coefficients(*points, *own))

    def _compile_way(self, want: Want, taken: Taken) -> None:
        """Take a compiled kernel, of the chosen strategy or its rival, where it gives the same numbers in less time."""
        plain, plan = taken.way.kernel, taken.plan
        if plain is None:
            plan.note("not compiled: there is no recorded program to compile")
            return
        facts = self._facts(want)
        points = self.points(self.like.problem.leaves)
        best, wanted = plain.seconds(points), plain(points, plain.captured)
        plan.note(f"{plan.chosen}, as recorded: {best * 1e3:.2f} ms")
        for way in [taken.way, *self._rivals(facts, taken)]:
            if way.kernel is not None and not way.kernel.at_once:
                plan.note(f"{way.name}, not compiled: its passes run in chunks")
                continue
            if way.kernel is None:
                continue
            try:
                fast = way.kernel.compiled(points)
                have = fast(points, fast.captured)
            except Exception as error:  # whatever the compiler stumbles over, the kernel runs without it
                plan.note(f"{way.name}, not compiled: {first_line(error)}")
                continue
            if not all(map(_close, wanted, have)):
                plan.note(f"{way.name}, not compiled: the compiled program gave other numbers")
                continue
            seconds = fast.seconds(points)
            plan.note(f"{way.name}{way.side}, compiled: {seconds * 1e3:.2f} ms")
            if seconds < best:
                best = seconds
                taken.use(replace(way, kernel=fast))

    def _rivals(self, facts: Facts, taken: Taken) -> list[Way]:
        """The other side, and the next strategy where it has so few more passes that compiled it may be faster."""
        plan, found = taken.plan, []
        most = RIVAL_PASSES * plan.passes
        for other in STRATEGIES.all()[plan.chosen].others(facts, plan.bid(plan.chosen)):
            found.append(self._way(facts, plan, plan.chosen, other=other))
        for name in plan.by_cost() if self._strategy == "auto" else ():
            offer = self._firm(facts, plan, name) if plan.bid(name).passes <= most else None
            if offer is not None and name != plan.chosen and 0 < offer.passes <= most and not offer.split:
                return [*found, self._way(facts, plan, name)]
        return found


def apart(structure: Structure, rows: Space, columns: Space, lead: int) -> bool:
    """Whether no entry of a pattern joins two examples, counted along so many leading dimensions."""
    row = np.repeat(np.arange(structure.shape[0]), np.diff(structure.pattern.indptr))
    return np.array_equal(_examples(rows, lead)[row], _examples(columns, lead)[structure.pattern.indices])


def _examples(space: Space, lead: int) -> np.ndarray:
    """Which example each element of a space belongs to."""
    counts = [math.prod(leaf.shape[:lead]) for leaf in space.leaves]
    sizes = [leaf.numel // max(count, 1) for count, leaf in zip(counts, space.leaves, strict=True)]
    return np.concatenate([np.arange(count).repeat(size) for count, size in zip(counts, sizes, strict=True)])


def _seeds(chosen: Strategy, facts: Facts, offer: Bid, part: int) -> Seeds:
    """The seeds of a part of a bid."""
    _, start, stop = offer.parts[part]

    def make(a: int, b: int) -> Tensors:
        return chosen.seeds(facts, offer, start + a, start + b)

    def follow(answers: Sequence[Tensor]) -> Callable[[int, int], Tensors]:
        return chosen.following(facts, offer, part, answers) or make

    return stop - start, make, follow if part and chosen.two_stages else None


def _copy(parts: Grid, into: Grid) -> None:
    for row, targets in zip(parts, into, strict=True):
        for part, target in zip(row, targets, strict=True):
            target.copy_(part)


def _close(want: Tensor, have: Tensor) -> bool:
    if not want.numel():
        return want.shape == have.shape
    return torch.allclose(want, have, rtol=1e-3, atol=1e-6 * float(want.abs().max()), equal_nan=True)


# So many entries are more than one counts by putting the pattern together.
MANY_ENTRIES = 2**22
# A dense result is made from the entries of a pattern where at most one in so many can be non-zero.
DENSE = 4
# A strategy with so many times the passes is tried too: compiled, its simpler recovery may win.
RIVAL_PASSES = 2
# For a dense result those with so many times the passes are timed: a pass one way may take much less than the other.
CONTESTANT_PASSES = 4
# How many passes at a time are tried, where there are more: fewer stay inside the caches.
CHUNKS = (32, 128)
# So many dense passes run at once; the seeds of more would be a large matrix of zeros.
ALL_AT_ONCE = 1024
# Passes all at once take about so many times the memory of their answers.
WORKING_SET = 4
