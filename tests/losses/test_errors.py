"""What ``pb.backward(losses, combine=...)`` refuses: every text, and that nothing was changed."""

import pytest
import torch

import pullback as pb
from tests.losses.networks import Tasks


def ones(gram):
    return torch.ones(len(gram))


@pytest.fixture
def network():
    return Tasks()


def refused(network, losses, kind, what, got, fix, combine=ones, seed=None, **keywords):
    """It raises just that, and the network has no gradient."""
    __tracebackhide__ = True
    with pytest.raises(getattr(pb.errors, kind)) as error:
        pb.backward(losses, seed, combine=combine, **keywords)
    assert (error.value.what, error.value.got, error.value.fix) == (what, got, fix)
    assert all(each.grad is None for each in network.parameters())


def test_a_loss_that_is_no_scalar(network):
    refused(
        network,
        {"a": network.features(), "b": network.losses()[0]},
        "ValueMismatch",
        "a is not a single number",
        "shape (9, 12)",
        "its .mean() or .sum(); a vector alone, pb.backward(vector, combine=...), is one loss for each element",
    )


def test_a_single_loss(network):
    for losses in (network.losses()[:1], network.losses()[0]):
        refused(
            network,
            losses,
            "ValueMismatch",
            "combine= takes at least two losses",
            "1 loss",
            "pb.backward(loss) for a single one",
        )


def test_a_complex_loss(network):
    loss = network.losses()[0]
    refused(
        network,
        [loss, loss * 1j],
        "ValueMismatch",
        "losses[1] is complex",
        "torch.complex64",
        "a real loss, such as loss.abs() or .real",
    )


def test_a_number(network):
    refused(
        network,
        [network.losses()[0], 3.0],
        "ArgumentError",
        "output[1] is not a tensor",
        "float",
        "keep it a tensor: .item(), .numpy() and float() leave the graph",
    )


def test_a_detached_loss(network):
    first, second, _ = network.losses()
    refused(
        network,
        {"a": first, "b": second.detach()},
        "GraphError",
        "b carries no graph: nothing it was computed from requires grad, or the path was cut",
        "requires_grad=False, torch.float32, shape ()",
        "x.requires_grad_() before computing it; or look for .detach(), .data or torch.no_grad() on the way",
    )


def test_losses_that_share_nothing(network):
    first, second, third = network.losses(network.features().detach())
    losses = {"a": first, "b": second, "c": third}
    fix = (
        "look for .detach(), .data, torch.no_grad() or a frozen layer between the losses and what they share; "
        "independent losses need no combine=: pb.backward(losses)"
    )
    refused(
        network,
        losses,
        "GraphError",
        "no parameter is reached by two losses, so there is nothing to combine",
        "losses a, b, c; parameters (2, 12), (2,), (2, 12), (2,) and 2 more",
        fix,
    )
    pb.backward(losses)  # the graph is still there
    assert network.heads[2].weight.grad is not None


def test_losses_that_are_not_finite(network):
    first, second, _ = network.losses()
    refused(
        network,
        {"a": first * float("nan"), "b": second / 0},
        "ValueMismatch",
        "a loss is not finite, so its gradient has no meaning beside the others'",
        "a = nan, b = inf",
        "leave this step out; or look where it arises: print(pb.graph(losses))",
    )


@pytest.mark.parametrize("kind", ["gram", "matrix"])
def test_gradients_that_are_not_finite(kind):
    aggregation = pytest.importorskip("torchjd.aggregation")
    w = torch.zeros(2, requires_grad=True)
    losses = {"root": w.sqrt().sum(), "sum": w.sum()}
    with pytest.raises(pb.errors.ValueMismatch) as error:
        pb.backward(losses, combine=aggregation.UPGrad() if kind == "gram" else aggregation.Mean())
    assert error.value.what == "a gradient is not finite, so it cannot be combined with the others"
    assert error.value.got.startswith("root: norm inf, sum: norm 1.")
    assert error.value.fix == (
        "leave this step out, lower the loss scale, or look where it arises: print(pb.graph(losses))"
    )
    assert w.grad is None


@pytest.mark.parametrize(
    ("returned", "kind", "what", "got", "fix"),
    [
        (None, "ArgumentError", "way returned no tensor of weights", "NoneType", "return a tensor of shape (m,)"),
        (
            torch.ones(2),
            "ValueMismatch",
            "way returned weights of the wrong shape",
            "shape (2,), torch.float32, for the losses task0, task1, task2",
            "one real weight for each loss: shape (3,)",
        ),
        (
            torch.ones(3, 1),
            "ValueMismatch",
            "way returned weights of the wrong shape",
            "shape (3, 1), torch.float32, for the losses task0, task1, task2",
            "one real weight for each loss: shape (3,)",
        ),
        (
            torch.tensor([1.0, float("nan"), 0.0]),
            "ValueMismatch",
            "way returned a weight that is not finite",
            "task0: 1.0, task1: nan, task2: 0.0",
            "look at the losses and at print(pb.conflicts(losses)): one may be zero, or its gradient",
        ),
    ],
)
def test_weights_that_are_none(network, returned, kind, what, got, fix):
    def way(gram):
        return returned

    refused(network, network.named(), kind, what, got, fix, combine=way)


def test_an_aggregator_with_a_gradient_of_the_wrong_shape(network):
    aggregation = pytest.importorskip("torchjd.aggregation")

    class Odd(aggregation.Aggregator):
        def forward(self, matrix):
            return matrix[0, 1:]

    refused(
        network,
        network.losses(),
        "ValueMismatch",
        "Odd returned a gradient of the wrong shape",
        "shape (239,) from a matrix of shape (3, 240)",
        "one entry for each column: shape (240,)",
        combine=Odd(),
    )


def test_what_is_no_way(network):
    refused(
        network,
        network.losses(),
        "ArgumentError",
        "combine= is no way to combine losses",
        "object",
        "pb.seed.weights(name=...), pb.combine.GradNorm(...), an aggregator of TorchJD such as UPGrad(), or a "
        "function from the Gram matrix (m, m) to m weights",
        combine=object(),
    )


def test_a_seed_beside_it(network):
    refused(
        network,
        network.losses(),
        "ArgumentError",
        "a seed and combine= both weigh the losses",
        "seed float, combine function",
        "one of them; or multiply the losses by what the seed says",
        seed=2.0,
    )


def test_gradients_of_gradients(network):
    refused(
        network,
        network.losses(),
        "StrategyError",
        "the weights that ones finds are numbers, so its gradient cannot be differentiated",
        "combine= and create_graph=True",
        "leave create_graph out; pb.conflicts tells weights to multiply the losses by: (w * losses).sum()",
        create_graph=True,
    )


def test_complex_parameters():
    w = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(pb.errors.ArgumentError) as error:
        pb.backward([w.abs().sum(), w.real.sum()], combine=ones)
    assert error.value.what == (
        "the parameter of shape (3,) is complex, and gradients of losses are compared as real vectors"
    )
    assert error.value.got == "shape (3,), torch.complex64"
    assert error.value.fix == "make the parameter torch.view_as_real(w), and compute with torch.view_as_complex of it"
    assert w.grad is None


def test_inputs_that_are_no_leaves(network):
    features = network.features()
    refused(
        network,
        network.losses(features),
        "GraphError",
        "the input is no parameter: not a leaf that requires grad",
        "shape (9, 12), a result (TanhBackward0)",
        "give leaves, such as model.parameters(); leave frozen ones out",
        inputs=features,
    )


def test_weights_by_name_that_fit_no_loss(network):
    with pytest.raises(pb.errors.ValueMismatch) as error:
        pb.backward(network.named(), combine=pb.seed.weights(task0=1.0, task1=1.0, task3=1.0))
    assert error.value.what == "no output is called 'task3'"
