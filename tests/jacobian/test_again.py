"""What is remembered of a function is used at the next point only while it holds there."""

import pytest
import torch
from torch import nn
from torch.func import jacrev

import pullback as pb
from tests.jacobian.plain import reference

N = 600  # enough passes for the zeros to be looked for


def neighbours(x):
    return x.sin() * x.roll(1)


def test_a_pattern_is_found_once_and_used_again():
    x = torch.randn(N, dtype=torch.float64)
    pb.jacobian(neighbours, x).dense()
    for _ in range(3):
        x = torch.randn(N, dtype=torch.float64)
        J = pb.jacobian(neighbours, x)
        torch.testing.assert_close(J.dense(), jacrev(neighbours)(x))
        assert J.plan().chosen.startswith("colored")
        assert J.plan().passes < 10
        assert J.plan().checked == "a random seed times J equals a plain reverse pass"


def test_a_pattern_asked_for_is_that_of_this_program():
    x = torch.randn(N, dtype=torch.float64)
    pb.jacobian(neighbours, x).dense()
    J = pb.jacobian(neighbours, x)
    J.dense()
    assert J.pattern.nnz == 2 * N
    assert "roll" in J.pattern.explain(0, N - 1)


def test_a_mask_that_the_function_holds_may_change():
    mask = torch.zeros(N, dtype=torch.float64)

    def f(x):
        return x.sin() + mask * x.flip(0)

    x = torch.randn(N, dtype=torch.float64)
    for ones in (0, 0, 3, 3, 0):
        mask[:ones] = 1.0
        mask[ones:] = 0.0
        torch.testing.assert_close(pb.jacobian(f, x).dense(), reference(f, x))


def test_a_number_that_the_function_holds_may_change():
    shift = [1]

    def f(x):
        return x.sin() * x.roll(shift[0])

    x = torch.randn(N, dtype=torch.float64)
    for by in (1, 1, 2, 2, 7, 1):
        shift[0] = by
        torch.testing.assert_close(pb.jacobian(f, x).dense(), reference(f, x))


def test_a_hidden_change_is_found_by_the_numbers():
    class Counter:
        """State that no inspection finds."""

        __slots__ = ("calls",)

        def __init__(self):
            self.calls = 0

        def __call__(self):
            self.calls += 1
            return self.calls

    counter = Counter()

    def f(x):
        return x.sin() * x.roll(1 + counter() // 7)

    x = torch.randn(N, dtype=torch.float64)
    for _ in range(8):
        counter.calls = counter.calls // 7 * 7 + 7  # another shift at each Jacobian, the same within one
        before = counter.calls
        J = pb.jacobian(f, x)
        counter.calls = before
        found = J.dense()
        counter.calls = before
        torch.testing.assert_close(found, reference(f, x))


def test_a_branch_taken_later_is_seen():
    def f(x):
        return x.sin() * x.roll(1) if x[0] > 0 else x.sin() * x.roll(2)

    x = torch.randn(N, dtype=torch.float64)
    for sign in (1.0, 1.0, -1.0, -1.0, 1.0):
        x = x.abs() * sign
        torch.testing.assert_close(pb.jacobian(f, x).dense(), reference(f, x))


@pytest.mark.parametrize("want", ["dense", "blocks"])
def test_examples_that_begin_to_mix_are_seen(want):
    def f(x):
        return x.sin() + (x[0] > 2).to(x.dtype)[:, None].T * x.mean(0)

    calm, wild = torch.rand(64, 2, dtype=torch.float64), torch.rand(64, 2, dtype=torch.float64)
    wild[0] = 3.0
    for _ in range(3):
        assert pb.jacobian(f, calm).blocks().shape == (64, 2, 2)
        torch.testing.assert_close(pb.jacobian(f, calm).dense(), reference(f, calm))
    if want == "dense":
        torch.testing.assert_close(pb.jacobian(f, wild).dense(), reference(f, wild))
    else:
        with pytest.raises(pb.errors.StrategyError, match="examples mix"):
            pb.jacobian(f, wild).blocks()
    torch.testing.assert_close(pb.jacobian(f, calm).dense(), reference(f, calm))


def test_the_first_derivative_does_not_speak_for_the_second():
    def f(x):
        return x.sin() * x

    x = torch.tensor(0.3, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(pb.jacobian(f, x).dense(), jacrev(f)(x))
        torch.testing.assert_close(pb.hessian(f, x).dense(), jacrev(jacrev(f))(x))


def test_nothing_keeps_a_function_alive():
    import gc
    import weakref

    def use():
        net = nn.Sequential(nn.Linear(N, N), nn.Tanh()).double()
        held = torch.ones(N, dtype=torch.float64)

        def f(x):
            return x.sin() * x.roll(1) * held

        x = torch.randn(N, dtype=torch.float64)
        for _ in range(3):
            pb.jacobian(net, x).dense()
            assert pb.jacobian(f, x).dense().shape == (N, N)
        return [weakref.ref(each) for each in (net, net[0].weight, f, held)]

    alive = use()
    gc.collect()
    assert [each() for each in alive] == [None] * 4


def test_few_passes_run_the_faster_way_and_stay_right():
    def f(x):
        return torch.stack([x[0] * x[1], x[1].sin(), x[2] ** 2])

    routes = set()
    for _ in range(12):
        x = torch.randn(3, dtype=torch.float64)
        J = pb.jacobian(f, x)
        torch.testing.assert_close(J.dense(), jacrev(f)(x))
        routes.add(J.plan().route)
    assert len(routes) == 3  # each was tried


class Mixing(nn.Module):
    """A layer whose examples mix where the first number is large: by the same operations, with other numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5).double()

    def forward(self, x):
        y = self.layer(x).tanh()
        return y + (x[0, 0] > 2).to(x.dtype) * y.mean(0)


@pytest.mark.parametrize("what", ["gram", "row_norms", "diagonal"])
def test_layers_of_examples_that_begin_to_mix(what):
    net = Mixing()
    calm = torch.rand(24, 6, dtype=torch.float64)
    wild = calm.clone()
    wild[0] = 3.0

    def by_rows(x):
        y = net(x).flatten()
        rows = [torch.autograd.grad(part, list(net.parameters()), retain_graph=True) for part in y]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])

    for x in (calm, calm, wild, calm, wild):
        J, want = pb.jacobian(net, x, wrt="parameters", strategy="outer"), by_rows(x)
        if what == "gram":
            found, expected = J.gram(), want @ want.T
        elif what == "row_norms":
            found, expected = J.row_norms(), want.norm(dim=1)
        else:
            found, expected = J.normal().diagonal(), want.square().sum(0)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
