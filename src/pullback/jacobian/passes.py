"""Single passes and stacks of passes through one point, verified, with zeros where nothing flows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.autodiff.linearize import Linearization, Pass, Tensors, batched
from pullback.data.problem import Side
from pullback.data.space import Space
from pullback.errors import PullbackError, VerificationError, warn
from pullback.executors.local import LocalExecutor, Route, Run, first_line, routes
from pullback.executors.memory import is_out_of_memory
from pullback.jacobian.verify import Disagreement, Verifier, inner, precise, random_vector

if TYPE_CHECKING:
    from pullback.sparsity.structure import Structure

TIMED_PASSES = 8
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
    """

    linearization: Linearization
    executor: LocalExecutor
    verifier: Verifier
    strict: bool
    local: bool = False
    free: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)
    _forward: dict[str, Pass] | None = field(default=None, init=False)
    _withdrawn: set[str] = field(default_factory=set, init=False)
    _structure: Structure | str | None = field(default=None, init=False)
    _elsewhere: bool = field(default=False, init=False)

    def structure(self) -> Structure | str:
        """Where the Jacobian can be non-zero, found when first asked for; or why that cannot be seen."""
        if self._structure is None:
            from pullback.jacobian.structure import find  # noqa: PLC0415  it needs SciPy

            self._structure = find(self.linearization, local=self.local, free=self.free, strict=self.strict)
            if not isinstance(self._structure, str):
                self.verifier.coarsest = self._structure.roundoff
                self.notes.extend(self._structure.notes)
        return self._structure

    def take(self, found: Structure | str) -> None:
        """Rely on a structure that was found at another point."""
        self._structure = found
        self._elsewhere = True

    @property
    def elsewhere(self) -> bool:
        """Whether the structure was found at another point."""
        return self._elsewhere

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
    ) -> Tensors:
        """Run many passes by the first route whose results pass the check."""
        ways = self.routes(side)
        while True:
            found, run = self.execute(side, ways, seeds, total)
            assert run.route is not None
            self.notes.extend(run.notes)
            ways = ways[ways.index(run.route) + 1 :]
            plain = side == "reverse" and not run.route.at_once
            if plain or not self.verifier.active or not ways or self.verifier.recall(run.route.name):
                return found
            wrong = check(seeds, total, found)
            if wrong is None:
                self.verifier.learn(run.route.name)
                return found
            text = f"{run.route.name} disagrees with a plain reverse pass {wrong}"
            self.report(text, ways[0].name, doubtful=wrong.doubtful)

    def execute(
        self,
        side: Side,
        ways: Sequence[Route],
        seeds: Callable[[int, int], Tensors],
        total: int,
        answer: Space | None = None,
    ) -> tuple[Tensors, Run]:
        """Run many passes by the first route that works: to the live inputs or outputs, or to another Space."""
        lin = self.linearization
        known = f"bytes of a {side} pass" + ("" if answer is None else f" to {answer.size}")
        if answer is None:
            answer = lin.columns if side == "reverse" else lin.rows
        found, run = self.executor.run(
            ways,
            seeds,
            total,
            answer,
            in_place=not lin.create_graph,
            each=self.verifier.recall(known),
            alone=self._seconds_alone() if side == "reverse" else None,
        )
        if run.each:
            self.verifier.learn(known, run.each)
        if run.batch_is_slower:
            self.verifier.learn(f"{side}: alone is faster")
        return found, run

    def routes(self, side: Side) -> list[Route]:
        """The ways to run many passes on a side, the fastest first."""
        found = routes({"reverse": self.linearization.pull} if side == "reverse" else self.forward_kernels())
        if self.verifier.recall(f"{side}: alone is faster"):
            found.sort(key=lambda way: way.at_once)
        return found

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
            _ = self.verifier.probe
        return self.verifier.recall("seconds of a plain pass")

    def seconds(self, side: Side) -> float:
        """The time of one pass within a small batch; measured once for a function and its shapes."""
        known = f"seconds of a {side} pass"
        learned = self.verifier.recall(known)
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

    def report(self, wrong: str, instead: str, *, doubtful: bool) -> None:
        """Say that a way gave wrong numbers and which one is taken instead; raise if strict.

        What may be rounding noise is noted only: the numbers come from the surer way all the same.
        """
        if doubtful:
            self.notes.append(f"{wrong}, which may be rounding noise; instead: {instead}")
            return
        if self.strict:
            raise VerificationError(
                "a Jacobian disagrees with a plain reverse pass",
                got=wrong,
                fix="strict=False takes the next way; torch's own rule for an operation in f is wrong here",
            )
        self.notes.append(f"{wrong}; instead: {instead}")
        warn(f"{wrong}; Pullback takes instead: {instead}")

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
            try:
                pushed = kernel(tangent)
            except Exception as error:  # whatever a missing or broken formula raises, there is a next way
                self.notes.append(f"{name} pass not possible: {first_line(error)}")
                verifier.learn(rejected)
                return False
            if not verifier.active:
                return True
            wrong = self._gap(pushed, tangent)
            if wrong is not None:
                verifier.learn(rejected)
                text = f"{name} pass: ⟨u, Jv⟩ disagrees with ⟨Jᵀu, v⟩ of a plain reverse pass{wrong}"
                self.report(text, "another forward pass, or reverse passes", doubtful=wrong.doubtful)
                return False
        verifier.learn(accepted)
        return True

    def _gap(self, pushed: Tensors, tangent: Tensors, where: str = "") -> Disagreement | None:
        """Whether ``⟨u, Jv⟩`` differs from ``⟨Jᵀu, v⟩``, relative to their terms and to what is more than noise."""
        seed, gradient = self.verifier.probe
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

    def _check_pulled(self, seeds: Callable[[int, int], Tensors], total: int, found: Tensors) -> Disagreement | None:
        """A random combination of the answers must be the answer to that combination of the seeds."""
        weights = random_vector(_line(total))[0]
        combined = tuple(_combine(weights, stack) for stack in seeds(0, total))
        scale = [torch.linalg.vector_norm(_rows_of(part.detach()), dim=0) for part in found]
        return self.verifier.disagreement(
            [_combine(weights, part.detach()) for part in found], scale, self.verifier.plain(combined)
        )

    def _check_pushed(self, seeds: Callable[[int, int], Tensors], total: int, found: Tensors) -> Disagreement | None:
        """For every tangent v, ``⟨u, Jv⟩ = ⟨Jᵀu, v⟩`` with one random u."""
        stacks = seeds(0, total)
        for k in range(total):
            wrong = self._gap(_pick_row(found, k), _pick_row(stacks, k), f"for tangent {k}")
            if wrong is not None:
                return wrong
        return None

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


def _line(total: int) -> Space:
    return Space.of(torch.empty(total))


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
