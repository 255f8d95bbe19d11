"""From a plan to numbers: the cheapest strategy's seeds, the executor's answers, the recovered J, verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.data.space import Space
from pullback.errors import MemoryLimitError, PullbackError, StrategyError
from pullback.executors.local import Route, Run, first_line, routes
from pullback.executors.memory import is_out_of_memory
from pullback.jacobian.passes import Passes
from pullback.jacobian.planning import SAME_EVERYWHERE, forget, plan_for, planned_before, remember, rests_on_memory
from pullback.jacobian.products import Product, verify_result
from pullback.jacobian.verify import Disagreement
from pullback.plan import Plan
from pullback.strategies.base import STRATEGIES, Bid, Facts, Grid, Sink, Want

# Without a limit of the user's, a result of this size is never refused: asking how much memory is free would
# cost more than making it.
SMALL = 2**24


def build(
    passes: Passes, want: Want, strategy: str, *, holomorphic: bool, into: Grid | None = None
) -> tuple[Grid | Tensor | None, Plan]:
    """Build a Jacobian of the live inputs and outputs.

    Args:
        passes: The passes through the point.
        want: What is built.
        strategy: The strategy's name, or ``"auto"``.
        holomorphic: Whether entries are complex derivatives.
        into: Where to write it, as :meth:`Strategy.recover_into` has it; None: nowhere in particular.

    Returns:
        The grid of matrices or the blocks, None where every derivative is zero (and nothing was written); and the
        plan with what was done.

    Raises:
        StrategyError: No strategy can build it.
        MemoryLimitError: The result alone exceeds the limit.
    """
    known = planned_before(passes, want, strategy, holomorphic=holomorphic)
    facts, plan = known or plan_for(passes, want, strategy, holomorphic=holomorphic)
    if not plan.offers:
        return None, plan
    if not plan.order:
        reasons = "; ".join(dict.fromkeys(f"{name}: {offer.why}" for name, offer in plan.offers.items()))
        raise StrategyError(f"nothing can build this Jacobian as {want}", got=reasons, fix=_instead(want))
    for name in plan.order:
        offer = plan.bid(name)
        if not offer.firm:
            settled = plan.offers[name] = STRATEGIES.all()[name].settle(facts, offer)
            if not isinstance(settled, Bid):
                continue
            offer = settled
        if any(side == "forward" for side, _, _ in offer.parts) and not plan.forward_works(facts):
            continue
        plan.chosen = name
        if into is None:
            _check_memory(passes, facts, offer)
        try:
            result = _carry_out(passes, facts, plan, offer, into)
        except _PassFailed as error:
            plan.note(str(error))
            result = None
        finally:
            for note in passes.notes:
                plan.note(note)
        if result is not None:
            remember(passes, plan, strategy, holomorphic=holomorphic)
            return result, plan
        if plan.before or rests_on_memory(passes, plan):
            forget(passes, want, strategy, holomorphic=holomorphic)
            return build(passes, want, strategy, holomorphic=holomorphic, into=into)
    raise StrategyError(
        f"every way to build this Jacobian as {want} disagrees with a plain reverse pass",
        got="; ".join(plan.notes),
        fix=_instead(want),
    )


class _PassFailed(Exception):
    """A strategy's own passes do not run here."""


def entries_of(built: Grid | Tensor | None, inputs: Space) -> Tensor:
    """What :func:`build` gives for ``"sparse"``; no entries where every derivative is zero."""
    if built is None:
        return torch.zeros(0, dtype=inputs.dtype, device=inputs.device)
    assert isinstance(built, Tensor)
    return built


def _carry_out(passes: Passes, facts: Facts, plan: Plan, offer: Bid, into: Grid | None) -> Grid | Tensor | None:
    """Run one strategy by its routes in turn, until one gives the right numbers."""
    chosen = STRATEGIES.all()[plan.chosen]
    # For each part of the passes the routes that have not given wrong numbers.
    left: dict[int, list[Route]] = {}
    sink = None if into is None else chosen.sink(facts, offer, into)
    while True:
        answers: list[Tensor] = []
        plan.route, plan.chunks = "", []
        route: Route | None = None
        for part in range(len(offer.parts)):
            found, run = _run_part(passes, facts, plan, offer, part, answers, left, sink)
            answers.extend(found)
            route = run.route
            assert route is not None
            for note in run.notes:
                plan.note(note)
            plan.route += (" + " if plan.route else "") + route.name
            plan.chunks += run.chunks
        if into is not None and sink is None:
            chosen.recover_into(facts, offer, answers, into)
        result = chosen.recover(facts, offer, answers) if into is None else into
        is_plain = plan.chosen == "rows" and route is not None and not route.at_once
        entries = chosen.entries_of(facts, offer, answers) if facts.want == "matrix" else None
        product = partial(chosen.product, facts, offer, answers)
        wrong = _verify(passes, facts, plan, offer, result if entries is None else entries, product, is_plain=is_plain)
        if wrong is None:
            return result
        if (plan.before and offer.lead) or rests_on_memory(passes, plan):
            return None  # the examples mix here, perhaps, or the pattern is another one: the bid is not good
        after = next((ways[1].name for ways in left.values() if len(ways) > 1), "")
        cheapest = plan.order[plan.order.index(plan.chosen) + 1 :]
        way = f"{plan.chosen} ({plan.route})"
        instead = after or (cheapest[0] if cheapest else "nothing")
        text = f"{way} disagrees with a plain reverse pass {wrong}"
        taken = [ways[0] for ways in left.values()]
        passes.report(text, instead, doubtful=wrong.doubtful, routes=taken)
        if not after:
            return None
        for part, ways in left.items():
            left[part] = ways[1:] or ways


def _run_part(
    passes: Passes,
    facts: Facts,
    plan: Plan,
    offer: Bid,
    part: int,
    before: Sequence[Tensor],
    left: dict[int, list[Route]],
    sink: Sink | None,
) -> tuple[Tensors, Run]:
    """Run the passes of a bid that go to one side.

    Args:
        passes: The passes of the linearization.
        facts: What the strategy bid on.
        plan: The plan, with the strategy that was chosen.
        offer: Its bid.
        part: Which part of the bid.
        before: The answers of the parts before it.
        left: The routes left for each part; afterwards the one that was taken is the first.
        sink: What takes the answers; None: they are kept.

    Returns:
        The answers, and what was done.
    """
    side, start, stop = offer.parts[part]
    chosen = STRATEGIES.all()[plan.chosen]
    through = chosen.kernels(facts, offer, part)

    def own_seeds(a: int, b: int) -> Tensors:
        return chosen.seeds(facts, offer, start + a, start + b)

    seeds = chosen.following(facts, offer, part, before) or own_seeds
    into = None if sink is None else lambda at, answers: sink(start + at, answers)
    while True:
        if part not in left:
            left[part] = routes(through[0]) if through else passes.routes(side, stop - start)
        ways = left[part]
        try:
            found, run = passes.execute(side, ways, seeds, stop - start, through[1] if through else None, into)
        except Exception as error:
            if through and not is_out_of_memory(error) and not isinstance(error, PullbackError):
                raise _PassFailed(f"{plan.chosen}: {first_line(error)}") from error
            if side == "reverse":
                raise
            passes.withdraw_forward(error)
            del left[part]
            continue
        assert run.route is not None
        left[part] = ways[ways.index(run.route) :]
        return found, run


def _verify(
    passes: Passes,
    facts: Facts,
    plan: Plan,
    offer: Bid,
    result: Grid | Tensor,
    product: Callable[[Sequence[Tensor]], Product | None],
    *,
    is_plain: bool,
) -> Disagreement | None:
    """Hold ``uᵀJ`` against a plain reverse pass.

    Once for a function and its shapes; but whether examples mix may depend on the point, so what rests on that is
    held against one every time.
    """
    verifier = passes.verifier
    if not verifier.active:
        plan.checked = ""
        return None
    if is_plain:
        plan.checked = "by construction: plain reverse passes"
        return None
    way = f"{facts.want} by {plan.chosen}: {plan.route}"
    # A pattern is found anew each time, and what rests on it is verified each time.
    again = facts.want == "sparse" or plan.chosen not in SAME_EVERYWHERE
    if not offer.lead and not again and verifier.recall(way):
        plan.checked = "before, for this function and these shapes"
        return None
    by_factors = product(verifier.probe[0]) if verifier.recall(way) else None
    if by_factors is not None:
        plan.checked = "a random seed times the factors of J equals a plain reverse pass"
        return verifier.disagreement(*by_factors, verifier.probe[1])
    wrong = verify_result(passes, facts, result)
    if wrong is None:
        verifier.learn(way)
        plan.checked = "a random seed times J equals a plain reverse pass"
    return wrong


def _check_memory(passes: Passes, facts: Facts, offer: Bid) -> None:
    size = sum(leaf.numel * leaf.dtype.itemsize for leaf in facts.columns.leaves)
    size *= facts.rows.size if facts.want == "matrix" else offer.passes
    check_size(passes, size)


def check_size(passes: Passes, size: int) -> None:
    """Refuse a result of so many bytes where it exceeds the limit.

    Raises:
        MemoryLimitError: It does.
    """
    lin = passes.linearization
    if passes.executor.memory is None and size < SMALL:
        return
    limit = passes.executor.limit(lin.inputs.device)
    if size > limit:
        raise MemoryLimitError(
            "the Jacobian itself is larger than the memory limit",
            got=f"{lin.outputs.size:,} x {lin.inputs.size:,}: {size:,} bytes, the limit is {limit:,}",
            fix="J.iter_rows() and J.save(path) take it in blocks; J @ v, J.T @ u or J.blocks() need less; or raise "
            "the limit with memory=",
        )


def _instead(want: Want) -> str:
    if want == "blocks":
        return "J.dense() holds for examples that mix; for BatchNorm, model.eval() keeps them apart"
    return "strategy='rows' is the plainest way"
