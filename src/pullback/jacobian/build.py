"""From a plan to numbers: the cheapest strategy's seeds, the executor's answers, the recovered J, verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pullback.autodiff.linearize import Tensors
from pullback.data.space import Leaf, Space
from pullback.errors import MemoryLimitError, StrategyError
from pullback.executors.local import Route, Run, routes
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import Disagreement, precise, random_vector
from pullback.plan import Plan, choose
from pullback.strategies.base import STRATEGIES, Bid, Facts, Grid, Strategy, Want
from pullback.strategies.blocks import common_lead

# Without a limit of the user's, a result of this size is never refused: asking how much memory is free would
# cost more than making it.
SMALL = 2**20


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
        passes.structure,
        passes.elsewhere,
        strategy,
        lin.problem.symmetric,
        lin.create_graph,
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


def build(passes: Passes, want: Want, strategy: str, *, holomorphic: bool) -> tuple[Grid | Tensor | None, Plan]:
    """Build a Jacobian of the live inputs and outputs.

    Returns:
        The grid of matrices or the blocks, None where every derivative is zero; and the plan with what was done.

    Raises:
        StrategyError: No strategy can build it.
        MemoryLimitError: The result alone exceeds the limit.
    """
    facts, plan = plan_for(passes, want, strategy, holomorphic=holomorphic)
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
        _check_memory(passes, facts, offer)
        try:
            result = _carry_out(passes, facts, plan, offer)
        finally:
            for note in passes.notes:
                plan.note(note)
        if result is not None:
            return result, plan
    raise StrategyError(
        f"every way to build this Jacobian as {want} disagrees with a plain reverse pass",
        got="; ".join(plan.notes),
        fix=_instead(want),
    )


def entries_of(built: Grid | Tensor | None, inputs: Space) -> Tensor:
    """What :func:`build` gives for ``"sparse"``; no entries where every derivative is zero."""
    if built is None:
        return torch.zeros(0, dtype=inputs.dtype, device=inputs.device)
    assert isinstance(built, Tensor)
    return built


def _carry_out(passes: Passes, facts: Facts, plan: Plan, offer: Bid) -> Grid | Tensor | None:
    """Run one strategy by its routes in turn, until one gives the right numbers."""
    chosen = STRATEGIES.all()[plan.chosen]
    # For each part of the passes the routes that have not given wrong numbers.
    left: dict[int, list[Route]] = {}
    while True:
        answers: list[Tensor] = []
        plan.route, plan.chunks = "", []
        route: Route | None = None
        for part in range(len(offer.parts)):
            found, run = _run_part(passes, facts, chosen, offer, part, left)
            answers.extend(found)
            route = run.route
            assert route is not None
            for note in run.notes:
                plan.note(note)
            plan.route += (" + " if plan.route else "") + route.name
            plan.chunks += run.chunks
        result = chosen.recover(facts, offer, answers)
        is_plain = plan.chosen == "rows" and route is not None and not route.at_once
        wrong = _verify(passes, facts, plan, offer, result, is_plain=is_plain)
        if wrong is None:
            return result
        after = next((ways[1].name for ways in left.values() if len(ways) > 1), "")
        cheapest = plan.order[plan.order.index(plan.chosen) + 1 :]
        way = f"{plan.chosen} ({plan.route})"
        instead = after or (cheapest[0] if cheapest else "nothing")
        passes.report(f"{way} disagrees with a plain reverse pass {wrong}", instead, doubtful=wrong.doubtful)
        if not after:
            return None
        for part, ways in left.items():
            left[part] = ways[1:] or ways


def _run_part(
    passes: Passes, facts: Facts, chosen: Strategy, offer: Bid, part: int, left: dict[int, list[Route]]
) -> tuple[Tensors, Run]:
    """Run the passes of a bid that go to one side.

    Args:
        passes: The passes of the linearization.
        facts: What the strategy bid on.
        chosen: The strategy.
        offer: Its bid.
        part: Which part of the bid.
        left: The routes left for each part; afterwards the one that was taken is the first.

    Returns:
        The answers, and what was done.
    """
    side, start, stop = offer.parts[part]
    through = chosen.kernels(facts, offer, part)

    def seeds(a: int, b: int) -> Tensors:
        return chosen.seeds(facts, offer, start + a, start + b)

    while True:
        if part not in left:
            left[part] = routes(through[0]) if through else passes.routes(side)
        ways = left[part]
        try:
            found, run = passes.execute(side, ways, seeds, stop - start, through[1] if through else None)
        except Exception as error:
            if side == "reverse":
                raise
            passes.withdraw_forward(error)
            del left[part]
            continue
        assert run.route is not None
        left[part] = ways[ways.index(run.route) :]
        return found, run


def _verify(
    passes: Passes, facts: Facts, plan: Plan, offer: Bid, result: Grid | Tensor, *, is_plain: bool
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
    if not offer.lead and facts.want != "sparse" and verifier.recall(way):
        plan.checked = "before, for this function and these shapes"
        return None
    seed, expected = verifier.probe
    if facts.holomorphic:
        expected = tuple(part.conj() for part in expected)
    if facts.want == "sparse":
        assert isinstance(result, Tensor)
        found, scale = _seed_times_entries(seed, result, facts)
    elif isinstance(result, Tensor):
        found, scale = _seed_times_blocks(seed, result, facts)
    else:
        found, scale = _seed_times_grid(seed, result, facts.columns.leaves)
    wrong = verifier.disagreement(found, scale, expected)
    if wrong is None:
        verifier.learn(way)
        plan.checked = "a random seed times J equals a plain reverse pass"
    return wrong


def verify_entries(passes: Passes, facts: Facts, values: Tensor) -> Disagreement | None:
    """Where the entries of a pattern disagree with a plain reverse pass, if they do."""
    seed, expected = passes.verifier.probe
    found, scale = _seed_times_entries(seed, values, facts)
    return passes.verifier.disagreement(found, scale, expected)


def _seed_times_entries(seed: Sequence[Tensor], values: Tensor, facts: Facts) -> tuple[list[Tensor], list[Tensor]]:
    structure = facts.structure()
    assert not isinstance(structure, str)
    row, column = structure.coordinates(values.device)
    exact = precise(values.detach())
    weights = facts.rows.join([precise(part.real if part.is_complex() else part).flatten() for part in seed])
    terms = exact * weights.to(exact.dtype)[row]
    total = torch.zeros(facts.columns.size, dtype=exact.dtype, device=exact.device).index_add(0, column, terms)
    squares = torch.zeros(facts.columns.size, dtype=exact.abs().dtype, device=exact.device)
    squares = squares.index_add(0, column, exact.abs().square())
    size = float(torch.linalg.vector_norm(weights)) / max(facts.rows.size, 1) ** 0.5
    scale = squares.sqrt() * size
    return [total[leaf.slice] for leaf in facts.columns.leaves], [scale[leaf.slice] for leaf in facts.columns.leaves]


def _seed_times_grid(seed: Sequence[Tensor], grid: Grid, columns: Sequence[Leaf]) -> tuple[list[Tensor], list[Tensor]]:
    found, scale = [], []
    for j in range(len(columns)):
        total: Tensor | float = 0.0
        squares: Tensor | float = 0.0
        for k, weights in enumerate(seed):
            block = precise(grid[k][j].detach())
            real = weights.flatten().real if weights.is_complex() else weights.flatten()
            total = total + real.to(dtype=block.dtype, device=block.device) @ block
            squares = squares + torch.linalg.vector_norm(block, dim=0) ** 2
        assert isinstance(total, Tensor)
        assert isinstance(squares, Tensor)
        found.append(total)
        scale.append(squares.sqrt())
    return found, scale


def _seed_times_blocks(seed: Sequence[Tensor], blocks: Tensor, facts: Facts) -> tuple[list[Tensor], list[Tensor]]:
    examples = blocks.shape[0]
    weights = torch.cat([part.reshape(examples, -1).to(blocks.device) for part in seed], dim=1)
    exact = precise(blocks.detach())
    products = torch.einsum("bm,bmn->bn", weights.to(exact.dtype), exact)
    sizes = torch.linalg.vector_norm(exact, dim=1)
    widths = [leaf.numel // examples for leaf in facts.columns.leaves]
    return list(torch.split(products, widths, dim=1)), list(torch.split(sizes, widths, dim=1))


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
        if bool(leaked.any()):
            example = leaked.nonzero()[0, 1 : lead + 1].tolist()
            return f"examples mix: outputs of other examples depend on {leaf.name}{example}"
    return ""


def _over(masks: Tensor, dimensions: int, device: torch.device) -> Tensor:
    """Masks with so many dimensions of size one behind them."""
    return masks.reshape(masks.shape + (1,) * dimensions).to(device)


def _check_memory(passes: Passes, facts: Facts, offer: Bid) -> None:
    lin = passes.linearization
    size = sum(leaf.numel * leaf.dtype.itemsize for leaf in facts.columns.leaves)
    size *= facts.rows.size if facts.want == "matrix" else offer.passes
    device = lin.inputs.device
    if passes.executor.memory is None and size < SMALL:
        return
    limit = passes.executor.limit(device)
    if size > limit:
        raise MemoryLimitError(
            "the Jacobian itself is larger than the memory limit",
            got=f"{lin.outputs.size:,} x {lin.inputs.size:,}: {size:,} bytes, the limit is {limit:,}",
            fix="J @ v, J.T @ u, J.rows(range(...)) or J.blocks() need less; or raise the limit with memory=",
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
