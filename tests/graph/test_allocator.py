"""The measure of what is freed, held against tensors whose size is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.graph.allocator import freed_by

MIB = 2**20
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_of_one_mebibyte(device):
    assert freed_by(lambda: [torch.ones(MIB // 4, device=device)], device=device) == MIB


@pytest.mark.parametrize("device", DEVICES)
def test_views_share_a_storage_that_is_freed_once(device):
    def make():
        whole = torch.ones(256, 1024, device=device)
        return [whole, whole[3], whole.t(), whole.view(-1)[5:9]]

    assert freed_by(make, device=device) == MIB


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_keeps_the_whole_storage(device):
    assert freed_by(lambda: [torch.ones(256, 1024, device=device)[0, :2]], device=device) == MIB


@pytest.mark.parametrize("device", DEVICES)
def test_what_something_else_holds_is_not_freed(device):
    kept = torch.ones(MIB // 4, device=device)
    assert freed_by(lambda: [kept, kept[:5]], device=device) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_keeps_exactly_one_activation(device):
    """``sin`` saves its argument, an addition nothing: of three activations one stays."""
    x = torch.ones(MIB // 4, device=device, requires_grad=True)

    def make():
        return [(((x + 1).sin() + 2).sum()).grad_fn]

    assert freed_by(make, device=device) == MIB


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_of_two_layers(device):
    """The input of the second layer, which is also the result that tanh saves; the first layer's input is ours."""
    x = torch.ones(64, 256, device=device)
    model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 8)).to(device)
    assert freed_by(lambda: [model(x).grad_fn], device=device) == 64 * 1024 * 4


def test_a_cycle_is_collected():
    def make():
        cycle = [torch.ones(MIB // 4)]
        cycle.append(cycle)
        return [cycle]

    assert freed_by(make) == MIB


def test_odd_sizes_are_exact():
    assert freed_by(lambda: [torch.ones(3, dtype=torch.int8), torch.ones(7, dtype=torch.float64)]) == 3 + 56


def test_what_release_allocates_counts_against_it():
    rest = []
    assert freed_by(lambda: [torch.ones(100)], lambda held: (held.clear(), rest.append(torch.ones(10)))) == 360


def test_zero_for_what_holds_no_tensor():
    assert freed_by(lambda: [object(), torch.ones(0)]) == 0
