"""``pb.conflicts``: its matrices against plain rows, and what it prints."""

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.api.conflicts import conflicts
from pullback.losses import passes
from tests.losses.networks import Tasks, plain_rows


@pytest.fixture
def network():
    return Tasks(dtype=torch.float64)


def cosines(rows):
    unit = rows / rows.norm(dim=1, keepdim=True)
    return unit @ unit.T


@pytest.mark.parametrize("limited", [False, True])
def test_matrices_are_those_of_plain_rows(network, limited, monkeypatch):
    if limited:
        monkeypatch.setattr(passes, "ALWAYS_KEPT", 0)
        monkeypatch.setattr(passes, "default_limit", lambda device: 3 * 200 * 8)
    losses = network.named()
    found = conflicts(losses, network)
    rows = plain_rows(losses.values(), [*network.trunk.parameters()])
    torch.testing.assert_close(found.gram, rows @ rows.T)
    torch.testing.assert_close(found.cosines, cosines(rows))
    torch.testing.assert_close(found.norms, rows.norm(dim=1))
    assert found.names == ("task0", "task1", "task2")
    assert found.values.tolist() == [loss.item() for loss in losses.values()]
    assert [*found.layers] == ["trunk.0", "trunk.2"]
    assert [*found.parameters] == ["trunk.0.weight", "trunk.0.bias", "trunk.2.weight", "trunk.2.bias"]
    for name in found.layers:
        rows = plain_rows(losses.values(), [*network.get_submodule(name).parameters()])
        torch.testing.assert_close(found.layers[name], rows @ rows.T)
    for name in found.parameters:
        rows = plain_rows(losses.values(), [network.get_parameter(name)])
        torch.testing.assert_close(found.parameters[name], rows @ rows.T)


def test_the_graph_and_the_gradients_are_left_alone(network):
    losses = network.losses()
    network.trunk[0].bias.grad = held = torch.ones(12, dtype=torch.float64)
    conflicts(losses)
    conflicts(losses)
    assert network.trunk[0].bias.grad is held
    assert held.eq(1).all()
    assert network.trunk[2].bias.grad is None
    torch.autograd.backward(losses)


@pytest.mark.parametrize("give", [
    lambda network: network, lambda network: dict(network.named_parameters()),
    lambda network: network.parameters(), lambda network: [*network.parameters()], lambda network: None])  # fmt: skip
def test_parameters_may_be_given_in_many_ways(network, give):
    whole = conflicts(network.losses(), network)
    found = conflicts(network.losses(), give(network), names=network)
    assert set(found.parameters) == set(whole.parameters)
    torch.testing.assert_close(found.gram, whole.gram)


def test_one_tensor():
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    found = conflicts([(w * w).sum(), -w.sum()], w)
    assert found.names == ("losses[0]", "losses[1]")
    assert found.cosines[0, 1].item() == pytest.approx(-14 / (10 * 2**0.5))
    assert [*found.layers] == ["w"]


def test_it_prints_the_largest_conflict_first():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    first.weight.data = torch.eye(2)
    second.weight.data = torch.tensor([[1.0, -1.0]])
    model = nn.Sequential(first, second)
    x = torch.tensor([1.0, 2.0])
    y = model(x)
    losses = {"up": y.sum(), "down": -2 * y.sum() + 1, "other": (first(x) ** 2).sum()}
    found = conflicts(losses, model)
    assert (
        str(found)
        == repr(found)
        == (
            "3 losses over 2 shared parameters in 2 layers; 3 of 4 pairs conflict\n\n"
            "loss   value  norm of gradient\n"
            "up     -1     3.873\n"
            "down   3      7.746\n"
            "other  5      10\n\n"
            "cosine  losses       layer  norms\n"
            "-1.000  up, down     all    3.873, 7.746\n"
            "-0.258  up, other    all    3.873, 10\n"
            "+0.258  down, other  all    7.746, 10\n"
            "-1.000  up, down     0      3.162, 6.325\n"
            "-1.000  up, down     1      2.236, 4.472\n"
            "-0.316  up, other    0      3.162, 10\n"
            "+0.316  down, other  0      6.325, 10"
        )
    )
    pairs = found.pairs()
    assert [round(pair.cosine, 3) for pair in pairs] == [-1.0, -1.0, -0.316, 0.316]
    assert (pairs[0].first, pairs[0].second, pairs[0].norms[0]) == ("up", "down", pytest.approx(10**0.5))


def test_a_long_table_is_cut():
    torch.manual_seed(0)
    weights = {f"layer{k}.w": torch.randn(3, requires_grad=True) for k in range(30)}
    losses = [sum((w * torch.randn(3)).sum() for w in weights.values()) for _ in range(2)]
    lines = str(conflicts(losses, weights)).splitlines()
    assert lines[-1].startswith("... and 10 pairs with a cosine above ")
    assert len(lines) == 1 + 1 + 3 + 1 + 1 + 1 + 20 + 1


def test_a_gradient_that_is_zero_conflicts_with_none():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    found = conflicts({"a": w.sum(), "b": (w * 0).sum()})
    assert found.pairs() == []
    assert found.cosines.isnan().tolist() == [[False, True], [True, True]]
    assert "0 of 0 pairs conflict" in str(found)


def test_half_precision_gradients_are_compared_in_single():
    w = torch.tensor([300.0, 400.0], dtype=torch.float16, requires_grad=True)
    found = conflicts([(w / 20).square().sum() * 100, w.sum()])
    assert found.norms[0].item() == 250.0
    assert found.gram.dtype == torch.float64


def test_what_is_no_parameter_is_refused(network):
    losses = network.losses()
    with pytest.raises(pb.errors.ArgumentError) as error:
        conflicts(losses, ["trunk"])
    assert (error.value.what, error.value.got) == ("params[0] is not a tensor", "str")
    with pytest.raises(pb.errors.ArgumentError) as error:
        conflicts(losses, [])
    assert (error.value.what, error.value.got) == ("there is no parameter to look at", "list")
    with pytest.raises(pb.errors.GraphError) as error:
        conflicts(losses, {"h": network.features()})
    assert error.value.what == "h is no parameter: not a leaf that requires grad"
    assert error.value.got == "shape (9, 12), a result (TanhBackward0)"
    with pytest.raises(pb.errors.GraphError) as error:
        conflicts(losses, network.heads)
    assert error.value.what == "no parameter is reached by two losses, so there is nothing to combine"
