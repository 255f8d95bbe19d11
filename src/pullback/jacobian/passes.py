"""Single passes and stacks of passes through one point, verified, with zeros where nothing flows."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.autodiff.linearize import Linearization, Pass, Recorded, Tensors, batched
from pullback.autodiff.program import Program, fingerprint
from pullback.data.problem import Side
from pullback.data.space import Space
from pullback.errors import PullbackError, VerificationError, warn
from pullback.executors.local import FEW_PASSES, LocalExecutor, Route, Run, first_line, routes
from pullback.executors.memory import chunk_ranges, is_out_of_memory
from pullback.jacobian import second
from pullback.jacobian.blame import blame
from pullback.jacobian.recording import record
from pullback.jacobian.verify import Disagreement, Verifier, column_norms, inner, precise, random_vector

if TYPE_CHECKING:
    from pullback.outer.layers import Layers
    from pullback.sparsity.stages import Stages
    from pullback.sparsity.structure import Structure

TIMED_PASSES = 8
# Under which name a structure is remembered.
STRUCTURE = "structure"
STAGES = "stages"
OWNERS = "owners"
# At most so many seeds are combined at once.
COMBINED_SEEDS = 16
# One tangent lets a small error pass by luck; two let it pass with the square of that chance.
VETTING_TANGENTS = 2


@dataclass
class Passes:
    """The passes through one point, on all inputs and outputs.

    Attributes:
        linearization: The point.
        executor: Where stacks of passes run.
        verifier: What holds their results against a plain reverse pass.
        strict: Raise on a disagreement instead of taking the next way.
        local: Whether a pattern need hold at this point only.
        free: The ids of other tensors whose numbers may differ where a pattern is to hold.
        notes: What was substituted.
        owners_known: Whether the layers rest on what was proved at another point; what is made is verified.
    """

    linearization: Linearization
    executor: LocalExecutor
    verifier: Verifier
    strict: bool
    local: bool = False
    free: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)
    owners_known: bool = field(default=False, init=False)
    _forward: dict[str, Pass] | None = field(default=None, init=False)
    _withdrawn: set[str] = field(default_factory=set, init=False)
    _program: Program | str | None = field(default=None, init=False)
    _layers: Layers | str | None = field(default=None, init=False)
    _stages: Stages | str | None = field(default=None, init=False)
    _structure: Structure | str | None = field(default=None, init=False)
    _elsewhere: bool = field(default=False, init=False)
    _from_memory: bool = field(default=False, init=False)

    def structure(self) -> Structure | str:
        """Where the Jacobian can be non-zero, found when first asked for; or why that cannot be seen."""
        if self._structure is None or self._from_memory:
            self._elsewhere = self._from_memory = False
            from pullback.jacobian.structure import find  # noqa: PLC0415  it needs SciPy

            self._structure = find(
                self.linearization, self.program, local=self.local, free=self.free, strict=self.strict
            )
            if not isinstance(self._structure, str):
                self.verifier.coarsest = self._structure.roundoff
                self.notes.extend(self._structure.notes)
        return self._structure

    def program(self) -> Program | str:
        """The operations of one reverse pass, recorded when first asked for; or why they cannot be seen."""
        if self._program is None:
            self._program = record(self.linearization)
        return self._program

    def layers(self) -> Layers | str:
        """How gradients are made of outer products, found when first asked for; or why they are not."""
        if self._layers is None:
            from pullback.jacobian.layers import find_layers  # noqa: PLC0415  most Jacobians do without

            self._layers = find_layers(self)
        return self._layers

    def forget_layers(self) -> None:
        """Rely no more on which example a position belonged to at another point."""
        self.verifier.learn(OWNERS, None)
        self._layers, self.owners_known = None, False

    def stages(self) -> Stages | str:
        """The two parts that a reverse pass is split into, found when first asked for; or why it is not.

        For a program of the same operations and shapes the split is that of before.
        """
        if self._stages is None:
            from pullback.sparsity.stages import Stages, stages  # noqa: PLC0415  it needs SciPy

            fused = isinstance(self.linearization, Recorded) and self.linearization.fused
            # A fused kernel has no batching rule, and many passes would run one by one inside of it.
            program = record(self.linearization, math=True) if fused else self.program()
            known = self.verifier.recall(STAGES)
            if isinstance(program, str):
                self._stages = program
            elif known is not None and known[0] == fingerprint(program):
                self._stages = known[1] if isinstance(known[1], str) else Stages(program, *known[1])
            else:
                found = self._stages = stages(program)
                kept = found if isinstance(found, str) else (found.gate, found.inner, found.coloring, found.before)
                self.verifier.learn(STAGES, (fingerprint(program), kept))
        return self._stages

    def take(self, found: Structure | str) -> None:
        """Rely on a structure that was found at another point."""
        self._structure = found
        self._elsewhere = True

    def structure_again(self) -> Structure | str:
        """The structure, as it was found at another point if it still holds; what rests on it must be verified."""
        if self._structure is None and not self.local:
            known = self.verifier.recall(STRUCTURE)
            if known is not None and known.holds(self.linearization):
                self.take(known.structure)
                self._from_memory = True
                self.verifier.coarsest = known.structure.roundoff
        return self._structure if self._from_memory and self._structure is not None else self.structure()

    def remember_structure(self) -> None:
        """Remember the structure for other points."""
        from pullback.jacobian.remembered import Remembered  # noqa: PLC0415  it needs SciPy

        if self._structure is not None and not isinstance(self._structure, str) and not self._elsewhere:
            self.verifier.learn(STRUCTURE, Remembered.of(self.linearization, self._structure))

    def forget_structure(self) -> None:
        """Rely no more on a structure found at another point."""
        self.verifier.learn(STRUCTURE, None)
        self._structure, self._elsewhere, self._from_memory = None, False, False

    @property
    def elsewhere(self) -> bool:
        """Whether the structure was found at another point."""
        return self._elsewhere

    @property
    def structure_known(self) -> bool:
        """Whether the structure was found already."""
        return self._structure is not None

    def within(self, memory: int, most: int | None = None) -> Passes:
        """These passes within a limit of their own, at most so many at once, and without a progress bar."""
        other = copy.copy(self)
        other.executor = replace(self.executor, memory=memory, progress=False, most=most)
        return other

    def pull(self, cotangents: Tensors) -> Tensors:
        """One plain reverse pass: ``uᵀJ``, a tensor for each input."""
        lin = self.linearization
        live = tuple(cotangents[index] for index in lin.live_outputs)
        if not live or not lin.live_inputs:
            return lin.inputs.zeros()
        results = lin.pull(live)
        if not lin.transformed:
            results = _unshared(results, live)
        return self._spread(lin.inputs, lin.live_inputs, results)

    def push(self, tangents: Tensors) -> Tensors:
        """One forward pass: ``Jv``, a tensor for each output."""
        lin = self.linearization
        live = tuple(tangents[index] for index in lin.live_inputs)
        if not live or not lin.live_outputs:
            return lin.outputs.zeros()
        while kernels := self.forward_kernels():
            try:
                results = next(iter(kernels.values()))(live)
            except Exception as error:  # the kernel was good where it was vetted; f may have taken another branch
                self.withdraw_forward(error)
                continue
            if not lin.transformed:
                results = _unshared(results, live)
            return self._spread(lin.outputs, lin.live_outputs, results)
        stacks = self._push_by_rows(tuple(tangent[None] for tangent in tangents))
        return tuple(stack[0] for stack in stacks)

    def pull_many(self, seeds: Callable[[int, int], Tensors], total: int) -> Tensors:
        """``total`` reverse passes; ``seeds(start, stop)`` gives stacked cotangents of all outputs."""
        lin = self.linearization
        if not total or not lin.live_outputs or not lin.live_inputs:
            return lin.inputs.zeros(total)
        found = self.run("reverse", lambda a, b: _pick(seeds(a, b), lin.live_outputs), total, self._check_pulled)
        return self._spread(lin.inputs, lin.live_inputs, found, total)

    def pull_into(self, seeds: Callable[[int, int], Tensors], targets: Tensors) -> None:
        """As many reverse passes between the live ends as the targets are long, written there.

        ``seeds(start, stop)`` gives stacked cotangents of the live outputs; there is a target for each live input.
        """
        self.run("reverse", seeds, len(targets[0]), self._check_pulled, targets)

    def push_many(self, seeds: Callable[[int, int], Tensors], total: int) -> Tensors:
        """``total`` forward passes; ``seeds(start, stop)`` gives stacked tangents of all inputs."""
        lin = self.linearization
        if not total or not lin.live_outputs or not lin.live_inputs:
            return lin.outputs.zeros(total)
        while self.forward_kernels():
            try:
                found = self.run("forward", lambda a, b: _pick(seeds(a, b), lin.live_inputs), total, self._check_pushed)
            except Exception as error:
                self.withdraw_forward(error)
                continue
            return self._spread(lin.outputs, lin.live_outputs, found, total)
        return self._push_by_rows(seeds(0, total))

    def run(
        self,
        side: Side,
        seeds: Callable[[int, int], Tensors],
        total: int,
        check: Callable[[Callable[[int, int], Tensors], int, Tensors], Disagreement | None],
        targets: Tensors | None = None,
    ) -> Tensors:
        """Run many passes by the first route whose results pass the check; the results are written where one says."""
        into = None if targets is None else partial(_write, targets)
        ways = self.routes(side, total)
        while True:
            found, run = self.execute(side, ways, seeds, total, into=into)
            found = found if targets is None else targets
            assert run.route is not None
            self.notes.extend(run.notes)
            ways = ways[ways.index(run.route) + 1 :]
            plain = side == "reverse" and not run.route.at_once
            # A rule may be right for one example and wrong for several.
            known = (self.verifier.recall(run.route.name) or 0) >= total
            if plain or not self.verifier.active or not ways or known:
                return found
            wrong = check(seeds, total, found)
            if wrong is None and self.linearization.create_graph:
                wrong = self._check_graph(side, seeds(0, total), found)
            if wrong is None:
                self.verifier.learn(run.route.name, total)
                return found
            text = f"{run.route.name} disagrees with a plain reverse pass {wrong}"
            self.report(text, ways[0].name, doubtful=wrong.doubtful, routes=[run.route])

    def execute(
        self,
        side: Side,
        ways: Sequence[Route],
        seeds: Callable[[int, int], Tensors],
        total: int,
        answer: Space | None = None,
        into: Callable[[int, Tensors], None] | None = None,
    ) -> tuple[Tensors, Run]:
        """Run many passes by the first route that works: to the live inputs or outputs, or to another Space.

        What ``into`` takes, as :meth:`LocalExecutor.run` has it, is not among the results.
        """
        lin, verifier = self.linearization, self.verifier
        known = f"bytes of a {side} pass" + ("" if answer is None else f", {ways[0].name}, to {answer.size}")
        own = answer is None
        if answer is None:
            answer = lin.columns if side == "reverse" else lin.rows
        each = verifier.recall(known)
        began = time.perf_counter()
        found, run = self.executor.run(
            ways,
            seeds,
            total,
            answer,
            in_place=not lin.create_graph,
            each=each,
            more=verifier.recall(f"{known}, one more"),
            alone=self._seconds_alone() if side == "reverse" else None,
            into=into,
        )
        if run.each and not each:
            verifier.learn(known, run.each)
            verifier.learn(f"{known}, one more", run.more)
        if run.batch_is_slower:
            verifier.learn(f"{side}: alone is faster")
        elif own and total <= FEW_PASSES and run.route is not None:
            verifier.time(_seconds_of(total, run.route), time.perf_counter() - began)
        return found, run

    def routes(self, side: Side, total: int = 0) -> list[Route]:
        """The ways to run so many passes on a side, the fastest first."""
        lin = self.linearization
        found = routes({"reverse": lin.pull} if side == "reverse" else self.forward_kernels())
        if self.verifier.recall(f"{side}: alone is faster"):
            found.sort(key=lambda way: way.at_once)
        if 1 < total <= FEW_PASSES and not lin.create_graph and lin.inputs.device.type == "cpu":
            return self._timed(found, side, total)
        return found

    def _timed(self, found: list[Route], side: Side, total: int) -> list[Route]:
        """Routes for a few passes, the fastest first; each is tried in turn until it is warm and timed.

        What a batch saves is overhead, which so few passes may not have, and torch.autograd's own batch has less of it.
        A time may have been taken at a bad moment, so ever more rarely one of the others is taken again.
        """
        first = self.verifier.recall(_seconds_of(total, found[0]))
        if side == "reverse" and isinstance(self.linearization, Recorded) and first is not None:
            found.append(Route("reverse, batched by torch.autograd", self.linearization.pull_stack, at_once=True))
        seconds = {way.name: self.verifier.recall(_seconds_of(total, way)) for way in found}
        turn = int(self.verifier.recall(f"turns of {total} {side} passes") or 0) + 1
        self.verifier.learn(f"turns of {total} {side} passes", turn)
        again = turn > FEW_PASSES and turn & (turn - 1) == 0
        due = [way for way in found if seconds[way.name] is None] or ([found[turn.bit_length() % len(found)]] * again)
        return sorted(found, key=lambda way: -1.0 if way in due[:1] else seconds[way.name] or math.inf)

    def forward_kernels(self) -> dict[str, Pass]:
        """The first way to compute ``Jv`` that works and agrees with a reverse pass; none: empty."""
        if self._forward is None:
            self._forward = {}
            for name, kernel in self.linearization.kernels.items():
                if name not in self._withdrawn and self._vet(name, kernel):
                    self._forward = {name: kernel}
                    break
        return self._forward

    def withdraw_forward(self, error: Exception) -> None:
        """Use the forward kernel in use no more, since it failed after it was vetted; the next is vetted."""
        if isinstance(error, PullbackError) or is_out_of_memory(error) or self.linearization.transformed:
            raise error
        (name,) = self.forward_kernels()
        self._withdrawn.add(name)
        self._forward = None
        self.verifier.learn(f"{name}: accepted", 0.0)
        self.notes.append(f"{name} pass failed here: {first_line(error)}")

    def no_forward(self) -> str:
        """Why there is no forward pass, or ``""``."""
        return "" if self.forward_kernels() else "no forward pass works here (see the notes)"

    def _seconds_alone(self) -> float | None:
        """The time of one plain reverse pass, where it is known or will have to be taken anyway."""
        lin = self.linearization
        if lin.transformed or lin.create_graph or lin.inputs.device.type != "cpu":
            return None
        if self.verifier.active and self.verifier.recall("seconds of a plain pass") is None:
            seed, _ = self.verifier.probe
        if self.verifier.active and self.verifier.recall("seconds of a plain pass") is None:
            self.verifier.plain(seed)
        seconds: float | None = self.verifier.recall("seconds of a plain pass")
        return seconds

    def seconds(self, side: Side) -> float:
        """The time of one pass within a small batch; measured once for a function and its shapes."""
        known = f"seconds of a {side} pass"
        learned: float | None = self.verifier.recall(known)
        if learned is None:
            learned = self._measure_seconds(side)
            self.verifier.learn(known, learned)
        return learned

    def _measure_seconds(self, side: Side) -> float:
        lin = self.linearization
        space = lin.rows if side == "reverse" else lin.columns
        kernel = lin.pull if side == "reverse" else next(iter(self.forward_kernels().values()))
        stacks = tuple(torch.stack([part] * TIMED_PASSES) for part in random_vector(space))
        best = float("inf")
        for _ in range(2):
            began = time.perf_counter()
            try:
                batched(kernel)(stacks)
            except Exception:  # the executor will find another way, and say so
                kernel(tuple(stack[0] for stack in stacks))
                _synchronize(space)
                return time.perf_counter() - began
            _synchronize(space)
            best = min(best, time.perf_counter() - began)
        return best / TIMED_PASSES

    def report(self, wrong: str, instead: str, *, doubtful: bool, routes: Sequence[Route] = ()) -> None:
        """Say that a way gave wrong numbers, for what reason, and which one is taken instead; raise if strict.

        What may be rounding noise is noted only: the numbers come from the surer way all the same.
        """
        if doubtful:
            self.notes.append(f"{wrong}, which may be rounding noise; instead: {instead}")
            return
        wrong = self.explained(wrong, routes)
        if self.strict:
            fix = f"strict=False takes the next way: {instead}"
            raise VerificationError("a Jacobian disagrees with a plain reverse pass", got=wrong, fix=fix)
        self.notes.append(f"{wrong}; instead: {instead}")
        warn(f"{wrong}; Pullback takes instead: {instead}")

    def explained(self, wrong: str, routes: Sequence[Route]) -> str:
        """What is wrong, and the operation that made it so where that is found."""
        cause = blame(self.linearization, routes, self._structure)
        return f"{wrong}: {cause}" if cause else wrong

    def _vet(self, name: str, kernel: Pass) -> bool:
        lin, verifier = self.linearization, self.verifier
        accepted, rejected = f"{name}: accepted", f"{name}: rejected"
        if verifier.recall(accepted) or lin.transformed:
            return True
        if verifier.recall(rejected):
            self.notes.append(f"{name} pass: found wrong or impossible before, for this function and these shapes")
            return False
        for attempt in range(VETTING_TANGENTS):
            tangent = random_vector(lin.columns, seed=100 + attempt)
            if verifier.active and not verifier.finite:
                tangent = tuple(v.where(g.isfinite(), 0) for v, g in zip(tangent, verifier.probe[1], strict=True))
            try:
                pushed = kernel(tangent)
            except Exception as error:  # whatever a missing or broken formula raises, there is a next way
                self.notes.append(f"{name} pass not possible: {first_line(error)}")
                verifier.learn(rejected)
                return False
            if not verifier.active:
                return True
            wrong = self._gap(pushed, tangent)
            if wrong is None and lin.create_graph:
                seed = verifier.probe[0]
                wrong = second.disagreement(verifier, second.product_of(seed, pushed), seed, tangent)
            if wrong is not None:
                verifier.learn(rejected)
                text = f"{name} pass: ⟨u, Jv⟩ disagrees with ⟨Jᵀu, v⟩ of a plain reverse pass{wrong}"
                taken = Route(name, kernel, at_once=False)
                instead = "another forward pass, or reverse passes"
                self.report(text, instead, doubtful=wrong.doubtful, routes=[taken])
                return False
        verifier.learn(accepted)
        return True

    def _gap(self, pushed: Tensors, tangent: Tensors, where: str = "") -> Disagreement | None:
        """Whether ``⟨u, Jv⟩`` differs from ``⟨Jᵀu, v⟩``, relative to their terms and to what is more than noise."""
        seed, gradient = self.verifier.probe
        if not self.verifier.finite:
            seed, gradient, pushed = self._finite(seed, gradient, pushed, tangent)
        forward, size = inner(seed, pushed)
        reverse, other = inner(gradient, tangent)
        noise = sum(
            each * float(torch.linalg.vector_norm(precise(part.detach()))) if part.numel() else 0.0
            for each, part in zip(self.verifier.noise, tangent, strict=True)
        )
        found, scale, expected = (
            torch.tensor([value], dtype=torch.float64) for value in (forward, size + other, reverse)
        )
        return self.verifier.judge(found, scale, expected, noise * max(self.linearization.rows.size, 1) ** 0.5, where)

    def _finite(
        self, seed: Tensors, gradient: Tensors, pushed: Tensors, tangent: Tensors
    ) -> tuple[Tensors, Tensors, Tensors]:
        """A seed, its gradient and ``Jv`` without what is infinite or NaN, and where v is zero."""
        rows = tuple(part.isfinite() for part in pushed)
        if not all(bool(part.all()) for part in rows):
            seed = tuple(part * keep for part, keep in zip(seed, rows, strict=True))
            gradient = self.verifier.plain(seed)
            pushed = tuple(part.where(keep, 0) for part, keep in zip(pushed, rows, strict=True))
        return seed, tuple(g.where(v != 0, 0) for g, v in zip(gradient, tangent, strict=True)), pushed

    def _check_pulled(self, seeds: Callable[[int, int], Tensors], total: int, found: Tensors) -> Disagreement | None:
        """A random combination of the answers must be the answer to that combination of the seeds."""
        weights = random_vector(_line(total))[0]
        combined = _combine_seeds(weights, seeds, min(self.executor.most or COMBINED_SEEDS, COMBINED_SEEDS))
        return self.verifier.disagreement(
            [_combine(weights, part.detach()) for part in found],
            lambda: [column_norms(_rows_of(part.detach())) for part in found],
            self.verifier.plain(combined),
        )

    def _check_pushed(self, seeds: Callable[[int, int], Tensors], total: int, found: Tensors) -> Disagreement | None:
        """For every tangent v, ``⟨u, Jv⟩ = ⟨Jᵀu, v⟩`` with one random u."""
        stacks = seeds(0, total)
        for k in range(total):
            wrong = self._gap(_pick_row(found, k), _pick_row(stacks, k), f"for tangent {k}")
            if wrong is not None:
                return wrong
        return None

    def _check_graph(self, side: Side, stacks: Tensors, found: Tensors) -> Disagreement | None:
        """A random combination of the answers must have the derivative of the answer to that combination."""
        weights = random_vector(_line(len(stacks[0])))[0]
        combined = tuple(_combine(weights, stack) for stack in stacks)
        answer = tuple(_combine(weights, part) for part in found)
        if side == "reverse":
            tangent = random_vector(self.linearization.columns, seed=101)
            return second.disagreement(self.verifier, second.product_of(answer, tangent), combined, tangent)
        seed = self.verifier.probe[0]
        return second.disagreement(self.verifier, second.product_of(seed, answer), seed, combined)

    def _push_by_rows(self, stacks: Tensors) -> Tensors:
        """Without any forward pass: all rows by reverse passes, times a stack of tangents."""
        space = self.linearization.outputs
        self.notes.append("Jv from all rows by reverse passes, since no forward pass works")

        def along(direction: complex) -> Tensor:
            """``Re⟨direction · e_i, Jv⟩`` for every tangent v and output i."""

            def seeds(start: int, stop: int) -> Tensors:
                hot = space.onehots(torch.arange(start, stop))
                return tuple(part * (direction if part.is_complex() else 1) for part in hot)

            rows = self.pull_many(seeds, space.size)
            terms = [_rows_of(stack) @ _rows_of(row).mH for row, stack in zip(rows, stacks, strict=True)]
            real = [term.real if term.is_complex() else term for term in terms]
            return sum(part.to(space.device) for part in real)  # type: ignore[return-value]

        flat = along(1)
        if space.is_complex:
            exact = space.dtype.to_real()
            flat = torch.complex(flat.to(exact), along(1j).to(exact))
        parts = [flat[:, leaf.slice].reshape(len(flat), *leaf.shape) for leaf in space.leaves]
        return tuple(
            (part if leaf.dtype.is_complex or not part.is_complex() else part.real).to(leaf.dtype)
            for part, leaf in zip(parts, space.leaves, strict=True)
        )

    def _spread(self, space: Space, live: tuple[int, ...], values: Tensors, *lead: int) -> Tensors:
        """Values of the live leaves among zeros for the others."""
        if len(live) == len(space.leaves):
            return values
        result = list(space.zeros(*lead[:1]))
        for index, value in zip(live, values, strict=True):
            result[index] = value
        return tuple(result)


def _pick_row(stacks: Tensors, k: int) -> Tensors:
    return tuple(stack[k] for stack in stacks)


def _pick(stacks: Tensors, live: tuple[int, ...]) -> Tensors:
    return tuple(stacks[index] for index in live)


def _rows_of(stack: Tensor) -> Tensor:
    """A stack as a matrix: one flat row for each pass, also where what is stacked has no dimension."""
    return stack.reshape(stack.shape[0], math.prod(stack.shape[1:]))


def _write(targets: Tensors, start: int, results: Tensors) -> None:
    for target, result in zip(targets, results, strict=True):
        target[start : start + len(result)] = result


def _line(total: int) -> Space:
    return Space.of(torch.empty(total))


def _combine_seeds(weights: Tensor, seeds: Callable[[int, int], Tensors], most: int) -> Tensors:
    """A combination of seeds, made of a few at a time: all of them may take more than their answers."""
    sums: list[Tensor] = []
    stacks: Tensors = ()
    for start, stop in chunk_ranges(len(weights), most):
        stacks = seeds(start, stop)
        exact = [precise(stack) for stack in stacks]
        terms = [torch.tensordot(weights[start:stop].to(stack), stack, dims=1) for stack in exact]
        sums = [total + term for total, term in zip(sums, terms, strict=True)] if sums else terms
    return tuple(total.to(stack.dtype) for total, stack in zip(sums, stacks, strict=True))


def _combine(weights: Tensor, stack: Tensor) -> Tensor:
    exact = precise(stack)
    combined: Tensor = torch.tensordot(weights.to(dtype=exact.dtype, device=exact.device), exact, dims=1)
    return combined.to(stack.dtype)


def _unshared(results: Tensors, seeds: Tensors) -> Tensors:
    """The identity's pass gives the seed itself; a result must not change when the user's seed does."""
    storages = {seed.untyped_storage()._cdata for seed in seeds}
    return tuple(part.clone() if part.untyped_storage()._cdata in storages else part for part in results)


def _synchronize(space: Space) -> None:
    if space.device.type != "cpu" and space.device.type != "meta":
        torch.accelerator.synchronize(space.device)


def _seconds_of(total: int, way: Route) -> str:
    return f"seconds of {total} passes, {way.name}"
