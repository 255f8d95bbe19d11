"""pb.precision against plain torch in float64."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn

from pullback.errors import ArgumentError, GraphError, PullbackError, SeedError, ValueMismatch
from pullback.precision import verb
from pullback.precision.verb import precision
from tests.precision.models import CNN, MLP, Transformer, error_by_hand, images, loss_of, sequences

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def test_the_example_of_the_article():
    x = torch.tensor([1.0, 2.0], dtype=F16, requires_grad=True)
    report = precision(lambda x: x**2, x, seed=torch.tensor([1.0, 1.0], dtype=F16))
    for run in report.runs:
        assert run.is_lossless
        assert run.error == 0
        assert run.scales.one_is_safe
        assert "nothing is lost\n" in str(run)
    # the gradient is [2, 4]: 2^13 doubles 4 to 2^15, and 2^14 leaves float16
    assert report[F16].scales.high == 13
    assert [run.dtype for run in report.runs] == [F32, BF16, F16]


@pytest.mark.parametrize("seed", [torch.tensor([1e5, 1.0]), 1e5])
def test_a_seed_beyond_float16_overflows_and_is_said_to(seed):
    run = precision(lambda x: x * 0.001, torch.ones(2), seed=seed, dtypes=[F16])[F16]
    assert "the seed for the output of shape (2,) (MulBackward0) overflows in float16, which ends at 6.55e+04" in str(
        run
    )
    assert run.error == math.inf
    assert not run.scales.one_is_safe
    assert run.scales.high < 0
    found = torch.autograd.grad((x := torch.ones(2, dtype=F16, requires_grad=True)) * 0.001, x,
                                (torch.as_tensor(seed).double() * run.scales.factor).expand(2).half())  # fmt: skip
    assert found[0].isfinite().all()


def test_a_seed_below_float16_underflows_and_is_said_to():
    run = precision(lambda x: x * 2.0, torch.ones(2), seed=torch.tensor([1e-8, 1e-5]), dtypes=[F16])[F16]
    assert "the seed for the output of shape (2,) (MulBackward0) underflows to zero in float16 (50.0 %)" in str(run)
    assert run.gradients[0].lost.zeroed == 0.5
    assert run.scales.low > 0
    run = precision(lambda x: x * 2.0, torch.ones(2), seed=1e-5, dtypes=[F16])[F16]
    assert "is subnormal in float16, and loses digits (100 %)" in str(run)


@pytest.mark.parametrize(("model", "data"), [(CNN, images), (Transformer, sequences)])
def test_under_cpu_autocast_bfloat16(model, data):
    net, (x, y) = model(), data()
    f = loss_of(net, BF16)
    run = precision(f, x, y, dtypes=[F32])[F32]
    assert run.lowest is BF16
    assert run.name == "float32, bfloat16 inside"
    assert [each.name for each in run.gradients] == [name for name, _ in net.named_parameters()]
    assert run.scales.one_is_safe
    assert run.scales.reach == 120
    # each error against a float64 copy of the model, without autocast, by plain torch
    torch.manual_seed(3)
    twin = copy.deepcopy(net).double()
    state = torch.get_rng_state()
    run = precision(f, x, y, dtypes=[F32])[F32]
    exact = torch.autograd.grad(loss_of(twin)(x.double(), y), list(twin.parameters()))
    torch.set_rng_state(state)
    found = torch.autograd.grad(f(x, y), list(net.parameters()))
    for gradient, ours, meant in zip(run.gradients, found, exact, strict=True):
        error = (ours.double() - meant).norm() / meant.norm()
        if meant.norm() > 1e-12:
            assert gradient.lost.error == pytest.approx(float(error), rel=1e-6)
        assert gradient.lost.norm == pytest.approx(float(meant.norm()), rel=1e-6, abs=1e-15)


def test_a_gradient_that_is_zero_but_for_rounding_is_told_as_such():
    net, (x, y) = CNN(), images()
    run = precision(loss_of(net, BF16, 1e-6), x, y, dtypes=[F16, F32])[F32]
    report = precision(loss_of(net, None, 1e-4), x, y, dtypes=[F16])
    assert report.to_dict()["float16"]["zero_but_for_rounding"] == ["conv.bias"]
    assert "conv.bias" in str(report)
    assert "zero but for rounding" in str(report)
    assert run.error < 0.1


@pytest.mark.parametrize(("factor", "seed"), [(1e-5, 1.0), (1.0, 2e-6), (3e5, 1.0), (1.0, 2e5)])
@pytest.mark.parametrize("vector", [False, True], ids=["loss", "vector"])
def test_the_advised_scale_lowers_the_error_that_plain_torch_measures(factor, seed, vector):
    net, x = MLP(), torch.randn(32, 8)

    def f(x):
        return (net(x) ** 2 * factor) if vector else (net(x) ** 2).mean() * factor

    if vector:
        seed = torch.rand(32, 4) * seed
    run = precision(f, x, seed=seed, dtypes=[F16])[F16]
    best = run.scales
    exact_net = copy.deepcopy(net).double()
    out = (exact_net(x.double()) ** 2) * factor
    out = out if vector else out.mean()
    grad = torch.as_tensor(seed).double().expand_as(out)
    exact = list(torch.autograd.grad(out, list(exact_net.parameters()), grad))
    net.half()
    errors = {
        power: error_by_hand(f, x.half(), list(net.parameters()), exact, seed, 2.0**power)
        for power in (0, best.best, best.low, best.high, best.high + 1, best.low - 4)
    }
    finite = {power: error if math.isfinite(error) else 1e30 for power, error in errors.items()}
    assert not best.one_is_safe
    assert finite[best.best] < 0.01
    assert finite[best.best] < 0.3 * finite[0]
    assert finite[best.low] < 1.3 * finite[best.best]
    assert finite[best.high] < 1.3 * finite[best.best]
    assert finite[best.high + 1] > 1.1 * finite[best.best]
    assert finite[best.low - 4] > 1.05 * finite[best.best]


def test_where_a_small_loss_underflows():
    net, (x, y) = MLP(), (torch.randn(32, 8), torch.randint(0, 4, (32,)))

    def f(x, y):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        return loss * 1e-5  # too small

    run = precision(f, x, y, dtypes=[F16])[F16]
    first = run.places[0]
    assert (first.kind, first.operation) == ("subnormal", "Mul")
    assert first.place.file == __file__
    assert first.place.text == "return loss * 1e-5  # too small"
    assert {each.module for each in run.places} & {"second", "first", ""}
    assert "becomes subnormal in float16, whose normal numbers begin at 6.104e-05 (100.0% of it)" in str(run)
    assert not run.is_lossless
    assert "nothing is lost" not in str(run)


def test_where_a_large_factor_overflows():
    net, x = MLP(), torch.randn(32, 8)

    def f(x):
        h = net(x) * 1e-3
        return (h * 10) * 1e5  # together more than float16 holds

    run = precision(f, x, dtypes=[F16])[F16]
    assert [each.kind for each in run.places].count("overflow") == 1  # what it leads to is not told again
    assert (run.places[0].kind, run.places[0].operation) == ("overflow", "Mul")
    assert run.places[0].place.text.startswith("return (h * 10) * 1e5")
    assert "the forward pass itself overflows" not in str(run)
    assert "which ends at 6.55e+04" in str(run)
    assert run.scales.high < 0


def test_a_forward_that_overflows_is_mended_by_no_scale():
    run = precision(lambda x: (x * 1e6).sum(), torch.ones(3), dtypes=[F16])[F16]
    assert "the forward pass itself overflows: no loss scale mends its values" in run.notes
    assert run.value_error == math.inf


def test_where_a_cancellation_rounds_away():
    run = precision(lambda x: (((x + 60.0) - 60.0) ** 3).sum(), torch.full((4,), 0.37), dtypes=[BF16])[BF16]
    assert [each.kind for each in run.places] == ["rounding"]
    assert "rounds away in bfloat16: its relative error grows to" in str(run)


def test_a_module_and_its_line_are_told():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        net[1].weight.mul_(1e-7)
    run = precision(net, torch.randn(3, 4), dtypes=[F16])[F16]
    told = [each for each in run.places if each.kind in {"underflow", "subnormal"}]
    assert told
    assert told[0].module == "1"


def test_graphs_that_differ_are_told_by_the_pass_itself():
    def f(x):
        if x.dtype is not torch.float64:
            x = x * 1.0
        return (x * 1e-9).sum()

    run = precision(f, torch.ones(3), dtypes=[F16])[F16]
    assert run.places == ()
    assert "the graph differs from that in float64: places are told without it" in run.notes
    assert any("nothing but exact zeros born here" in text for text in run.told)
    assert "Mul" in run.told[0]
    assert not run.is_lossless


def test_too_large_for_memory_is_told(monkeypatch):
    monkeypatch.setattr(verb, "default_limit", lambda device: 8)
    run = precision(lambda x: (x * 1e-9).sum(), torch.ones(3), dtypes=[F16])[F16]
    assert "the cotangents in float64 would not fit into memory: places are told without them" in run.notes
    assert run.told
    assert run.gradients[0].lost.zeroed == 1


def test_nothing_of_the_users_changes():
    net, (x, y) = CNN(), images()
    lstm = nn.LSTM(8, 3)
    x.requires_grad_()
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    identities = {name: id(tensor) for name, tensor in [*net.named_parameters(), *net.named_buffers()]}
    flat = [id(each) for each in lstm._flat_weights]
    rng, points = torch.get_rng_state(), x.detach().clone()

    def f(x, y):
        out, _ = lstm(x[0])
        return nn.functional.cross_entropy(net(x), y) + out.sum()

    report = precision(f, x, y)
    assert not report[F32].skipped
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.equal(x, points)
    assert x.grad is None
    assert x.requires_grad
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == before[name].dtype
    assert {n: id(t) for n, t in [*net.named_parameters(), *net.named_buffers()]} == identities
    assert [id(each) for each in lstm._flat_weights] == flat
    for parameter in net.parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, 7.0))
        assert not parameter._backward_hooks
    assert len(report[F32].gradients) == 1 + len(list(net.parameters())) + len(list(lstm.parameters()))


def test_nothing_changes_when_the_function_raises():
    net = MLP()
    identities = [id(each) for each in net.parameters()]

    def f(x):
        net(x)
        raise RuntimeError("no\nmore")

    with pytest.raises(GraphError, match="f cannot be run in float64") as caught:
        precision(f, torch.ones(1, 8))
    assert "got: RuntimeError: no\n" in str(caught.value)
    assert [id(each) for each in net.parameters()] == identities


def test_dropout_draws_the_same_mask_in_every_dtype():
    report = precision(lambda x: nn.functional.dropout(x, 0.5) * 3, torch.ones(1000))
    assert all(run.error == 0 for run in report.runs)


def test_what_a_dtype_cannot_do_is_skipped_with_the_reason():
    report = precision(lambda x: torch.linalg.svdvals(x).sum(), torch.randn(3, 3))
    assert not report[F32].skipped
    if torch.device("cpu").type == "cpu":
        assert "not implemented for 'Half'" in report[F16].skipped
    assert str(report[F16]).startswith("float16: skipped, ")
    assert report.to_dict()["float16"] == {"skipped": report[F16].skipped}


def test_a_model_in_bfloat16_alone():
    net = MLP().bfloat16()
    run = precision(net, torch.randn(4, 8, dtype=BF16), dtypes=BF16)[BF16]
    assert 0 < run.error < 0.05
    assert run.scales.one_is_safe
    assert {each.dtype for each in net.parameters()} == {BF16}


def test_casts_that_f_writes_itself_are_exact_in_the_reference():
    x = torch.randn(50)
    run = precision(lambda x: (x.to(F16) ** 3).float().sum() + (x.half() ** 2).float().sum(), x, dtypes=[F32])[F32]
    exact = (3 * x.double() ** 2 + 2 * x.double()).norm()
    assert run.gradients[0].lost.norm == pytest.approx(float(exact), rel=1e-14)
    assert 0 < run.error < 1e-2
    assert run.lowest is F16


def test_called_inside_autocast_the_function_runs_under_it():
    a = torch.randn(4, 4)
    with torch.autocast("cpu", BF16):
        run = precision(lambda a: (a @ a).float().sum(), a, dtypes=[F32])[F32]
        assert torch.is_autocast_enabled("cpu")
    assert run.lowest is BF16
    assert run.error > 1e-4


def test_several_outputs_and_seeds_by_name():
    report = precision(lambda x: {"a": x * 1.0, "b": x * 2.0}, torch.ones(3), seed={"a": 1.0, "b": 1e-9}, dtypes=[F16])
    assert "the seed for output['b'] underflows to zero" in str(report)
    assert [each.lost.zeroed for each in report[F16].seeds] == [0.0, 1.0]


def test_integer_outputs_are_left_alone():
    run = precision(lambda x: (x.sum(), x.argmax()), torch.rand(3), seed=(1.0, None), dtypes=[F16])[F16]
    assert run.error == 0


def test_what_it_is_differentiated_by():
    net, x = MLP(), torch.randn(2, 8)

    def names(**kwargs):
        return [each.name for each in precision(net, x, dtypes=[F32], **kwargs)[F32].gradients]

    every = ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert names() == every
    assert names(wrt="parameters") == every
    assert names(wrt=0) == ["x"]
    assert names(wrt=("first.bias", "x")) == ["first.bias", "x"]
    net.first.requires_grad_(False)
    assert names() == every[2:]
    x.requires_grad_()
    assert names() == ["x", *every[2:]]
    net.requires_grad_(False)
    x.requires_grad_(False)
    assert names() == ["x"]


def test_sparse_gradients_and_checkpoints():
    table = nn.Embedding(5, 3, sparse=True)
    ids = torch.tensor([1, 3])
    run = precision(lambda i: (table(i) ** 2).sum(), ids, dtypes=[F16])[F16]
    assert run.gradients[0].lost.norm > 0
    net, x = MLP(), torch.randn(4, 8)
    report = precision(lambda x: torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum(), x)
    assert 1e-9 < report[F32].error < 1e-5 < report[BF16].error < 0.05


def test_nested_inputs():
    parts = [torch.randn(2), torch.randn(3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    run = precision(lambda n: (n**3 * 1e-5).values().sum(), nested, dtypes=[F16])[F16]
    exact = torch.cat([3e-5 * part.double() ** 2 for part in parts]).norm()
    assert run.gradients[0].lost.norm == pytest.approx(float(exact), rel=1e-12)
    assert run.scales.low > 0


def test_to_dict_is_plain():
    data = json.loads(json.dumps(precision(MLP(), torch.randn(3, 8)).to_dict()))
    assert data["float16"]["scale"]["one_is_safe"] is True
    assert set(data["bfloat16"]["gradients"]) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert data["float32"]["gradients"]["first.bias"]["digits"] > 5


def test_a_dtype_that_was_not_asked_for_is_no_run():
    with pytest.raises(KeyError):
        precision(lambda x: x, torch.ones(1), dtypes=[F16])[BF16]


X = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: precision(3, X), ArgumentError, "f is not a function\n  got: int\n  fix: pb.precision(model, x)"),
        (lambda: precision(abs, X.to(torch.complex64)), ArgumentError,
         "x is complex, and half precision has no complex numbers to compare\n  got: torch.complex64\n"
         "  fix: torch.view_as_real(x) as the input, and torch.view_as_complex inside f"),
        (lambda: precision(torch.fft.fft, X), ArgumentError,
         "the output of shape (2,) (FftR2CBackward0) is complex, and half precision has no complex numbers to compare\n"
         "  got: torch.complex128\n  fix: return torch.view_as_real(y), or y.abs()"),
        (lambda: precision(lambda i: i, torch.tensor([1])), ArgumentError,
         "there is no floating-point tensor to differentiate by\n  got: i of torch.int64\n"
         "  fix: pass floating-point tensors as inputs, or a module with parameters"),
        (lambda: precision(lambda: X), ArgumentError,
         "there is no floating-point tensor to differentiate by\n  got: no tensor"),
        (lambda: precision(lambda x: x, X, dtypes="float16"), ArgumentError,
         "dtypes= is no sequence of dtypes\n  got: 'float16'\n  fix: dtypes=(torch.float16, torch.bfloat16)"),
        (lambda: precision(lambda x: x, X, dtypes=[torch.float64]), ValueMismatch,
         "dtypes= names what is compared with float64\n  got: torch.float64\n"
         "  fix: of torch.float32, torch.bfloat16 and torch.float16, at least one"),
        (lambda: precision(lambda x: x, X, dtypes=[]), ValueMismatch,
         "dtypes= names what is compared with float64\n  got: nothing"),
        (lambda: precision(MLP(), torch.ones(1, 8), wrt="first.weigth"), ValueMismatch,
         "wrt names no input and no parameter\n  got: 'first.weigth'\n  fix: wrt='first.weight'"),
        (lambda: precision(lambda x: x, X, wrt="parameter"), ValueMismatch,
         "wrt names no input and no parameter\n  got: 'parameter'\n  fix: wrt='parameters', or some of: x"),
        (lambda: precision(lambda x: x, X, wrt=1), ValueMismatch,
         "wrt counts beyond the arguments\n  got: wrt=1 for 1 of them\n  fix: wrt=0 is the first"),
        (lambda: precision(lambda x: x, X, wrt=1.5), ArgumentError,
         "wrt is an argument's index, or names of parameters and inputs\n  got: wrt=1.5\n"
         "  fix: wrt=0, wrt=\"parameters\", or wrt=(\"layer.weight\",)"),
        (lambda: precision(lambda x: x.detach(), X), GraphError,
         "no output carries a graph: nothing that is differentiated by leads to it\n"
         "  got: the output of shape (2,) of torch.float64\n"
         "  fix: look for .detach(), .item(), .data or torch.no_grad() inside f; or name other tensors in wrt="),
        (lambda: precision(lambda x: x @ X, X), GraphError,
         "f cannot be run in float64, which the others are compared with\n  got: RuntimeError: "),
        (lambda: precision(lambda x: x * 2, X, seed=torch.ones(3)), SeedError,
         "the seed for the output of shape (2,) (MulBackward0) has the wrong shape"),
        (lambda: precision(lambda x: x * 2, X, seed="one"), ValueMismatch,
         "there is no such seed for the output of shape (2,) (MulBackward0)"),
    ],
)  # fmt: skip
def test_bad_input_is_told(call, kind, text):
    with pytest.raises(PullbackError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(text)


@pytest.mark.gpu
def test_on_cuda_the_losses_are_those_of_plain_torch():
    net, x = MLP().cuda(), torch.randn(64, 8, device="cuda")
    run = precision(lambda x: (net(x) ** 2).mean() * 1e-5, x, dtypes=[F16])[F16]
    twin = copy.deepcopy(net).double()
    exact = torch.autograd.grad((twin(x.double()) ** 2).mean() * 1e-5, list(twin.parameters()))
    for gradient, meant in zip(run.gradients, exact, strict=True):
        assert gradient.lost.norm == pytest.approx(float(meant.norm()), rel=1e-10)
    assert not run.scales.one_is_safe
    assert run.places


@pytest.mark.gpu
def test_cuda_autocast_float16_inside():
    net, x = MLP().cuda(), torch.randn(64, 8, device="cuda")

    def f(x):
        with torch.autocast("cuda", F16):
            return net(x).float().square().mean() * 1e-6

    run = precision(f, x, dtypes=[F32])[F32]
    assert run.lowest is F16
    assert run.scales.low > 0
