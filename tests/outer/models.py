"""Modules and functions whose parameters enter in every way that we know of, with their Jacobians row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.nn.functional import linear

B = 9


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + 17 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def whole(high, *shape, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


class Free(nn.Module):
    """A module whose forward is a function of itself."""

    def __init__(self, f, *modules, **parameters):
        super().__init__()
        self.m = nn.ModuleList(modules)
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))
        self.f = f

    def forward(self, *args):
        return self.f(self, *args)


@dataclass
class Case:
    """A function and what is known of its parameters.

    ``mixed``: those where positions belong to several examples; ``alone``: those whose gradient is no contraction.
    """

    f: object
    args: tuple
    wrt: object = "parameters"
    mixed: int = 0
    alone: int = 0
    lead: int = 1
    seed: bool = field(default=False)


def rows(case):
    """J row by row with torch.autograd alone."""
    if case.seed:
        torch.manual_seed(3)
    if case.wrt == "parameters":
        leaves = list(case.f.parameters())
        value = case.f(*case.args)
    else:
        leaves = [case.args[case.wrt].clone().requires_grad_()]
        value = case.f(*leaves)
    outputs = list(value.values()) if isinstance(value, dict) else [value]
    found = []
    for output in outputs:
        for each in output.flatten():
            gradients = torch.autograd.grad(each, leaves, retain_graph=True, allow_unused=True)
            parts = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, leaves, strict=True)]
            found.append(torch.cat([part.flatten() for part in parts]))
    if found:
        return torch.stack(found).detach()
    return torch.zeros(0, sum(leaf.numel() for leaf in leaves), dtype=torch.float64)


def tied(self, index):
    return (self.m[0](index) + 0.1).tanh() @ self.m[0].weight.T


def tied_module():
    embedding, out = nn.Embedding(11, 4, padding_idx=2), nn.Linear(4, 11, bias=False)
    out.weight = embedding.weight
    return nn.Sequential(embedding, nn.Tanh(), out)


def shared():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


def swapped(module):
    return lambda self, x: self.m[0](x.transpose(0, 1))[0].transpose(0, 1)


def conv(dim, *, transposed=False, **how):
    kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d) if transposed else (
        nn.Conv1d, nn.Conv2d, nn.Conv3d)  # fmt: skip
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dim - 1]
    after = (nn.Tanh(), plain(4, 2, 2)) if transposed or "groups" in how else ()
    return nn.Sequential(kinds[dim - 1](2, 4, 3 if transposed or "groups" in how else 2, **how), *after, nn.Flatten())


def after_conv(norm, channels=4):
    return nn.Sequential(nn.Conv1d(2, channels, 3), norm, nn.Flatten())


def uneven(self, x):
    owner = whole(B, 20, seed=4)
    return torch.zeros(B, 4, dtype=x.dtype).index_add(0, owner, self.m[0](x[owner]).tanh())


def residual(self, x):
    return self.m[0](x).tanh() + x


def attention(self, x):
    return self.m[0](x, x, x)[0]


def attention_of_sequence(self, x):
    x = x.transpose(0, 1)
    return self.m[0](x, x, x)[0].transpose(0, 1)


def two_outputs(self, x):
    h = self.m[0](x)
    return {"a": h.square(), "b": self.m[1](h.relu()).sum(1)}


def mask():
    return (random(4, 3, seed=8) > -0.4).double()


X = random(B, 4, seed=5)
IDS = whole(5, B, seed=6)


CONVS = {
    "strided, in groups": {"stride": 2, "padding": 1, "groups": 2},
    "dilated": {"dilation": 2},
    "transposed": {"transposed": True, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
}


def conv_case(dim, kind):
    how = CONVS[kind]
    return Case(conv(dim, **how), (random(B, 2, *((2, 2, 2) if "transposed" in how else (5, 4, 3))[:dim]),))


def make():
    """All cases, by name; each is made when it is asked for."""
    S, L, P = nn.Sequential, nn.Linear, random
    return {
        "mlp": lambda: Case(S(L(6, 7), nn.ReLU(), L(7, 5), nn.ReLU(), L(5, 3)), (P(B, 6),)),
        "losses": lambda: Case(Free(lambda s, x: s.m[0](x).square().sum(1), L(6, 7)), (P(B, 6),)),
        "weights shared": lambda: Case(shared(), (P(B, 5),)),
        "called twice": lambda: Case(
            Free(lambda s, x: s.m[0](x)[:, :3] + s.m[0](x.flip(0))[:, 2:], L(5, 5)), (P(B, 5),)),
        "tied": lambda: Case(Free(tied, nn.Embedding(11, 4)), (whole(11, B, 3),), lead=2),
        "tied, mean": lambda: Case(Free(lambda s, i: tied(s, i).mean(1), nn.Embedding(11, 4)), (whole(11, B, 3),)),
        "tied module, padded": lambda: Case(tied_module(), (whole(4, B, 3),), lead=2),
        "(B, T, d)": lambda: Case(S(L(3, 4), nn.Tanh(), L(4, 2)), (P(B, 5, 3),), lead=2),
        "(B, T, d), over T": lambda: Case(Free(lambda s, x: s.m[0](x).cumsum(1), L(3, 4)), (P(B, 5, 3),)),
        "(T, B, d)": lambda: Case(
            Free(lambda s, x: s.m[0](x.transpose(0, 1)).transpose(0, 1).cumsum(1), L(3, 4)), (P(B, 5, 3),)),
        **{f"conv{dim}d {kind}": partial(conv_case, dim, kind) for dim in (1, 2, 3) for kind in CONVS},
        "depthwise": lambda: Case(S(nn.Conv2d(2, 4, 3, groups=2, padding="same"), nn.Flatten()), (P(B, 2, 2, 2),)),
        "embedding": lambda: Case(
            Free(lambda s, i: s.m[0](i).mean(1).tanh(), nn.Embedding(7, 4, padding_idx=1)), (whole(4, B, 3),)),
        "embedding bag": lambda: Case(
            Free(lambda s, i: s.m[0](i).tanh(), nn.EmbeddingBag(7, 4)), (whole(4, B, 3),), mixed=1, alone=1),
        "lookup": lambda: Case(Free(lambda s, x: s.T[IDS] * x, T=P(5, 4)), (X,)),
        "gather": lambda: Case(Free(lambda s, x: s.T.index_select(0, IDS) * x, T=P(5, 4)), (X,)),
        "layer norm": lambda: Case(S(L(6, 8), nn.LayerNorm(8), nn.Tanh()), (P(B, 6),)),
        "group norm": lambda: Case(after_conv(nn.GroupNorm(2, 4)), (P(B, 2, 6),)),
        "RMS norm": lambda: Case(S(L(6, 8), nn.RMSNorm(8), nn.Tanh()), (P(B, 6),)),
        "batch norm, eval": lambda: Case(after_conv(nn.BatchNorm1d(4)).eval(), (P(B, 2, 6),)),
        "batch norm, training": lambda: Case(after_conv(nn.BatchNorm1d(4)), (P(B, 2, 6),), mixed=2),
        "instance norm": lambda: Case(after_conv(nn.InstanceNorm1d(4, affine=True)), (P(B, 2, 6),)),
        "einsum": lambda: Case(
            Free(lambda s, x: torch.einsum("bti,oi->bto", x, s.W).sin(), W=P(4, 3)), (P(B, 5, 3),), lead=2),
        "einsum, bilinear": lambda: Case(
            Free(lambda s, x: torch.einsum("bi,oij,bj->bo", x, s.W, x), W=P(4, 3, 3)), (P(B, 3),)),
        "einsum, heads": lambda: Case(
            Free(lambda s, x: torch.einsum("bhi,hio->bho", x, s.W), W=P(2, 3, 4)), (P(B, 2, 3),)),
        "elementwise": lambda: Case(Free(lambda s, x: s.W * x, W=P(3)), (P(B, 3),)),
        "a number": lambda: Case(Free(lambda s, x: s.W * x.sin(), W=P()), (P(B, 3),)),
        "W Wᵀ": lambda: Case(Free(lambda s, x: x @ (s.W @ s.W.T), W=P(3, 3)), (P(B, 3),), mixed=1),
        "x (U V)": lambda: Case(Free(lambda s, x: x @ (s.U @ s.V), U=P(3, 2), V=P(2, 4)), (P(B, 3),), mixed=2),
        "(x U) V": lambda: Case(Free(lambda s, x: (x @ s.U) @ s.V, U=P(3, 2), V=P(2, 4)), (P(B, 3),)),
        "sliced": lambda: Case(Free(lambda s, x: x @ s.W[1:4] + (x @ s.W[:3]).tanh(), W=P(5, 4)), (P(B, 3),)),
        "every second": lambda: Case(Free(lambda s, x: x @ s.W[::2, 1::2], W=P(6, 5)), (P(B, 3),)),
        "selected": lambda: Case(Free(lambda s, x: x @ s.W[0] + (x @ s.W[1]).tanh(), W=P(2, 3, 4)), (P(B, 3),)),
        "chunks": lambda: Case(
            Free(lambda s, x: x @ s.W.chunk(2, 1)[0] + (x @ s.W.chunk(2, 1)[1]).tanh(), W=P(3, 4)), (P(B, 3),)),
        "viewed": lambda: Case(
            Free(lambda s, x: linear(x, s.W.view(3, 4).T.contiguous()) + s.b.expand(B, 3)[:, :1], W=P(12), b=P(3)),
            (P(B, 3),)),
        "expanded": lambda: Case(
            Free(lambda s, x: torch.bmm(x[:, None], s.W.expand(B, 3, 4)).squeeze(1).tanh(), W=P(3, 4)), (P(B, 3),)),
        "concatenated": lambda: Case(
            Free(lambda s, x: x @ torch.cat([s.U, 2 * s.U, s.V], 1), U=P(3, 2), V=P(3, 1)), (P(B, 3),)),
        "masked": lambda: Case(Free(lambda s, x: linear(x, s.W * mask()), W=P(4, 3)), (P(B, 3),)),
        "rows scaled": lambda: Case(Free(lambda s, x: linear(x, 2 * s.W * P(4, 1, seed=2)), W=P(4, 3)), (P(B, 3),)),
        "columns scaled": lambda: Case(Free(lambda s, x: linear(x, -s.W / P(3, seed=2)), W=P(4, 3)), (P(B, 3),)),
        "weight norm": lambda: Case(
            nn.utils.parametrizations.weight_norm(L(3, 4)), (P(B, 3),), mixed=2, alone=2),
        "attention": lambda: Case(Free(attention, nn.MultiheadAttention(4, 2, batch_first=True)), (P(B, 3, 4),)),
        "attention, sequence first": lambda: Case(
            Free(attention_of_sequence, nn.MultiheadAttention(4, 2)), (P(B, 3, 4),)),
        **{
            f"{kind.__name__}{', sequence first' * (not first)}": lambda kind=kind, first=first: Case(
                Free((lambda s, x: s.m[0](x)[0]) if first else swapped(kind), kind(3, 4, batch_first=first)),
                (P(B, 3, 3),))
            for kind in (nn.RNN, nn.LSTM, nn.GRU)
            for first in (True, False)
        },
        "transformer": lambda: Case(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), (P(B, 3, 4),)),
        "transformer, dropout": lambda: Case(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (P(B, 3, 4),), seed=True),
        "residuals": lambda: Case(S(*(Free(residual, L(4, 4)) for _ in range(3))), (X,)),
        "dead rows": lambda: Case(S(L(4, 5), nn.ReLU(), L(5, 2)), (X * torch.linspace(-2, 2, B)[:, None].double(),)),
        "uneven": lambda: Case(Free(uneven, L(6, 4)), (P(B, 6),)),
        "unused": lambda: Case(Free(lambda s, x: s.m[0](x), L(4, 3), L(2, 2)), (X,)),
        "two outputs": lambda: Case(Free(two_outputs, L(6, 7), L(7, 2)), (P(B, 6),)),
        "one example": lambda: Case(S(L(6, 7), nn.ReLU(), L(7, 2)), (P(1, 6),)),
        "no batch": lambda: Case(S(L(6, 7), nn.ReLU(), L(7, 2)), (P(6),), mixed=4),
        "a function": lambda: Case(lambda W: (X @ W).tanh() @ W.T, (P(4, 5),), wrt=0),
        "a function of one example": lambda: Case(lambda W: X.sum(0) @ W, (P(4, 5),), wrt=0, mixed=1),
        "a loss": lambda: Case(Free(lambda s, x: s.m[0](x).square().sum(), L(6, 7)), (P(B, 6),), mixed=2, lead=0),
    }  # fmt: skip


CASES = make()


def case_of(name):
    torch.manual_seed(1)
    case = CASES[name]()
    if isinstance(case.f, nn.Module):
        case.f.double()
    return case
