"""J in blocks of rows: never more of it at a time than fits, beside the passes that make it, into a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors, batched, looped
from pullback.data.pattern import Pattern
from pullback.data.problem import Side
from pullback.data.space import Form, Space
from pullback.errors import ArgumentError, MemoryLimitError, StrategyError, ValueMismatch
from pullback.executors.memory import chunk_ranges, measured
from pullback.jacobian.build import build, entries_of
from pullback.jacobian.passes import Passes
from pullback.jacobian.planning import facts_of, plan_for
from pullback.jacobian.sparse import full_pattern
from pullback.plan import UNTIMED, Plan
from pullback.strategies.base import STRATEGIES, Bid, Facts, Refusal, answer_bytes, overlaps, split_blocks, unit_range
from pullback.strategies.blocks import WORTHWHILE_GAIN, common_lead
from pullback.strategies.compressed import WORTH_COLORING, WORTH_RECORDING

if TYPE_CHECKING:
    from pullback.jacobian.preparation import Call

Make = Callable[[range], Tensor]

# What is held for all blocks, and the passes that make it, may each take up to this part of the limit.
SHARE_HELD = 0.5
# While entries are put in place, an entry's row and column take so many bytes, within this part of the limit.
BYTES_OF_PLACE, SHARE_OF_PLACES = 48, 0.125
# While a block in half precision is verified there is a copy of it in single precision.
HALF = {torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Budget:
    """What a block may take.

    Attributes:
        limit: The bytes for everything: a block, the one before it (its reader may hold it still), and the passes.
        rows: How many rows J has.
        row: The bytes of one of them.
        more: The bytes beside it that each row of the newest block takes while that is made.
        most: The most rows of a block; None for as many as fit.
    """

    limit: int
    rows: int
    row: int
    more: float
    most: int | None

    def work(self, one: float, passes: int) -> float:
        """The bytes for passes, of which one takes so many: up to half of the limit, and enough for one of them."""
        return max(one, min(self.limit / 2, self.limit - self.least(0), one * passes))

    def height(self, beside: float) -> int:
        """How many rows a block has beside so many bytes; 0 where not even one fits."""
        left = self.limit - beside
        all_fit = self.rows * (self.row + self.more) <= left
        rows = self.rows if all_fit else max(int(left // (2 * self.row + self.more)), 0)
        return min(rows, self.most or rows)

    def least(self, beside: float) -> int:
        """The limit that one row at a time takes."""
        return math.ceil(beside + self.row * min(self.rows, 2) + self.more)


@dataclass(frozen=True)
class Delivery:
    """How J is delivered.

    Attributes:
        plan: What the strategies bid, and the choice.
        rows: How many rows there are.
        height: How many a block has.
        make: Makes the block of a range of rows.
    """

    plan: Plan
    rows: int
    height: int
    make: Make

    def __iter__(self) -> Iterator[tuple[range, Tensor]]:
        for start, stop in chunk_ranges(self.rows, self.height):
            yield range(start, stop), self.make(range(start, stop))


@dataclass(frozen=True)
class Way:
    """A way to make blocks of rows.

    Attributes:
        offer: Its bid for all blocks together, or why it makes none.
        start: Does what is done once for all blocks; gives the rows of a block, and what makes one.
    """

    offer: Bid | Refusal
    start: Callable[[], tuple[int, Make]]


def deliver(
    passes: Passes, limit: int, most: int | None, strategy: str, *, holomorphic: bool, prepared: Call | None
) -> Delivery:
    """Choose how to make blocks of rows within a limit: by the fewest passes for all of them together.

    Args:
        passes: The passes through the point.
        limit: The limit, in bytes.
        most: The most rows of a block; None for as many as fit.
        strategy: The strategy's name, or ``"auto"``.
        holomorphic: Whether entries are complex derivatives.
        prepared: A preparation, whose entries are taken where they fit.

    Raises:
        MemoryLimitError: Not even one row fits.
        StrategyError: The strategy that was asked for makes no blocks here, or a torch.func transform is at work.
    """
    lin = passes.linearization
    if lin.transformed:
        raise StrategyError(
            "rows cannot be delivered in blocks inside a torch.func transform",
            got="memory cannot be measured there",
            fix="J.matrix() can be built there",
        )
    row = lin.inputs.size * lin.inputs.dtype.itemsize
    budget = Budget(limit, lin.outputs.size, row, 2 * row if lin.inputs.dtype in HALF else 0, most)
    facts = facts_of(passes, "matrix", strategy, holomorphic=holomorphic)
    shape = lin.outputs.size, lin.inputs.size
    if not lin.rows.size or not lin.columns.size:
        if budget.rows and not budget.height(0):
            raise _too_little(budget, budget.least(0))
        plan = Plan("rows", shape, {}, notes=["every derivative is zero: there is nothing to run"])
        return _delivery(plan, budget, budget.height(0), lambda rows: _room(passes, rows).zero_())
    if prepared is not None and prepared.preparation.has_zeros:
        pattern = prepared.preparation.pattern
        if _height_beside(pattern.nnz, lin.inputs.dtype, budget):
            values, plan = prepared.entries(passes)
            return _delivery(plan, budget, *_spreading(passes, budget, pattern, values))
    return _best(passes, budget, facts, shape)


def _best(passes: Passes, budget: Budget, facts: Facts, shape: tuple[int, int]) -> Delivery:
    """The way of the fewest passes that works, or the one that was asked for."""
    rows, least = _by_rows(passes, budget, facts)
    if least > budget.limit:
        raise _too_little(budget, least)
    ways = {"rows": rows, "columns": _by_columns(passes, budget, facts), "blocks": _by_blocks(passes, budget, facts)}
    ways |= _by_entries(passes, budget, facts)
    plan = Plan("rows", shape, {name: way.offer for name, way in ways.items()}, notes=list(passes.linearization.notes))
    wanted = facts.wanted if facts.wanted in ways else "auto"
    refused = plan.offers.get(wanted)
    if isinstance(refused, Refusal):
        raise StrategyError(
            f"strategy {wanted!r} cannot deliver this Jacobian in blocks of rows",
            got=refused.why,
            fix="strategy='auto' takes the cheapest that can; 'rows' always can",
        )
    order = sorted(plan.by_cost(), key=lambda name: name != wanted)
    for name in order:
        try:
            height, make = ways[name].start()
        except StrategyError as error:  # a bid that could not be kept; one pass for each row always works
            if name == wanted:
                raise
            plan.note(f"{name}: {error.what} ({error.got})")
            continue
        plan.chosen, plan.order = name, order
        return _delivery(plan, budget, height, make)
    raise AssertionError("rows are always made")


def _delivery(plan: Plan, budget: Budget, height: int, make: Make) -> Delivery:
    """The delivery, noted in the plan."""
    count = -(-budget.rows // max(height, 1))
    plan.note(f"rows in {count:,} block{'s' * (count != 1)} of up to {height:,}, within {budget.limit:,} bytes")
    return Delivery(plan, budget.rows, max(height, 1), make)


def _by_rows(passes: Passes, budget: Budget, facts: Facts) -> tuple[Way, int]:
    """A reverse pass for each row; and the least limit."""
    lin, m = passes.linearization, facts.rows.size
    one = bytes_of_pass(passes, "reverse")
    if lin.create_graph:  # the graphs of all its passes live as long as a block
        budget = replace(budget, more=budget.more + one)
    work = one if lin.create_graph else budget.work(one, m)
    height = budget.height(work)
    within = passes.within(int(work), int(work // one))
    offer = Bid("reverse", m, answer_bytes(facts.columns, height), "one reverse pass for each row")

    def make(rows: range) -> Tensor:
        if lin.create_graph or any(leaf.device != lin.inputs.device for leaf in lin.inputs.leaves):
            return _rows_pulled(within, rows, conjugate=facts.holomorphic)
        return _rows_written(within, rows, conjugate=facts.holomorphic)

    return Way(offer, partial(_at_once, height, make)), budget.least(one)


def _rows_written(passes: Passes, rows: range, *, conjugate: bool) -> Tensor:
    """A block of rows by reverse passes whose answers are written into it."""
    lin = passes.linearization
    block = _room(passes, rows)
    first = dict(zip(lin.live_outputs, lin.rows.offsets, strict=True))
    for index, leaf in enumerate(lin.inputs.leaves):
        if index not in lin.live_inputs:
            block[:, leaf.slice].zero_()
    for k, inside, here in overlaps(lin.outputs, rows.start, rows.stop):
        if k not in first:
            block[here].zero_()
            continue
        begin, part = first[k] + inside.start, block[here]
        leaves = (lin.inputs.leaves[index] for index in lin.live_inputs)
        targets = tuple(part[:, leaf.slice].view(len(part), *leaf.shape) for leaf in leaves)
        passes.pull_into(partial(_units, lin.rows, begin), targets)
        # A reverse pass gives the conjugate of the complex derivative.
        if conjugate:
            part.conj_physical_()
    return block


def _rows_pulled(passes: Passes, rows: range, *, conjugate: bool) -> Tensor:
    """A block of rows that can be differentiated, or whose parts come from several devices."""
    lin = passes.linearization
    pieces = []
    for k, inside, _ in overlaps(lin.outputs, rows.start, rows.stop):
        start, count = lin.outputs.offsets[k] + inside.start, inside.stop - inside.start
        if k in lin.live_outputs:
            found = passes.pull_many(partial(_units, lin.outputs, start), count)
        else:
            found = lin.inputs.zeros(count)
        pieces.append(lin.inputs.write([part.conj() if conjugate else part for part in found], Form.STACK).mT)
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def _by_columns(passes: Passes, budget: Budget, facts: Facts) -> Way:
    """Forward passes along all inputs, again for each block: a pass gives a column, of which a block keeps a part."""
    lin, n = passes.linearization, facts.columns.size
    refusal = ""
    if facts.real_columns != n or (facts.rows.is_complex and not facts.holomorphic):
        refusal = "complex functions are delivered by rows"
    elif lin.create_graph:
        refusal = "results that have to be differentiable are delivered by rows"
    elif facts.wanted != "columns" and n * UNTIMED["forward"] >= facts.rows.size:
        refusal = "each block takes a forward pass for each input element, and that is no less than one for each row"
    else:
        refusal = facts.no_forward()
    if refusal:
        return Way(Refusal(refusal), _never)
    one = bytes_of_pass(passes, "forward")
    work = budget.work(one, n)
    height = budget.height(work)
    if height < 1:
        return Way(Refusal(f"one row takes a limit of {budget.least(one):,} bytes"), _never)
    count, width = -(-budget.rows // height), int(work // one)
    within = passes.within(int(work), width)
    offer = Bid("forward", n * count, answer_bytes(facts.columns, height), f"{n:,} forward passes for each block")
    return Way(offer, partial(_at_once, height, lambda rows: _columns_written(within, rows, width)))


def _columns_written(passes: Passes, rows: range, width: int) -> Tensor:
    """A block of rows by forward passes, a few columns at a time."""
    lin = passes.linearization
    block = _room(passes, rows).zero_()
    for index in lin.live_inputs:
        for start, stop in chunk_ranges(lin.inputs.leaves[index].numel, width):
            begin = lin.inputs.offsets[index] + start
            columns = slice(begin, begin + stop - start)
            found = passes.push_many(partial(_units, lin.inputs, begin), stop - start)
            for k, inside, here in overlaps(lin.outputs, rows.start, rows.stop):
                block[here, columns] = found[k].reshape(stop - start, -1)[:, inside].mT.to(block)
            del found  # else it would live on beside the next one
    return block


def _by_blocks(passes: Passes, budget: Budget, facts: Facts) -> Way:
    """All per-example blocks at once, held for all blocks of rows, where they are small."""
    lin = passes.linearization
    if facts.rows.is_complex or facts.columns.is_complex:
        return Way(Refusal("complex functions are delivered by rows"), _never)
    shared = common_lead(lin.outputs, lin.inputs)
    if not shared:
        return Way(Refusal("inputs and outputs share no leading dimension that could count examples"), _never)
    examples, m, n = shared[0], lin.outputs.size // shared[0], lin.inputs.size // shared[0]
    held = examples * m * n * lin.inputs.dtype.itemsize
    if facts.wanted != "blocks" and min(m, n) * WORTHWHILE_GAIN > budget.rows:
        return Way(Refusal("too few examples to be worth the proof that they do not mix"), _never)
    # The rows of the examples' blocks are copied once more while a block of rows is made.
    height = replace(budget, more=budget.more + budget.row / examples + 64).height(held)
    if held > SHARE_HELD * budget.limit or not height:
        return Way(Refusal(f"the examples' blocks take {held:,} bytes"), _never)
    offer = STRATEGIES.all()["blocks"].bid(facts_of(passes, "blocks", facts.wanted, holomorphic=False))

    def start() -> tuple[int, Make]:
        blocks = torch.zeros((examples, m, n), dtype=lin.inputs.dtype, device=lin.inputs.device)
        parts = split_blocks(blocks, *([leaf.numel // examples for leaf in side.leaves]
                                       for side in (lin.outputs, lin.inputs)))  # fmt: skip
        live = [[parts[k][j] for j in lin.live_inputs] for k in lin.live_outputs]
        build(passes.within(int(budget.limit - held)), "blocks", "blocks", holomorphic=False, into=live)
        return height, lambda rows: _blocks_spread(passes, rows, parts)

    return Way(offer, start)


def _blocks_spread(passes: Passes, rows: range, parts: list[list[Tensor]]) -> Tensor:
    """A block of rows from the examples' blocks ``[k][j]``, zeros beside them."""
    lin = passes.linearization
    block = _room(passes, rows).zero_()
    for k, inside, here in overlaps(lin.outputs, rows.start, rows.stop):
        height = parts[k][0].shape[1]
        flat = torch.arange(inside.start, inside.stop, device=block.device)
        example, row = flat // height, flat % height
        for part, leaf in zip(parts[k], lin.inputs.leaves, strict=True):
            across = block[here, leaf.slice].view(len(flat), len(part), part.shape[2])
            across[torch.arange(len(flat), device=block.device), example] = part[example, row]
    return block


def _by_entries(passes: Passes, budget: Budget, facts: Facts) -> dict[str, Way]:
    """The ways of ``J.sparse()``: all entries of the pattern at once, held for all blocks, where they are few."""
    lin, shape = passes.linearization, (facts.rows.size, facts.columns.size)
    names = [name for name, each in STRATEGIES.all().items() if "sparse" in each.gives]
    asked = facts.wanted in names
    if facts.rows.is_complex or facts.columns.is_complex:
        return {}
    if not asked and not passes.structure_known and min(shape) < WORTH_RECORDING:
        return {}
    found = passes.structure()
    if isinstance(found, str):
        return {name: Way(Refusal(found), _never) for name in names}
    if not asked and found.most_entries * WORTH_COLORING > math.prod(shape):
        return {name: Way(Refusal("too few zeros to profit"), _never) for name in names}
    wanted = facts.wanted if asked else "auto"
    _, plan = plan_for(passes, "sparse", wanted, holomorphic=facts.holomorphic)
    held = _held(found.pattern.nnz, lin.inputs.dtype)
    ways = {}
    for name, offer in plan.offers.items():
        refusal = ""
        too_large = not _height_beside(found.pattern.nnz, lin.inputs.dtype, budget)
        if isinstance(offer, Bid) and (too_large or held + offer.bytes > SHARE_HELD * budget.limit):
            refusal = f"its entries take {held:,} bytes, the answers {offer.bytes:,}"
        elif isinstance(offer, Bid) and not offer.firm:
            refusal = "another is cheaper"

        def start(name: str = name) -> tuple[int, Make]:
            half = passes.within(int((1 - SHARE_HELD) * budget.limit))
            built, _ = build(half, "sparse", name, holomorphic=facts.holomorphic)
            values = entries_of(built, lin.inputs).to(lin.inputs.dtype)
            return _spreading(passes, budget, full_pattern(lin, found), values)

        ways[name] = Way(Refusal(refusal) if refusal else offer, start)
    return ways


def _spreading(passes: Passes, budget: Budget, pattern: Pattern, values: Tensor) -> tuple[int, Make]:
    """The rows of a block, and what makes one from the entries of a pattern."""
    at_once = max(int(SHARE_OF_PLACES * budget.limit / BYTES_OF_PLACE), 1)

    def make(rows: range) -> Tensor:
        block = _room(passes, rows).zero_()
        first, last = int(pattern.indptr[rows.start]), int(pattern.indptr[rows.stop])
        for start, stop in chunk_ranges(last - first, at_once):
            low, high = first + start, first + stop
            at = np.searchsorted(pattern.indptr, np.arange(low, high), side="right") - 1 - rows.start
            places = (at, pattern.indices[low:high])
            row, column = (torch.from_numpy(part.astype(np.int64)).to(block.device) for part in places)
            block[row, column] = values[low:high].to(block)
        return block

    return _height_beside(pattern.nnz, values.dtype, budget), make


def checked_rows(rows: int | None) -> int | None:
    """The most rows of a block.

    Raises:
        ArgumentError: It is no int.
        ValueMismatch: It is less than one.
    """
    if rows is None:
        return None
    if isinstance(rows, bool) or not isinstance(rows, int):
        raise ArgumentError("rows is how many rows a block has at most", got=repr(rows), fix="rows=64, or leave it out")
    if rows < 1:
        raise ValueMismatch("a block has at least one row", got=f"rows={rows}", fix="rows=64, or leave it out")
    return rows


def bytes_of_pass(passes: Passes, side: Side) -> float:
    """What one pass takes in a batch of its own; measured once for a function and its shapes."""
    lin, known = passes.linearization, f"bytes of one {side} pass"
    learned = passes.verifier.recall(known)
    if learned is not None:
        return float(learned)
    space = lin.rows if side == "reverse" else lin.columns
    kernel = lin.pull if side == "reverse" else next(iter(passes.forward_kernels().values()))
    try:
        peak = measured(lambda: batched(kernel)(_units(space, 0, 0, 1)), lin.inputs.device)[1]
    except Exception:  # an operation that vmap does not know: passes will run one by one
        peak = measured(lambda: looped(kernel)(_units(space, 0, 0, 1)), lin.inputs.device)[1]
    passes.verifier.learn(known, max(float(peak), 1.0))
    return max(float(peak), 1.0)


def _held(entries: int, dtype: torch.dtype) -> int:
    """What the entries of a pattern take, and their places."""
    return entries * (2 * dtype.itemsize + 16)


def _height_beside(entries: int, dtype: torch.dtype, budget: Budget) -> int:
    """The rows of a block beside the entries of a pattern; 0 where not one fits."""
    held = _held(entries, dtype)
    return budget.height(held + SHARE_OF_PLACES * budget.limit) if held <= SHARE_HELD * budget.limit else 0


def _room(passes: Passes, rows: range) -> Tensor:
    inputs = passes.linearization.inputs
    return torch.empty((len(rows), inputs.size), dtype=inputs.dtype, device=inputs.device)


def _units(space: Space, begin: int, start: int, stop: int) -> Tensors:
    """The unit vectors ``start`` to ``stop``, counted from one of them."""
    return space.onehots(unit_range(begin + start, begin + stop))


def _at_once(height: int, make: Make) -> tuple[int, Make]:
    """What needs nothing to be done once for all blocks."""
    return height, make


def _never() -> tuple[int, Make]:
    raise AssertionError("it did not bid")


def _too_little(budget: Budget, least: int) -> MemoryLimitError:
    return MemoryLimitError(
        "not even one row at a time is within the memory limit",
        got=f"a limit of {budget.limit:,} bytes, of which a row takes {budget.row:,}",
        fix=f"memory={least} or more; J.T @ u, one row as a pass of its own, is not limited",
    )
