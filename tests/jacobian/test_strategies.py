"""Every strategy of the registry, on every scenario that it bids for; a new file of either kind is tested at once."""

import pytest
import torch

import pullback as pb
from pullback.errors import StrategyError
from pullback.strategies.base import STRATEGIES
from pullback.testing import scenarios
from tests.conftest import DEVICE

SCENARIOS = scenarios(torch.float64, DEVICE)
STRATEGY_NAMES = list(STRATEGIES.all())
# What these send rests on a structure that not every function has.
MAY_REFUSE = {"acyclic", "blocks", "bidirectional", "factored", "outer", "staged", "star", "waist"}


def test_the_registry_is_not_empty():
    assert {"blocks", "columns", "rows"} <= set(STRATEGY_NAMES)
    assert len(SCENARIOS) >= 10


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
@pytest.mark.parametrize("memory", [None, 80_000])
def test_equals_the_closed_form(scenario, strategy, memory):
    J = pb.jacobian(scenario.f, *scenario.args, strategy=strategy, memory=memory)
    try:
        matrix = J.matrix()
    except StrategyError:
        assert strategy in MAY_REFUSE
        return
    torch.testing.assert_close(matrix, scenario.matrix)
    plan = J.plan()
    assert plan.chosen == strategy
    assert sum(plan.chunks) == plan.passes


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_a_bid_is_honest(scenario, strategy):
    """The strategy sends as many seeds as it bid passes, each in the space of its side."""
    J = pb.jacobian(scenario.f, *scenario.args)
    from pullback.jacobian.planning import facts_of
    from pullback.strategies.base import Bid

    facts = facts_of(J._passes, "matrix", holomorphic=False)
    chosen = STRATEGIES.all()[strategy]
    offer = chosen.bid(facts)
    if not isinstance(offer, Bid):
        assert offer.why
        return
    seeds = chosen.seeds(facts, offer, 0, offer.passes)
    space = facts.rows if offer.side == "reverse" else facts.columns
    assert [seed.shape for seed in seeds] == [torch.Size((offer.passes, *leaf.shape)) for leaf in space.leaves]
    assert [seed.dtype for seed in seeds] == [leaf.dtype for leaf in space.leaves]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_auto_products_and_slices_agree_with_the_closed_form(scenario):
    J = pb.jacobian(scenario.f, *scenario.args)
    m, n = J.shape
    M = scenario.matrix
    v, V, u, U = (torch.randn(size, dtype=M.dtype, device=M.device) for size in ((n,), (n, 3), (m,), (m, 2)))
    close = torch.testing.assert_close
    close((J @ v).flatten(), M @ v)
    close(J.T @ u if (J.T @ u).ndim == 1 else (J.T @ u).flatten(), M.T @ u)
    if n > 1:
        close(J @ V, M @ V)
    if m > 1:
        close(J.T @ U, M.T @ U)
    close(J.rows(0), M[0])
    close(J.rows([0, m - 1]), M[[0, m - 1]])
    close(J.rows(slice(None, None, -1)), M.flip(0))
    close(J.columns(-1), M[:, -1])
    close(J.columns(torch.tensor([0, n - 1])), M[:, [0, n - 1]])
    close(J.diagonal(), M.diagonal())
    close(J.gram(), M @ M.T)
    close(J.singular_values(), torch.linalg.svdvals(M))
    close(J.norm(), torch.linalg.matrix_norm(M, 2))
    close(J.norm("fro"), torch.linalg.matrix_norm(M))
    close((2 * J - J / 4 + (-J)).matrix(), 0.75 * M)
    close((J.T @ J).matrix(), M.T @ M)
    close((J @ J.T @ u).flatten(), M @ (M.T @ u))


def test_auto_takes_the_cheapest():
    chosen = {each.name: pb.jacobian(each.f, *each.args).plan().chosen for each in SCENARIOS}
    assert chosen["tall"] == "columns"
    assert chosen["wide"] == "rows"
    assert chosen["scalar input"] == "columns"
    assert chosen["bilinear batch"] == "blocks"
    assert chosen["coupled batch"] == "rows"
