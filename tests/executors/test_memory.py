"""Bytes: limits that are read, what is free, and what a computation takes."""

import pytest
import torch

from pullback.errors import ArgumentError, ValueMismatch
from pullback.executors import memory
from pullback.executors.memory import (
    chunk_ranges,
    default_limit,
    free_bytes,
    is_out_of_memory,
    measured,
    parse_bytes,
)

CPU = torch.device("cpu")
MEBI = 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1, 1),
        (2.9, 2),
        (10**12, 10**12),
        ("7", 7),
        ("7B", 7),
        ("3 kb", 3000),
        ("1.5KiB", 1536),
        (" 2GiB ", 2 * 2**30),
        ("2 gb", 2 * 10**9),
        (".5MiB", 2**19),
        ("1TiB", 2**40),
        (float("inf"), 2**62),
    ],
)
def test_an_amount_of_memory_is_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("wrong", ["", "GiB", "2 gigabytes", "1.2.3MB", ".", "-1GiB", "1e9", "2GiB free", "1 2"])
def test_a_text_that_is_no_amount_is_refused(wrong):
    with pytest.raises(ValueMismatch) as caught:
        parse_bytes(wrong)
    assert caught.value.got == repr(wrong)
    assert "2GiB" in caught.value.fix


@pytest.mark.parametrize("wrong", [0, -1, 0.5, float("nan"), "0GiB", "0.1B"])
def test_less_than_a_byte_is_refused(wrong):
    with pytest.raises(ValueMismatch, match="at least one byte"):
        parse_bytes(wrong)


@pytest.mark.parametrize("wrong", [True, None, [1], torch.tensor(1)])
def test_what_is_neither_number_nor_text_is_refused(wrong):
    with pytest.raises(ArgumentError):
        parse_bytes(wrong)


def test_a_known_computation_is_measured_about_right(device):
    x = torch.ones(MEBI // 4, device=device)  # one MiB, there before
    result, peak = measured(lambda: (x + 1) * 2, device)
    assert result[0].item() == 4
    assert 2 * MEBI <= peak <= 2.1 * MEBI


def test_what_is_freed_on_the_way_is_not_counted_twice(device):
    def loop():
        total = torch.zeros(MEBI // 4, device=device)
        for _ in range(20):
            total += torch.ones(MEBI // 4, device=device)
        return total

    _, peak = measured(loop, device)
    assert 2 * MEBI <= peak <= 3.1 * MEBI


def test_views_and_writes_in_place_take_nothing(device):
    x = torch.ones(MEBI, device=device)
    _, peak = measured(lambda: x.view(-1, 4).add_(1).mT[0], device)
    assert peak == 0


def test_a_backward_pass_is_measured(device):
    x = torch.ones(MEBI // 4, device=device, requires_grad=True)
    y = x.sin().exp()
    _, peak = measured(lambda: torch.autograd.grad(y.sum(), x), device)
    assert MEBI <= peak <= 6 * MEBI


def test_a_batch_takes_its_passes_times_the_bytes_of_one():
    x = torch.ones(1000, requires_grad=True)
    y = x.sin()

    def passes(k):
        seeds = torch.ones(k, 1000)
        return measured(lambda: torch.autograd.grad(y, x, seeds, retain_graph=True, is_grads_batched=True), CPU)[1]

    assert 8 <= passes(100) / passes(10) <= 12


def test_a_failure_is_passed_on():
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0, CPU)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("no"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_an_error_that_says_memory_ran_out_is_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyboardInterrupt()])
def test_another_error_is_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_torch_own_refusal_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_some_memory_is_free(device):
    assert free_bytes(device) > 0


def test_an_unknown_device_has_an_assumed_amount():
    assert free_bytes(torch.device("meta")) == memory.ASSUMED_FREE


def test_where_the_system_says_nothing_an_amount_is_assumed(monkeypatch):
    monkeypatch.setattr(memory.Path, "read_text", lambda self: "")
    assert free_bytes(CPU) == memory.ASSUMED_FREE


@pytest.mark.parametrize(("limit", "expected"), [("3000000", 2_000_000), ("1000", 0), ("max", 8_192_000)])
def test_the_control_group_has_the_last_word(monkeypatch, limit, expected):
    files = {
        "/proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   8000 kB\n",
        "/sys/fs/cgroup/memory.max": limit + "\n",
        "/sys/fs/cgroup/memory.current": "1000000\n",
    }
    monkeypatch.setattr(memory.Path, "read_text", lambda self: files[str(self)])
    assert free_bytes(CPU) == expected


def test_the_default_limit_is_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1001)
    assert default_limit(CPU) == 500


def test_ranges_cover_the_total_once():
    assert list(chunk_ranges(7, 3)) == [(0, 3), (3, 6), (6, 7)]
    assert list(chunk_ranges(0, 3)) == []
