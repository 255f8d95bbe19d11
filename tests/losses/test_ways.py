"""Ways to weigh losses, against the published formulas worked out in NumPy."""

import copy
import io

import numpy as np
import pytest
import torch

import pullback as pb
from pullback.api.combine import DynamicWeightAverage, GradNorm, Uncertainty
from tests.losses.networks import Tasks, plain_rows

MADE = {
    "uncertainty": lambda network: Uncertainty(3),
    "gradnorm": lambda network: GradNorm(3, network.trunk[2]),
    "average": lambda network: DynamicWeightAverage(3),
}


def weighted(network, weights):
    """The gradient of the weighted sum, by torch."""
    sum(float(weight) * loss for weight, loss in zip(weights, network.losses(), strict=True)).backward()
    return network.take()


def close(ours, other, tolerance=1e-6):
    assert ours.keys() == other.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], other[name], rtol=tolerance, atol=tolerance)


def test_uncertainty_is_the_gradient_of_kendalls_objective():
    network, s = Tasks(dtype=torch.float64), np.array([0.3, -1.0, 2.0])
    way = Uncertainty(3).double()
    way.log_variances.data = torch.from_numpy(s.copy())
    values = np.array([loss.item() for loss in network.losses()])

    def objective(s):
        sigma = np.exp(s / 2)
        return np.sum(values / (2 * sigma**2) + np.log(sigma))

    pb.backward(network.losses(), combine=way)
    close(network.take(), weighted(network, 1 / (2 * np.exp(s / 2) ** 2)), 1e-9)
    for k in range(3):
        step = np.eye(3)[k] * 1e-6
        slope = (objective(s + step) - objective(s - step)) / 2e-6
        assert way.log_variances.grad[k].item() == pytest.approx(slope, rel=1e-6)


def test_uncertainty_ends_where_every_loss_weighs_the_same():
    values = torch.tensor([4.0, 0.01, 50.0])
    w = torch.ones((), requires_grad=True)
    way = Uncertainty(3)
    optimizer = torch.optim.Adam(way.parameters(), lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        pb.backward(w * values, combine=way)
        optimizer.step()
    weights = torch.exp(-way.log_variances.detach()) / 2
    torch.testing.assert_close(weights * values, torch.full((3,), 0.5), rtol=1e-3, atol=1e-3)


def test_gradnorm_is_chens_algorithm():
    network, alpha, rate = Tasks(dtype=torch.float64), 1.5, 0.02
    layer = network.trunk[2]
    way = GradNorm(3, layer, alpha=alpha).double()
    optimizer = torch.optim.SGD(way.parameters(), lr=rate)
    model = torch.optim.SGD(network.parameters(), lr=0.05)
    w, first = np.ones(3), None
    for _ in range(5):
        losses = network.losses()
        values = np.array([loss.item() for loss in losses])
        norms = plain_rows(losses, [*layer.parameters()]).norm(dim=1).numpy()
        first = values if first is None else first
        G = w * norms
        r = (values / first) / np.mean(values / first)
        target = G.mean() * r**alpha
        slope = np.sign(G - target) * norms
        expected = weighted(network, w)

        optimizer.zero_grad()
        pb.backward(network.losses(), combine=way)
        np.testing.assert_allclose(way.task_weights.grad.numpy(), slope, rtol=1e-6)
        np.testing.assert_allclose(way.task_weights.detach().numpy(), w, rtol=1e-6)
        close({name: each.grad for name, each in network.named_parameters()}, expected, 1e-6)
        optimizer.step()
        model.step()
        network.zero_grad()
        w = w - rate * slope
        w = w * 3 / w.sum()


def test_gradnorm_keeps_weights_above_zero():
    network = Tasks()
    way = GradNorm(3, network.trunk[2])
    way.task_weights.data = torch.tensor([-5.0, 1.0, 1.0])
    pb.backward(network.losses(), combine=way)
    assert (way.task_weights > 0).all()
    assert way.task_weights.sum().item() == pytest.approx(3)


def test_the_average_is_lius_formula():
    network, T = Tasks(dtype=torch.float64), 2.0
    way = DynamicWeightAverage(3, temperature=T).double()
    generator = np.random.default_rng(0)
    means = []
    for epoch in range(5):
        if epoch < 2:
            weights = np.ones(3)
        else:
            e = np.exp(means[-1] / means[-2] / T)
            weights = 3 * e / e.sum()
        np.testing.assert_allclose(way.current().numpy(), weights, rtol=1e-9)
        seen = []
        for _ in range(4):
            factors = generator.uniform(0.5, 2, 3)
            losses = [factor * loss for factor, loss in zip(factors, network.losses(), strict=True)]
            seen.append([loss.item() for loss in losses])
            pb.backward(losses, combine=way)
            close(network.take(), weighted(network, weights * factors), 1e-9)
        way.end_epoch()
        means.append(np.mean(seen, axis=0))
    before = way.current()
    way.end_epoch()  # an epoch without a step
    assert torch.equal(way.current(), before)


@pytest.mark.parametrize("kind", MADE)
def test_a_state_goes_through_a_file(kind):
    """Stopped and taken up again, the rest of the steps is the same to the last bit."""

    def steps(network, way, count):
        weights = torch.optim.SGD(way.parameters(), lr=0.01) if [*way.parameters()] else None
        for _ in range(count):
            network.zero_grad()
            way.zero_grad()
            pb.backward(network.losses(), combine=way)
            torch.optim.SGD(network.parameters(), lr=0.1).step()
            if weights is not None:
                weights.step()
            if kind == "average":
                way.end_epoch()

    network = Tasks()
    way = MADE[kind](network)
    steps(network, way, 3)
    file = io.BytesIO()
    torch.save({"way": way.state_dict(), "network": network.state_dict()}, file)
    file.seek(0)
    state = torch.load(file)
    again = Tasks()
    again.load_state_dict(state["network"])
    resumed = MADE[kind](again)
    resumed.load_state_dict(state["way"])
    steps(network, way, 2)
    steps(again, resumed, 2)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in way.state_dict().items())
    assert copy.deepcopy(way).state_dict().keys() == state["way"].keys()


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_of_any_dtype(kind, dtype):
    w = torch.tensor([1.0, 2.0], dtype=dtype, requires_grad=True)
    way = {"uncertainty": lambda: Uncertainty(2), "gradnorm": lambda: GradNorm(2, [w]),
           "average": lambda: DynamicWeightAverage(2)}[kind]()  # fmt: skip
    pb.backward({"a": (w * w).sum(), "b": w.sum()}, combine=way)
    factor = 0.5 if kind == "uncertainty" else 1.0
    assert w.grad.dtype == dtype
    assert w.grad.tolist() == [factor * 3, factor * 5]


@pytest.mark.parametrize("kind", MADE)
def test_a_pass_that_fails_teaches_nothing(kind):
    network = Tasks()
    way = MADE[kind](network)
    before = copy.deepcopy(way.state_dict())
    losses = network.losses()
    losses[2] = losses[2] * float("nan")
    with pytest.raises(pb.errors.ValueMismatch):
        pb.backward(losses, combine=way)
    losses = network.losses()
    torch.autograd.backward(losses)  # frees the graph
    network.zero_grad()
    with pytest.raises(pb.errors.GraphError):
        pb.backward(losses, combine=way)
    assert all(torch.equal(value.nan_to_num(7), before[name].nan_to_num(7)) for name, value in way.state_dict().items())
    assert all(each.grad is None for each in [*way.parameters(), *network.parameters()])


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_learned_weights_leave_the_graph_to_be_differentiated():
    w = torch.tensor(2.0, requires_grad=True)
    pb.backward([w**3, w**2], combine=Uncertainty(2), create_graph=True)
    (second,) = torch.autograd.grad(w.grad, w)
    assert second.item() == pytest.approx(0.5 * (6 * 2 + 2))
    w.grad = None


@pytest.mark.parametrize(("make", "kind", "what", "got", "fix"), [
    (lambda: Uncertainty(1), "ValueMismatch", "Uncertainty weighs at least two losses", "1", "Uncertainty(2)"),
    (lambda: Uncertainty("ab"), "ArgumentError", "Uncertainty takes the number of losses", "str", "Uncertainty(2)"),
    (lambda: DynamicWeightAverage(2, temperature=0), "ValueMismatch",
     "temperature= of DynamicWeightAverage is not positive", "0", "temperature=2.0"),
    (lambda: GradNorm(2, [], alpha=1), "ArgumentError", "layer= of GradNorm holds no parameters", "list of 0",
     "the last shared layer, such as model.trunk[-1], or [weight]"),
    (lambda: GradNorm(2, torch.nn.Linear(1, 1), alpha=-1), "ValueMismatch", "alpha= of GradNorm is negative", "-1",
     "alpha=1.5, or 0 for equal norms"),
])  # fmt: skip
def test_what_cannot_be_made_is_told(make, kind, what, got, fix):
    with pytest.raises(getattr(pb.errors, kind)) as error:
        make()
    assert (error.value.what, error.value.got, error.value.fix) == (what, got, fix)


def test_a_layer_that_a_loss_does_not_reach():
    a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    with pytest.raises(pb.errors.ValueMismatch) as error:
        pb.backward({"one": a * b, "two": b**2}, combine=GradNorm(2, [a]))
    assert error.value.what == "a loss has no gradient by GradNorm's layer"
    assert error.value.got == "norm 1 of one, norm 0 of two"
    assert error.value.fix == "give the last layer that all losses share: GradNorm(tasks, model.trunk[-1])"


@pytest.mark.parametrize("kind", MADE)
def test_more_losses_than_weights(kind):
    network = Tasks(tasks=2)
    with pytest.raises(pb.errors.ValueMismatch) as error:
        pb.backward(network.named(), combine=MADE[kind](network))
    assert error.value.what == "there are not as many losses as weights"
    assert error.value.got == "2 losses (task0, task1), made for 3"
    assert error.value.fix == "make it for as many losses as are given to pb.backward"
