"""The strategy "staged": the last layers of a network serve many outputs in one pass."""

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import StrategyError
from tests.jacobian.plain import reference


def mixer(tokens, width):
    """Tokens are mixed first, and each goes through two layers of its own then."""
    torch.manual_seed(0)
    mix = torch.randn(tokens, tokens, dtype=torch.float64) / tokens
    layers = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)).double()
    layers.requires_grad_(False)

    def f(x):
        mixed = mix @ x
        return layers(torch.tanh(mixed)) + mixed

    return f


@pytest.mark.parametrize("tokens", [2, 7, 24])
def test_equals_plain_rows(tokens):
    f, x = mixer(tokens, 5), torch.randn(tokens, 5, dtype=torch.float64)
    if tokens == 2:  # two tokens share nothing worth a pass
        with pytest.raises(StrategyError, match="keeps enough of them apart"):
            pb.jacobian(f, x, strategy="staged").dense()
        return
    J = pb.jacobian(f, x, strategy="staged")
    torch.testing.assert_close(J.dense(), reference(f, x), rtol=1e-12, atol=1e-14)
    assert J.plan().chosen == "staged"
    assert J.plan().offers["staged"].split == (("reverse", 5 + 1), ("reverse", 5 * tokens))
    assert J.plan().checked == "a random seed times J equals a plain reverse pass"


def test_wins_by_itself_where_the_last_layers_are_most_of_the_work():
    f, x = mixer(40, 16), torch.randn(40, 16, dtype=torch.float64)
    for _ in range(3):
        J = pb.jacobian(f, x)
        torch.testing.assert_close(J.dense(), reference(f, x), rtol=1e-12, atol=1e-14)
        assert J.plan().chosen == "staged"


def test_an_attention_block():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True).double().requires_grad_(False)
    x = torch.randn(1, 33, 16, dtype=torch.float64)
    J = pb.jacobian(block, x)
    torch.testing.assert_close(J.dense(), reference(block, x), rtol=1e-9, atol=1e-12)
    assert J.plan().chosen == "staged"


def test_several_inputs_and_outputs():
    f = mixer(30, 10)

    def g(inputs):
        y = f(inputs["a"] + inputs["b"].T)
        return {"high": y[:7], "low": y[7:]}

    inputs = {name: torch.randn(30, 10, dtype=torch.float64) for name in "ab"}
    inputs["b"] = inputs["b"].T.contiguous()
    found = pb.jacobian(g, inputs, strategy="staged").dense()
    for name in "ab":
        want = reference(lambda t, name=name: torch.cat(list(g({**inputs, name: t}).values())), inputs[name])
        torch.testing.assert_close(torch.cat([found["high"][name], found["low"][name]]), want, rtol=1e-12, atol=1e-14)


def test_written_into_what_is_there():
    f, x = mixer(20, 6), torch.randn(20, 6, dtype=torch.float64)
    out = torch.full((20, 6, 20, 6), torch.nan, dtype=torch.float64)
    assert pb.jacobian(f, x, strategy="staged").dense(out=out) is out
    torch.testing.assert_close(out, reference(f, x), rtol=1e-12, atol=1e-14)


def test_another_point_and_other_weights():
    f = mixer(24, 5)
    weights = torch.ones(24, 1, dtype=torch.float64)

    def g(x):
        return f(x * weights)

    for k in range(4):
        weights.fill_(1.0 + k)
        x = torch.randn(24, 5, dtype=torch.float64)
        found = pb.jacobian(g, x, strategy="staged").dense()
        torch.testing.assert_close(found, reference(g, x), rtol=1e-11, atol=1e-12)


def test_within_a_memory_limit():
    f, x = mixer(24, 5), torch.randn(24, 5, dtype=torch.float64)
    J = pb.jacobian(f, x, strategy="staged", memory="400KiB")
    torch.testing.assert_close(J.dense(), reference(f, x), rtol=1e-12, atol=1e-14)
    assert len(J.plan().chunks) > 2


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (lambda x: (x @ x.mT).flatten(), "keeps enough of them apart"),  # nothing after the mixing
        (lambda x: (x * 2.0).softmax(0).cumsum(0) + x.sum(), "keeps enough of them apart"),
        (lambda x: torch.complex(x, x) ** 2, "complex"),
    ],
)
def test_says_why_not(f, why):
    with pytest.raises(StrategyError, match=why):
        pb.jacobian(f, torch.randn(24, 24, dtype=torch.float64), strategy="staged").dense()


def test_a_result_to_be_differentiated_is_refused():
    f, x = mixer(24, 5), torch.randn(24, 5, dtype=torch.float64)
    with pytest.raises(StrategyError, match="differentiated again"):
        pb.jacobian(f, x, strategy="staged", create_graph=True).dense()


def test_in_single_precision_and_with_batch_norm_in_training():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))
    net.requires_grad_(False)
    x = torch.randn(30, 6)
    before = net[1].running_mean.clone()
    J = pb.jacobian(net, x, strategy="staged")
    found = J.dense()
    after = net[1].running_mean.clone()
    assert not torch.equal(before, after)
    torch.testing.assert_close(found, reference(net, x), rtol=1e-3, atol=1e-4)


def test_a_gate_that_holds_more_than_the_seed():
    """The reverse pass of matrix_exp puts the seed beside the matrix itself, so a part of the gate is no zero."""
    x = torch.randn(24, 24, dtype=torch.float64) * 0.1
    J = pb.jacobian(torch.matrix_exp, x, strategy="staged", verify=False)
    torch.testing.assert_close(J.dense(), reference(torch.matrix_exp, x), rtol=1e-9, atol=1e-12)
