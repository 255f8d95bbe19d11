"""pb.prepare: what was found at one point is used at others, or refused by a ticked list; never a wrong number."""

from __future__ import annotations

import copy
import shutil
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pullback as pb
from pullback.errors import (
    ArgumentError,
    GuardError,
    PullbackError,
    PullbackWarning,
    StrategyError,
    ValueMismatch,
    VerificationError,
)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.to_dense(), expected, rtol=1e-9, atol=1e-12)


def dense(f: Any, *args: Any, **options: Any) -> Tensor:
    """J by one plain pass for each row."""
    return pb.jacobian(f, *args, strategy="rows", **options).matrix()


class Count:
    """How often a function ran; a class is not searched for values that a function holds."""

    calls = 0


class Hidden:
    """A number that no search finds."""

    scale = 2.0


def counted(x: Tensor) -> Tensor:
    Count.calls += 1
    return x[1:] * x[:-1].sin()


def scaled_by_something_hidden(x: Tensor) -> Tensor:
    return x[1:] * x[:-1] * Hidden.scale


@pytest.fixture(autouse=True)
def _reset():
    Count.calls, Hidden.scale = 0, 2.0


# --- right numbers at other points --------------------------------------------------------------------------------

FUNCTIONS = {
    "stencil": lambda x: x[1:] * x[:-1] + x[:-1] ** 2,
    "linear": lambda x: x.roll(1) - 2 * x,
    "dense": lambda x: torch.outer(x, x).sum(0),
    "selection": lambda x: torch.relu(x) + torch.where(x > 0, x.roll(1), x.flip(0)),
    "sorted": lambda x: x.sort().values * x,
    "conv": lambda x: F.conv1d(torch.tanh(x)[None, None], torch.tensor([[[1.0, -2.0, 0.5]]], dtype=x.dtype), padding=1),
    "in place": lambda x: (x * 1.0).index_add_(0, torch.tensor([0, 0]), x[:2] ** 2),
    "several outputs": lambda x: {"a": x[:2] * x[2:4], "b": (x.cumsum(0), torch.tensor(3))},
    "softmax": lambda x: x.reshape(2, 3).softmax(1),
    "no_grad": lambda x: x * x.detach().flip(0),
    "empty rows": lambda x: torch.cat([x[:1] ** 2, x.new_zeros(3)]),
    "nothing": lambda x: x.sign(),
    "identity": lambda x: x,
    "tall": lambda x: torch.cat([x[0] * x, x[0].sin() * x.roll(1), x.sum()[None]]),
    "arrowhead": lambda x: torch.cat([(x * x).sum()[None], x[0] * x[1:] + x[1:] ** 2]),
    "solve": lambda x: torch.linalg.solve(torch.eye(2, dtype=x.dtype) * 3 + x[:4].reshape(2, 2) * 0.1, x[4:]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*(forward|no sparsity rule):pullback.errors.PullbackWarning")
def test_at_many_points(name):
    f = FUNCTIONS[name]
    prepared = pb.prepare(f, randn(6))
    for seed in range(4):
        x = randn(6, seed=seed)
        J = prepared(x)
        close(J.sparse(), dense(f, x))
        assert J.sparse().shape == prepared.shape == prepared.pattern.shape
        torch.testing.assert_close(J.matrix(), dense(f, x))
    close(prepared(randn(6)).sparse(), dense(f, randn(6)))


@pytest.mark.parametrize("strategy", ["colored-rows", "colored-columns", "factored", "bidirectional", "auto"])
def test_every_strategy_can_be_prepared(strategy):
    def f(x: Tensor) -> Tensor:
        return torch.cat([(x * x).sum()[None], x[0] * x[1:] + x[1:] ** 2])

    try:
        prepared = pb.prepare(f, randn(12), strategy=strategy)
    except StrategyError:
        assert strategy != "auto"
        return
    for seed in range(3):
        close(prepared(randn(12, seed=seed)).sparse(), dense(f, randn(12, seed=seed)))


def test_all_that_a_jacobian_does():
    def f(x: Tensor) -> Tensor:
        return x[1:] * x[:-1]

    prepared, x = pb.prepare(f, randn(5)), randn(5, seed=1)
    J, M = prepared(x), dense(f, x)
    v, u = randn(5, seed=2), randn(4, seed=3)
    torch.testing.assert_close(J @ v, M @ v)
    torch.testing.assert_close(J.T @ u, M.T @ u)
    torch.testing.assert_close(J.dense(), M)
    torch.testing.assert_close(J.value, f(x))
    torch.testing.assert_close(J.rows(1), M[1])
    torch.testing.assert_close(J.columns(1), M[:, 1])
    assert J.pattern == prepared.pattern
    for layout in ("csr", "csc", "coo"):
        close(J.sparse(layout), M)
    np.testing.assert_allclose(J.sparse("scipy").toarray(), M.numpy())
    assert J.shape == (4, 5)
    assert "8 nonzeros" in repr(prepared)
    assert prepared.plan().want == "matrix"  # 8 of 20 are no zeros to speak of
    assert prepared.plan().passes == J.plan().passes or J.plan().passes > 0


def test_dtype_and_device_are_kept():
    for dtype in (torch.float32, torch.bfloat16):
        prepared = pb.prepare(lambda x: x[1:] * x[:-1], randn(5, dtype=dtype))
        found = prepared(randn(5, seed=1, dtype=dtype)).sparse()
        assert found.dtype == dtype
        assert not found.requires_grad


def test_by_parameters_that_are_trained_in_place():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), randn(5, 3)
    prepared = pb.prepare(net, x, wrt="parameters")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for _ in range(3):
        net(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        close(prepared(x).sparse(), dense(net, x, wrt="parameters"))


def test_by_the_input_of_a_module_that_is_trained_in_place():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv1d(2, 1, 3, padding=1)).double()
    x = randn(1, 1, 6)
    prepared = pb.prepare(net, x)
    for seed in range(3):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.1 * randn(*parameter.shape, seed=seed)
        x = randn(1, 1, 6, seed=seed)
        close(prepared(x).sparse(), dense(net, x))


def test_several_arguments_and_has_aux():
    def f(x: Tensor, y: dict[str, Tensor]) -> Any:
        return x * y["a"], {"sum": x.sum()}

    y = {"a": randn(3, seed=9)}
    prepared = pb.prepare(f, randn(3), y, wrt=(0, 1), has_aux=True)
    x, y = randn(3, seed=1), {"a": randn(3, seed=2)}
    J = prepared(x, y)
    close(J.sparse(), torch.cat([torch.diag(y["a"]), torch.diag(x)], 1))
    torch.testing.assert_close(J.aux["sum"], x.sum())


def test_another_argument_is_data():
    """A batch that changes from call to call is no constant, even where it is zero at first."""

    def f(x: Tensor, data: Tensor) -> Tensor:
        return x * data + torch.where(data > 0, x.roll(1), x)

    prepared = pb.prepare(f, randn(4), torch.zeros(4, dtype=torch.float64))
    for seed in range(3):
        x, data = randn(4, seed=seed), randn(4, seed=seed + 10)
        close(prepared(x, data).sparse(), dense(f, x, data))


def test_hessians_at_many_points():
    def f(x: Tensor) -> Tensor:
        return ((1 - x[:-1]) ** 2 + 100 * (x[1:] - x[:-1] ** 2) ** 2).sum()

    prepared = pb.prepare(f, randn(8), of="hessian")
    assert prepared.pattern.symmetric
    assert "hessian 8 x 8" in repr(prepared)
    for seed in range(3):
        x = randn(8, seed=seed)
        torch.testing.assert_close(prepared(x).sparse().to_dense(), torch.autograd.functional.hessian(f, x))


# --- the function is not called -----------------------------------------------------------------------------------


def test_sparse_does_not_call_the_function():
    prepared = pb.prepare(counted, randn(5), verify=False)
    Count.calls = 0
    for seed in range(4):
        prepared(randn(5, seed=seed)).sparse()
    assert Count.calls == 0
    J = prepared(randn(5, seed=1))
    J.sparse()
    _ = J.value
    assert Count.calls == 1, "the value is asked for, and only then is the function evaluated"
    _ = J.value, J.T @ randn(4)
    assert Count.calls == 1


def test_verified_at_the_first_call_only():
    prepared = pb.prepare(counted, randn(5))
    calls = []
    for seed in range(4):
        Count.calls = 0
        J = prepared(randn(5, seed=seed))
        J.sparse()
        calls.append(Count.calls)
        assert ("random seed" in J.plan().checked) == (seed == 0)
    assert calls == [1, 0, 0, 0]


def test_verified_at_every_third_call():
    prepared = pb.prepare(counted, randn(5), verify=3)
    calls = []
    for seed in range(7):
        Count.calls = 0
        prepared(randn(5, seed=seed)).sparse()
        calls.append(Count.calls)
    assert calls == [1, 0, 1, 0, 0, 1, 0]


def test_a_verification_that_fails_is_told_and_the_function_is_called_from_then_on():
    prepared = pb.prepare(scaled_by_something_hidden, randn(4))
    Hidden.scale = 3.0
    x = randn(4, seed=1)
    with pytest.warns(PullbackWarning, match="disagrees with a plain reverse pass"):
        close(prepared(x).sparse(), dense(scaled_by_something_hidden, x))
    Hidden.scale = 4.0
    x = randn(4, seed=2)
    close(prepared(x).sparse(), dense(scaled_by_something_hidden, x))


def test_a_later_verification_catches_it_too():
    prepared = pb.prepare(scaled_by_something_hidden, randn(4), verify=2)
    prepared(randn(4)).sparse()
    Hidden.scale = 3.0
    x = randn(4, seed=1)
    with pytest.warns(PullbackWarning):
        close(prepared(x).sparse(), dense(scaled_by_something_hidden, x))


def test_strict_raises_instead():
    prepared = pb.prepare(scaled_by_something_hidden, randn(4), strict=True)
    Hidden.scale = 3.0
    with pytest.raises(VerificationError, match="prepare again"):
        prepared(randn(4, seed=1)).sparse()


# --- guards -------------------------------------------------------------------------------------------------------


def product(x: Tensor) -> Tensor:
    return x[1:] * x[:-1]


def refused(call: Any) -> str:
    with pytest.raises(GuardError) as caught:
        call().sparse()
    text = str(caught.value)
    assert "✗" in text
    assert "prepare" in text
    return text


def test_guard_shape():
    prepared = pb.prepare(product, randn(4))
    text = refused(lambda: prepared(randn(5)))
    assert "✓ 1 argument of the same structure" in text
    assert "✗ argument 0: shape (4,), float64, cpu, but got shape (5,), float64, cpu" in text
    refused(lambda: prepared(randn(4, 1)))


def test_guard_dtype():
    prepared = pb.prepare(product, randn(4))
    assert "but got shape (4,), float32, cpu" in refused(lambda: prepared(randn(4, dtype=torch.float32)))


def test_guard_device():
    prepared = pb.prepare(product, randn(4))
    assert "but got shape (4,), float64, meta" in refused(lambda: prepared(randn(4).to("meta")))


def test_guard_structure():
    prepared = pb.prepare(lambda x: x["a"] * x["b"], {"a": randn(2), "b": randn(2)})
    for other in ({"a": randn(2)}, {"a": randn(2), "c": randn(2)}, [randn(2), randn(2)], randn(2)):
        assert "✗ 1 argument of the same structure" in refused(lambda other=other: prepared(other))
    refused(lambda: prepared({"a": randn(2), "b": randn(2)}, 1))
    refused(lambda: prepared())


def test_guard_plain_values_of_other_arguments():
    def f(x: Tensor, power: int, mode: str) -> Tensor:
        return x**power if mode == "power" else x.roll(power)

    prepared = pb.prepare(f, randn(3), 2, "power")
    close(prepared(randn(3, seed=1), 2, "power").sparse(), dense(f, randn(3, seed=1), 2, "power"))
    assert "✗ argument 1: 2, but got 3" in refused(lambda: prepared(randn(3), 3, "power"))
    assert "✗ argument 2: 'power', but got 'roll'" in refused(lambda: prepared(randn(3), 2, "roll"))


def right_or_refused(prepared: Any, f: Any, *args: Any, **options: Any) -> bool:
    """Whether a call gave numbers, which then are right."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PullbackWarning)
            found = prepared(*args).sparse()
    except GuardError as error:
        assert "✗" in str(error)  # noqa: PT017
        return False
    close(found, dense(f, *args, **options))
    return True


def test_guard_index_argument():
    def f(x: Tensor, index: Tensor) -> Tensor:
        return x[index] * x

    prepared = pb.prepare(f, randn(4), torch.tensor([1, 0, 3, 2]))
    assert right_or_refused(prepared, f, randn(4, seed=1), torch.tensor([1, 0, 3, 2]))
    right_or_refused(prepared, f, randn(4, seed=1), torch.tensor([2, 2, 0, 1]))


def test_guard_mask_argument():
    def f(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, x.flip(0)) * x

    mask = torch.tensor([True, False, True, True])
    prepared = pb.prepare(f, randn(4), mask)
    right_or_refused(prepared, f, randn(4, seed=1), ~mask)

    def g(x: Tensor, mask: Tensor) -> Tensor:
        return x[mask] ** 2

    prepared = pb.prepare(g, randn(4), mask)
    assert right_or_refused(prepared, g, randn(4, seed=1), mask.clone())
    right_or_refused(prepared, g, randn(4, seed=1), mask.roll(1))
    right_or_refused(prepared, g, randn(4, seed=1), torch.zeros(4, dtype=torch.bool))


def test_guard_branch():
    def f(x: Tensor) -> Tensor:
        if x.detach().sum() > 0:
            return x.roll(1) * x
        return x**2

    x = randn(4).abs()
    prepared = pb.prepare(f, x)
    close(prepared(2 * x).sparse(), dense(f, 2 * x))
    text = refused(lambda: prepared(-x))
    assert "test_prepare.py" in text
    assert "then" in text
    assert "now" in text
    close(prepared(x).sparse(), dense(f, x))


def test_guard_item_and_loops():
    def f(x: Tensor) -> Tensor:
        for _ in range(int(x[0].detach().abs().ceil().item())):
            x = x * x.roll(1)
        return x

    x = torch.tensor([1.5, 0.5, 0.25], dtype=torch.float64)
    prepared = pb.prepare(f, x)
    close(prepared(x * 1.1).sparse(), dense(f, x * 1.1))
    refused(lambda: prepared(3 * x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x > 0] ** 2,
        lambda x: torch.masked_select(x * x.flip(0), x > 0),
        lambda x: x[(x > 0).nonzero().flatten()] * x[0],
        lambda x: x.repeat_interleave((x.detach() > 0).long() + 1) ** 2,
        lambda x: torch.unique(x.detach().sign(), return_counts=True)[1].to(x.dtype).sum() * x,
    ],
)
def test_guard_selection(f):
    x = torch.tensor([1.0, -1.0, 2.0, -0.5, 3.0], dtype=torch.float64)
    prepared = pb.prepare(f, x)
    assert right_or_refused(prepared, f, 1.5 * x)
    for other in (-x, x.flip(0), x.abs(), x.roll(1)):
        right_or_refused(prepared, f, other)
    assert right_or_refused(prepared, f, x)


def test_guard_selection_says_where():
    prepared = pb.prepare(lambda x: x[x > 0] ** 2, torch.tensor([1.0, -1.0, 2.0]))
    assert "test_prepare.py" in refused(lambda: prepared(torch.tensor([-1.0, 1.0, 2.0])))


def test_guard_parameter_replaced():
    layer, x = nn.Linear(3, 2).double(), randn(3)
    prepared = pb.prepare(layer, x)
    layer.weight = nn.Parameter(randn(2, 3, seed=5))
    if not right_or_refused(prepared, layer, x):
        assert "the same objects" in refused(lambda: prepared(x))


def test_guard_buffer():
    layer, x = nn.BatchNorm1d(2).double().eval(), randn(4, 2)
    prepared = pb.prepare(layer, x)
    layer.running_var.mul_(4)
    assert right_or_refused(prepared, layer, x)
    layer.running_var = torch.ones(2, dtype=torch.float64) * 9
    right_or_refused(prepared, layer, x)


def test_guard_constant_changed_in_place():
    constant = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return x * constant

    prepared = pb.prepare(f, randn(3))
    close(prepared(randn(3, seed=1)).sparse(), torch.diag(constant))
    constant += 1
    if not right_or_refused(prepared, f, randn(3, seed=1)):
        text = refused(lambda: prepared(randn(3, seed=1)))
        assert "✗ tensors that were taken as constants have the same numbers" in text
        assert "✓ argument 0" in text
    constant -= 1
    close(prepared(randn(3, seed=2)).sparse(), torch.diag(constant))


def test_guard_constant_replaced():
    class Model:
        def __init__(self) -> None:
            self.mask = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.mask

    model = Model()
    prepared = pb.prepare(model, randn(3))
    model.mask = torch.tensor([0.0, 3.0, 2.0], dtype=torch.float64)
    right_or_refused(prepared, model, randn(3, seed=1))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.turned, self.sizes = 2.0, False, [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale * self.sizes[0]
        return y.roll(1) if self.turned else y


@pytest.mark.parametrize("change", ["scale", "turned", "sizes"])
@pytest.mark.parametrize("verify", [True, False])
def test_guard_plain_attributes(change, verify):
    module, x = Scaled().double(), randn(3)
    prepared = pb.prepare(module, x, verify=verify)
    close(prepared(x).sparse(), dense(module, x))
    if change == "sizes":
        module.sizes[0] = 5
    else:
        setattr(module, change, {"scale": 3.0, "turned": True}[change])
    right_or_refused(prepared, module, randn(3, seed=1))
    right_or_refused(prepared, module, randn(3, seed=2))


def test_guard_training_mode():
    module, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double().eval(), randn(3)
    prepared = pb.prepare(module, x)
    close(prepared(x).sparse(), dense(module, x))
    module.train()
    torch.manual_seed(0)
    want = dense(module, x)
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PullbackWarning)
            close(prepared(x).sparse(), want)
    except GuardError:
        pass


FACTOR = 2.0


def test_guard_global_number(monkeypatch):
    def f(x: Tensor) -> Tensor:
        return x * FACTOR

    x = randn(3)
    prepared = pb.prepare(f, x)
    close(prepared(x).sparse(), dense(f, x))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    right_or_refused(prepared, f, x)


def test_guard_the_same_tensor_twice():
    """Prepared with one tensor as two arguments, and called with two."""
    x = randn(3)
    prepared = pb.prepare(lambda a, b: a * b.flip(0), x, x)
    right_or_refused(prepared, lambda a, b: a * b.flip(0), randn(3, seed=1), randn(3, seed=2))
    right_or_refused(prepared, lambda a, b: a * b.flip(0), x, x)


def test_guard_strides():
    """The numbers count, not how they lie in memory."""

    def f(x: Tensor) -> Tensor:
        return x.T.reshape(-1)[1:] * x.reshape(-1)[:-1]

    prepared = pb.prepare(f, randn(3, 2))
    for other in (randn(2, 3).T, randn(3, 4)[:, ::2], randn(1, 2).expand(3, 2), randn(3, 1).expand(3, 2)):
        close(prepared(other).sparse(), dense(f, other))


def test_an_argument_with_a_graph():
    w = randn(4).requires_grad_()
    prepared = pb.prepare(product, randn(4))
    found = prepared(w * 2).sparse()
    close(found, dense(product, (w * 2).detach()))
    assert w.grad is None


# --- what cannot be replayed --------------------------------------------------------------------------------------


def test_dropout_draws_at_each_call():
    def f(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) * x.roll(1)

    prepared = pb.prepare(f, randn(8))
    assert any("random numbers" in note for note in prepared.plan().notes)
    found = set()
    for seed in range(4):
        x = randn(8, seed=seed)
        torch.manual_seed(seed)
        want = dense(f, x)
        torch.manual_seed(seed)
        J = prepared(x)
        close(J.sparse(), want)
        close(J.sparse(), want)
        found.add(tuple((J.sparse().values() != 0).tolist()))
    assert len(found) > 1


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("verify", [True, False])
def test_no_graph_of_the_parameters_is_kept(p, verify):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(p), nn.Linear(3, 3)).double()
    attention = nn.TransformerEncoderLayer(2, 1, 4, dropout=p).double()
    for f, shape in ((net, (3,)), (lambda x: attention(x.reshape(3, 1, 2)), (6,))):
        prepared = pb.prepare(f, randn(*shape), verify=verify)
        for seed in range(2):
            assert not prepared(randn(*shape, seed=seed)).sparse().requires_grad


def test_batchnorm_in_training_updates_once():
    module = nn.BatchNorm1d(2).double()
    twin = copy.deepcopy(module)
    x = randn(4, 2)
    prepared = pb.prepare(module, x)
    twin(x)
    for seed in range(3):
        x = randn(4, 2, seed=seed)
        want = dense(copy.deepcopy(twin), x)
        J = prepared(x)
        close(J.sparse(), want)
        close(J.sparse(), want)
        twin(x)
        for name, buffer in twin.named_buffers():
            torch.testing.assert_close(dict(module.named_buffers())[name], buffer)


@pytest.mark.filterwarnings("ignore:.*(forward|no sparsity rule):pullback.errors.PullbackWarning")
def test_numbers_that_leave_torch():
    def f(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.sign(x.detach().numpy())) + x.roll(1)

    try:
        prepared = pb.prepare(f, randn(4))
    except StrategyError as error:
        assert "numpy" in str(error)  # noqa: PT017
        return
    for seed in range(3):
        close(prepared(randn(4, seed=seed)).sparse(), dense(f, randn(4, seed=seed)))


def test_tensors_made_from_python_numbers_inside():
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[x > 0] = 0.0
        return y * torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype) + torch.arange(3) * x[[2, 0, 1]]

    prepared = pb.prepare(f, randn(3))
    for seed in range(3):
        right_or_refused(prepared, f, randn(3, seed=seed))
    assert right_or_refused(prepared, f, randn(3))


def test_a_function_that_counts_itself():
    """A number that the function changes itself is no reason to refuse it, nor to give wrong numbers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return x[1:] * x[:-1]

    module = Model()
    prepared = pb.prepare(module, randn(4))
    for seed in range(3):
        x = randn(4, seed=seed)
        close(prepared(x).sparse(), dense(product, x))


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f", [product, lambda x: x.roll(1) - 2 * x, lambda x: x, lambda x: x.sign(), lambda x: x.sum()]
)
def test_results_do_not_share_memory(f):
    prepared = pb.prepare(f, randn(4))
    x = randn(4, seed=1)
    want = dense(f, x)
    one = prepared(x).sparse()
    one.values().fill_(7.0)
    close(prepared(x).sparse(), want)
    scipy = prepared(x).sparse("scipy")
    scipy.data[:] = 3
    scipy.indices[:] = 0
    close(prepared(x).sparse(), want)
    assert prepared.pattern == pb.prepare(f, randn(4)).pattern


def test_an_earlier_jacobian_stays_at_its_point():
    prepared = pb.prepare(product, randn(4))
    x, y = randn(4, seed=1), randn(4, seed=2)
    first, second = prepared(x), prepared(y)
    close(second.sparse(), dense(product, y))
    close(first.sparse(), dense(product, x))


def test_a_point_changed_in_place_after_the_call():
    prepared = pb.prepare(product, randn(4))
    x = randn(4, seed=1)
    J = prepared(x)
    before, after = dense(product, x), dense(product, x + 1)
    x += 1
    try:
        found = J.sparse().to_dense()
    except PullbackError:
        return
    assert torch.allclose(found, before) or torch.allclose(found, after)


def test_the_random_state_and_gradients_are_left_alone():
    prepared = pb.prepare(product, randn(4))
    x = randn(4, seed=1).requires_grad_()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    prepared(x).sparse()
    assert torch.equal(torch.get_rng_state(), before)
    assert x.grad is None
    with torch.no_grad():
        close(prepared(x).sparse(), dense(product, x.detach()))
    with torch.inference_mode():
        found = prepared(randn(4, seed=2)).sparse().to_dense()
    torch.testing.assert_close(found, dense(product, randn(4, seed=2)))


def test_two_threads():
    def f(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x * x.roll(1).cos()
        return x

    prepared = pb.prepare(f, randn(20))
    points = [randn(20, seed=seed) for seed in range(2)]
    wants = [dense(f, x) for x in points]
    failures: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(20):
                close(prepared(points[k]).sparse(), wants[k])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# --- compile ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_compiled():
    def f(x: Tensor) -> Tensor:
        return x[1:] * x[:-1]

    prepared = pb.prepare(f, randn(50), compile=True)
    assert any("compiled" in note for note in prepared.plan().notes), prepared.plan().notes
    assert not any("not compiled:" in note for note in prepared.plan().notes), prepared.plan().notes
    for seed in range(2):
        x = randn(50, seed=seed)
        close(prepared(x).sparse(), dense(f, x))
    with pytest.raises(GuardError):
        prepared(randn(51))


def test_compile_without_a_recorded_program_says_so():
    prepared = pb.prepare(lambda x: F.dropout(x, 0.5), randn(5), compile=True)
    assert any("not compiled" in note for note in prepared.plan().notes)
    torch.manual_seed(1)
    prepared(randn(5)).sparse()


# --- errors -------------------------------------------------------------------------------------------------------


def test_errors():
    x = randn(3)
    with pytest.raises(ValueMismatch, match="no such derivative"):
        pb.prepare(product, x, of="gradient")
    for verify in ("yes", -1, 1.5, None):
        with pytest.raises(ArgumentError, match="verify"):
            pb.prepare(product, x, verify=verify)
    with pytest.raises(ValueMismatch, match="strategy"):
        pb.prepare(product, x, strategy="magic")
    with pytest.raises(StrategyError):
        pb.prepare(product, x, strategy="star")
    with pytest.raises(ValueMismatch, match="one real number"):
        pb.prepare(product, x, of="hessian")
    with pytest.raises(ArgumentError, match="not a function"):
        pb.prepare(x, x)
    with pytest.raises(ArgumentError):
        pb.prepare(product, torch.arange(3))
    with pytest.raises(ValueMismatch):
        pb.prepare(product, x, wrt=1)
    with pytest.raises(ArgumentError):
        pb.prepare(product, x, wrt="parameters")
    with pytest.raises(StrategyError, match=r"inside a torch\.func transform"):
        torch.func.vmap(lambda z: pb.prepare(product, z)(z).sparse().to_dense())(randn(2, 3))


def test_an_error_of_the_function_is_passed_on():
    def f(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pb.prepare(f, randn(3))


def test_what_does_not_depend_on_its_input():
    """There is nothing to find zeros of: refused with a reason, or a Jacobian of zeros."""
    try:
        prepared = pb.prepare(lambda x: torch.ones(3, dtype=x.dtype), randn(2))
    except StrategyError as error:
        assert "depends" in str(error)  # noqa: PT017
        return
    assert prepared(randn(2)).sparse().values().numel() == 0
