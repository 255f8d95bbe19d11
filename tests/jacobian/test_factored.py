"""The cut: constant operations before and behind it cost no pass, and the factors put J together exactly."""

import pytest
import torch
from torch import nn

import pullback as pb
from tests.conftest import DEVICE
from tests.jacobian.plain import by_rows


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


SEGMENTS = torch.tensor([0, 2, 2, 5, 1, 0, 3, 3, 3, 4], device=DEVICE)
SCALE = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5, 1.0, 1.0, 1.0, 2.0, -1.0], dtype=torch.float64, device=DEVICE)


def finite_volume(x):
    left, right = x[:-1], x[1:]
    flux = left * right**2 - left.sin()
    return flux[1:] - flux[:-1]


def segment_sum(x):
    return torch.zeros(6, dtype=x.dtype, device=x.device).index_add(0, SEGMENTS, x * x.roll(1))


def windows(x):
    return (x**3).unfold(0, 5, 1).sum(1)


def gathered(x):
    return x[SEGMENTS] * x[SEGMENTS.flip(0)].exp()


def scaled(x):
    return (x.sin() * SCALE)[1:] + 2 * x[:-1] - 3


def two_fields(x):
    u, v = x.reshape(2, -1)
    return torch.cat([u * v + u.roll(1), u - v * v + v.roll(-1)])


def divided(x):
    return (x[1:] / 4 - 2 * x[:-1]) / 3 + x[1:] ** 2


@pytest.mark.parametrize(
    ("f", "passes"),
    [
        (finite_volume, 1),
        (segment_sum, 1),
        (windows, 1),
        (gathered, 1),
        (scaled, 1),
        (two_fields, 1),
        (divided, 1),
        (lambda x: 3 * x.roll(2) - x, 0),
        (lambda x: x.expand(300, 10).sum(0), 0),
    ],
)
def test_constants_cost_no_pass(f, passes):
    x, y = randn(10), randn(10, seed=1)
    J = pb.jacobian(f, x)
    torch.testing.assert_close(J.sparse().to_dense(), by_rows(f, x))
    assert (J.plan().chosen, J.plan().passes) == ("factored", passes)
    prepared = pb.prepare(f, x)
    J = prepared(y)
    torch.testing.assert_close(J.sparse().to_dense(), by_rows(f, y))
    assert J.plan().passes == passes


def test_tensors_that_go_one_way_are_summed():
    """Two second derivatives of Rosenbrock's function leave by the same slice: z has one part for the two."""

    def rosenbrock(x):
        return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()

    x = randn(8)
    H = pb.hessian(rosenbrock, x)
    torch.testing.assert_close(H.sparse().to_dense(), torch.autograd.functional.hessian(rosenbrock, x))
    factors = H._passes.structure().factors
    assert len(factors.sums) < len(factors.frontier)
    assert sum(len(parts) for parts in factors.sums) == len(factors.frontier)


def test_the_cut_is_exact_at_float32():
    x = randn(50).float()
    found = pb.jacobian(finite_volume, x).sparse()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.to_dense(), by_rows(finite_volume, x))


def test_a_frozen_weight_that_is_zero_now_stays_in_the_pattern():
    layer = nn.Linear(4, 3, dtype=torch.float64, device=DEVICE)
    layer.weight.data[0, 1] = 0.0
    layer.requires_grad_(requires_grad=False)
    assert (0, 1) in pb.jacobian(layer, randn(4)).pattern
    prepared = pb.prepare(layer, randn(4))
    layer.weight.data[0, 1] = 2.0
    torch.testing.assert_close(prepared(randn(4, seed=1)).sparse().to_dense(), layer.weight.data)


def test_the_waist_takes_two_half_passes_for_each_of_its_elements():
    net = nn.Sequential(nn.Linear(40, 20), nn.Tanh(), nn.Linear(20, 2), nn.Tanh(), nn.Linear(2, 50)).double().to(DEVICE)
    x, y = randn(40), randn(40, seed=1)
    J = pb.jacobian(net, x, strategy="waist")
    torch.testing.assert_close(J.dense(), by_rows(net, x))
    assert J.plan().passes == 4
    prepared = pb.prepare(net, x, strategy="waist")
    assert (prepared.plan().chosen, prepared.plan().passes) == ("waist", 4)
    torch.testing.assert_close(prepared(y).dense(), by_rows(net, y))
    torch.testing.assert_close(prepared(y).sparse().to_dense(), by_rows(net, y))


def test_a_batch_shares_one_pattern():
    x = randn(3, 10)
    jac = pb.prepare(finite_volume, x[0])
    found = jac.batch(x)
    assert found.shape == (3, 8, 10)
    assert found.values().shape == (3, jac.pattern.nnz)
    torch.testing.assert_close(found.to_dense(), torch.stack([by_rows(finite_volume, each) for each in x]))
    with pytest.raises(pb.errors.ValueMismatch, match="in_dims"):
        jac.batch(x, in_dims=(0, None))
    with pytest.raises(pb.errors.ValueMismatch, match="stacked along one dimension"):
        jac.batch(x, in_dims=None)


def test_a_batch_may_share_an_argument():
    def f(x, scale):
        return x[1:] * x[:-1] * scale

    x, scale = randn(4, 6), randn(5, seed=2)
    found = pb.prepare(f, x[:, 0], scale[:3]).batch(x, scale[:3], in_dims=(1, None))
    expected = torch.stack([by_rows(lambda z: f(z, scale[:3]), each) for each in x.T])
    torch.testing.assert_close(found.to_dense(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("f", [finite_volume, windows, two_fields])
def test_on_a_gpu(f):
    x, y = randn(10).cuda(), randn(10, seed=1).cuda()
    found = pb.jacobian(f, x).sparse()
    assert found.device == x.device
    torch.testing.assert_close(found.to_dense(), by_rows(f, x))
    torch.testing.assert_close(pb.prepare(f, x)(y).sparse().to_dense(), by_rows(f, y))
    for strategy in ("colored-rows", "colored-columns"):
        torch.testing.assert_close(pb.jacobian(f, x, strategy=strategy).sparse().to_dense(), by_rows(f, x))
