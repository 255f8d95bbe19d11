"""Small real programs whose graphs are drawn, measured and replayed; built fresh, with the same numbers, at each call.

On another device: ``with torch.device("cuda"): program = PROGRAMS[name]()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from benchmarks.graph_models import STEPS, Decoder, Recurrent, ResNet18, encoder, perceptron
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass
class Program:
    """What a program leaves behind.

    Attributes:
        outputs: A pytree of tensors.
        names: What names the leaves: a module, a dict, or nothing.
        note: What is peculiar about it.
    """

    outputs: Any
    names: nn.Module | Mapping[str, Tensor] | None = None
    note: str = ""


PROGRAMS: dict[str, Callable[..., Program]] = {}


def program(build: Callable[..., Any]) -> Callable[..., Program]:
    """Register a function under its name; it returns what a Program is made of."""

    @wraps(build)
    def built(*args: Any, **kwargs: Any) -> Program:
        torch.manual_seed(0)
        found = build(*args, **kwargs)
        return Program(*found) if isinstance(found, tuple) else Program(found)

    PROGRAMS[build.__name__] = built
    return built


def leaf(*shape: int, **kwargs: Any) -> Tensor:
    return torch.randn(*shape, requires_grad=True, **kwargs)


def given(value: Any, **kwargs: Any) -> Tensor:
    """A leaf of these numbers."""
    return torch.tensor(value, requires_grad=True, **kwargs)


# ------------------------------------------------------------------------------------------------------------ networks


@program
def mlp():
    model = perceptron(12, 32, 32, 5)
    return functional.mse_loss(model(torch.randn(8, 12)), torch.randn(8, 5)), model


@program
def mlp_vector_output():
    model = perceptron(6, 8, 3)
    return model(torch.randn(4, 6)), model, "no loss: a seed for each element"


@program
def cnn():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip
    return functional.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.tensor([1, 0, 9, 3])), model


@program
def cnn_evaluated():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Hardswish(), nn.Flatten()).eval()
    return model(torch.randn(2, 3, 8, 8)).sum(), model


@program
def resnet18(width: int = 8, side: int = 32):
    model = ResNet18(width, 10)
    return functional.cross_entropy(model(torch.randn(2, 3, side, side)), torch.tensor([1, 7])), model


@program
def transformer():
    model = encoder(16, 2, dropout=0.1)
    return functional.mse_loss(model(torch.randn(2, 6, 16)), torch.randn(2, 6, 16)), model


@program
def decoder():
    model = Decoder(tokens=20, size=16, heads=2, length=8)
    index = torch.randint(20, (2, 9))
    logits = model(index[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), index[:, 1:].flatten()), model


@program
def lstm_200(steps: int = STEPS):
    model = Recurrent(4, 8, 2)
    return model(torch.randn(steps, 3, 4)).square().mean(), model


@program
def lstm():
    model = nn.LSTM(4, 8, num_layers=2, batch_first=True, dropout=0.1)
    value, (hidden, cell) = model(torch.randn(3, 7, 4))
    return (value.sum(), hidden.square().sum(), cell.mean()), model


@program
def rnn():
    model = nn.ModuleDict({"rnn": nn.RNN(4, 8), "head": nn.Linear(8, 3)})
    value, _ = model["rnn"](torch.randn(9, 2, 4))
    return functional.cross_entropy(model["head"](value[-1]), torch.tensor([2, 0])), model


@program
def gru():
    model = nn.GRU(4, 8, bidirectional=True)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(6, 3, 4), torch.tensor([6, 4, 1], device="cpu"))
    value, hidden = model(packed)
    return (value.data.sum() + hidden.sum()), model, "a packed sequence, both directions"


@program
def attention():
    query, key, value = leaf(2, 3, 5, 8), leaf(2, 3, 7, 8), leaf(2, 3, 7, 8)
    found = functional.scaled_dot_product_attention(query, key, value)
    return found.square().sum(), {"query": query, "key": key, "value": value}


@program
def multihead_attention():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = leaf(2, 5, 8)
    value, weights = model(x, x, x)
    return {"value": value, "weights": weights}, {**dict(model.named_parameters()), "x": x}


@program
def vae():
    model = nn.ModuleDict({"encode": perceptron(10, 16, 8), "decode": perceptron(4, 16, 10)})
    x = torch.rand(6, 10)
    mean, logvar = model["encode"](x).chunk(2, 1)
    z = mean + torch.randn_like(mean) * (logvar / 2).exp()
    reconstruction = functional.binary_cross_entropy_with_logits(model["decode"](z), x, reduction="sum")
    divergence = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum()
    return {"reconstruction": reconstruction, "divergence": divergence}, model


@program
def diffusion_step():
    model = nn.ModuleDict({"time": nn.Embedding(10, 8), "down": nn.Conv2d(1, 8, 3, 2, 1), "norm": nn.GroupNorm(2, 8),
                           "up": nn.ConvTranspose2d(8, 1, 4, 2, 1)})  # fmt: skip
    clean, noise, step = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.randint(10, (2,))
    level = torch.linspace(0.9, 0.1, 10).cumprod(0)[step].view(2, 1, 1, 1)
    hidden = model["down"](level.sqrt() * clean + (1 - level).sqrt() * noise)
    hidden = functional.silu(model["norm"](hidden) + model["time"](step)[:, :, None, None])
    return functional.mse_loss(model["up"](hidden), noise), model


@program
def gan_step():
    model = nn.ModuleDict({"generator": perceptron(4, 16, 6), "discriminator": perceptron(6, 16, 1)})
    real, fake = torch.randn(8, 6), model["generator"](torch.randn(8, 4))
    judge, ones, zeros = model["discriminator"], torch.ones(8, 1), torch.zeros(8, 1)
    loss = functional.binary_cross_entropy_with_logits
    told = loss(judge(real), ones) + loss(judge(fake.detach()), zeros)
    return {"discriminator": told, "generator": loss(judge(fake), ones)}, model


@program
def weight_tying():
    embedding = nn.Embedding(11, 6)
    head = nn.Linear(6, 11, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Tanh(), head)
    return functional.cross_entropy(model(torch.tensor([0, 3, 3, 10])), torch.tensor([3, 3, 10, 1])), model


@program
def frozen_parts():
    model = perceptron(6, 8, 8, 2)
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model(torch.randn(4, 6)).sum(), model


@program
def embedding_sparse():
    embedding = nn.Embedding(20, 4, sparse=True)
    bag = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
    index = torch.tensor([[1, 5, 5], [0, 19, 2]])
    return (embedding(index).sum(1) * bag(index)).sum(), nn.ModuleDict({"embedding": embedding, "bag": bag})


@program
def spectral_norm():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 1))
    return model(torch.randn(3, 5)).sum(), model, "the weight is computed from a parameter"


# ------------------------------------------------------------------------------------------- derivatives of derivatives


@program
def maml():
    model = perceptron(1, 16, 1)
    adapted = dict(model.named_parameters())
    x = torch.linspace(-1, 1, 10).unsqueeze(1)
    for _ in range(2):
        loss = functional.mse_loss(functional_call(model, adapted, (x[:5],)), x[:5].sin())
        gradients = torch.autograd.grad(loss, tuple(adapted.values()), create_graph=True)
        adapted = {name: value - 0.1 * each for (name, value), each in zip(adapted.items(), gradients, strict=True)}
    return functional.mse_loss(functional_call(model, adapted, (x[5:],)), x[5:].sin()), model


@program
def gradient_penalty():
    model = perceptron(4, 8, 1)
    x = leaf(5, 4)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean(), {**dict(model.named_parameters()), "x": x}


@program
def hessian_vector():
    x, v = leaf(6), torch.randn(6)
    y = (x.sin() * x.exp()).sum() + x.prod()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return torch.autograd.grad(gradient @ v, x, create_graph=True)[0], {"x": x}


@program
def functional_transforms():
    weight, x = leaf(3, 4), torch.randn(5, 4)
    per_example = vmap(grad(lambda w, each: (w @ each).tanh().sum()), in_dims=(None, 0))(weight, x)
    return per_example.square().sum(), {"weight": weight}, "vmap of grad, under autograd"


# --------------------------------------------------------------------------------------------------------- the article


@program
def article_scalar():
    x = given(2.0)
    return x**2 + 3 * x, {"x": x}


@program
def article_vector():
    x = given([1.0, 2.0])
    return torch.stack([x[0] ** 2, x[1] ** 3]), {"x": x}


@program
def article_weighted():
    x = given([1.0, 2.0])
    return (x**2 * torch.tensor([0.1, 0.9])).sum(), {"x": x}


@program
def article_matrix():
    A = given([[1.0, 2.0], [3.0, 4.0]])
    return torch.mm(A, A.t()), {"A": A}


@program
def article_batch():
    model = nn.Linear(4, 2)
    return model(torch.randn(3, 4)), model


@program
def article_multi_task():
    model = nn.ModuleDict({"trunk": nn.Linear(4, 6), "age": nn.Linear(6, 1), "kind": nn.Linear(6, 3)})
    shared = model["trunk"](torch.randn(5, 4)).relu()
    return {"age": model["age"](shared), "kind": model["kind"](shared)}, model


@program
def article_attention():
    query, key, value = leaf(3, 4), leaf(5, 4), leaf(5, 2)
    weights = torch.softmax(query @ key.t() / 2, -1)
    return weights @ value, {"query": query, "key": key, "value": value}


@program
def article_custom_loss():
    output, target = given([2.0, 3.0]), torch.tensor([1.0, 1.0])
    return ((output - target) ** 2 * torch.tensor([1.0, 0.5])).sum(), {"output": output}


class Bilinear(nn.Module):
    """The article's layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,oij,bj->bo", x, self.weight, x)


@program
def article_custom_layer():
    layer, x = Bilinear(3, 2), leaf(4, 3)
    return layer(x), {"x": x, "weight": layer.weight}


@program
def article_half():
    x = given([1.0, 2.0], dtype=torch.float16)
    return x**2, {"x": x}


# ------------------------------------------------------------------------------------------------- the ways of autograd


@program
def checkpointed():
    model = perceptron(6, 8, 8, 2)
    x = checkpoint(model[:2], torch.randn(4, 6), use_reentrant=False)
    return model[2:](x).sum(), model


@program
def checkpointed_reentrant():
    model = perceptron(6, 8, 8, 2)
    x = checkpoint(model[:2], leaf(4, 6), use_reentrant=True)
    return model[2:](x).sum(), model, "the parameters inside are not in the graph; autograd.grad refuses it"


@program
def in_place_and_views():
    x, y = leaf(4, 6), leaf(4)
    held = x * 2
    held[:, 1].mul_(y)  # CopySlices
    held[2:] += 1
    view = held.view(-1)
    view.clamp_(min=-1)
    strided = held.as_strided((3, 2), (2, 1), 1)
    strided.mul_(0.5)
    first, second, *_ = held.unbind(0)
    return (first.sum(), second.exp(), strided.sum(), held.diagonal().prod()), {"x": x, "y": y}


@program
def unbind_reused():
    x = leaf(3, 5)
    a, b, _ = x.unbind(0)
    return (a * b).sum() + (a * a).sum(), {"x": x}, "one part is not used"


class Polar(Function):
    """Two outputs; keeps what it was given, what it returned, and a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        radius, angle = torch.hypot(x, y) * scale, torch.atan2(y, x)
        ctx.save_for_backward(x, y, radius)
        ctx.scale = scale
        return radius, angle

    @staticmethod
    def backward(ctx: Any, *seeds: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y, radius = ctx.saved_tensors
        r = radius / ctx.scale
        return (
            ctx.scale * seeds[0] * x / r - seeds[1] * y / r**2,
            ctx.scale * seeds[0] * y / r + seeds[1] * x / r**2,
            None,
        )


class Careless(Function):
    """Keeps tensors as attributes of ctx, which nothing checks or frees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.detach().cos()
        ctx.more = {"ones": torch.ones_like(x)}
        return x.sin()

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> Tensor:
        return seed * ctx.kept * ctx.more["ones"]


class Loose(Function):
    """Takes undefined cotangents, and gives none for its second input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, *seeds: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return (None if seeds[0] is None else seeds[0] * 2), None


@program
def custom_function():
    x, y = leaf(5), leaf(5)
    radius, angle = Polar.apply(x, y, 3.0)
    return (radius.sum(), Careless.apply(angle).sum()), {"x": x, "y": y}


@program
def custom_function_undefined():
    x, y = leaf(5), leaf(5)
    double, _ = Loose.apply(x, y)
    return double.sum(), {"x": x, "y": y}, "one cotangent is undefined, one gradient is None"


@program
def hooks():
    x, y = leaf(4), leaf(4)
    hidden = x * y
    hidden.register_hook(lambda seed: seed * 2)
    hidden.grad_fn.register_prehook(lambda seeds: (seeds[0] + 1,))
    value = hidden.exp()
    value.grad_fn.register_hook(lambda received, seeds: (received[0] * 3,))
    value.retain_grad()
    x.register_hook(lambda seed: seed.clamp(-1, 1))
    y.register_post_accumulate_grad_hook(lambda leaf: None)
    return value.sum(), {"x": x, "y": y}, "each hook changes the cotangent"


@program
def unused_outputs():
    x = leaf(6, 4)
    low, high = x.min(1), x.max(1)
    parts = x.split(2)
    Q, _ = torch.linalg.qr(x)
    return (low.values.sum() + high.values[0] + parts[1].sum() + Q.abs().sum()), {"x": x}


@program
def zero_dim_and_empty():
    x, empty, square = given(2.0), leaf(0, 3), leaf(3, 0)
    return {
        "sum": (empty * x).sum() + x.exp(),
        "product": square @ empty,
        "cat": torch.cat([empty, leaf(2, 3)]).sum(),
        "empty": empty.sin(),
    }, {"x": x, "empty": empty, "square": square}


@program
def shared_storage():
    x = leaf(8, 8)
    h = x.tanh()
    return (h[0].sin() * h[1].exp() * h.t()[2].cos() + h.view(-1)[5:13].pow(3)).sum(), {"x": x}


@program
def outputs_nested():
    x, y = leaf(3), leaf(3)
    return {"a": [x.sin(), {"b": (x * y).sum()}], "c": (y.exp(), x), "d": {}}, {"x": x, "y": y}, "a leaf is an output"


@program
def same_output_twice():
    x = leaf(3)
    y = x.exp()
    return [y, y, y.sum()], {"x": x}


@program
def broadcast_and_expand():
    x, bias, scale = leaf(4, 1, 3), leaf(5, 1), given(0.5)
    return ((x + bias) * scale).expand(2, 4, 5, 3).mean((0, 2)), {"x": x, "bias": bias, "scale": scale}


@program
def no_grad_inside():
    x, y = leaf(4), leaf(4)
    with torch.no_grad():
        frozen = x.exp()
    return (frozen * y).sum() + (x.detach() * y).sum(), {"x": x, "y": y}, "x is not in the graph"


# ----------------------------------------------------------------------------------------------------- kinds of numbers


@program
def complex_numbers():
    x, z = leaf(4), leaf(4, dtype=torch.complex64)
    product = torch.view_as_complex(torch.stack([x, x.cos()], -1)) * z.conj()
    return (product.abs().sum() + (z * z).real.sum() + z.imag.prod()), {"x": x, "z": z}


@program
def complex_output():
    z = leaf(3, dtype=torch.complex128)
    return z.exp() * z, {"z": z}


@program
def mixed_precision():
    model = perceptron(8, 16, 4)
    x = torch.randn(4, 8)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        value = model(x)
        loss = functional.mse_loss(value, torch.zeros_like(value))
    return loss, model


@program
def float16_small():
    x = torch.full((6,), 3e-4, dtype=torch.float16, requires_grad=True)
    return (x.square() * 1e-3).sum().float(), {"x": x}, "squares under the smallest normal number"


@program
def float64_to_float32():
    x = leaf(4, dtype=torch.float64)
    return (x.float().sin().double() * x).sum(), {"x": x}


# -------------------------------------------------------------------------------------------------- kinds of operations


@program
def order_statistics():
    x, at = leaf(5, 7), torch.randint(7, (5, 3))
    return (
        torch.quantile(x, 0.3, dim=1).sum() + x.sort(1).values[:, 2].sum() + x.topk(2).values.sum()
        + x.gather(1, at).prod(1).sum() + x.scatter_add(1, at, x[:, :3]).square().sum()
        + x.median() + x.kthvalue(3, 1).values.sum() + x[:, [0, 0, 4]].sum() + x[x > 0].sum()
    ), {"x": x}  # fmt: skip


@program
def fourier():
    x = leaf(4, 16)
    return torch.fft.irfft(torch.fft.rfft(x) * torch.randn(9, dtype=torch.complex64)).square().sum(), {"x": x}


@program
def linear_algebra():
    A, b = leaf(4, 4), leaf(4, 2)
    whole = A @ A.mT + 4 * torch.eye(4)
    solved = torch.linalg.solve(whole, b)
    return solved.square().sum() + torch.linalg.cholesky(whole).logdet() + torch.linalg.eigvalsh(whole).sum(), {
        "A": A, "b": b,
    }  # fmt: skip


@program
def losses():
    x, y = leaf(4, 3), torch.randn(4, 3)
    target = torch.tensor([0, 2, 1, -100])
    return [
        functional.cross_entropy(x, target),
        functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        functional.huber_loss(x, y),
        functional.cosine_similarity(x, y).sum(),
        functional.triplet_margin_loss(x, y, y.flip(0)),
    ], {"x": x}


@program
def compiled():
    torch.compiler.reset()
    model = perceptron(4, 8, 2)
    return torch.compile(model, backend="aot_eager")(torch.randn(3, 4)).sum(), model, "one node for the compiled part"


# --------------------------------------------------------------------------------------------------------- large graphs


@program
def deep_chain(n: int = 100_000):
    x = y = leaf(())
    for _ in range(n):
        y = y + 1
    return y, {"x": x}


@program
def wide_sum(n: int = 10_000):
    leaves = {f"x{i}": leaf(()) for i in range(n)}
    return torch.stack(list(leaves.values())).sum(), leaves


@program
def diamonds(n: int = 60):
    x = y = leaf(3)
    for _ in range(n):
        y = y.sin() * y.cos()
    return y.sum(), {"x": x}, "2ⁿ paths; a walk that does not remember what it saw never ends"
