"""What ``pb.backward(losses, combine=...)`` adds to ``.grad``, and what it leaves as it was."""

import gc
import weakref

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.api import combine
from pullback.losses import passes
from tests.losses.networks import Tasks, plain_rows

FIXED = [0.25, 2.0, -0.5]


def by_fixed(gram):
    return torch.tensor(FIXED, dtype=gram.dtype)


def by_norms(gram):
    """Equal norms: the weights depend on the rows."""
    return 1 / gram.diagonal().sqrt()


def expected(network, way=by_norms):
    """The combined gradient from plain rows: weighted in the trunk, plain in the heads."""
    losses, shared = network.losses(), [*network.trunk.parameters()]
    rows = plain_rows(losses, shared)
    mixed = (way(rows @ rows.T) @ rows).split([each.numel() for each in shared])
    found = {f"trunk.{name}": part.view_as(each) for (name, each), part in
             zip(network.trunk.named_parameters(), mixed, strict=True)}  # fmt: skip
    for (name, each), loss in [(item, loss) for head, loss in enumerate(losses)
                               for item in network.heads[head].named_parameters(f"heads.{head}")
                               for loss in [losses[head]]]:  # fmt: skip
        (found[name],) = torch.autograd.grad(loss, each, retain_graph=True)
    return found


def close(ours, other):
    assert ours.keys() == other.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], other[name], rtol=1e-9, atol=1e-11)


@pytest.fixture
def network():
    return Tasks(dtype=torch.float64)


@pytest.mark.parametrize("weights", [
    pb.seed.weights(task0=0.25, task1=2.0, task2=-0.5), {"task0": 0.25, "task1": 2.0, "task2": -0.5}])  # fmt: skip
def test_fixed_weights_are_the_weighted_sum_bit_for_bit(network, weights):
    sum(weight * loss for weight, loss in zip(FIXED, network.losses(), strict=True)).backward()
    other = network.take()
    pb.backward(network.named(), combine=weights)
    for name, each in network.take().items():
        torch.testing.assert_close(each, other[name], rtol=1e-13, atol=1e-15)
    pb.backward(network.named(), weights)
    seeded = network.take()
    pb.backward(network.named(), combine=weights)
    assert all(torch.equal(each, seeded[name]) for name, each in network.take().items())


def test_weights_of_rows_weigh_what_is_shared(network):
    pb.backward(network.named(), combine=by_norms)
    close(network.take(), expected(network))


def test_it_adds_to_what_is_there(network):
    held = {name: torch.full_like(each, 3.0) for name, each in network.named_parameters()}
    for name, each in network.named_parameters():
        each.grad = held[name]
    pb.backward(network.named(), combine=by_norms)
    for name, each in network.named_parameters():
        assert each.grad is held[name]
    close({name: each.grad - 3 for name, each in network.named_parameters()}, expected(network))


def test_a_vector_is_a_loss_for_each_element():
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    A = torch.tensor([[1.0, 0.0, 2.0], [0.0, -3.0, 1.0]])
    pb.backward(A @ w, combine=lambda gram: torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(w.grad, torch.tensor([2.0, -1.5, 4.5]))


def test_the_graph_is_freed_unless_it_is_kept(network):
    losses = network.named()
    pb.backward(losses, combine=by_norms, retain_graph=True)
    first = network.take()
    pb.backward(losses, combine=by_norms)
    close(network.take(), first)
    with pytest.raises(pb.errors.GraphError) as error:
        pb.backward(losses, combine=by_norms)
    assert error.value.what == "the graph of this output was freed by an earlier backward pass"
    assert all(each.grad is None for each in network.parameters())


def test_frozen_unused_and_own_parameters(network):
    network.trunk[0].weight.requires_grad_(False)
    network.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    pb.backward(network.named(), combine=by_norms)
    ours = network.take()
    assert ours["trunk.0.weight"] is None
    assert ours["unused"] is None
    rows = plain_rows(network.losses(), [each for each in network.trunk.parameters() if each.requires_grad])
    mixed = by_norms(rows @ rows.T) @ rows
    torch.testing.assert_close(
        torch.cat([ours[f"trunk.{n}"].flatten() for n in ("0.bias", "2.weight", "2.bias")]), mixed
    )
    own = torch.autograd.grad(network.losses()[1], network.heads[1].weight)[0]
    torch.testing.assert_close(ours["heads.1.weight"], own)


def test_what_two_of_three_losses_reach_is_shared():
    a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    losses = {"both": (a * b).sum(), "a": a.square().sum(), "b": b**3}
    rows = plain_rows(losses.values(), [a, b])
    mixed = by_norms(rows @ rows.T) @ rows
    pb.backward(losses, combine=by_norms)
    torch.testing.assert_close(torch.cat([a.grad, b.grad[None]]), mixed)


def test_inputs_limit_what_is_touched_and_what_is_weighed(network):
    chosen = network.trunk[2]
    pb.backward(network.named(), combine=by_norms, inputs=chosen.parameters())
    ours = {name: each for name, each in network.take().items() if each is not None}
    assert set(ours) == {"trunk.2.weight", "trunk.2.bias"}
    rows = plain_rows(network.losses(), [*chosen.parameters()])
    mixed = by_norms(rows @ rows.T) @ rows
    torch.testing.assert_close(torch.cat([ours["trunk.2.weight"].flatten(), ours["trunk.2.bias"]]), mixed)


@pytest.mark.parametrize("place", ["shared", "own"])
def test_a_hook_acts_once_on_the_gradient_as_in_a_plain_backward(network, place):
    pb.backward(network.named(), combine=by_fixed)
    other = network.take()
    leaf = network.trunk[0].weight if place == "shared" else network.heads[0].weight
    name = "trunk.0.weight" if place == "shared" else "heads.0.weight"
    leaf.register_hook(lambda gradient: gradient * 3)
    pb.backward(network.named(), combine=by_fixed)
    ours = network.take()
    close(ours, other | {name: other[name] * 3})


def test_hooks_after_accumulation_run_once_for_each_leaf(network):
    pb.backward(network.named(), combine=by_norms)
    other, seen = network.take(), {}
    for name, each in network.named_parameters():
        each.register_post_accumulate_grad_hook(
            lambda leaf, name=name: seen.setdefault(name, []).append(leaf.grad.clone())
        )
    pb.backward(network.named(), combine=by_norms)
    close({name: gradient for name, (gradient,) in seen.items()}, other)
    close(network.take(), other)


def test_rows_that_do_not_fit_into_memory_are_found_some_at_a_time(network, monkeypatch):
    largest = max(each.numel() for each in network.parameters())
    monkeypatch.setattr(passes, "ALWAYS_KEPT", 0)
    monkeypatch.setattr(passes, "default_limit", lambda device: 3 * largest * 8)
    assert len(passes.groups_within_memory([*network.parameters()], 3)) > 2
    pb.backward(network.named(), combine=by_norms)
    close(network.take(), expected(network))


def test_a_sparse_gradient_stays_sparse():
    table = nn.Embedding(6, 3, sparse=True, dtype=torch.float64)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def losses():
        found = table(torch.tensor([1, 4, 1])) @ w
        return [found.square().sum(), found.sum(), (found * found[0]).sum()]

    rows = plain_rows(losses(), [w])
    dense = torch.stack([torch.autograd.grad(losses()[k], table.weight)[0].to_dense().flatten() for k in range(3)])
    whole = torch.cat([rows, dense], dim=1)
    mixed = by_norms(whole @ whole.T) @ whole
    pb.backward(losses(), combine=by_norms)
    assert table.weight.grad.is_sparse
    torch.testing.assert_close(torch.cat([w.grad, table.weight.grad.to_dense().flatten()]), mixed)


def test_gradients_that_are_one_tensor_are_not_one_in_grad():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    w = torch.ones(2, requires_grad=True)
    pb.backward([((a + b) * w).sum(), w.sum()], combine=lambda gram: torch.ones(2))
    a.grad.mul_(5)
    assert b.grad.tolist() == [1.0, 1.0]
    assert a.grad.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Squares beyond float16 are no obstacle: inner products are taken in single precision."""
    w = torch.tensor([300.0, -400.0], dtype=dtype, requires_grad=True)
    pb.backward({"a": (w / 20).square().sum() * 100, "b": w.sum()}, combine=by_norms)
    assert w.grad.dtype == dtype
    row = w.detach().float() / 2
    exact = row / row.norm() + 1 / 2**0.5
    torch.testing.assert_close(w.grad.float(), exact, rtol=4 * torch.finfo(dtype).eps, atol=1e-3)


def test_parameters_of_two_dtypes():
    a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    losses = [(a.double() * b).sum(), (a.double() + b).square().sum()]
    rows = plain_rows(losses, [a, b])
    mixed = by_norms(rows @ rows.T) @ rows
    pb.backward(losses, combine=by_norms)
    assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(torch.cat([a.grad.double(), b.grad]), mixed, rtol=1e-6, atol=1e-6)


def test_large_parameters_are_read_in_pieces(monkeypatch):
    torch.manual_seed(0)
    large = torch.randn(300_001, dtype=torch.float64, requires_grad=True)
    c = torch.randn(2, 300_001, dtype=torch.float64)
    pb.backward(c @ large, combine=by_norms)
    torch.testing.assert_close(large.grad, by_norms(c @ c.T) @ c, rtol=1e-10, atol=1e-12)


def test_a_gradient_is_laid_out_as_its_parameter():
    x = torch.arange(12.0).reshape(3, 4)
    w = torch.ones(4, 3).t().requires_grad_()
    ((w * x).sum() + w.square().sum()).backward()
    plain, w.grad = w.grad, None
    pb.backward([(w * x).sum(), w.square().sum()], combine=lambda gram: torch.ones(2))
    assert torch.equal(w.grad, plain)
    assert w.grad.stride() == plain.stride() == w.stride()


def test_a_table_used_sparsely_and_densely():
    table = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)

    def losses():
        return [nn.functional.embedding(torch.tensor([1, 4]), table, sparse=True).sum(), table.square().sum()]

    sparse, dense = (torch.autograd.grad(loss, table)[0] for loss in losses())
    rows = torch.stack([sparse.to_dense().flatten(), dense.flatten()])
    pb.backward(losses(), combine=by_norms)
    torch.testing.assert_close(table.grad.flatten(), by_norms(rows @ rows.T) @ rows)


def test_inside_no_grad(network):
    losses = network.named()
    with torch.no_grad():
        pb.backward(losses, combine=by_norms)
    ours = network.take()
    assert not any(each.requires_grad for each in ours.values())
    close(ours, expected(network))


def test_nothing_is_held_afterwards(network):
    losses = network.named()
    watched = weakref.ref(losses["task1"])
    pb.backward(losses, combine=by_norms)
    del losses
    gc.collect()
    assert watched() is None


@pytest.mark.gpu
def test_on_a_cuda_device():
    aggregation = pytest.importorskip("torchjd.aggregation")
    network = Tasks(dtype=torch.float64)
    pb.backward(network.named(), combine=aggregation.UPGrad())
    other = network.take()
    network.to("cuda")
    network.x, network.y = network.x.cuda(), network.y.cuda()
    for way in (aggregation.UPGrad(), combine.Uncertainty(3).cuda(), combine.GradNorm(3, network.trunk[2]).cuda(),
                combine.DynamicWeightAverage(3).cuda(), combine.DynamicWeightAverage(3)):  # fmt: skip
        pb.backward(network.named(), combine=way)
        ours = network.take()
        assert all(each.is_cuda for each in ours.values())
        if isinstance(way, aggregation.UPGrad):
            close({name: each.cpu() for name, each in ours.items()}, other)


def test_under_autocast_with_a_scaled_loss():
    """UPGrad's weights do not depend on a common scale: divided by it, the gradient is that without."""
    aggregation = pytest.importorskip("torchjd.aggregation")
    network = Tasks()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = network.losses()
    pb.backward(losses, combine=aggregation.UPGrad())
    plain = network.take()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [loss * 1024 for loss in network.losses()]
    pb.backward(losses, combine=aggregation.UPGrad())
    for name, each in network.take().items():
        torch.testing.assert_close(each / 1024, plain[name], rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_a_parameter_itself():
    w = torch.tensor(2.0, requires_grad=True)
    pb.backward({"itself": w, "square": w * w}, combine=lambda gram: torch.tensor([0.5, 2.0]))
    assert w.grad.item() == 0.5 + 2 * 4


def test_a_loss_made_of_another():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    first = w.square().sum()
    losses = [first, 3 * first + w.sum()]
    rows = plain_rows(losses, [w])
    pb.backward(losses, combine=by_norms)
    torch.testing.assert_close(w.grad, by_norms(rows @ rows.T) @ rows)


def test_a_compiled_or_custom_backward_needs_no_batching_rule():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 3 * x**2 if gradient.norm().item() > 0 else torch.zeros_like(x)

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = Cube.apply(w)
    rows = plain_rows([y[0], y.sum()], [w])
    y = Cube.apply(w)
    pb.backward([y[0], y.sum()], combine=by_norms)
    torch.testing.assert_close(w.grad, by_norms(rows @ rows.T) @ rows)
