"""Random small networks put together from layers, shared or not: always the numbers of the plain rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pullback as pb

from .models import Case, Free, random, rows

WIDTH = 3
B = 8


def convolved(self, x):
    return self.m[0](x.transpose(1, 2)).transpose(1, 2)


PIECES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "no bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "RMS norm": lambda: nn.RMSNorm(WIDTH),
    "conv": lambda: Free(convolved, nn.Conv1d(WIDTH, WIDTH, 3, padding="same")),
    "steps": lambda: Free(lambda s, x: x.cumsum(1)),
    "scale": lambda: Free(lambda s, x: s.W * x, W=random(WIDTH)),
    "positions": lambda: Free(lambda s, x: x + s.W[: x.shape[1]], W=random(4, WIDTH)),
    "GRU": lambda: Free(lambda s, x: s.m[0](x)[0], nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "gate": lambda: Free(lambda s, x: s.m[0](x) * s.m[0](x.flip(1)).sigmoid(), nn.Linear(WIDTH, WIDTH)),
    "batch mean": lambda: Free(lambda s, x: x - x.mean(0)),
}  # fmt: skip


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_random_networks(data):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    names = data.draw(st.lists(st.sampled_from(list(PIECES)), min_size=1, max_size=4))
    layers = [PIECES[name]() for name in names]
    if data.draw(st.booleans()):
        layers.append(layers[0])  # weights shared
    f = nn.Sequential(nn.Linear(2, WIDTH), *layers).double()
    steps = data.draw(st.integers(1, 3))
    if data.draw(st.booleans()):
        f = nn.Sequential(f, Free(lambda s, x: x.square().sum((1, 2))))
    case = Case(f, (random(B, steps, 2),))
    expected = rows(case)
    J = pb.jacobian(f, *case.args, wrt="parameters", strategy="outer")
    close = {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(J.gram(), expected @ expected.T, **close)
    torch.testing.assert_close(J.row_norms(), expected.norm(dim=1), **close)
    torch.testing.assert_close(J.normal().diagonal(), expected.square().sum(0), **close)
    assert "batch mean" in names or J.plan().chosen == "outer"
    if "batch mean" not in names:
        torch.testing.assert_close(J.matrix(), expected, **close)
