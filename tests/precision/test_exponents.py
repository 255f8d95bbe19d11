"""The exponents of a tensor's numbers, against numpy's frexp."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pullback.precision.exponents import SHARE, Waiting, look, rounds_away, settle

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def numbers(dtype, spread=6.0, count=5000):
    values = torch.randn(count, dtype=torch.float64) * 10.0 ** torch.empty(count, dtype=torch.float64).uniform_(
        -spread, 2
    )
    values[::9] = 0
    return values.to(dtype)


def with_numpy(tensor):
    """What the exponents are, from the numbers themselves."""
    info, values = torch.finfo(tensor.dtype), tensor.double().numpy()
    magnitude = np.abs(values[np.isfinite(values) & (values != 0)])
    return info, values, magnitude


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_shares_and_the_room_are_those_of_numpy(dtype):
    tensor = numbers(dtype)
    found = look(tensor)
    info, values, magnitude = with_numpy(tensor)
    assert found.zero == pytest.approx(np.mean(values == 0))
    assert found.subnormal == pytest.approx(np.mean(magnitude < info.tiny))
    assert found.bad == 0
    assert found.up >= 0
    assert magnitude.max() * 2.0**found.up <= info.max < magnitude.max() * 2.0 ** (found.up + 1)
    if found.down >= 0:
        assert np.mean(magnitude * 2.0**-found.down < info.tiny) <= SHARE
        assert np.mean(magnitude * 2.0 ** -(found.down + 1) < info.tiny) > SHARE
    else:
        assert np.mean(magnitude < info.tiny) > SHARE


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_overflowed_has_no_room(dtype):
    tensor = numbers(dtype, spread=1.0)
    tensor[3], tensor[4], tensor[5] = float("inf"), float("-inf"), float("nan")
    found = look(tensor)
    assert (found.up, found.bad) == (-1, 3 / 5000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_alone_tell_nothing(dtype):
    found = look(torch.tensor([0.0, -0.0], dtype=dtype))
    assert (found.zero, found.up, found.down, found.top, found.bottom) == (1.0, None, None, None, None)
    empty = look(torch.empty(0, dtype=dtype))
    assert (empty.zero, empty.bad, empty.subnormal, empty.up) == (0.0, 0.0, 0.0, None)


def test_strides_do_not_matter():
    tensor = numbers(torch.float16).reshape(50, 100)
    assert look(tensor.t()) == look(tensor)
    assert look(tensor[:, ::2]) == look(tensor[:, ::2].contiguous())
    assert look(torch.ones((), dtype=torch.float16).expand(10, 10)) == look(torch.ones(10, 10, dtype=torch.float16))
    large = torch.cat([torch.full((99_000,), 2.0), torch.full((101_000,), 1e-30)])
    assert look(large).top - look(torch.ones(1)).top == 1
    assert look(large).bottom == look(torch.full((1,), 1e-30)).top


def test_what_has_no_exponents_is_left_alone():
    assert look(torch.ones(3, dtype=torch.float64)) is None
    assert look(torch.ones(3, dtype=torch.complex64)) is None
    assert look(torch.eye(3).to_sparse()) is None


def test_a_part_rounds_away_when_the_sum_does_not_change():
    whole = 0.9 * torch.rand(1000) + 1.0
    for power in range(20):
        part = (0.9 * torch.rand(1000) + 1.0) * 2.0**-power
        for dtype in (torch.float16, torch.bfloat16):
            told = rounds_away(look(part.to(dtype)), look(whole.to(dtype)))
            changed = (whole.to(dtype) + part.to(dtype) != whole.to(dtype)).double().mean()
            assert not (told and changed > SHARE)
            if changed == 0:
                assert told
    assert not rounds_away(look(torch.zeros(3)), look(torch.ones(3)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda_the_counts_are_the_same_and_are_waited_for_once(dtype):
    tensor = numbers(dtype)
    waiting = [look(tensor.cuda()), look(tensor[:10].cuda())]
    assert all(isinstance(each, Waiting) for each in waiting)
    assert settle(waiting) == [look(tensor), look(tensor[:10])]
