"""pb.autocast_watch around training steps: what it tells is so, and the training is what it would be without."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from pullback.errors import ArgumentError, ValueMismatch
from pullback.graph import engine
from pullback.precision import looks, watch
from pullback.precision.watch import autocast_watch
from tests.precision.models import CNN, MLP, Transformer, images, loss_of, sequences

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def train(model, scaler, dtype, steps=3, factor=1.0, lr=0.1):
    """Steps of a regression under CPU autocast; the norms of the gradients before each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(32, 8, generator=generator), torch.randn(32, 4, generator=generator)
    scales = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = (model(x).float() - y).square().mean() * factor
        scaler.scale(loss).backward()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return scales


def scaler_of(scale):
    return torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize(("dtype", "scale"), [(BF16, 2.0**16), (F16, 2.0**12), (F16, 2.0**22), (F16, 2.0**-20)])
def test_the_training_is_bit_for_bit_what_it_is_without(dtype, scale):
    plain, watched = MLP(), MLP()
    watched.load_state_dict(plain.state_dict())
    expected = train(plain, scaler_of(scale), dtype)
    with autocast_watch() as w:
        assert train(watched, scaler_of(scale), dtype) == expected
    assert w.trouble == ()
    assert w.looks == w.passes == 3
    for ours, theirs in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours.grad, theirs.grad) or (ours.grad.isnan() == theirs.grad.isnan()).all()
        assert not ours._backward_hooks


@pytest.mark.parametrize(("model", "data"), [(CNN, images), (Transformer, sequences)])
def test_bfloat16_loses_no_range(model, data):
    net, (x, y) = model(), data()
    with autocast_watch() as w:
        loss_of(net, BF16)(x, y).backward()
    assert w.trouble == ()
    assert (w.is_safe, w.findings, w.advice, w.advised, w.scale) == (True, (), (), None, None)
    assert w.nodes[BF16] > 3
    assert w.nodes[F32] > 3
    assert "nothing is lost: no cotangent leaves the range of its dtype" in str(w)
    assert "working without a loss scale is safe; headroom in powers of two: " in str(w)
    assert min(w.headroom) > 50
    assert all(each.dtype is BF16 for each in w.ranges)
    assert any(each.module.startswith("net.") and each.place.file.endswith("models.py") for each in w.ranges)


def test_the_nodes_in_low_precision_are_those_of_the_graph():
    net, x = MLP(), torch.randn(4, 8)
    with autocast_watch() as w, torch.autocast("cpu", BF16):
        loss = net(x).float().sum()
        loss.backward()
    stack, seen = [loss.grad_fn], set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [child for child, _ in node.next_functions if child is not None]
    low = [node for node in seen if node._input_metadata[0].dtype is BF16]
    assert w.nodes[BF16] == len(low)
    assert {each.operation + "Backward0" for each in w.ranges} == {node.name() for node in low}


def test_the_headroom_is_that_of_the_cotangents():
    net, x = MLP(), torch.randn(32, 8)
    met = []
    with autocast_watch() as w:
        with torch.autocast("cpu", F16):
            out = net(x)
            out.register_hook(met.append)
            loss = out.float().square().mean() * 64
        loss.backward()
    (cotangent,) = met
    peak, up = cotangent.abs().max().double(), next(each.up for each in w.ranges if each.operation == "Addmm"
                                                     and each.module == "net.second")  # fmt: skip
    assert peak * 2.0**up <= torch.finfo(F16).max < peak * 2.0 ** (up + 1)
    assert w.scale == 64.0


def test_a_small_scale_underflows_and_following_the_advice_lowers_the_error():
    model = MLP()
    x, y = torch.randn(32, 8), torch.randn(32, 4)

    def gradient(model, scale, dtype=F16):
        params = list(model.parameters())
        if dtype is None:
            loss = (model(x.double()) - y).square().mean() * 1e-5
        else:
            with torch.autocast("cpu", dtype):
                loss = (model(x).float() - y).square().mean() * 1e-5
        found = torch.autograd.grad(loss * scale, params)
        return torch.cat([each.double().flatten() for each in found]) / scale

    with autocast_watch() as w:
        gradient(model, 1.0)
    assert not w.is_safe
    assert {each.kind for each in w.findings} >= {"underflow"}
    power = w.advised
    assert power == 2.0 ** (w.headroom[0] - 3)
    assert w.advice[0].startswith(
        f"raise the loss scale to 2^{round(torch.tensor(power).log2().item())}, torch.amp.Grad"
    )
    exact = gradient(copy.deepcopy(model).double(), 1.0, None)
    before, after = (float((gradient(model, scale) - exact).norm() / exact.norm()) for scale in (1.0, power))
    assert before > 0.02
    assert after < 0.1 * before
    with autocast_watch() as again:
        gradient(model, power)
    assert again.is_safe


def test_all_zero_gradients_are_told_by_name():
    model = MLP()
    with autocast_watch() as w:
        train(model, scaler_of(1.0), F16, factor=1e-12, steps=1)
    zero = [each.operation for each in w.findings if each.kind == "zero gradient"]
    assert zero == ["model.second.weight", "model.second.bias", "model.first.weight", "model.first.bias"] or set(
        zero
    ) == {f"model.{name}" for name, _ in model.named_parameters()}
    assert all(not parameter.grad.any() for parameter in model.parameters())
    assert "its gradient underflowed to zero wholly" in str(w)
    assert "nothing but zeros comes to the nodes in low precision" in str(w)
    assert w.advised > 1


def test_a_dead_relu_is_no_underflow():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].bias.fill_(-1000.0)
    with autocast_watch() as w:
        with torch.autocast("cpu", F16):
            loss = model(torch.randn(5, 8)).float().sum()
        loss.backward()
    assert not model[0].weight.grad.any()
    assert w.findings == ()


def test_what_only_chooses_makes_zeros_of_small_numbers_too():
    x = torch.randn(20, requires_grad=True)
    with autocast_watch() as w:
        h = (x * 1.0).half()
        (torch.relu(-1 - h.abs()).float().sum() * 2.0**-10).backward()
    assert not x.grad.any()
    assert w.findings == ()


def test_no_hook_stays_on_a_graph_that_is_kept(monkeypatch):
    x = torch.randn(3, requires_grad=True)
    loss = (h := x.half() * 2).float().sum() + h.float().sum()
    with autocast_watch() as w:
        loss.backward(retain_graph=True)
    assert w.looks == 1
    looked = []
    monkeypatch.setattr(looks, "look", looked.append)
    loss.backward(retain_graph=True)
    assert looked == []
    with autocast_watch():
        loss.backward()
    assert looked


def test_a_large_scale_overflows_and_the_skipped_steps_are_told():
    model, scaler = MLP(), scaler_of(2.0**22)
    before = copy.deepcopy(model.state_dict())
    with autocast_watch(scaler) as w:
        scales = train(model, scaler, F16, steps=1)
    assert scales == [2.0**22]
    assert scaler.get_scale() == 2.0**21  # the scaler skipped the step, as was told
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    skipped = {each.operation for each in w.findings if each.kind == "skipped step"}
    bad = {f"model.{name}" for name, each in model.named_parameters() if not each.grad.isfinite().all()}
    assert skipped == bad
    assert bad
    (overflow,) = [each for each in w.findings if each.kind == "overflow"]
    assert overflow.operation == "ToCopy"
    assert "model(x).float()" in overflow.place.text
    assert w.headroom[0] == -1
    assert w.scale == 2.0**22
    assert w.advised == 2.0**18
    assert "loss scale 2^22 is not safe; headroom in powers of two: it overflows" in str(w)
    assert "a GradScaler skips this step" in str(w)
    assert w.advice == ("lower the loss scale to 2^18, torch.amp.GradScaler(init_scale=2.0**18); then look again",)


def test_what_was_lost_under_an_earlier_scale_does_not_judge_the_one_in_use():
    model, scaler = MLP(), scaler_of(2.0**22)
    with autocast_watch(scaler) as w:
        train(model, scaler, F16, steps=12)
    assert w.is_safe
    assert w.findings
    assert w.headroom[0] >= 0
    assert w.advice == ()
    assert "(at scale 2^" in str(w)
    assert all(1 <= each.first <= 12 for each in w.findings)
    assert max(each.times for each in w.findings) > 1
    assert f"(in {max(each.times for each in w.findings)} passes)" in str(w)


def test_a_module_that_no_scale_helps_is_told():
    class Far(nn.Module):
        def forward(self, h):
            return (h * 1e-4) * 1e-4 * 1e-4

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine = nn.Linear(8, 8)
            self.far = Far()

        def forward(self, x):
            h = self.fine(x)
            return self.far(h).float().sum() + (h * 1e3).float().sum() * 1e3

    model = Both()
    with autocast_watch() as w:
        with torch.autocast("cpu", F16):
            loss = model(torch.randn(4, 8)) * 64
        loss.backward()
    assert {each.kind for each in w.findings} >= {"overflow", "underflow"}
    assert w.advised is None
    assert (
        "keep model.far in float32, which no loss scale helps: with torch.autocast(device, enabled=False): "
        "call it with x.float()"
    ) in w.advice


def test_a_cotangent_that_is_lost_in_a_sum_is_told():
    x = torch.randn(64, requires_grad=True)
    with autocast_watch() as w:
        h = (x * 1.0).bfloat16()
        ((h * 1e-5).float().sum() + (h * 2.0).float().sum()).backward()
    assert [each.kind for each in w.findings] == ["rounding"]
    assert "one of the cotangents that are summed here is too small beside the others for bfloat16" in str(w)
    assert torch.equal(x.grad, torch.full((64,), 2.0))  # as if the first were not there
    assert w.is_safe


def test_a_gradient_that_is_lost_in_what_grad_holds_is_told():
    model = nn.Linear(4, 1).bfloat16()
    x = torch.rand(3, 4).bfloat16() + 1
    model(x).sum().backward()
    held = model.weight.grad.clone()
    with autocast_watch() as w:
        (model(x) * 1e-4).sum().backward()
    assert torch.equal(model.weight.grad, held)
    assert {(each.kind, each.operation) for each in w.findings} == {
        ("rounding", "model.weight"),
        ("rounding", "model.bias"),
    }
    assert "its gradient is too small beside what .grad holds already: bfloat16 rounds the sum" in str(w)


@pytest.mark.parametrize(("scale", "told"), [(1024.0, 1024.0), (torch.tensor(512.0), 512.0), (3, 3.0)])
def test_the_scale_is_read_off_the_loss(scale, told):
    x = torch.randn(3, requires_grad=True)
    with autocast_watch() as w:
        (x.half().float().sum() * scale).backward()
    assert w.scale == told
    with autocast_watch() as w:
        x.half().float().sum().backward(torch.tensor(float(scale)))
    assert w.scale == told


def test_grad_vmap_and_failing_passes():
    x = torch.randn(3, requires_grad=True)
    with autocast_watch() as w:
        torch.autograd.grad(x.half().float().sum(), x)
        y = x.half() * 2
        torch.autograd.grad(y, x, torch.eye(3).half(), is_grads_batched=True)
        loss = x.half().float().exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        x.half().float().sum().backward()
    assert w.passes == 5
    assert w.looks == 3
    assert w.trouble == ()


def test_a_pass_from_an_edge_is_told_not_to_be_looked_at():
    x = torch.randn(3, requires_grad=True)
    try:
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(x.sum()), torch.tensor(1.0))
    except AssertionError:
        pytest.skip("this torch starts no backward pass from an edge")
    x.grad = None
    with autocast_watch() as w:
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(x.half().float().sum()), torch.tensor(1.0))
    assert torch.equal(x.grad, torch.ones(3))
    assert w.trouble == ("NotImplementedError: a backward pass from an edge of the graph is not looked at",)


def test_custom_functions_threads_and_passes_inside_passes():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def step():
        x = torch.randn(4, requires_grad=True)
        (Double.apply(x.half()) ** 3).float().sum().backward()

    def inside(a):
        return (a.half() ** 2).float().sum()

    x = torch.randn(4, requires_grad=True)
    with autocast_watch() as w:
        step()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        torch.utils.checkpoint.checkpoint(inside, x, use_reentrant=True).backward()  # a pass inside this one
        (g,) = torch.autograd.grad((x.half() ** 3).float().sum(), x, create_graph=True)
        g.sum().backward()
    assert (w.passes, w.looks, w.trouble) == (5, 5, ())
    assert "Double" in {each.operation for each in w.ranges}
    assert torch.allclose(x.grad, 6 * x.detach() + 2 * x.detach(), rtol=1e-2)


def test_it_looks_at_every_so_many():
    model = MLP()
    with autocast_watch(every=3) as w:
        train(model, scaler_of(1.0), BF16, steps=7)
    assert (w.passes, w.looks) == (7, 3)
    assert str(w).startswith("autocast watch: looked at 3 of 7 backward passes\n")
    assert repr(w) == "<AutocastWatch: 0 findings>"


def test_trouble_never_reaches_the_user(monkeypatch):
    model = MLP()

    def broken(*args, **kwargs):
        raise ZeroDivisionError("in the watch")

    plain = copy.deepcopy(model)
    train(plain, scaler_of(1.0), BF16, steps=2)
    for place, name in ((looks, "walk"), (looks, "look"), (watch, "find")):
        twin = MLP()
        twin.load_state_dict(model.state_dict())
        with monkeypatch.context() as patch:
            patch.setattr(place, name, broken)
            with autocast_watch() as w:
                train(twin, scaler_of(1.0), BF16, steps=2)
        assert w.trouble == ("ZeroDivisionError: in the watch",) * 2
        assert "trouble: ZeroDivisionError: in the watch" in str(w)
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), plain.parameters(), strict=True))
    assert torch.autograd.graph._engine_run_backward.__module__ == "torch.autograd.graph"


def test_an_error_of_the_user_passes_and_nothing_stays_behind():
    x = torch.randn(3, requires_grad=True)
    w = autocast_watch()

    def step():
        with w:
            x.half().float().sum().backward()
            raise KeyError("of the user")

    with pytest.raises(KeyError):
        step()
    assert w.looks == 1
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward
    assert torch.autograd.graph._engine_run_backward.__module__ == "torch.autograd.graph"


def test_nothing_seen_says_nothing():
    with autocast_watch() as w:
        pass
    assert str(w) == "autocast watch: looked at 0 of 0 backward passes"
    x = torch.randn(3, requires_grad=True)
    with autocast_watch() as w:
        (x * 2).sum().backward()
    assert "working without a loss scale: no node is in low precision" in str(w)


def test_bad_input_is_told():
    with pytest.raises(ArgumentError) as caught:
        autocast_watch(2.0**16)
    assert str(caught.value) == (
        "scaler= is no gradient scaler\n  got: float\n  fix: the torch.amp.GradScaler of the loop"
    )
    for every in (0, 1.5, True):
        with pytest.raises(ValueMismatch) as mismatch:
            autocast_watch(every=every)
        assert str(mismatch.value) == f"every= is a number of backward passes.\n  got: every={every!r}\n  fix: every=10"


def test_the_engine_tells_several_and_is_put_back():
    class Heard:
        def __init__(self):
            self.told = []

        def begins(self, roots, seeds, options, frame):
            self.told.append(("begins", len(roots), frame.f_code.co_name))

        def ended(self, frame, *, failed):
            self.told.append(("ended", failed))

    one, two = Heard(), Heard()
    original = torch.autograd.graph._engine_run_backward
    engine.listen(one)
    engine.listen(two)
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    engine.forget(one)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(x.sum(), torch.ones(1, requires_grad=True))
    engine.forget(two)
    x.sum().backward()
    assert one.told == [("begins", 1, "backward"), ("ended", False)]
    assert two.told == [*one.told, ("begins", 1, "grad"), ("ended", True)]
    assert torch.autograd.graph._engine_run_backward is original
    assert torch.autograd._engine_run_backward is original


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 2.0**12, 2.0**30])
def test_on_cuda_with_its_scaler(scale):
    model = MLP().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=scale)
    x, y = torch.randn(64, 8, device="cuda"), torch.randn(64, 4, device="cuda")
    with autocast_watch(scaler) as w:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cuda", F16):
                loss = (model(x).float() - y).square().mean() * (1e-6 if scale == 1.0 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert w.trouble == ()
    assert w.nodes[F16] > 3
    assert w.is_safe == (scale == 2.0**12)
