"""From a plan to numbers: the cheapest strategy's seeds, the executor's answers, the recovered J, verified."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.data.space import Space
from pullback.errors import MemoryLimitError, PullbackError, StrategyError
from pullback.executors.local import Route, Run, first_line, routes
from pullback.executors.memory import is_out_of_memory
from pullback.jacobian import second
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import Disagreement, column_norms, precise, random_vector
from pullback.plan import Plan, choose
from pullback.strategies.base import STRATEGIES, Bid, Facts, Grid, Sink, Want, split_blocks
from pullback.strategies.blocks import common_lead

# Without a limit of the user's, a result of this size is never refused: asking how much memory is free would
# cost more than making it.
SMALL = 2**24
# Strategies whose bid follows from the shapes; that examples do not mix is verified at each point.
SAME_EVERYWHERE = {"rows", "columns", "blocks"}


def facts_of(passes: Passes, want: Want, strategy: str = "auto", *, holomorphic: bool) -> Facts:
    """What the strategies are told about a linearization."""
    lin = passes.linearization
    return Facts(
        want,
        lin.rows,
        lin.columns,
        holomorphic,
        passes.no_forward,
        partial(mixing, passes),
        passes.structure_again if want == "matrix" and strategy == "auto" else passes.structure,
        lambda: passes.elsewhere,
        strategy,
        lin.problem.symmetric,
        lin.create_graph,
        passes.layers,
        passes.stages,
    )


def plan_for(passes: Passes, want: Want, strategy: str, *, holomorphic: bool) -> tuple[Facts, Plan]:
    """The bids of all strategies and the choice, before anything runs."""
    lin = passes.linearization
    facts = facts_of(passes, want, strategy, holomorphic=holomorphic)
    shape = (lin.outputs.size, lin.inputs.size)
    if not facts.rows.size or not facts.columns.size:
        plan = Plan(want, shape, {}, notes=["every derivative is zero: there is nothing to run"])
    else:
        plan = choose(facts, shape, strategy, passes.seconds)
    for note in (*_dead_outputs(passes), *lin.notes, *passes.notes):
        plan.note(note)
    return facts, plan


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
    facts, plan = _planned_before(passes, want, strategy, holomorphic=holomorphic) or plan_for(
        passes, want, strategy, holomorphic=holomorphic
    )
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
            _remember_plan(passes, plan, strategy, holomorphic=holomorphic)
            return result, plan
        if plan.before or _rests_on_memory(passes, plan):
            return _build_anew(passes, want, strategy, holomorphic=holomorphic, into=into)
    raise StrategyError(
        f"every way to build this Jacobian as {want} disagrees with a plain reverse pass",
        got="; ".join(plan.notes),
        fix=_instead(want),
    )


class _PassFailed(Exception):
    """A strategy's own passes do not run here."""


def _planned_before(
    passes: Passes, want: Want, strategy: str, *, holomorphic: bool
) -> tuple[Facts, Plan] | None:
    """The plan that worked before for this function and these shapes."""
    known: Plan | None = passes.verifier.recall(_plan_key(passes, want, strategy, holomorphic))
    if known is None or (known.chosen == "blocks" and not passes.verifier.active):
        return None
    if known.chosen == "staged" and isinstance(passes.stages(), str):
        return None
    if known.chosen not in {*SAME_EVERYWHERE, "staged"}:
        passes.structure_again()
        if not passes.elsewhere:
            return None
    plan = replace(known, offers=dict(known.offers), route="", chunks=[], notes=[], before=True)
    for note in (*_dead_outputs(passes), *passes.linearization.notes, *passes.notes):
        plan.note(note)
    return facts_of(passes, want, strategy, holomorphic=holomorphic), plan


def _remember_plan(passes: Passes, plan: Plan, strategy: str, *, holomorphic: bool) -> None:
    """Remember a plan that worked, if its bids hold at other points too; what does not is verified there."""
    if plan.before or (plan.chosen == "blocks" and not passes.verifier.active):
        return
    if plan.chosen in {*SAME_EVERYWHERE, "staged"} or _rests_on_memory(passes, plan):
        passes.verifier.learn(_plan_key(passes, plan.want, strategy, holomorphic), plan)
    elif plan.want == "matrix" and plan.chosen != "waist":
        passes.remember_structure()


def _build_anew(
    passes: Passes, want: Want, strategy: str, *, holomorphic: bool, into: Grid | None
) -> tuple[Grid | Tensor | None, Plan]:
    """Build where the plan or the structure that worked before does not work any more."""
    passes.verifier.learn(_plan_key(passes, want, strategy, holomorphic), None)
    passes.forget_structure()
    return build(passes, want, strategy, holomorphic=holomorphic, into=into)


def _rests_on_memory(passes: Passes, plan: Plan) -> bool:
    """Whether a strategy rests on a structure that was found at another point."""
    return plan.want == "matrix" and passes.elsewhere and plan.chosen not in SAME_EVERYWHERE


def _plan_key(passes: Passes, want: str, strategy: str, holomorphic: bool) -> Hashable:
    lin = passes.linearization
    return "plan", want, strategy, holomorphic, lin.create_graph, lin.live_inputs, lin.live_outputs


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
        if (plan.before and offer.lead) or _rests_on_memory(passes, plan):
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


def verify_result(passes: Passes, facts: Facts, result: Grid | Tensor) -> Disagreement | None:
    """Where what was built disagrees with a plain reverse pass, if it does.

    Args:
        passes: The passes at the point.
        facts: What was wanted.
        result: The grid of matrices, the blocks, or the entries of the pattern.
    """
    seed, expected = passes.verifier.probe
    if facts.holomorphic:
        expected = tuple(part.conj() for part in expected)
    if facts.want == "blocks":
        found, scale = _seed_times_blocks(seed, result, facts)
    elif isinstance(result, Tensor):
        found, scale = _seed_times_entries(seed, result, facts)
    else:
        found, scale = _seed_times_grid(seed, result)
    wrong = passes.verifier.disagreement(found, scale, expected)
    return second.of_result(passes.verifier, facts, result) if wrong is None and facts.create_graph else wrong


# ``uᵀJ`` for each input, and what gives the size that its rounding error is relative to.
Product = tuple[list[Tensor], Callable[[], list[Tensor]]]


def _seed_times_entries(seed: Sequence[Tensor], values: Tensor, facts: Facts) -> Product:
    structure = facts.structure()
    assert not isinstance(structure, str)
    row, column = structure.coordinates(values.device)
    exact = precise(values.detach())
    weights = facts.rows.join([precise(part.real if part.is_complex() else part).flatten() for part in seed])
    terms = exact * weights.to(exact.dtype)[row]
    total = torch.zeros(facts.columns.size, dtype=exact.dtype, device=exact.device).index_add(0, column, terms)

    def scale() -> list[Tensor]:
        squares = torch.zeros(facts.columns.size, dtype=exact.abs().dtype, device=exact.device)
        squares = squares.index_add(0, column, exact.abs().square())
        size = float(torch.linalg.vector_norm(weights)) / max(facts.rows.size, 1) ** 0.5
        return [(squares.sqrt() * size)[leaf.slice] for leaf in facts.columns.leaves]

    return [total[leaf.slice] for leaf in facts.columns.leaves], scale


def _seed_times_grid(seed: Sequence[Tensor], grid: Grid) -> Product:
    weights = [part.flatten().real if part.is_complex() else part.flatten() for part in seed]
    found, columns = [], [[precise(block.detach()) for block in column] for column in zip(*grid, strict=True)]
    for column in columns:
        products = [part.to(block) @ block for part, block in zip(weights, column, strict=True)]
        found.append(torch.stack(products).sum(0) if len(products) > 1 else products[0])

    def scale() -> list[Tensor]:
        return [torch.stack([column_norms(block) for block in each]).norm(dim=0) for each in columns]

    return found, scale


def _seed_times_blocks(seed: Sequence[Tensor], blocks: Grid | Tensor, facts: Facts) -> Product:
    examples = facts.columns.leaves[0].shape[0]
    if isinstance(blocks, Tensor):
        heights, widths = ([leaf.numel // examples for leaf in side.leaves] for side in (facts.rows, facts.columns))
        blocks = split_blocks(blocks, heights, widths)
    weights = [part.reshape(examples, 1, -1) for part in seed]
    found, columns = [], [[precise(block.detach()) for block in column] for column in zip(*blocks, strict=True)]
    for column in columns:
        products = [torch.bmm(part.to(block), block)[:, 0] for part, block in zip(weights, column, strict=True)]
        found.append(torch.stack(products).sum(0) if len(products) > 1 else products[0])

    def scale() -> list[Tensor]:
        # A sum of squares is far faster than a norm along a middle axis.
        return [torch.stack([block.abs().square().sum(1) for block in each]).sum(0).sqrt() for each in columns]

    return found, scale


def mixing(passes: Passes, lead: int) -> str:
    """Whether examples mix: why it cannot be excluded, or ``""``.

    A reverse pass seeded on some examples must leave the gradient of all others exactly zero. One pass, seeded on a
    random half, finds nearly every mixing at once. What remains is a pair: for every two examples there is a binary
    digit in which their numbers differ, so passes seeded on "digit d is set" and "is not set" leave no pair out.
    They run once for a function and its shapes, and every time where nothing is verified afterwards.
    """
    lin = passes.linearization
    shared = common_lead(lin.rows, lin.columns)[:lead]
    if lin.transformed:
        return "inside a torch.func transform it cannot be proved that examples do not mix"
    examples = math.prod(shared)
    half = torch.rand(examples, generator=torch.Generator().manual_seed(11)) < 0.5
    reason = _leak(passes, half[None], shared)
    proved = f"examples do not mix along {lead}"
    if reason or (passes.verifier.active and passes.verifier.recall(proved)):
        return reason
    digits = torch.arange(max(examples - 1, 0).bit_length())
    is_set = (torch.arange(examples)[None] >> digits[:, None]) % 2 == 1
    reason = _leak(passes, torch.cat([is_set, ~is_set]), shared)
    if not reason:
        passes.verifier.learn(proved)
    return reason


def _leak(passes: Passes, masks: Tensor, shared: tuple[int, ...]) -> str:
    """Where a gradient leaves the examples that a mask selects; one reverse pass for each mask."""
    if not masks.numel():
        return ""
    lin, lead = passes.linearization, len(shared)
    masks = masks.reshape(-1, *shared)
    seeds = tuple(_over(masks, part.ndim - lead, part.device) * part for part in random_vector(lin.rows, seed=13))
    if len(masks) == 1:
        gradients = tuple(part[None] for part in passes.verifier.plain(tuple(seed[0] for seed in seeds)))
    else:
        gradients, _ = passes.execute(
            "reverse", passes.routes("reverse"), lambda a, b: tuple(seed[a:b] for seed in seeds), len(masks)
        )
    for gradient, leaf in zip(gradients, lin.columns.leaves, strict=True):
        leaked = (gradient.detach() != 0) & ~_over(masks, gradient.ndim - 1 - lead, gradient.device)
        if bool(leaked.any()) and len(masks) > 1:  # a wrong batching rule is no mixing
            return next(filter(None, (_leak(passes, mask[None], shared) for mask in masks)), "")
        if bool(leaked.any()):
            example = leaked.nonzero()[0, 1 : lead + 1].tolist()
            return f"examples mix: outputs of other examples depend on {leaf.name}{example}"
    return ""


def _over(masks: Tensor, dimensions: int, device: torch.device) -> Tensor:
    """Masks with so many dimensions of size one behind them."""
    return masks.reshape(masks.shape + (1,) * dimensions).to(device)


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


def _dead_outputs(passes: Passes) -> list[str]:
    lin: Space = passes.linearization.outputs
    live = set(passes.linearization.live_outputs)
    return [
        f"{leaf.name} carries no graph ({str(leaf.dtype).removeprefix('torch.')}): its derivatives are zero"
        for index, leaf in enumerate(lin.leaves)
        if index not in live
    ]


def _instead(want: Want) -> str:
    if want == "blocks":
        return "J.dense() holds for examples that mix; for BatchNorm, model.eval() keeps them apart"
    return "strategy='rows' is the plainest way"
