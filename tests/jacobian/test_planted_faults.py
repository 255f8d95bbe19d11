"""Faults that are planted on purpose: every one is caught, on every route that it can be met on.

Caught means: the numbers are right all the same and a warning tells, or an error does; with ``strict=True`` an error.
"""

import importlib
import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import pullback as pb
from pullback.data.coloring import Coloring, SymmetricColoring
from pullback.errors import PullbackError, PullbackWarning, StrategyError, VerificationError
from pullback.executors import local
from pullback.sparsity.call import RULES
from tests.jacobian.faults import square_with


def where_second(out, change):
    """Change the second example of a batch only."""
    picked = torch.arange(len(out)) == 1
    return torch.where(picked.reshape(-1, *[1] * (out.ndim - 1)), change(out), out)


def first_element(out, factor):
    changed = out.clone()
    changed.reshape(len(out), -1)[:, 0] *= factor
    return changed


# What a batching rule may do to the right results, stacked along the first dimension.
BATCHING = {
    "zeros": lambda out: out * 0,
    "sign": lambda out: -out,
    "one in ten thousand": lambda out: out * (1 + 1e-4),
    "one in a hundred million": lambda out: out * (1 + 1e-8),
    "examples in reverse order": lambda out: out.flip(0),
    "the next example": lambda out: out.roll(1, 0),
    "off by one": lambda out: out.roll(1, -1),
    "the first example for all": lambda out: out[:1].expand_as(out),
    "the second example only": lambda out: where_second(out, lambda part: 2 * part),
    "one element only": lambda out: first_element(out, 1 + 1e-4),
    "one element missing": lambda out: first_element(out, 0.0),
    "one element NaN": lambda out: first_element(out, float("nan")),
    "one element infinite": lambda out: first_element(out, float("inf")),
    "large values only": lambda out: torch.where(out.abs() > 0.1, 1.001 * out, out),
    "single precision": lambda out: out.float().double(),
    "a term dropped": lambda out: out - out.mean(0, keepdim=True),
    "a term too many": lambda out: out + 1e-3,
}
# These meet every seed, so the search for the culprit must meet them too.
FOUND = {"zeros", "sign", "one in ten thousand", "off by one", "one element only", "one element NaN", "a term too many"}
# These are none where all passes fit into one.
AMONG_EXAMPLES = {"examples in reverse order", "the next example", "the first example for all"}
AMONG_EXAMPLES |= {"the second example only", "a term dropped"}


@pytest.fixture(autouse=True)
def batches_stay(monkeypatch):
    """A batch does not give way to single passes, even where this machine is so busy that they are faster."""
    monkeypatch.setattr(local, "WORTH_SWITCHING", math.inf)


@pytest.fixture
def plant():
    """Plant a fault into the batching rule of ``aten::neg``, until the test ends."""
    libraries = []

    def planting(fault):
        functorch = torch._C._functorch

        def batched(x):
            level, place = functorch.maybe_get_level(x), functorch.maybe_get_bdim(x)
            here = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched))
            with here:
                out = fault(-functorch.get_unwrapped(x).movedim(place, 0)).clone()
            return functorch._add_batch_dim(out, 0, level)

        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("neg", batched, "FuncTorchBatched", allow_override=True)
        libraries.append(library)

    yield planting
    for library in libraries:
        library._destroy()


def chain(x):
    """Two outputs of three neighbors each, with a ``neg`` that is neither first nor last."""
    y = torch.cat([x[:1], x, x[-1:]])
    left, middle, right = y[:-2], y[1:-1], y[2:]
    decay = (-(middle * right).sin()).exp()
    return torch.cat([(left * decay).cos(), (middle * decay).sin()])


def narrow(x):
    """Everything flows through two elements."""
    weights = torch.linspace(-1, 1, 2 * len(x), dtype=x.dtype).reshape(2, -1)
    return ((-(weights @ x)).exp() @ weights).sin()


def examples(x):
    """Examples that do not mix."""
    return (-(x * x.roll(1, 1)).sin()).exp().cumsum(1)


def energy(x):
    return (-(x[1:] * x[:-1]).sin()).exp().sum()


LINE = torch.linspace(0.3, 1.7, 12, dtype=torch.float64)
BATCH = torch.linspace(0.3, 1.7, 36, dtype=torch.float64).reshape(12, 3)
TANGENTS, SEEDS = torch.eye(12, dtype=torch.float64), torch.eye(24, dtype=torch.float64)

# name: the function, the point, how it is made and asked
ROUTES = {
    "rows": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, strategy="rows", **k).matrix()),
    "some rows": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, **k).rows(range(24))),
    "a stack pulled": (chain, LINE, lambda f, x, **k: (pb.jacobian(f, x, **k).T @ SEEDS).T),
    "columns": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, strategy="columns", **k).matrix()),
    "some columns": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, **k).columns(range(12))),
    "a stack pushed": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, **k) @ TANGENTS),
    "dense": (chain, LINE, lambda f, x, **k: pb.jacobian(f, x, **k).dense()),
    "blocks": (examples, BATCH, lambda f, x, **k: torch.block_diag(*pb.jacobian(f, x, **k).blocks())),
    "dense by blocks": (examples, BATCH, lambda f, x, **k: pb.jacobian(f, x, strategy="blocks", **k).matrix()),
    "colored rows": (chain, LINE, lambda f, x, **k: sparse(f, x, "colored-rows", **k)),
    "colored columns": (chain, LINE, lambda f, x, **k: sparse(f, x, "colored-columns", **k)),
    "the cut": (chain, LINE, lambda f, x, **k: sparse(f, x, "factored", **k)),
    "the waist": (narrow, LINE, lambda f, x, **k: pb.jacobian(f, x, strategy="waist", **k).matrix()),
    "sparse": (chain, LINE, lambda f, x, **k: sparse(f, x, "auto", **k)),
    "a prepared one": (chain, LINE, lambda f, x, **k: pb.prepare(f, x, **k)(x).sparse().to_dense()),
    "a Hessian": (energy, LINE, lambda f, x, **k: pb.hessian(f, x, **k).matrix()),
    "a star coloring": (energy, LINE, lambda f, x, **k: pb.hessian(f, x, strategy="star", **k).sparse().to_dense()),
    "an acyclic coloring": (
        energy, LINE, lambda f, x, **k: pb.hessian(f, x, strategy="acyclic", **k).sparse().to_dense(),
    ),
}  # fmt: skip

# Most faults look the same there as on the routes that they are made of.
SLOW = {"colored rows", "colored columns", "sparse", "a prepared one", "a Hessian", "a star coloring"}
SLOW |= {"an acyclic coloring"}
SHOWN = sorted(FOUND | {"the second example only", "large values only"})


def sparse(f, x, strategy, **options):
    return pb.jacobian(f, x, strategy=strategy, **options).sparse().to_dense()


def expected_of(f, x):
    """J by one plain backward pass for each row; of an energy the Hessian."""
    x = x.detach().clone().requires_grad_()
    y = f(x)
    if y.ndim == 0:
        (y,) = torch.autograd.grad(y, x, create_graph=True)
    seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
    return torch.stack([torch.autograd.grad(y, x, seed, retain_graph=True)[0].reshape(-1) for seed in seeds])


def caught(route, **options):
    """The numbers if there are any, and all that was said."""
    f, x, build = route
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = build(lambda x: f(x), x, **options)
        except PullbackError as error:
            return None, error, [str(error)]
    return found, None, [str(each.message) for each in heard if issubclass(each.category, PullbackWarning)]


@pytest.fixture(params=ROUTES.values(), ids=ROUTES)
def route(request):
    return request.param


def test_without_a_fault_nothing_is_said(route):
    found, error, said = caught(route, strict=True)
    assert error is None
    assert not said
    torch.testing.assert_close(found, expected_of(*route[:2]))


def check_caught(route, blamed="", harmless=False):
    """A fault that changes numbers is told, and they are right all the same; strict, it is an error.

    Args:
        route: The function, the point, and what builds.
        blamed: What the warning says of it.
        harmless: Whether the fault may be without effect here.
    """
    expected = expected_of(*route[:2])
    unverified, refused, _ = caught(route, verify=False)
    if refused is None and torch.allclose(unverified, expected, rtol=1e-12, atol=0):
        assert harmless, "a fault without effect proves nothing"
        return
    found, error, said = caught(route)
    assert said
    if error is None:
        torch.testing.assert_close(found, expected)
    _, strict, _ = caught(route, strict=True)
    assert isinstance(strict, VerificationError | StrategyError)
    if blamed and error is None:
        assert re.search(blamed, " ".join(said)), said
        assert re.search(blamed, str(strict)), strict


def test_a_batch_that_is_larger_than_what_was_verified_is_verified_again(plant):
    """A batch of one hides what a rule does among examples."""
    plant(BATCHING["the next example"])
    for few, many in (
        (lambda J: J.rows([0]), lambda J: J.rows(range(24))),
        (lambda J: J.columns([0]), lambda J: J.columns(range(12)).mT),
        (lambda J: J.T @ SEEDS[:, :1], lambda J: (J.T @ SEEDS).mT),
        (lambda J: J @ TANGENTS[:, :1], lambda J: (J @ TANGENTS).mT),
    ):
        J = pb.jacobian(lambda x: chain(x), LINE)
        few(J)
        with pytest.warns(PullbackWarning, match="aten::neg"):
            found = many(J)
        expected = expected_of(chain, LINE)
        torch.testing.assert_close(found, expected if len(found) == 24 else expected.mT)


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name in ROUTES for fault in (SHOWN if name in SLOW else BATCHING)],
)
def test_a_wrong_batching_rule_is_caught_on_every_route(plant, name, fault):
    route = ROUTES[name]
    plant(BATCHING[fault])
    blamed = r"the batching rule .*of aten::neg \(test_planted_faults.py:\d+\) is wrong" if fault in FOUND else ""
    check_caught(route, blamed, harmless=fault in AMONG_EXAMPLES or (fault, route[0]) == ("sign", energy))


# What a forward formula may do to the right tangents.
FORWARD = {
    "zeros": lambda t, x: t * 0,
    "sign": lambda t, x: -t,
    "one in ten thousand": lambda t, x: t * (1 + 1e-4),
    "one in a hundred million": lambda t, x: t * (1 + 1e-8),
    "off by one": lambda t, x: t.roll(1, -1),
    "in reverse order": lambda t, x: t.flip(-1),
    "one element only": lambda t, x: t * torch.cat([x.new_tensor([1 + 1e-4]), torch.ones_like(x[1:])]),
    "one element missing": lambda t, x: torch.cat([t[:-1], 0 * t[-1:]]),
    "one element NaN": lambda t, x: torch.cat([t[:-1], t[-1:] * float("nan")]),
    "large values only": lambda t, x: torch.where(x > 1, 1.001 * t, t),
    "a factor forgotten": lambda t, x: t / x,
    "the square": lambda t, x: t * t,
    "single precision": lambda t, x: t.float().double(),
    "another dtype": lambda t, x: t.float(),
    "another shape": lambda t, x: t[:-1],
    "an error": lambda t, x: t.no_such_method(),
}
# torch itself refuses these: that is no fault but a way that cannot be taken.
REFUSED = {"another shape", "an error"}


def with_forward_fault(fault):
    """Two outputs of two neighbors each, whose middle has a wrong ``jvp``."""
    square = square_with(lambda x, t: fault(2 * x * t, x))

    def f(x):
        y = square(x).sin()
        return torch.cat([y * y.roll(1), y])

    return f


def arrow(f):
    """With a dense row and a dense column, for which both sides are needed."""

    def widened(x):
        z = f(x)
        return torch.cat([z.sum()[None], z + x[0]])

    return widened


FIRST = torch.zeros(24, 12, dtype=torch.float64).index_fill(1, torch.tensor(0), 1.0)
FORWARD_ROUTES = {
    "columns": lambda f, x, **k: pb.jacobian(f, x, strategy="columns", **k).matrix(),
    "some columns": lambda f, x, **k: pb.jacobian(f, x, **k).columns(range(12)),
    "a stack pushed": lambda f, x, **k: pb.jacobian(f, x, **k) @ TANGENTS,
    "products": lambda f, x, **k: torch.stack([pb.jacobian(f, x, **k) @ unit for unit in TANGENTS], dim=1),
    "colored columns": lambda f, x, **k: sparse(f, x, "colored-columns", **k),
    "colored on both sides": lambda f, x, **k: sparse(arrow(f), x, "bidirectional", **k)[1:] - FIRST,
    "sparse": lambda f, x, **k: sparse(f, x, "auto", **k),
    "dense": lambda f, x, **k: pb.jacobian(f, x, **k).matrix(),
}


@pytest.mark.parametrize("build", FORWARD_ROUTES.values(), ids=FORWARD_ROUTES)
@pytest.mark.parametrize("fault", FORWARD)
def test_a_wrong_forward_formula_is_caught_on_every_route(build, fault):
    route = with_forward_fault(FORWARD[fault]), LINE, build
    if fault in REFUSED:
        found, error, said = caught(route, strict=True)
        if error is None:
            assert not said
            torch.testing.assert_close(found, expected_of(*route[:2]))
        assert error is None or (isinstance(error, StrategyError) and "forward pass" in str(error))
    else:
        blamed = "" if fault == "another dtype" else r"Square \(test_planted_faults.py:\d+\)"
        check_caught(route, blamed, harmless=build is FORWARD_ROUTES["sparse"])


@pytest.mark.parametrize("build", [build for name, build in FORWARD_ROUTES.items() if name != "sparse"])
def test_a_fault_beside_an_infinite_derivative_is_caught(build):
    """What is infinite cannot be compared; the rest can."""
    x = torch.cat([torch.zeros(1, dtype=torch.float64), LINE[1:]])
    wrong = with_forward_fault(FORWARD["sign"])

    def f(x):
        return torch.cat([x[:1].sqrt(), wrong(x)[1:]])

    with pytest.warns(PullbackWarning, match="disagrees with"):
        found = build(f, x)
    torch.testing.assert_close(found[2:, 1:], expected_of(f, x)[2:, 1:])


def with_reverse_fault(fault):
    """A right backward that is wrong when it is differentiated by its seed: reverse over reverse meets it."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, g, x):
            ctx.save_for_backward(x)
            return g * x

        @staticmethod
        def backward(ctx, g):
            return fault(g * ctx.saved_tensors[0], g), None

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            return Times.apply(g, 2 * ctx.saved_tensors[0])

    return lambda x: Square.apply(x).sin()


@pytest.mark.parametrize("fault", ["zeros", "sign", "one in ten thousand", "off by one", "one element NaN"])
@pytest.mark.parametrize("graph", [False, True], ids=["a function", "a graph"])
def test_a_wrong_derivative_of_a_backward_is_caught(fault, graph):
    f = with_reverse_fault(FORWARD[fault])
    expected = expected_of(f, LINE)

    def build(f, x, **options):
        if not graph:
            return pb.jacobian(f, x, **options) @ TANGENTS
        leaf = x.clone().requires_grad_()
        return pb.jacobian_of(f(leaf), leaf, **options) @ TANGENTS

    torch.testing.assert_close(caught((f, LINE, build))[0], expected)
    check_caught((f, LINE, build), r"the derivative of SquareBackward \(?.*by its seed is wrong")


def test_a_hessian_that_is_not_symmetric_is_told():
    """One reverse pass serves as a forward pass of a Hessian, unless a backward is no derivative."""

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].roll(1)

    def f(x):
        return Straight.apply(x).square().sum()

    expected = expected_of(f, LINE)
    assert not torch.allclose(expected, expected.mT)
    found, _, said = caught((f, LINE, lambda f, x, **k: pb.hessian(f, x, **k) @ TANGENTS))
    torch.testing.assert_close(found, expected)
    assert "a backward in it is not the derivative of its forward" in " ".join(said)


def one_color(pattern):
    return Coloring("rows", np.zeros(pattern.shape[0], dtype=np.int32), 1, 1, "fault")


def one_column_color(pattern):
    return Coloring("columns", np.zeros(pattern.shape[1], dtype=np.int32), 1, 1, "fault")


def one_symmetric_color(pattern, kind):
    return SymmetricColoring(kind, np.zeros(pattern.shape[1], dtype=np.int32), 1, 1, "fault")


def merged(color):
    """A coloring with its last color merged into the first."""

    def wrong(*args):
        found = color(*args)
        return replace(found, colors=np.where(found.colors == found.count - 1, 0, found.colors), count=found.count - 1)

    return wrong


COLORINGS = {
    "rows of one color": ("color_rows", lambda right: one_color, "colored rows"),
    "rows of too few colors": ("color_rows", merged, "colored rows"),
    "columns of one color": ("color_columns", lambda right: one_column_color, "colored columns"),
    "columns of too few colors": ("color_columns", merged, "colored columns"),
    "the cut in too few colors": ("color_columns", merged, "the cut"),
    "a star of one color": ("color_symmetric", lambda right: one_symmetric_color, "a star coloring"),
    "a star of too few colors": ("color_symmetric", merged, "a star coloring"),
    "an acyclic one of one color": ("color_symmetric", lambda right: one_symmetric_color, "an acyclic coloring"),
}


@pytest.mark.parametrize("name", COLORINGS)
def test_a_wrong_coloring_is_caught(monkeypatch, name):
    """Entries of one color that meet in an answer are told by the random seed."""
    import pullback.sparsity.structure as module

    attribute, fault, route = COLORINGS[name]
    monkeypatch.setattr(module, attribute, fault(getattr(module, attribute)))
    check_loud(ROUTES[route])


def check_loud(route, **options):
    """As :func:`check_caught`, where the fault may also end in an error of Pullback's own."""
    expected = expected_of(*route[:2])
    f, x, build = route
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = build(lambda x: f(x), x, **options)
        except Exception:
            return
    torch.testing.assert_close(found, expected)
    assert [each for each in heard if issubclass(each.category, PullbackWarning)]


@pytest.mark.parametrize("route", ["colored rows", "colored columns", "the cut", "sparse", "a prepared one"])
def test_a_sparsity_rule_that_leaves_out_entries_is_caught(monkeypatch, route):
    """The warning names the operation whose rule it is."""
    right = RULES.all()["neg"]

    def wrong(call):
        found = right(call)
        keep = torch.ones(found.shape, dtype=torch.bool)
        keep.reshape(-1)[3:5] = False
        return found.only(keep)

    monkeypatch.setitem(RULES._things, "neg", wrong)
    f, x, build = ROUTES[route]
    found, error, said = caught((f, x, build))
    if error is None:
        torch.testing.assert_close(found, expected_of(f, x))
    assert re.search(r"the sparsity rule of aten::neg \(test_planted_faults.py:\d+\) leaves out", " ".join(said)), said
    _, strict, _ = caught((f, x, build), strict=True)
    assert strict is not None


def scaled(split):
    return replace(split, weight=split.weight * 1.001)


def moved(split):
    return replace(split, position=np.roll(split.position, 1))


def without_constant(split):
    return replace(split, constant=split.constant * 0)


@pytest.mark.parametrize("fault", [scaled, moved, without_constant])
@pytest.mark.parametrize(
    "build",
    [
        lambda f, x: sparse(f, x, "factored"),
        lambda f, x: pb.prepare(f, x, strategy="factored")(x).sparse().to_dense(),
    ],
    ids=["sparse", "prepared"],
)
def test_a_wrong_cut_is_caught(monkeypatch, fault, build):
    import pullback.sparsity.structure as module

    right = module.factors

    def f(x):
        return torch.cat([chain(x), 3 * x])

    def wrong(*args):
        split = right(*args)
        return split if isinstance(split, str) else fault(split)

    monkeypatch.setattr(module, "factors", wrong)
    check_loud((f, LINE, build))


def test_a_wrong_waist_is_caught(monkeypatch):
    """Tensors that do not separate inputs from outputs."""
    import pullback.sparsity.structure as module

    right = module.waist

    def two_paths(x):
        return narrow(x) + narrow(x.flip(0) ** 2)

    def half(program):
        found = right(program)
        return replace(found, views=found.views[:1], size=found.views[0].numel)

    monkeypatch.setattr(module, "waist", half)
    check_loud((two_paths, LINE, ROUTES["the waist"][2]))


@pytest.mark.parametrize("want", ["blocks", "dense by blocks"])
def test_examples_that_mix_unnoticed_are_caught(monkeypatch, want):
    module = importlib.import_module("pullback.jacobian.planning")

    def mixed(x):
        return (x - x.mean(0)) * x.exp()

    monkeypatch.setattr(module, "mixing", lambda passes, lead: "")
    f, x, build = mixed, BATCH, ROUTES[want][2]
    found, error, said = caught((f, x, build))
    assert said
    assert isinstance(error, StrategyError) or torch.allclose(found, expected_of(f, x))
    _, strict, _ = caught((f, x, build), strict=True)
    assert isinstance(strict, VerificationError)
