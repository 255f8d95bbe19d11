"""A replay ends in torch's gradients bit for bit, tells what every node did, and leaves nothing behind."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pullback.autodiff.reach import edge_of
from pullback.errors import GraphError, ValueMismatch
from pullback.graph.replaying import replay as engine
from pullback.graph.replaying.births import MOST
from pullback.graph.replaying.local import local_jacobian
from pullback.graph.replaying.replay import MATRICES, replay
from pullback.graph.replaying.statistics import postpone, settle, statistics
from pullback.graph.replaying.steps import Replay, Step, share

HALVES = [torch.float16, torch.bfloat16]
TINY = torch.finfo(torch.float16).tiny


def nodes_of(outputs):
    """Every node with its number, and the leaves: the plainest walk there is."""
    with torch.inference_mode(False), torch.enable_grad():
        stack, index_of = [edge_of(output)[0] for output in outputs], {}
    while stack:
        node = stack.pop()
        if node not in index_of:
            index_of[node] = len(index_of)
            stack.extend(child for child, _ in node.next_functions if child is not None)
    return index_of, [(index, node.variable) for node, index in index_of.items() if hasattr(node, "variable")]


def run(*outputs: Tensor, seeds=None, labels=()) -> Replay:
    index_of, leaves = nodes_of(outputs)
    seeds = [torch.ones_like(output) for output in outputs] if seeds is None else seeds
    return replay(outputs, seeds, leaves, index_of, labels=labels)


def same(*outputs: Tensor, seeds=None) -> Replay:
    """A replay whose gradients were compared with torch's, before and after."""
    seeds = [torch.randn_like(output) for output in outputs] if seeds is None else seeds
    index_of, leaves = nodes_of(outputs)
    grads = [leaf.grad for _, leaf in leaves]
    plain = [
        torch.autograd.grad(outputs, [leaf for _, leaf in leaves], seeds, retain_graph=True, allow_unused=True)
        for _ in range(2)
    ]
    found = replay(outputs, seeds, leaves, index_of)
    after = torch.autograd.grad(outputs, [leaf for _, leaf in leaves], seeds, retain_graph=True, allow_unused=True)
    assert set(found.gradients) == {index for index, _ in leaves}
    for (index, leaf), expected, again, later, grad in zip(leaves, *plain, after, grads, strict=True):
        assert equal(expected, again), "not a test: torch itself gives different numbers each time"
        assert equal(found.gradients[index], expected)
        assert equal(later, expected)
        assert leaf.grad is grad
    check_flow(found, index_of, outputs, leaves)
    return found


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    one, other = (each.to_dense() if each.layout is torch.sparse_coo else each for each in (one, other))
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bits(one), bits(other))


def bits(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def check_flow(found: Replay, index_of, outputs, leaves) -> None:
    """Each node once, after all that it receives from; each cotangent of the shape of the value it belongs to."""
    place = {step.node: number for number, step in enumerate(found.steps)}
    assert len(place) == len(found.steps)
    for node, index in index_of.items():
        if index not in place:
            continue
        step = found.steps[place[index]]
        for each, meta in zip(step.incoming, node._input_metadata, strict=True):
            if each is not None and not meta.is_nested_tensor:
                assert each.shape == tuple(meta.shape)
                assert each.dtype == meta.dtype
        if index in dict(leaves):
            assert step.outgoing == ()
            continue
        for (child, _), each in zip(node.next_functions, step.outgoing, strict=True):
            if child is None:
                assert each is None
            elif each is not None and index_of[child] in place:
                assert place[index_of[child]] > place[index]
    assert all(step.seconds >= 0 for step in found.steps)


def born(found: Replay, kind: str) -> list[tuple[str, str]]:
    """The operations at which a kind was born, with the sentences."""
    operations = {step.node: step.operation for step in found.steps}
    return [(operations[birth.node], birth.text) for birth in found.births if birth.kind == kind]


def step_of(found: Replay, operation: str) -> Step:
    (step,) = [step for step in found.steps if step.operation == operation]
    return step


class Both(torch.autograd.Function):
    """Two outputs, an argument that is no tensor, and a gradient that is None."""

    @staticmethod
    def forward(ctx, x, factor, constant):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor, x * x + constant

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * ctx.factor + 2 * second * x, None, None


class Bare(torch.autograd.Function):
    """Without zeros for the outputs that nobody used."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        assert second is None or bool((second == 0).all())
        return first * 2


class Sign(torch.autograd.Function):
    """Not linear in its cotangent."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * cotangent


def mlp():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    return nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.tensor([0, 1, 2, 3, 0]))


def cnn():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    return model(torch.randn(3, 2, 6, 6, requires_grad=True)).square().mean()


def shared():
    x = torch.randn(4, requires_grad=True)
    h = x.exp()
    return (h * h + h.sin() + h[1:3].sum() * h + torch.stack([h, h]).prod(0)).sum()


def in_place():
    x = torch.randn(4, 3, requires_grad=True)
    y = x * 2
    y[1:3].mul_(3)
    y[0].copy_(x[1].exp())
    y.add_(1)
    return y.square().sum()


def custom():
    x = torch.randn(3, requires_grad=True)
    first, second = Both.apply(x, 3.0, torch.randn(3))
    return (first.sin() * second + Bare.apply(x)[0]).sum()


def double():
    x = torch.randn(4, requires_grad=True)
    y = (nn.functional.softplus(x) * x).pow(2).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return gradient.square().sum()


def checkpointed():
    layer, head = nn.Linear(4, 4), nn.Linear(4, 1)
    x = torch.randn(2, 4, requires_grad=True)
    return head(checkpoint(lambda t: layer(t).tanh(), x, use_reentrant=False)).sum()


def gru():
    return nn.GRU(3, 4, num_layers=2)(torch.randn(5, 2, 3, requires_grad=True))[0].sum()


def lstm():
    out, (h, c) = nn.LSTM(3, 4)(torch.randn(5, 2, 3))
    return out.sum() + h.prod() + c.sum()


def complex_numbers():
    x = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    return torch.fft.ifft(torch.fft.fft(x) * w).abs().sum()


def seeded_complex():
    return torch.randn(3, dtype=torch.complex64, requires_grad=True).conj() * torch.randn(3, requires_grad=True)


def float16():
    w = torch.randn(4, 4, requires_grad=True)
    return (torch.randn(3, 4).half() @ w.half()).relu().float().sum()


def bfloat16():
    layer = nn.Linear(4, 4).bfloat16()
    return layer(torch.randn(3, 4).bfloat16()).softmax(-1)[:, 0].sum()


def sparse():
    table = nn.Embedding(6, 3, sparse=True)
    return (table(torch.tensor([1, 1, 4])) ** 2).sum()


def attention():
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    return nn.functional.scaled_dot_product_attention(q, q * 2, q.sin()).sum()


def nested():
    parts = [torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged).sin().values().sum()


PROGRAMS = [mlp, cnn, shared, in_place, custom, double, checkpointed, gru, lstm, complex_numbers, seeded_complex]
PROGRAMS += [float16, bfloat16, sparse, attention, nested]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_gradients_are_torchs_bit_for_bit(program):
    found = same(program())
    assert str(found)
    assert all(found.step(number) for number in range(len(found.steps)))


def test_several_outputs_each_with_its_seed():
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y = x * w
    same(y, y.exp(), (x + 1).sum(), x)
    first, second = Both.apply(x, 2.0, w.detach())
    same(second, first.sum())


def test_an_output_that_is_a_leaf():
    x = torch.randn(3, requires_grad=True)
    seed = torch.tensor([1.0, 2.0, 3.0])
    found = run(x, seeds=[seed])
    (step,) = found.steps
    assert step.operation == "leaf"
    assert torch.equal(step.incoming_values[0], seed)
    assert step.outgoing == ()


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(off):
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    with off():
        found = run(y, x, seeds=[torch.ones(3), torch.ones(3)])
    (gradient,) = found.gradients.values()
    assert torch.equal(gradient, x.detach().exp() + 1)
    assert not gradient.is_inference()


def test_an_unused_leaf_has_no_gradient_and_no_step():
    x, lonely = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y, other = x * 2, lonely * 2
    index_of, leaves = nodes_of([y, other])
    found = replay([y], [torch.ones(3)], leaves, index_of)
    index = index_of[edge_of(lonely)[0]]
    assert found.gradients[index] is None
    assert index not in {step.node for step in found.steps}


def test_a_long_chain():
    x = torch.randn(1, requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y * 1.0001
    found = same(y)
    assert len(found.steps) == 20_001
    assert found.steps[0].local.matrix is not None
    assert found.steps[MATRICES].local.matrix is None
    assert "only the first" in found.steps[MATRICES].local.note
    text = str(found)
    assert "19,941 more" in text
    assert len(text.splitlines()) < 80


def test_hooks_of_the_user_run_as_in_a_backward_pass():
    calls = []
    x = torch.randn(3, requires_grad=True)
    h = x.exp()
    h.register_hook(lambda g: calls.append("tensor") or g * 2)
    x.register_hook(lambda g: calls.append("leaf") or g + 1)
    x.register_post_accumulate_grad_hook(lambda t: calls.append("accumulated"))
    y = h.sin()
    y.grad_fn.register_prehook(lambda gs: calls.append("pre") or (gs[0] * 3,))
    y.grad_fn.register_hook(lambda gi, go: calls.append("post") or (gi[0] * 5,))
    plain = torch.autograd.grad(y, x, torch.ones(3), retain_graph=True)
    order = list(calls)
    calls.clear()
    found = run(y)
    assert calls == order
    assert "accumulated" not in calls
    assert torch.equal(next(iter(found.gradients.values())), plain[0])
    sine = step_of(found, "SinBackward0")
    assert sine.incoming_values[0].tolist() == [3.0, 3.0, 3.0]
    sent = 3 * h.detach().cos() * 5
    assert torch.equal(sine.outgoing_values[0], sent)
    assert sine.local.matrix is None
    assert "a hook changed it" in sine.local.note
    exponential = step_of(found, "ExpBackward0")
    assert torch.equal(exponential.incoming_values[0], 2 * sent)
    assert x.grad is None


def test_a_hook_that_writes_in_place_is_seen():
    x = torch.randn(3, requires_grad=True)
    h = x.exp()

    def write(gradient):
        gradient.fill_(7.0)

    h.register_hook(write)
    found = run(h.sin())
    assert step_of(found, "ExpBackward0").incoming_values[0].tolist() == [7.0, 7.0, 7.0]
    assert step_of(found, "ExpBackward0").incoming[0].high == 7.0
    assert torch.equal(step_of(found, "SinBackward0").outgoing_values[0], h.detach().cos())


def count_hooks(monkeypatch, outputs):
    """How many hooks were put on nodes and taken off again."""
    counts = {"put": 0, "off": 0}
    index_of, _ = nodes_of(outputs)
    remove = torch.utils.hooks.RemovableHandle.remove

    def counted(handle):
        counts["off"] += 1
        remove(handle)

    monkeypatch.setattr(torch.utils.hooks.RemovableHandle, "remove", counted)
    counts["put"] = 2 * sum(bool(node.next_functions) for node in index_of)
    return counts


def test_no_hook_stays(monkeypatch):
    y = mlp()
    counts = count_hooks(monkeypatch, [y])
    run(y)
    assert counts["off"] == counts["put"] > 0


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_no_hook_stays_when_the_users_raises_and_its_error_comes_through(monkeypatch, kind):
    x = torch.randn(3, requires_grad=True)
    h = x.exp()
    y = h.sin().sum()

    def fail(gradient):
        raise kind("from the user's hook")

    handle = h.register_hook(fail)
    seen = []
    monkeypatch.setattr(engine, "measure", lambda t: seen.append(t) or statistics(t))
    counts = count_hooks(monkeypatch, [y])
    with pytest.raises(kind, match="from the user's hook"):
        run(y)
    assert counts["off"] == counts["put"] > 0
    handle.remove()
    before = len(seen)
    assert before
    y.backward()
    assert len(seen) == before
    assert torch.equal(x.grad, x.detach().exp().cos() * x.detach().exp())


def test_an_error_of_a_custom_function_comes_through():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            raise LookupError("from the user's backward")

    with pytest.raises(LookupError, match="from the user's backward"):
        run(Failing.apply(torch.randn(2, requires_grad=True)))


def test_another_backward_pass_inside_a_hook_is_not_taken_for_this_one():
    x = torch.randn(3, requires_grad=True)
    h = x.exp()
    between = h.sin()
    y = between * 2
    total = h.sum()
    for tensor in (y, between):
        tensor.register_hook(lambda g: torch.autograd.grad(total, x, retain_graph=True) and None)
    found = run(y)
    assert [step.operation for step in found.steps] == ["MulBackward0", "SinBackward0", "ExpBackward0", "leaf"]


def test_nothing_is_kept_alive():
    x = torch.randn(100, requires_grad=True)
    h = x.exp()
    y = (h.sin() * h).sum()
    kept = weakref.ref(h.untyped_storage()), weakref.ref(h)
    saved = torch._C._WeakTensorRef(h) if hasattr(torch._C, "_WeakTensorRef") else None
    found = run(y)
    del y, h
    gc.collect()
    assert kept[1]() is None
    assert saved is None or saved.expired()
    assert found.steps
    gradient = weakref.ref(next(iter(found.gradients.values())))
    del found
    gc.collect()
    assert gradient() is None


def test_a_replay_holds_neither_nodes_nor_graph():
    x = torch.randn(2, requires_grad=True)
    y = x.exp().sum()
    found = run(y)
    shown = [value for step in found.steps for value in (*step.incoming_values, *step.outgoing_values)]
    assert shown
    assert all(value.grad_fn is None and not value.requires_grad for value in shown if value is not None)
    node = y.grad_fn
    assert not [each for each in gc.get_referrers(node) if isinstance(each, Step)]


def test_a_freed_graph():
    x = torch.randn(3, requires_grad=True)
    y = x.exp().sum()
    y.backward()
    with pytest.raises(GraphError, match="freed by an earlier backward pass") as error:
        run(y)
    assert "retain_graph=True" in error.value.fix


def test_reentrant_checkpointing_is_refused():
    x = torch.randn(3, requires_grad=True)
    y = checkpoint(torch.exp, x, use_reentrant=True).sum()
    with pytest.raises(GraphError, match="reentrant checkpointing runs only in a backward pass") as error:
        run(y)
    assert error.value.fix == "use_reentrant=False"
    assert x.grad is None


def test_tensors_without_numbers_are_refused():
    y = torch.randn(3, device="meta", requires_grad=True) * 2
    with pytest.raises(GraphError, match="no numbers to replay"):
        run(y)


def test_checkpointed_nodes_are_not_run_again_for_a_matrix():
    runs = []
    x = torch.randn(3, requires_grad=True)
    y = checkpoint(lambda t: runs.append(1) or t.exp().sin(), x, use_reentrant=False)
    found = run(y)
    assert len(runs) == 2
    assert "packed by a hook" in step_of(found, "ExpBackward0").local.note


# Statistics


def numbers(dtype):
    info = torch.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, info.tiny, info.tiny / 2, -info.tiny / 4, info.max]
    return st.lists(st.sampled_from(special) | st.floats(-1e4, 1e4), max_size=12).map(
        lambda values: torch.tensor(values, dtype=dtype)
    )


FLOATS = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


@given(FLOATS.flatmap(numbers))
def test_statistics_are_numpys_in_float64(tensor):
    values = tensor.to(torch.float64).numpy()
    for found in (statistics(tensor), settle([postpone(tensor)])[0]):
        assert (found.shape, found.dtype, found.numel) == (tuple(tensor.shape), tensor.dtype, tensor.numel())
        if not values.size:
            assert (found.norm, found.low, found.high) == (0.0, None, None)
            assert (found.zeros, found.nans, found.infs, found.subnormal) == (0, 0, 0, 0)
            continue
        with np.errstate(all="ignore"):
            scale = np.abs(values).max() or 1.0
            norm = np.linalg.norm(values / scale) * scale if np.isfinite(scale) else scale
        assert found.norm == pytest.approx(float(norm), rel=1e-6, nan_ok=True)
        assert (found.low, found.high) == pytest.approx((values.min(), values.max()), rel=0, nan_ok=True)
        size = np.abs(values)
        assert found.zeros == np.mean(size == 0)
        assert found.nans == np.mean(np.isnan(values))
        assert found.infs == np.mean(np.isinf(values))
        assert found.subnormal == np.mean((size > 0) & (size < torch.finfo(tensor.dtype).tiny))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_statistics_of_more_than_a_chunk(dtype):
    tensor = torch.randn(3, 70_001).to(dtype)
    tensor[0, :1000] = 0
    tensor[2, -5:] = torch.finfo(dtype).tiny / 2
    for each in (tensor, tensor.t(), tensor[:, ::2], tensor[:1].expand(3, -1)):
        values = each.to(torch.float64).numpy()
        found = statistics(each)
        assert found.norm == pytest.approx(np.linalg.norm(values), rel=1e-5)
        assert (found.low, found.high) == (values.min(), values.max())
        assert found.zeros == np.mean(values == 0)
        assert found.subnormal == np.mean((values != 0) & (np.abs(values) < torch.finfo(dtype).tiny))


def test_a_norm_does_not_overflow():
    assert statistics(torch.full((100,), 6e4, dtype=torch.float16)).norm == pytest.approx(6e5, rel=1e-2)
    assert statistics(torch.full((100,), 1e30)).norm == pytest.approx(1e31)
    for found in (statistics, lambda t: settle([postpone(t)])[0]):
        assert found(torch.full((100,), 1e300, dtype=torch.float64)).norm == pytest.approx(1e301)
        assert found(torch.full((100,), 1e-300, dtype=torch.float64)).norm == pytest.approx(1e-299)


def test_statistics_of_complex_numbers_are_of_magnitudes():
    found = statistics(torch.tensor([3 + 4j, 0, 1j, complex(math.nan, 0)]).conj())
    assert (found.zeros, found.nans) == (0.25, 0.25)
    found = statistics(torch.tensor([3 + 4j, 0, 1j]).conj())
    assert (found.low, found.high) == (0, 5)
    assert found.norm == pytest.approx(math.sqrt(26))
    found = statistics(torch.tensor([3 + 4j, 2 - 1j]).conj().imag)
    assert (found.low, found.high) == (-4, 1)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_statistics_of_sparse_tensors_are_those_of_the_whole():
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    twice = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [0.5, 1.5, 3.0], (2, 3))
    for each in (twice, dense.to_sparse_coo(), dense.to_sparse_csr(), (0 * dense).to_sparse_coo()):
        assert statistics(each) == statistics(each.to_dense())


def test_statistics_of_nested_tensors():
    parts = [torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [-4.0, 0.0]])]
    found = statistics(torch.nested.nested_tensor(parts, layout=torch.jagged))
    assert (found.shape, found.numel, found.zeros, found.low, found.high) == ((2, -1, 2), 6, 0.5, -4, 3)


def test_shares_are_never_rounded_to_none_or_all():
    assert [share(part) for part in (0.0, 1e-9, 0.25, 1 - 1e-9, 1.0)] == [
        "0 %",
        "< 0.1 %",
        "25.0 %",
        "> 99.9 %",
        "100 %",
    ]


@pytest.mark.gpu
def test_the_same_numbers_on_a_gpu():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    x = torch.randn(5, 6)
    here = run(model(x).sum())
    there = run(model.cuda()(x.cuda()).sum())
    assert [step.operation for step in here.steps] == [step.operation for step in there.steps]
    for one, other in zip(here.steps, there.steps, strict=True):
        for left, right in zip((*one.incoming, *one.outgoing), (*other.incoming, *other.outgoing), strict=True):
            if left is not None:
                assert right.norm == pytest.approx(left.norm, rel=1e-3, abs=1e-5)
                assert right.zeros == pytest.approx(left.zeros)
    assert all(
        value.device.type == "cpu" for step in there.steps for value in step.incoming_values if value is not None
    )
    same(model(torch.randn(5, 6, device="cuda")).sum())


# Births


def test_a_nan_behind_a_where():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    found = run(torch.where(x > 0, x.sqrt(), 0.0).sum())
    ((operation, text),) = born(found, "nan")
    assert operation == "SqrtBackward0"
    assert text == "NaN (1 of 2 numbers, 50.0 %) born here, for argument 0"
    assert "SqrtBackward0: NaN" in str(found)


def test_an_inf_of_a_square_root_at_zero():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    found = run(x.sqrt())
    ((operation, text),) = born(found, "inf")
    assert operation == "SqrtBackward0"
    assert "inf (1 of 2 numbers" in text
    assert not born(found, "nan")


def test_a_nan_of_zero_times_inf_says_that_an_inf_came():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    found = run((x * torch.tensor([0.0, 1.0])).sqrt())
    assert [operation for operation, _ in born(found, "inf")] == ["SqrtBackward0"]
    ((operation, text),) = born(found, "nan")
    assert operation == "MulBackward0"
    assert text.endswith(": an inf came in, and 0 · inf and inf - inf are NaN")


def test_an_overflow_of_exp():
    x = torch.tensor([100.0, 0.0], requires_grad=True)
    found = run(x.exp())
    assert [operation for operation, _ in born(found, "inf")] == ["ExpBackward0"]


@pytest.mark.parametrize("dtype", HALVES)
def test_an_overflow_of_half_precision(dtype):
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    big = torch.finfo(dtype).max
    found = run(x * big, seeds=[torch.full((3,), 4.0, dtype=dtype)])
    ((operation, text),) = born(found, "inf")
    assert operation == "MulBackward0"
    assert f"ends at {big:.4g}" in text


def test_an_underflow_to_subnormals():
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    found = run(x * (TINY / 4))
    ((operation, text),) = born(found, "subnormal")
    assert operation == "MulBackward0"
    assert "normal numbers of float16 begin at 6.104e-05" in text


def test_an_underflow_to_zero_in_a_cast():
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    scale = torch.tensor([1e-9, 1.0, 1e-9, 1.0])
    found = run(x.float() * scale)
    ((operation, text),) = born(found, "subnormal")
    assert operation == "ToCopyBackward0"
    assert text.startswith("zeros where there were none (2 of 4 numbers, 50.0 %)")


def test_a_dead_relu():
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    found = run(x.relu() + 1)
    ((operation, text),) = born(found, "zero")
    assert operation == "ReluBackward0"
    assert "nothing but exact zeros born here" in text
    assert not born(run(torch.tensor([-1.0, 2.0], requires_grad=True).relu()), "zero")


def test_an_explosion():
    x = torch.ones(3, requires_grad=True)
    found = run((x * 5000.0).sin())
    ((operation, text),) = born(found, "explosion")
    assert operation == "MulBackward0"
    assert "a norm of" in text


def test_a_sum_and_a_broadcast_over_many_are_no_explosion():
    x = torch.randn(2_000_000, requires_grad=True)
    b = torch.randn(1, requires_grad=True)
    assert not born(run(x.sum()), "explosion")
    assert not born(run(b.expand(500_000)), "explosion")


def test_the_seed_itself():
    x = torch.randn(2, requires_grad=True)
    found = run(x.exp(), seeds=[torch.tensor([math.nan, math.inf])])
    assert [text for _, text in born(found, "nan")] == ["the seed itself has NaN (1 of 2 numbers, 50.0 %)"]
    assert [text for _, text in born(found, "inf")] == ["the seed itself has inf (1 of 2 numbers, 50.0 %)"]
    found = run(x.exp(), seeds=[torch.zeros(2)])
    assert [text for _, text in born(found, "zero")] == ["the seed itself has nothing but exact zeros"]


def test_a_hook_that_injects_a_nan():
    x = torch.randn(2, requires_grad=True)
    h = x.exp()
    h.register_hook(lambda g: g * math.nan)
    ((operation, text),) = born(run(h.sin()), "nan")
    assert operation == "ExpBackward0"
    assert "born on the way into output 0 of this node, by a tensor hook" in text


def test_a_nan_of_two_infs_that_meet():
    x = torch.ones(2, requires_grad=True)
    h = x * 2
    found = run((h * 3e38) * 10 + (h * -3e38) * 10)
    ((operation, text),) = born(found, "nan")
    assert operation == "MulBackward0"
    assert "on the way into output 0 of this node, by the sum of several" in text


def test_a_cancellation_is_a_zero_on_the_way():
    x = torch.ones(2, requires_grad=True)
    h = x.exp()
    ((operation, text),) = born(run(h - h.clone()), "zero")
    assert operation == "ExpBackward0"
    assert "by the sum of several" in text


def test_only_the_first_births_of_a_kind_are_told():
    x = torch.zeros(2, requires_grad=True)
    found = run(sum(x.sqrt() for _ in range(MOST + 4)))
    assert len(born(found, "inf")) == MOST


@pytest.mark.parametrize("program", [mlp, cnn, gru, attention])
def test_healthy_passes_bear_nothing(program):
    found = run(program())
    assert not [birth for birth in found.births if birth.kind != "zero"]


# Local Jacobians

OPERATIONS = {
    "ExpBackward0": (torch.exp, [(3,)]),
    "MulBackward0": (torch.mul, [(2, 2), (2,)]),
    "MmBackward0": (torch.mm, [(2, 3), (3, 2)]),
    "SumBackward1": (lambda x: x.sum(1), [(2, 3)]),
    "SoftmaxBackward0": (lambda x: x.softmax(0), [(4,)]),
    "AddmmBackward0": (torch.addmm, [(2,), (3, 2), (2, 2)]),
    "UnbindBackward0": (lambda x: torch.cat(torch.unbind(x)), [(2, 2)]),
    "CumsumBackward0": (lambda x: x.cumsum(0), [(4,)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_local_jacobians_are_those_of_the_operation(name, dtype):
    function, shapes = OPERATIONS[name]
    arguments = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    found = run(function(*arguments))
    step = step_of(found, name)
    plain = tuple(each.detach() for each in arguments)
    jacobians = torch.func.jacrev(function, argnums=tuple(range(len(plain))))(*plain)
    expected = torch.cat([each.reshape(-1, x.numel()) for each, x in zip(jacobians, plain, strict=True)], 1)
    assert step.local.note == ""
    torch.testing.assert_close(torch.tensor(step.local.matrix, dtype=dtype), expected)
    u = torch.cat([each.reshape(-1) for each in step.incoming_values])
    v = torch.cat([each.reshape(-1) for each in step.outgoing_values if each is not None])
    torch.testing.assert_close(u @ torch.tensor(step.local.matrix, dtype=dtype), v)


def test_the_local_jacobian_of_a_custom_function():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    first, second = Both.apply(x, 5.0, torch.zeros(2))
    step = step_of(run(first, second), "BothBackward")
    assert step.local.matrix == ((5.0, 0.0), (0.0, 5.0), (4.0, 0.0), (0.0, 6.0))
    step = step_of(run(second), "BothBackward")
    assert step.local.matrix[-2:] == ((4.0, 0.0), (0.0, 6.0))
    step = step_of(run(Bare.apply(x)[0]), "BareBackward")
    assert step.local.matrix == ((2.0, 0.0), (0.0, 2.0))


def test_the_local_jacobian_of_a_write_in_place():
    x = torch.zeros(3, requires_grad=True)
    y = x * 2
    y[1] = x[0] * 3
    step = step_of(run(y), "torch::autograd::CopySlices")
    # The columns are the three numbers of y before, and the one that was written over its second.
    assert step.local.matrix == ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0))


def test_a_custom_backward_that_is_not_linear_has_no_matrix():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    step = step_of(run(Sign.apply(x), seeds=[torch.tensor([2.0, 5.0])]), "SignBackward")
    assert step.local.matrix is None
    assert "it is not linear" in step.local.note


def test_a_node_that_raises_when_called_alone_has_no_matrix():
    calls = []

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            calls.append(1)
            if len(calls) > 1:
                raise ValueError("once only")
            return cotangent * 2

    step = step_of(run(Once.apply(torch.randn(2, requires_grad=True))), "OnceBackward")
    assert step.local.matrix is None
    assert step.local.note == "the node cannot be called alone: ValueError: once only"


def test_a_large_node_has_no_matrix_and_no_numbers():
    step = step_of(run(torch.randn(17, requires_grad=True).exp()), "ExpBackward0")
    assert step.local is None
    assert step.incoming_values == (None,)
    x = torch.randn(17, requires_grad=True)
    assert "more than 16 elements" in local_jacobian(x.exp().grad_fn, [torch.ones(17)], [torch.ones(17)]).note


def test_numbers_that_are_not_finite_are_shown_and_said():
    step = step_of(run(torch.zeros(1, requires_grad=True).sqrt()), "SqrtBackward0")
    assert step.local.matrix == ((math.inf,),)
    assert "not all numbers are finite" in step.local.note


# Text


def test_a_step_shows_the_product_with_its_numbers():
    x = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    found = run(x**2, seeds=[torch.tensor([1.0, 10.0, 100.0])])
    lines = found.step(0).splitlines()
    assert lines[0].startswith("step 0: PowBackward0, ")
    assert lines[1] == "  incoming 0: (3,) float32, norm 100.5, 1 to 100"
    assert lines[2] == "  outgoing 0: (3,) float32, norm 801, 2 to 800"
    assert lines[4:] == [
        "                 [ 2  0  0 ]",
        "[ 1  10  100 ] · [ 0  4  0 ]  =  [ 2  40  800 ]",
        "                 [ 0  0  8 ]",
    ]
    assert lines[3].split() == ["u", "J", "uᵀJ"]
    assert found.step(-1).startswith("step 1: leaf")
    assert "u = [ 2  40  800 ]" in found.step(1)


def test_arguments_are_told_apart_by_a_bar():
    x, w = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    assert "[ 1 ] · [ 3 | 2 ]  =  [ 3 | 2 ]" in run(x * w).step(0)


def test_labels_name_the_nodes():
    x = torch.zeros(2, requires_grad=True)
    found = run(x.sqrt(), labels=["Sqrt  model.py:12", "x"])
    assert "Sqrt  model.py:12: inf" in str(found)
    assert found.step(1).startswith("step 1: x, ")


def test_the_table_is_aligned():
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    lines = str(run(x.relu().sum())).splitlines()
    head = next(line for line in lines if line.startswith("step"))
    assert head.split() == ["step", "node", "incoming", "outgoing", "flags"]
    relu = next(line for line in lines if "ReluBackward0" in line)
    assert relu.index("zeros 50.0 %") == head.index("flags")
    assert relu.index("1.414") == head.index("incoming")


def test_a_step_that_is_not_there():
    found = run(torch.zeros(2, requires_grad=True).exp())
    with pytest.raises(ValueMismatch, match="there is no such step") as error:
        found.step(2)
    assert error.value.got == "step 2 of 2"
    assert error.value.fix == "0 to 1"
