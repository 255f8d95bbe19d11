"""Planted faults: wrong batching rules and forward formulas are caught, and the numbers are right all the same."""

import warnings

import pytest
import torch

import pullback as pb
from pullback.errors import PullbackWarning, VerificationError
from pullback.jacobian.verify import relative_error, tolerance_of
from tests.jacobian.faults import square_with

X = torch.linspace(0.3, 1.7, 12, dtype=torch.float64)


def correct(x):
    return (x**2).sin()


EXPECTED = (2 * X * (X**2).cos()).diag()

BATCHING_FAULTS = {
    "zero": lambda g: g * 0,
    "factor two": lambda g: g * 2,
    "sign": lambda g: -g,
    "one column": lambda g: torch.cat([g[..., :1] * 0, g[..., 1:]], dim=-1),
    "one small error": lambda g: torch.cat([g[..., :-1], g[..., -1:] * 1.001], dim=-1),
    "transposed examples": lambda g: g.flip(0),
    "rolled": lambda g: g.roll(1, -1),
    "nan": lambda g: g * float("nan"),
    "inf": lambda g: g * float("inf"),
    "first example for all": lambda g: g[:1].expand_as(g),
}


def with_batching_fault(fault):
    """The right function, whose backward is wrong under vmap only."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x**2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return Times.apply(g, 2 * x)

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(g, x):
            return g * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (a, b) = ctx.saved_tensors
            return g * b, g * a

        @staticmethod
        def vmap(info, in_dims, g, x):
            g = g.movedim(in_dims[0], 0) if in_dims[0] is not None else g.expand(info.batch_size, *g.shape)
            x = x.movedim(in_dims[1], 0) if in_dims[1] is not None else x
            return fault(g * x), 0

    return lambda x: Square.apply(x).sin()


def with_forward_fault(fault):
    """The right function, whose jvp is wrong."""
    square = square_with(lambda x, t: fault(2 * x * t))
    return lambda x: square(x).sin()


FORWARD_FAULTS = {
    name: BATCHING_FAULTS[name]
    for name in ("zero", "factor two", "sign", "one column", "one small error", "rolled", "nan", "inf")
}


@pytest.mark.parametrize("fault", BATCHING_FAULTS.values(), ids=BATCHING_FAULTS)
@pytest.mark.parametrize(
    "ask",
    [lambda J: J.matrix(), lambda J: J.rows(range(12)), lambda J: (J.T @ torch.eye(12, dtype=torch.float64)).T],
    ids=["matrix", "rows", "stack"],
)
def test_a_wrong_batching_rule_is_caught(fault, ask):
    J = pb.jacobian(with_batching_fault(fault), X, strategy="rows")
    with pytest.warns(PullbackWarning, match="disagrees with a plain reverse pass") as caught:
        found = ask(J)
    torch.testing.assert_close(found, EXPECTED)
    assert caught[0].filename == __file__
    assert any("one pass at a time" in note for note in J.plan().notes)


@pytest.mark.parametrize("fault", FORWARD_FAULTS.values(), ids=FORWARD_FAULTS)
@pytest.mark.parametrize(
    "ask",
    [
        lambda J: J.matrix(),
        lambda J: J.columns(range(12)),
        lambda J: J @ torch.eye(12, dtype=torch.float64),
        lambda J: torch.stack([J @ e for e in torch.eye(12, dtype=torch.float64)], 1),
    ],
    ids=["matrix", "columns", "stack", "products"],
)
def test_a_wrong_forward_formula_is_caught(fault, ask):
    J = pb.jacobian(with_forward_fault(fault), X, strategy="columns")
    with pytest.warns(PullbackWarning, match="disagrees with"):
        found = ask(J)
    torch.testing.assert_close(found, EXPECTED)


@pytest.mark.parametrize("fault", ["zero", "one column"])
def test_strict_raises_and_verify_false_does_not_look(fault):
    wrong = with_batching_fault(BATCHING_FAULTS[fault])
    with pytest.raises(VerificationError) as caught:
        pb.jacobian(wrong, X, strategy="rows", strict=True).matrix()
    assert "relative error" in caught.value.got
    assert "strict=False" in caught.value.fix
    matrix = pb.jacobian(wrong, X, strategy="rows", verify=False).matrix()
    assert not torch.allclose(matrix, EXPECTED)


def test_no_fault_no_warning_in_any_way():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for strategy in ("auto", "rows", "columns"):
            J = pb.jacobian(correct, X, strategy=strategy, strict=True)
            torch.testing.assert_close(J.matrix(), EXPECTED)
            torch.testing.assert_close(J @ X, EXPECTED @ X)


def test_a_function_is_verified_once_for_its_shapes():
    X = torch.randn(20, dtype=torch.float64)  # more passes than are timed both ways
    J = pb.jacobian(correct, X, strategy="rows")
    J.matrix()
    again = pb.jacobian(correct, X + 1, strategy="rows")
    again.matrix()
    assert again.plan().checked == "before, for this function and these shapes"
    other = pb.jacobian(correct, X[:5], strategy="rows")
    other.matrix()
    assert other.plan().checked == "a random seed times J equals a plain reverse pass"


def test_no_grad_inside_f_means_the_same_in_both_modes():
    """Forward mode ignores no_grad; what a reverse pass says is the derivative."""

    def f(x):
        with torch.no_grad():
            c = x**2
        return c * x

    J = pb.jacobian(f, X, strategy="columns")
    with pytest.warns(PullbackWarning, match="disagrees"):
        matrix = J.matrix()
    torch.testing.assert_close(matrix, (X**2).diag())
    torch.testing.assert_close(J @ X, X**3)


def test_cdist_is_right():
    a, b = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    J = pb.jacobian(torch.cdist, a, b, wrt=(0, 1))
    expected = torch.autograd.functional.jacobian(torch.cdist, (a, b))
    with pytest.warns(PullbackWarning, match="x1"):
        found = J.dense()
    torch.testing.assert_close(found, expected)
    assert "one pass at a time" in J.plan().route
    assert not torch.allclose(torch.func.jacrev(torch.cdist)(a, b), expected[0])


def test_a_derivative_that_is_only_rounding_noise_is_no_fault():
    """By a bias before a BatchNorm every derivative is zero; what is computed is noise."""
    m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dense = pb.jacobian(m, torch.randn(6, 3), wrt="parameters", strict=True).dense()
    assert dense["0.bias"].abs().max() < 1e-5


def test_the_relative_error():
    def error(found, scale, expected, noise=0.0):
        tensors = [torch.tensor(each, dtype=torch.float64) for each in (found, scale, expected)]
        return relative_error(*tensors, noise)

    assert error([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]) == 0
    assert error([0.0, 2.0], [0.0, 2.0], [1.0, 2.0]) == 1
    assert error([float("nan")], [1.0], [1.0]) == float("inf")
    assert error([1.0], [1.0], [float("inf")]) == 0
    assert error([], [], []) == 0
    assert error([1e-9, 1.0], [0.0, 1.0], [0.0, 1.0]) == pytest.approx(1e-6)
    assert error([1e-9], [1e-9], [2e-9], noise=1.0) == pytest.approx(1e-9)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.float64, 1e-10, 1e-8), (torch.float32, 1e-4, 1e-2), (torch.float16, 1e-2, 0.1)],
)
def test_the_tolerance_follows_the_dtype(dtype, low, high):
    from pullback.data.space import Space

    assert low <= tolerance_of(Space.of(torch.ones(2, dtype=dtype)).leaves) <= high


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fault", ["zero", "factor two", "sign"])
def test_faults_are_seen_in_every_dtype(dtype, fault):
    x = X.to(dtype)
    J = pb.jacobian(with_forward_fault(FORWARD_FAULTS[fault]), x, strategy="columns")
    with pytest.warns(PullbackWarning, match="disagrees"):
        matrix = J.matrix()
    torch.testing.assert_close(matrix.double(), EXPECTED, rtol=3e-2, atol=3e-2)


def test_what_may_be_noise_takes_the_sure_way_without_blame():
    J = pb.jacobian(correct, X)
    verifier = J._passes.verifier
    one = torch.ones(1, dtype=torch.float64)
    tolerance = verifier.tolerance
    right = verifier.judge(one, one, one * (1 + 0.1 * tolerance), 0.0, "here")
    doubtful = verifier.judge(one * 1e-9, one * 1e-9, one * 2e-9, 1e-9 / tolerance / 10, "here")
    wrong = verifier.judge(one, one, one * (1 + 10 * tolerance), 1e-9, "here")
    assert right is None
    assert doubtful.doubtful
    assert not wrong.doubtful
    assert str(wrong).startswith("here, relative error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        J._passes.report("a way disagrees", "another", doubtful=True)
    assert "may be rounding noise" in J._passes.notes[-1]
