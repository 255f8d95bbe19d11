"""Attention: every derivative that torch's fused kernels lack comes by the math formulation, and the plan says so."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import pullback as pb
from pullback.autodiff.attention import is_fused

FORWARD_NOTE = "attention by its math formulation: the fused kernel has no forward derivative"
SECOND_NOTE = "attention by its math formulation: the fused kernel has no second derivative"


def tensors(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def plain(**options):
    q, k, v = tensors((2, 2, 3, 4), (2, options.pop("heads", 2), 5, 4), (2, options.pop("value_heads", 2), 5, 4))
    return lambda x: scaled_dot_product_attention(x, k, v, **options), q


def by_keys():
    """The keys and values depend on the input too."""
    (x,) = tensors((2, 2, 3, 4))
    return lambda x: scaled_dot_product_attention(x, x.sin(), x.cos(), is_causal=True), x


def multi_head(**options):
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    (x,) = tensors((2, 3, 4))
    return lambda x: layer(x, x, x, need_weights=False, **options)[0], x


def encoder(training):
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=torch.float64)
    (x,) = tensors((2, 3, 4))
    return layer.train(training), x


MASK = torch.tensor([[True, True, False, True, False], [True] * 5, [False, False, False, False, True]])
BIAS = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
PADDED = torch.tensor([[False, False, True], [False, False, False]])

CASES = {
    "plain": plain,
    "causal": lambda: plain(is_causal=True),
    "a mask": lambda: plain(attn_mask=MASK),
    "a bias": lambda: plain(attn_mask=BIAS),
    "another scale": lambda: plain(scale=0.3),
    "grouped queries": lambda: plain(heads=1, value_heads=1, enable_gqa=True),
    "keys and values": by_keys,
    "multi-head": multi_head,
    "multi-head, causal": lambda: multi_head(attn_mask=CAUSAL, is_causal=True),
    "multi-head, padded": lambda: multi_head(key_padding_mask=PADDED),
    "encoder, training": lambda: encoder(training=True),
    "encoder, evaluated": lambda: encoder(training=False),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request):
    f, x = request.param()
    fused = is_fused([f(x.clone().requires_grad_())])
    if not fused and request.param is CASES["grouped queries"]:
        pytest.skip("this torch has no fused kernel of grouped queries for the CPU")
    assert fused, "the case is not about a fused kernel"
    return f, x


def rows_of(f, x):
    """J by a plain backward pass for each row, through the math formulation."""
    with sdpa_kernel(SDPBackend.MATH):
        x = x.detach().requires_grad_()
        y = f(x)
        seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
        rows = [torch.autograd.grad(y, x, seed, retain_graph=True)[0].reshape(-1) for seed in seeds]
    return torch.stack(rows)


def hessian_of(f, x):
    """H by double backward, row after row, through the math formulation."""

    def gradient(x):
        return torch.autograd.grad(loss(f)(x), x, create_graph=True)[0]

    return rows_of(gradient, x)


def loss(f):
    return lambda x: f(x).square().sum()


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", pb.errors.PullbackWarning)
        yield


def test_every_form_of_the_jacobian(case):
    f, x = case
    expected = rows_of(f, x)
    m, n = expected.shape
    torch.testing.assert_close(pb.jacobian(f, x, strict=True).dense().reshape(m, n), expected)
    torch.testing.assert_close(pb.jacobian(f, x).matrix(), expected)
    torch.testing.assert_close(pb.jacobian(f, x).rows(range(m)), expected)
    torch.testing.assert_close(pb.jacobian(f, x).sparse().to_dense(), expected)
    torch.testing.assert_close(torch.block_diag(*pb.jacobian(f, x).blocks()), expected)
    torch.testing.assert_close(pb.jacobian(f, x, strategy="columns", strict=True).matrix(), expected)
    u = torch.linspace(-1, 1, m, dtype=x.dtype)
    torch.testing.assert_close(pb.jacobian(f, x).T @ u, u @ expected)


def test_forward_products_take_one_pass_and_the_plan_says_how(case):
    f, x = case
    expected = rows_of(f, x)
    n = expected.shape[1]
    J = pb.jacobian(f, x, strict=True)
    v = torch.linspace(1, 2, n, dtype=x.dtype)
    torch.testing.assert_close(J @ v, expected @ v)
    torch.testing.assert_close(J.columns(range(n)), expected)
    torch.testing.assert_close(J.columns(1), expected[:, 1])
    torch.testing.assert_close(J @ torch.eye(n, dtype=x.dtype), expected)
    notes = J.plan().notes
    assert FORWARD_NOTE in notes
    assert not any("all rows by reverse passes" in note for note in notes)


def test_hessians(case):
    f, x = case
    expected = hessian_of(f, x)
    n = x.numel()
    H = pb.hessian(loss(f), x, strict=True)
    torch.testing.assert_close(H.dense().reshape(n, n), expected)
    assert SECOND_NOTE in H.plan().notes
    v = torch.linspace(1, 2, n, dtype=x.dtype)
    torch.testing.assert_close(pb.hessian(loss(f), x) @ v, expected @ v)
    torch.testing.assert_close(pb.hessian(loss(f), x) @ torch.eye(n, dtype=x.dtype), expected)
    torch.testing.assert_close(pb.hessian(loss(f), x).T @ v, v @ expected)
    torch.testing.assert_close(pb.hessian(loss(f), x).sparse().to_dense(), expected)
    torch.testing.assert_close(pb.hessian(loss(f), x, strategy="columns", strict=True).matrix(), expected)


def test_derivatives_of_the_jacobian(case):
    """The gradient of ``Σ J²``, by hand ``2 Σ J ∂J``: three reverse passes through the math formulation."""
    f, x = case
    with sdpa_kernel(SDPBackend.MATH):
        leaf = x.clone().requires_grad_()
        y = f(leaf).reshape(-1)
        squares = sum(torch.autograd.grad(each, leaf, create_graph=True)[0].square().sum() for each in y)
        (expected,) = torch.autograd.grad(squares, leaf)
    # The forward formula of a layer norm, which an encoder has too, has a wrong derivative: another way is taken.
    warnings.filterwarnings("ignore", "forward pass.*in its derivative|reverse-over-reverse pass.*in its derivative")
    for ask in (lambda J: J.dense(), lambda J: J.matrix(), lambda J: J @ torch.eye(x.numel(), dtype=x.dtype)):
        leaf = x.clone().requires_grad_()
        J = pb.jacobian(f, leaf, create_graph=True)
        squares = ask(J).square().sum()
        assert SECOND_NOTE in J.plan().notes
        torch.testing.assert_close(torch.autograd.grad(squares, leaf)[0], expected)
    torch.testing.assert_close(pb.jacobian(lambda x: pb.jacobian(f, x).dense().square().sum(), x).dense(), expected)


def test_inside_transforms(case):
    f, x = case
    expected = rows_of(f, x)
    total = torch.func.grad(lambda x: pb.jacobian(f, x).dense().square().sum())(x)
    nested = pb.jacobian(lambda x: pb.jacobian(f, x).dense().square().sum(), x).dense()
    torch.testing.assert_close(total, nested)
    many = torch.func.vmap(lambda x: pb.jacobian(f, x).matrix())(torch.stack([x, 2 * x]))
    torch.testing.assert_close(many[0], expected)


def test_prepared(case):
    f, x = case
    jac = pb.prepare(f, x)
    torch.testing.assert_close(jac(x + 0.1).sparse().to_dense(), rows_of(f, x + 0.1))
    second = pb.prepare(loss(f), x, of="hessian")
    torch.testing.assert_close(second(x + 0.1).sparse().to_dense(), hessian_of(f, x + 0.1))
    assert SECOND_NOTE in second(x).plan().notes


def test_parameters_of_a_layer():
    f, x = encoder(training=True)
    J = pb.jacobian(f, x, wrt="parameters")
    names = tuple(dict(f.named_parameters()))
    with sdpa_kernel(SDPBackend.MATH):
        y = f(x)
        seeds = torch.eye(y.numel(), dtype=y.dtype).reshape(-1, *y.shape)
        rows = [torch.autograd.grad(y, list(f.parameters()), seed, retain_graph=True) for seed in seeds]
    expected = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    torch.testing.assert_close(J.matrix(), expected)
    v = torch.linspace(-1, 1, J.shape[1], dtype=x.dtype)
    torch.testing.assert_close(J @ v, expected @ v)
    assert set(names) == set(J.dense())


def test_a_graph_that_exists_cannot_be_run_again_and_takes_rows():
    f, x = plain()
    x = x.requires_grad_()
    J = pb.jacobian_of(f(x), x)
    expected = rows_of(f, x)
    torch.testing.assert_close(J @ torch.ones(48, dtype=x.dtype), expected.sum(dim=1))
    assert any("all rows by reverse passes" in note for note in J.plan().notes)


def test_a_checkpointed_layer_is_computed_again_by_the_same_formulation():
    from torch.utils.checkpoint import checkpoint

    f, x = multi_head()
    kept = hessian_of(f, x)
    H = pb.hessian(lambda x: checkpoint(f, x, use_reentrant=False).square().sum(), x)
    torch.testing.assert_close(H.matrix(), kept)


def test_first_derivatives_keep_the_fused_kernel():
    """What torch has is taken from torch: value and reverse passes are the fused kernel's, bit for bit."""
    f, x = plain(is_causal=True)
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    (expected,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    J = pb.jacobian(f, x)
    assert torch.equal(J.value, y)
    assert torch.equal(J.T @ torch.ones_like(y), expected)
    assert not [note for note in J.plan().notes if "math" in note]


def test_programs_without_attention_are_evaluated_once_and_say_nothing():
    calls = []

    def f(x):
        calls.append(torch.backends.cuda.flash_sdp_enabled())
        return torch.softmax(x @ x.mT, -1).square().sum()

    (x,) = tensors((3, 4))
    H = pb.hessian(f, x)
    H.matrix()
    H @ x
    assert calls == [True]
    assert not [note for note in H.plan().notes if "attention" in note]


def test_the_backends_are_as_they_were():
    f, x = encoder(training=False)
    switches = (
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.math_sdp_enabled,
        torch.backends.mha.get_fastpath_enabled,
    )
    before = [switch() for switch in switches]
    J = pb.jacobian(f, x)
    J @ x
    pb.hessian(loss(f), x).matrix()
    assert [switch() for switch in switches] == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    f, x = plain()
    expected = rows_of(f, x)
    k, v = tensors((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4), dtype=dtype)[1:]
    low = lambda x: scaled_dot_product_attention(x, k, v)  # noqa: E731
    J = pb.jacobian(low, x.to(dtype))
    bounds = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.03}
    torch.testing.assert_close(J.matrix().double(), expected, **bounds)
    torch.testing.assert_close((J @ torch.eye(48, dtype=dtype)).double(), expected, **bounds)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; torch.cuda.is_available() is False here"
)
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
        (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    ],
)
def test_the_kernels_of_a_gpu(backend, dtype):
    q, k, v = (part.cuda() for part in tensors((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16), dtype=dtype))

    def f(x):
        return scaled_dot_product_attention(x, k, v)

    exact = rows_of_gpu(lambda x: scaled_dot_product_attention(x, k.double(), v.double()), q.double())
    bounds = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.05}
    with sdpa_kernel(backend):
        assert is_fused([f(q.clone().requires_grad_())])
        J = pb.jacobian(f, q)
        torch.testing.assert_close(J.matrix().double(), exact, **bounds)
        unit = torch.eye(q.numel(), dtype=dtype, device="cuda")
        torch.testing.assert_close((J @ unit).double(), exact, **bounds)
        assert FORWARD_NOTE in J.plan().notes
        H = pb.hessian(loss(f), q)
        assert H.matrix().isfinite().all()
        assert SECOND_NOTE in H.plan().notes


def rows_of_gpu(f, x):
    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.jacobian(f, x).reshape(x.numel(), x.numel())
