"""The local executor on routes made by hand: chunks, memory that runs out, routes that fail, routes that are slow."""

import time

import pytest
import torch

from pullback.data.space import Space
from pullback.executors import local
from pullback.executors.local import LocalExecutor, Route, routes

N = 3
ANSWER = Space.of((torch.ones(N, dtype=torch.float64), torch.ones((), dtype=torch.float64)))
CALM = LocalExecutor(memory="1GiB", progress=False)


def seeds(start, stop):
    """Seed i is i, N times."""
    return (torch.arange(start, stop, dtype=torch.float64)[:, None].expand(-1, N).clone(),)


def double(given):
    (seed,) = given
    return seed * 2, seed.sum(1)


def expected(total):
    (seed,) = seeds(0, total)
    return seed * 2, seed.sum(1)


class Spy:
    """A route's run that remembers the sizes it was sent, and may refuse, sleep or fail."""

    def __init__(self, most=None, delay=0.0, error=None):
        self.most, self.delay, self.error = most, delay, error
        self.sizes = []

    def __call__(self, given):
        self.sizes.append(len(given[0]))
        if self.error is not None:
            raise self.error
        if self.most is not None and self.sizes[-1] > self.most:
            raise torch.OutOfMemoryError("fake: out of memory")
        time.sleep(self.delay * self.sizes[-1])
        return double(given)


def batched(spy):
    return Route("batched", spy, at_once=True)


def looped(spy):
    return Route("looped", spy, at_once=False)


def assert_right(found, total):
    for one, other in zip(found, expected(total), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture
def never_measured(monkeypatch):
    def refuse(run, device):
        raise AssertionError("it was measured")

    monkeypatch.setattr(local, "measured", refuse)


@pytest.mark.parametrize("total", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("memory", [1, 500, None])
@pytest.mark.parametrize("kind", [batched, looped])
def test_results_are_right_in_any_chunks(total, in_place, memory, kind):
    spy = Spy()
    found, run = LocalExecutor(memory, progress=False).run([kind(spy)], seeds, total, ANSWER, in_place=in_place)
    assert_right(found, total)
    assert run.chunks == spy.sizes
    assert sum(run.chunks) == total
    assert run.notes == []


def test_the_first_chunk_is_measured_and_sizes_the_others():
    spy = Spy()
    found, run = LocalExecutor(memory=1000, progress=False).run([batched(spy)], seeds, 100, ANSWER)
    assert_right(found, 100)
    assert run.chunks[:2] == list(local.PROBES)
    assert run.each >= 8 * (N + 1)  # at least what a pass answers
    assert run.chunks[2] == int(1000 // run.each)


def test_what_fits_the_first_chunk_is_not_measured(never_measured):
    spy = Spy()
    _, run = CALM.run([batched(spy)], seeds, local.PROBES[0], ANSWER)
    assert spy.sizes == [local.PROBES[0]]
    assert run.each == 0


def test_known_bytes_are_not_measured_again(never_measured):
    spy = Spy()
    found, run = LocalExecutor(memory=1000, progress=False).run([batched(spy)], seeds, 50, ANSWER, each=50.0)
    assert_right(found, 50)
    assert run.chunks == [20, 20, 10]
    assert run.each == 50.0


def test_one_pass_at_a_time_is_not_measured(never_measured):
    _, run = CALM.run([looped(Spy())], seeds, 20, ANSWER)
    assert run.chunks == [1] * 20


def test_on_a_cpu_a_chunk_stays_inside_the_caches():
    each = local.CPU_WORKING_SET / 64  # a power of two: no rounding
    _, run = LocalExecutor(memory="1TiB", progress=False).run([batched(Spy())], seeds, 100, ANSWER, each=each)
    assert run.chunks == [64, 36]


def test_even_the_smallest_limit_lets_one_pass_through():
    found, run = LocalExecutor(memory=1, progress=False).run([batched(Spy())], seeds, 3, ANSWER, each=1e9)
    assert_right(found, 3)
    assert run.chunks == [1, 1, 1]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("most", [1, 3, 5])
def test_when_memory_runs_out_chunks_are_halved(most, in_place):
    spy = Spy(most=most)
    found, run = CALM.run([batched(spy)], seeds, 41, ANSWER, in_place=in_place)
    assert_right(found, 41)
    assert run.route.name == "batched"
    assert max(run.chunks) <= most
    assert sum(run.chunks) == 41
    assert "out of memory" in run.notes[0]
    assert "halved" in run.notes[0]


@pytest.mark.parametrize(
    "text",
    ["CUDA out of memory. Tried to allocate 2.00 GiB", "DefaultCPUAllocator: can't allocate memory: you tried to"],
)
def test_memory_that_runs_out_is_known_by_its_words_too(text):
    def refuses(given):
        if len(given[0]) > 3:
            raise RuntimeError(text)
        return double(given)

    found, run = CALM.run([batched(refuses)], seeds, 20, ANSWER)
    assert_right(found, 20)
    assert run.chunks == [2] * 10
    assert run.notes == [f"out of memory with {size} passes at once: halved" for size in (8, 4)]


def test_memory_that_runs_out_late_is_halved_from_there():
    def refuses_later(given):
        if given[0][0, 0] >= 32 and len(given[0]) > 4:
            raise torch.OutOfMemoryError("fake: out of memory")
        return double(given)

    found, run = CALM.run([batched(refuses_later)], seeds, 45, ANSWER, each=2**30 / 16)
    assert_right(found, 45)
    assert run.chunks == [16, 16, 3, 3, 3, 3, 1]


def test_memory_that_does_not_hold_one_pass_is_an_error_that_no_other_route_hides():
    other = Spy()
    with pytest.raises(torch.OutOfMemoryError):
        CALM.run([batched(Spy(most=0)), looped(other)], seeds, 20, ANSWER)
    assert other.sizes == []


def test_a_route_that_fails_leaves_it_to_the_next():
    failing, next_one = Spy(error=RuntimeError("no batching rule\nand a long story")), Spy()
    found, run = CALM.run([batched(failing), looped(next_one)], seeds, 5, ANSWER)
    assert_right(found, 5)
    assert run.route.name == "looped"
    assert run.chunks == [1] * 5
    assert run.notes == ["batched: RuntimeError: no batching rule"]


def test_a_route_that_fails_halfway_is_begun_anew_by_the_next():
    def fails_later(given):
        if given[0][0, 0] > 0:
            raise ValueError("later")
        return double(given)

    found, run = CALM.run([batched(fails_later), batched(Spy())], seeds, 50, ANSWER)
    assert_right(found, 50)
    assert sum(run.chunks) == 50


def test_an_error_without_a_text_is_noted_by_its_kind():
    _, run = CALM.run([batched(Spy(error=NotImplementedError())), looped(Spy())], seeds, 2, ANSWER)
    assert run.notes == ["batched: NotImplementedError"]


def test_the_error_of_the_last_route_is_raised():
    ways = [batched(Spy(error=RuntimeError("first"))), looped(Spy(error=ValueError("last")))]
    with pytest.raises(ValueError, match="last"):
        CALM.run(ways, seeds, 5, ANSWER)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(interrupt):
    other = Spy()
    with pytest.raises(interrupt):
        CALM.run([batched(Spy(error=interrupt())), looped(other)], seeds, 5, ANSWER)
    assert other.sizes == []


def test_a_batch_slower_than_its_passes_alone_leaves_the_rest_to_the_next_route():
    slow, fast = Spy(delay=5e-3), Spy()
    found, run = CALM.run([batched(slow), looped(fast)], seeds, 40, ANSWER, alone=2e-3)
    assert_right(found, 40)
    # The first chunk warms up, and is not counted.
    assert slow.sizes == list(local.PROBES)
    assert fast.sizes == [1] * (40 - sum(local.PROBES))
    assert run.chunks == [*local.PROBES] + [1] * (40 - sum(local.PROBES))
    assert run.batch_is_slower
    assert run.notes == ["batched: slower than looped, which did the rest"]


def test_a_fast_batch_goes_on_to_the_end():
    other = Spy()
    _, run = CALM.run([batched(Spy()), looped(other)], seeds, 20, ANSWER, alone=10.0)
    assert other.sizes == []
    assert not run.batch_is_slower
    assert run.notes == []


def test_passes_too_short_to_tell_are_not_switched():
    other = Spy()
    CALM.run([batched(Spy(delay=1e-3)), looped(other)], seeds, 20, ANSWER, alone=local.WORTH_SWITCHING / 2)
    assert other.sizes == []


def test_results_do_not_share_memory_with_themselves():
    def constant(given):
        return torch.ones(N, dtype=torch.float64).expand(len(given[0]), N), given[0].sum(1)

    found, _ = CALM.run([batched(constant)], seeds, 4, ANSWER)
    found[0][0] = 7
    assert found[0][1].tolist() == [1.0] * N


def test_results_stay_differentiable_where_they_are_asked_to():
    x = torch.ones(N, dtype=torch.float64, requires_grad=True)

    def scaled(given):
        return given[0] * x, (given[0] * x).sum(1)

    found, _ = LocalExecutor(progress=False).run([looped(scaled)], seeds, 4, ANSWER, in_place=False)
    (gradient,) = torch.autograd.grad(found[0].sum(), x)
    assert gradient.tolist() == [6.0] * N


def test_the_routes_of_a_kernel_are_batched_first():
    found = routes({"reverse": lambda given: (given[0] * 2, given[0].sum())})
    assert [route.at_once for route in found] == [True, False]
    assert all(route.name.startswith("reverse") for route in found)
    for route in found:
        result, _ = CALM.run([route], seeds, 12, ANSWER)
        assert_right(result, 12)


def test_the_limit_is_what_was_asked_for_or_a_share_of_what_is_free(device):
    assert LocalExecutor(memory="2KiB").limit(device) == 2048
    assert LocalExecutor().limit(device) > 0
