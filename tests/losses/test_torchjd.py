"""``pb.backward(losses, combine=aggregator)`` beside TorchJD's own engine."""

import pytest
import torch
from torch import nn

import pullback as pb
from tests.losses.networks import Tasks

aggregation = pytest.importorskip("torchjd.aggregation")
autojac = pytest.importorskip("torchjd.autojac")

GRAM = ["UPGrad", "MGDA", "PCGrad", "IMTLG", "AlignedMTL", "DualProj", "CAGrad", "Krum", "GradVac"]
MATRIX = ["Mean", "Sum", "Random", "Constant"]
WHOLE = ["ConFIG", "GradDrop", "TrimmedMean"]
ARGUMENTS = {
    "CAGrad": {"c": 0.5},
    "Krum": {"n_byzantine": 0, "n_selected": 1},
    "Constant": {"weights": torch.tensor([0.5, 2.0, -1.0, 0.25])},
    "TrimmedMean": {"trim_number": 1},
}


def made(name, dtype=torch.float32):
    values = {key: value.to(dtype) if isinstance(value, torch.Tensor) else value
              for key, value in ARGUMENTS.get(name, {}).items()}  # fmt: skip
    try:
        return getattr(aggregation, name)(**values)
    except ImportError as error:
        pytest.skip(str(error))


def theirs(network, aggregator):
    features = network.features()
    autojac.mtl_backward(network.losses(features), features=features)
    autojac.jac_to_grad(network.trunk.parameters(), aggregator)
    return network.take()


def close(ours, expected, dtype):
    assert ours.keys() == expected.keys()
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-10}[dtype]
    for name, gradient in ours.items():
        assert gradient.dtype == expected[name].dtype
        torch.testing.assert_close(
            gradient, expected[name], rtol=tolerance, atol=tolerance * expected[name].abs().max()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GRAM + MATRIX + WHOLE)
def test_shared_parameters_get_the_aggregate_and_heads_their_own(name, dtype):
    network = Tasks(tasks=4, dtype=dtype)
    torch.manual_seed(3)
    expected = theirs(network, made(name, dtype))
    torch.manual_seed(3)
    pb.backward(network.losses(), combine=made(name, dtype), inputs=network.parameters())
    close(network.take(), expected, dtype)


@pytest.mark.parametrize("seed", range(8))
def test_upgrad_on_random_networks(seed):
    network = Tasks(tasks=2 + seed % 3, width=5 + 40 * seed, dtype=torch.float64, seed=seed)
    expected = theirs(network, aggregation.UPGrad())
    pb.backward(network.named(), combine=aggregation.UPGrad())
    close(network.take(), expected, torch.float64)


def test_where_all_is_shared_it_is_torchjds_backward():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 4)).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    autojac.backward(network(x).square().mean(dim=0).unbind())
    autojac.jac_to_grad(network.parameters(), aggregation.MGDA())
    expected = [each.grad for each in network.parameters()]
    network.zero_grad()
    # The last layer's rows do not overlap, but every loss reaches the tensor.
    pb.backward(network(x).square().mean(dim=0), combine=aggregation.MGDA())
    for each, other in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(each.grad, other)


def test_one_engine_as_good_as_the_other_over_training():
    """Ten steps of each: the parameters stay together."""
    ours, other = Tasks(dtype=torch.float64), Tasks(dtype=torch.float64)
    for network in (ours, other):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            if network is ours:
                pb.backward(network.named(), combine=aggregation.UPGrad())
            else:
                features = network.features()
                autojac.mtl_backward(network.losses(features), features=features)
                autojac.jac_to_grad(network.trunk.parameters(), aggregation.UPGrad())
            optimizer.step()
    for each, its in zip(ours.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(each, its, rtol=1e-9, atol=1e-11)


def test_a_weighting_alone_is_a_function_of_the_gram_matrix():
    network = Tasks()
    expected = theirs(network, aggregation.UPGrad())
    pb.backward(network.losses(), combine=aggregation.UPGradWeighting())
    close(network.take(), expected, torch.float32)


@pytest.mark.parametrize("where", ["aggregator", "weighting"])
def test_a_hook_on_an_aggregator_sees_what_it_would_in_torchjd(where):
    network, seen = Tasks(), []
    aggregator = aggregation.UPGrad()
    hooked = aggregator if where == "aggregator" else aggregator.weighting
    hooked.register_forward_hook(lambda module, given, found: seen.append((given[0].shape, found)) or found * 2)
    pb.backward(network.losses(), combine=aggregator)
    ours = network.take()
    expected = theirs(network, aggregation.UPGrad())
    assert [shape[0] for shape, _ in seen] == [3]
    assert seen[0][0][1] == sum(each.numel() for each in network.trunk.parameters())
    for name, gradient in ours.items():
        factor = 2 if name.startswith("trunk") else 1
        torch.testing.assert_close(gradient, factor * expected[name], rtol=1e-4, atol=1e-6)


def test_the_class_is_not_its_object():
    with pytest.raises(pb.errors.ArgumentError) as error:
        pb.backward(Tasks().losses(), combine=aggregation.UPGrad)
    assert (error.value.what, error.value.got) == ("combine= is no way to combine losses", "the class UPGrad")
    assert error.value.fix == "UPGrad(...), an object of it"


def test_hooks_and_a_way_without_weights():
    network = Tasks()
    network.trunk[0].weight.register_hook(lambda gradient: gradient)
    losses = network.losses()
    with pytest.raises(pb.errors.StrategyError) as error:
        pb.backward(losses, combine=aggregation.ConFIG())
    assert error.value.what == "ConFIG finds a gradient and no weights, so a hook on a parameter cannot be kept"
    assert error.value.got == "a parameter of shape (12, 6) with a hook"
    assert error.value.fix == "remove the hook, or combine by weights, as UPGrad() does"
    assert all(each.grad is None for each in network.parameters())
    torch.autograd.backward(losses)  # the graph is still there
