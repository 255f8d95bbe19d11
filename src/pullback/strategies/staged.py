"""Staged: the first part of the reverse pass serves many outputs at once, the second runs for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pullback.autodiff.linearize import Pass
from pullback.autodiff.replay import recorded_coefficients
from pullback.data.problem import Side
from pullback.data.space import Space
from pullback.sparsity.stages import Stages
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Grid, Refusal, Strategy, answer_bytes, strategy
from pullback.strategies.compressed import colored_seeds, space_of, worth_recording
from pullback.strategies.rows import put_rows, split_rows
from pullback.strategies.sender import Sender


@strategy
class Staged(Strategy):
    """``Jᵀ = A B``: B from a few colored passes to the gate, A from the gate to the inputs, run on the rows of B.

    One more pass, without a seed, shows what the gate holds where no output reaches.

    The gate is a tensor that the whole reverse pass flows through, and each of its elements depends on few outputs: the
    last layers of a network keep tokens, pixels or examples apart.
    """

    name = "staged"
    gives = frozenset({"matrix"})
    two_stages = True

    def bid(self, facts: Facts) -> Bid | Refusal:
        m = facts.rows.size
        if facts.rows.is_complex or facts.columns.is_complex:
            return Refusal("complex functions are built by rows or columns")
        if facts.create_graph:
            return Refusal("a recorded program cannot be differentiated again")
        if not worth_recording(facts) and facts.wanted != self.name:
            return Refusal("too few passes to be worth looking for zeros")
        found = facts.stages()
        if isinstance(found, str):
            return Refusal(found)
        first = found.coloring.count + 1  # the last seed is zero
        why = f"{first:,} passes to {found.gate.numel:,} elements that all flows through, then one for each output"
        share = (first * found.before + m * (1 - found.before)) / (first + m)
        halves: tuple[tuple[Side, int], ...] = (("reverse", first), ("reverse", m))
        return Bid("reverse", first + m, answer_bytes(facts.columns, m), why, share=share, split=halves)

    def senders(self, facts: Facts, bid: Bid, structure: Structure) -> list[Sender]:
        found = _known(facts)
        return [Sender(found.first), Sender(found.second)]

    def kernels(self, facts: Facts, bid: Bid, part: int) -> tuple[dict[str, Pass], Space]:
        found = _known(facts)
        graph = (found.first, found.second)[part]
        name = ("reverse to the gate", "reverse from the gate")[part]
        one = Sender(graph).one(recorded_coefficients(found.program, graph))
        return {name: one}, facts.columns if part else space_of((found.gate,))

    def seeds(self, facts: Facts, bid: Bid, start: int, stop: int) -> tuple[Tensor, ...]:
        return colored_seeds(facts.rows, _known(facts).coloring.colors, start, stop)

    def following(
        self, facts: Facts, bid: Bid, part: int, answers: Sequence[Tensor]
    ) -> Callable[[int, int], tuple[Tensor, ...]] | None:
        if not part:
            return None
        found, gate = _known(facts), answers[0].reshape(len(answers[0]), -1)
        pattern = found.by_output
        starts, device = pattern.indptr, gate.device
        element = torch.from_numpy(pattern.indices.astype("int64")).to(device)
        colors = torch.from_numpy(found.coloring.colors.astype("int64"))

        def rows(start: int, stop: int) -> tuple[Tensor, ...]:
            """The rows of B, read from the answers of their colors."""
            counts = torch.from_numpy((starts[start + 1 : stop + 1] - starts[start:stop]).astype("int64"))
            row = torch.repeat_interleave(torch.arange(stop - start), counts).to(device)
            color = torch.repeat_interleave(colors[start:stop], counts).to(device)
            here = element[int(starts[start]) : int(starts[stop])]
            # Where an output does not reach, the gate is what it is without a seed: zero, for most reverse passes.
            stack = gate[-1].repeat(stop - start, 1)
            stack[row, here] = gate[color, here]
            return (stack.reshape(stop - start, *found.gate.shape),)

        return rows

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid:
        return split_rows(facts, answers[1:])

    def recover_into(self, facts: Facts, bid: Bid, answers: Sequence[Tensor], grid: Grid) -> None:
        put_rows(facts, grid, 0, answers[1:])


def _known(facts: Facts) -> Stages:
    """The stages, which there are once they were bid on."""
    found = facts.stages()
    assert isinstance(found, Stages)
    return found
