"""The recorder names the lines that PyTorch's anomaly mode names, keeps nothing alive, and disturbs nobody."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import weakref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.errors import ArgumentError, ValueMismatch
from pullback.graph.recording import origins, tracing
from pullback.graph.recording.origins import Table
from pullback.graph.recording.record import Origin, origin_of, record
from pullback.graph.recording.tracing import Tracer
from pullback.graph.recording.userfiles import UserFiles

FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$', re.MULTILINE)
pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")


def x3():
    return torch.linspace(0.1, 1, 3, requires_grad=True)


def nodes_of(*outputs):
    """All nodes that torch numbered, found without the code under test."""
    found, ahead = {}, [output.grad_fn for output in outputs]
    while ahead:
        node = ahead.pop()
        if node is None or node in found:
            continue
        found[node] = None
        ahead += [following for following, _ in node.next_functions]
    return [node for node in found if "AccumulateGrad" not in node.name()]


def place_of(node):
    origin = origin_of(node._sequence_nr())
    return origin and (origin.place.file, origin.place.line)


def line_of(tensor):
    """The text of the line that made a tensor."""
    origin = origin_of(tensor.grad_fn._sequence_nr())
    return origin and origin.place.text


def names_of(node):
    return [type(call.module()).__name__ for call in origin_of(node._sequence_nr()).calls]


def truth(node):
    """The innermost of the user's lines in anomaly mode's stack."""
    for found in reversed([*FRAME.finditer("".join(node.metadata["traceback_"]))]):
        if found["file"] in {__file__, "<string>"}:
            return found["file"], int(found["line"])
    return None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        h = self.lin(x)
        h = self.norm(h.tanh()) * 2
        return h + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            inner = x.detach().requires_grad_() ** 2
        Cube.inner = inner
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        square = x * x
        return 3 * square * g


def helper(h):
    h = h.sin()
    return h.exp()


def modules():
    return Net()(torch.ones(2, 3, requires_grad=True)).sum()


def in_one_expression():
    return helper(x3()) * 2 + helper(x3().cos()) / helper(x3())


def several_lines():
    x = x3()
    y = torch.cat([
        x.sin(),
        helper(x),
        (x * 2
         ).cos(),
    ]).sum(
    ) * 3  # fmt: skip
    return (
        y
        + x.sum()
        * helper(y)
    )  # fmt: skip


def comprehensions():
    x = x3()
    parts = [
        helper(x) * k
        for k in range(3)
        if (x * k).sum() > -1
    ]  # fmt: skip
    named = {k: part.sin() for k, part in enumerate(parts)}
    return sum(part.exp() for part in named.values()) + (lambda t: t * 2)(x)


def generators():
    def once(x):
        for _ in range(3):
            x = x.sin()
            got = yield x
            x = x * (got or 2)
        try:
            yield x.cos()
        finally:
            made.append(x.tan())

    def twice(x):
        yield x.exp()
        last = yield from once(x)
        assert last is None

    made = []
    whole, half = twice(x3()), twice(x3())
    y = next(whole) + next(half) * 2
    y = y * next(half)
    y = y + next(half).sinh()
    half.close()
    for value in whole:
        y = y + value
    return [y, *made]


def in_place():
    x = x3() * 1
    x.mul_(2)
    view = x[1:]
    view.add_(1)
    x[0] = helper(x)[1]
    x += 1
    return [x.view(3, 1).t(), view]


def custom():
    return [Cube.apply(helper(x3())) * 2, Cube.inner]


def recurrent():
    gru = nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)
    out, state = gru(torch.ones(2, 5, 3))
    return out.sum() + state.mean()


def attention():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    y, weights = nn.MultiheadAttention(4, 2)(*[torch.ones(3, 1, 4, requires_grad=True)] * 3)
    return layer(y).sum() + weights.sum()


def double_backward():
    x = x3()
    y = (Cube.apply(x) * helper(x)).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g * g).sum()


def recursion():
    def down(x, n):
        if n == 0:
            return x.sin()
        return down(x * n, n - 1) + down(
            x, n - 1).cos()  # fmt: skip

    return down(x3(), 3)


def exceptions():
    def fails(x):
        kept.append(x.sin())
        kept.append(helper(x).cos() @ x.new_ones(2))

    def passes_on(x):
        try:
            fails(x * 2)
        finally:
            kept.append(x.tan())

    kept = []
    x = x3()
    for error in (RuntimeError, Exception):
        try:
            passes_on(x)
        except error:
            kept.append(x.exp() + 1)
    try:
        nn.Linear(2, 2)(x)
    except RuntimeError:
        kept.append(x.sinh() * 2)
    return kept


def executed():
    names = {}
    exec("def f(x):\n    y = x.sin()\n\n    return y * 2\n", names)
    return names["f"](x3()) + 1


def asynchronous():
    async def one(x, n):
        for _ in range(n):
            x = x.sin()
            await asyncio.sleep(0)
            x = x * 2
        return x

    async def stream(x):
        for k in range(3):
            await asyncio.sleep(0)
            yield x * k

    async def both(x):
        a, b = await asyncio.gather(one(x, 3), one(x.cos(), 2))
        c = await one(a * b, 1) + a
        async for value in stream(c):
            c = c + value.exp()
        return c

    return asyncio.run(both(x3()))


def checkpoints():
    block, x = Block(), torch.ones(2, 3, requires_grad=True)
    kept = []

    def body(h):
        h = block(h)
        kept.append(h.sin())
        return h * 2

    for reentrant in (False, True):
        y = checkpoint(body, x * 1, use_reentrant=reentrant)
        kept.append(y.exp())
        y.sum().backward()
    return [each for each in kept if each.requires_grad]


def hooks_and_contexts():
    class Scaled:
        def __init__(self, x):
            self.x = x.sin()

        def __enter__(self):
            return self.x * 2

        def __exit__(self, *error):
            made.append(self.x.cos())

        @property
        def half(self):
            return self.x / 2

    made = []
    net = nn.Linear(3, 3)
    net.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    net.register_forward_hook(lambda module, args, out: out.sin())
    net.register_full_backward_hook(lambda module, before, after: None)
    with Scaled(x3()) as x:
        y = net(x[None])
    with torch.no_grad():
        Scaled(x3()).half.sum()
    with torch.inference_mode():
        Scaled(x3()).half.sum()
    return [y.sum() * Scaled(x3()).half, *made]


PROGRAMS = [modules, in_one_expression, several_lines, comprehensions, generators, in_place, custom, recurrent,
            attention, double_backward, recursion, exceptions, executed, asynchronous, checkpoints,
            hooks_and_contexts]  # fmt: skip


def listed(found):
    return list(found) if isinstance(found, (list, tuple)) else [found]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_lines_are_those_of_anomaly_mode(program):
    with torch.autograd.detect_anomaly(check_nan=False), record() as recording:
        outputs = listed(program())
    nodes = nodes_of(*outputs)
    nodes = [node for node in nodes if "traceback_" in node.metadata]  # a view's node may be made when it is asked for
    assert len(nodes) >= 3
    assert len(recording) >= len(nodes)
    told = {(node.name(), node._sequence_nr()): (place_of(node), truth(node)) for node in nodes}
    assert {key: found for key, (found, expected) in told.items() if found != expected} == {}
    assert all(expected is not None for _, expected in told.values())


def test_all_programs_one_after_another():
    with torch.autograd.detect_anomaly(check_nan=False), record():
        outputs = [output for program in PROGRAMS for output in listed(program())]
    nodes = [node for node in nodes_of(*outputs) if "traceback_" in node.metadata]
    assert [place_of(node) for node in nodes] == [truth(node) for node in nodes]


def test_module_calls_are_told_outermost_first():
    net = Net()
    with record():
        y = net(torch.ones(2, 3, requires_grad=True))
    found = [names_of(node) for node in sorted(nodes_of(y), key=lambda node: node._sequence_nr())]
    linear, norm = (["Net", "Block", kind] for kind in ("Linear", "LayerNorm"))
    block = [linear, linear, ["Net", "Block"], norm, ["Net", "Block"], ["Net", "Block"]]  # a weight's transpose first
    head = [["Net", "Sequential", "Linear"]] * 2 + [["Net", "Sequential", "ReLU"]]
    assert found == block * 2 + head
    modules = [origin_of(node._sequence_nr()).calls[-1].module() for node in nodes_of(y)]
    assert {net.blocks[0].lin, net.blocks[1].lin, net.head[0], net.head[1]} <= set(modules)


def test_each_call_of_a_module_has_a_number_of_its_own():
    lin, x = nn.Linear(3, 3), x3()
    with record():
        for _ in range(3):
            x = lin(x)
        with pytest.raises(RuntimeError):
            lin(torch.ones(2))
        after = x.sin()
    calls = [origin_of(node._sequence_nr()).calls for node in nodes_of(x) if place_of(node)]
    assert {call.module() for (call,) in calls} == {lin}
    assert len({call.number for (call,) in calls}) == 3
    assert origin_of(after.grad_fn._sequence_nr()).calls == ()


def test_nothing_is_kept_alive():
    def program():
        net = Net()
        x = torch.ones(2, 3, requires_grad=True)
        with record():
            y = net(x)
            z = Cube.apply(helper(y)).sum()
            z.backward()
        origin = origin_of(z.grad_fn._sequence_nr())
        kept = [weakref.ref(each) for each in (x, y, z, net, net.head[0], net.head[0].weight)]
        del x, y, z, net
        gc.collect()
        return kept, [each() for each in kept], origin

    kept, alive, origin = program()
    assert alive == [None] * 6  # although the function that recorded had not returned
    assert isinstance(origin, Origin)
    gc.collect()
    assert [each() for each in kept] == [None] * 6


def test_a_call_of_a_module_that_is_gone_says_so():
    with record():
        y = nn.Linear(3, 3)(x3())
    gc.collect()
    (call,) = origin_of(y.grad_fn._sequence_nr()).calls
    assert call.module() is None


def test_what_was_made_outside_is_not_known():
    x = x3()
    before = x.sin()
    with record():
        first = x.cos()
    between = x.tan()
    with record():
        second = x.exp()
    after = x.sinh()
    assert [line_of(each) for each in (before, between, after)] == [None] * 3
    assert (line_of(first), line_of(second)) == ("first = x.cos()", "second = x.exp()")
    assert origin_of(2**64 - 1) is origin_of(10**15) is origin_of(-1) is None


def test_it_can_be_read_inside_on_the_very_line():
    with record() as recording:
        found = line_of(x3().sin())
        assert found == "found = line_of(x3().sin())"
        assert len(recording) == 1
        assert repr(recording) == "<Recording of 1 nodes, open>"
    assert repr(recording) == "<Recording of 1 nodes>"


def test_recordings_inside_recordings():
    x = x3()
    outer = record()
    with outer:
        a = x.sin()
        with record() as inner:
            b = helper(x)
            with outer:
                c = x.cos()
        d = x.tan()
    outside = x.sin()
    with outer:
        e = x.sinh()
    assert [line_of(each) for each in (a, b, c, d, e, outside)] == [
        "a = x.sin()", "return h.exp()", "c = x.cos()", "d = x.tan()", "e = x.sinh()", None]  # fmt: skip
    assert (len(inner), len(outer)) == (3, 6)
    assert sys.gettrace() is None
    assert threading.gettrace() is None


def test_recordings_that_end_in_another_order_and_in_other_functions():
    def start():
        recording = record()
        recording.__enter__()
        return recording, x3().sin()

    first, a = start()
    b = helper(a) * 2
    second, c = start()
    first.__exit__(None, None, None)
    d = b.tan()
    second.__exit__(None, None, None)
    assert sys.gettrace() is None
    assert line_of(a) == "return recording, x3().sin()"
    assert line_of(b) == "b = helper(a) * 2"
    assert line_of(d) == "d = b.tan()"
    assert line_of(c) == "return recording, x3().sin()"


def test_a_call_of_a_module_stays_the_same_across_a_recording_inside_it(tmp_path, monkeypatch):
    (tmp_path / "own_package.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    class Inside(nn.Module):
        def forward(self, x):
            x = x.sin()
            with record(packages=("own_package",)):
                x = x.cos()
            return x.exp()

    with record():
        y = Inside()(x3())
    calls = {origin_of(node._sequence_nr()).calls for node in nodes_of(y)}
    assert len(calls) == 1
    assert len(next(iter(calls))) == 1


def test_it_decorates_a_function():
    @record()
    def f(x):
        return x.sin()

    assert line_of(f(x3())) == "return x.sin()"
    assert sys.gettrace() is None


def test_an_error_goes_through_and_all_is_as_before():
    def fails():
        with record():
            made.append(x3().sin())
            return 1 / 0

    made = []
    with pytest.raises(ZeroDivisionError):
        fails()
    assert line_of(made[0]) == "made.append(x3().sin())"
    assert sys.gettrace() is None
    assert threading.gettrace() is None


def test_generators_that_outlive_a_recording():
    def forever(x):
        while True:
            x = x.sin()
            yield x

    values = forever(x3())
    with record():
        first = next(values)
    second = next(values)
    with record():
        third = next(values) * 2
        fourth = x3().cos()
    assert [line_of(each) for each in (first, second, third, fourth)] == [
        "x = x.sin()", None, "third = next(values) * 2", "fourth = x3().cos()"]  # fmt: skip
    values.close()


def in_thread(target):
    """Run in a thread of its own, which counts its nodes from 0, and hand on what it raises."""

    def run():
        try:
            found.append(target())
        except BaseException as problem:
            raised.append(problem)

    found, raised = [], []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


@pytest.fixture
def tables(monkeypatch):
    """As if no thread had been recorded yet."""
    monkeypatch.setattr(origins, "_TABLES", origins._Tables())
    return origins._TABLES


def test_a_thread_that_is_started_inside_is_recorded(tables):
    def work():
        return helper(x3()) * 2

    def start():
        with record() as recording:
            found.append(threading.Thread(target=lambda: found.append(work())))
            found[0].start()
            found[0].join()
        return len(recording)

    found = []
    assert in_thread(start) == 3
    assert line_of(found[1]) == "return helper(x3()) * 2"
    assert threading.gettrace() is None


def test_a_number_that_two_threads_gave_is_not_known(tables):
    def work():
        with record():
            return x3().sin()

    def longer():
        with record():
            return x3().exp().cos().tan()

    first = in_thread(work)
    assert line_of(first) == "return x3().sin()"
    second = in_thread(longer)
    assert first.grad_fn._sequence_nr() == nodes_of(second)[-1]._sequence_nr() == 0
    assert line_of(first) is None
    assert line_of(second) == "return x3().exp().cos().tan()"  # the number 2, which only one of them has given


def test_a_number_that_was_given_before_the_recording_is_claimed_too(tables):
    def longer():
        early = x3().sin().cos()
        with record():
            return early, x3().exp()

    def work():
        with record():
            return x3().tan()

    early, late = in_thread(longer)
    assert (line_of(early), line_of(late)) == (None, "return early, x3().exp()")
    assert line_of(in_thread(work)) is None
    assert line_of(early) is None


def test_tables_of_threads_that_ended_are_dropped_but_not_their_claims(tables, monkeypatch):
    def work():
        with record():
            return [x3().sin() for _ in range(3)]

    def longer():
        with record():
            return x3().sin().cos().tan().exp()

    monkeypatch.setattr(origins, "ENDED_THREADS", 2)
    kept = [in_thread(work) for _ in range(6)]
    assert len(tables.all) <= 4
    last = in_thread(longer)
    assert tables.forgotten == 3
    assert line_of(last) == "return x3().sin().cos().tan().exp()"
    assert [line_of(each) for each in (*kept[0], *kept[-1])] == [None] * 6


def test_a_thread_that_goes_on_after_the_recording_is_left_alone(tables):
    def work():
        mine = [helper(x3())]
        ready.set()
        assert goes_on.wait(20)
        mine.append(helper(x3()))
        mine.append(sys.gettrace())
        with record():
            mine.append(x3().tan())
        return mine

    ready, goes_on, found = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=lambda: found.extend(work()))
    with record() as recording:
        thread.start()
        assert ready.wait(20)
    before = len(recording)
    goes_on.set()
    thread.join()
    inside, after, trace, again = found
    assert trace is None
    assert before == len(recording) == 2
    assert [line_of(each) for each in (inside, after, again)] == [
        "return h.exp()", None, "mine.append(x3().tan())"]  # fmt: skip


def test_one_recording_in_two_threads(tables):
    def work():
        both_in.wait()
        with recording:
            both_done.wait()
            y = helper(x3())
            both_done.wait()
        return y, sys.gettrace()

    recording, found = record(), []
    both_in, both_done = threading.Barrier(2, timeout=20), threading.Barrier(2, timeout=20)
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [trace for _, trace in found] == [None, None]
    assert [line_of(y) for y, _ in found] == [None, None]
    assert threading.gettrace() is None


by_settrace = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="lines are heard of by sys.monitoring there, and the trace function is not touched",
)


class Listener:
    """Who traced before: keeps the events of this file, with local functions of its own for each frame."""

    def __init__(self, lines=True):
        self.events = []
        self.lines = lines

    def __call__(self, frame, event, arg):
        assert event == "call"
        if frame.f_code.co_filename != __file__ or frame.f_code.co_name not in {"traced", "helper", "values", "fails"}:
            return None
        self.events.append((frame.f_code.co_name, event, frame.f_lineno))
        frame.f_trace_lines = self.lines
        if frame.f_code.co_name == "values":
            frame.f_trace_opcodes = True
        return self.local

    def local(self, frame, event, arg):
        self.events.append((frame.f_code.co_name, event, frame.f_lineno))
        if frame.f_code.co_name == "helper" and event == "line":
            return self.other
        return self.local if len(self.events) % 2 else None

    def other(self, frame, event, arg):
        self.events.append((frame.f_code.co_name, event, frame.f_lineno, "other"))


class LikeC(Listener):
    """Puts itself there at every call, as the tracer of coverage does that is written in C."""

    def __call__(self, frame, event, arg):
        sys.settrace(self)
        return super().__call__(frame, event, arg)


def traced():
    def values(x):
        yield x.sin()
        yield x.cos()

    def fails(x):
        raise ValueError(x)

    y = helper(x3())
    for value in values(y):
        y = y * value
    try:
        fails(y)
    except ValueError:
        y = y + 1
    return Net()(y[None]) * 2


@by_settrace
@pytest.mark.parametrize("kind", [Listener, LikeC])
@pytest.mark.parametrize("lines", [True, False])
def test_who_traced_before_gets_all_events_and_is_back_afterwards(kind, lines):
    plain, beside = kind(lines), kind(lines)
    before = sys.gettrace()
    try:
        sys.settrace(plain)
        traced()
        assert sys.gettrace() is plain
        sys.settrace(beside)
        with record():
            y = traced()
        assert sys.gettrace() is beside
    finally:
        sys.settrace(before)
    assert beside.events == plain.events
    assert {event[1] for event in plain.events} == {"call", "return", "exception", "opcode"} | (
        {"line"} if lines else set()
    )
    assert line_of(y) == "return Net()(y[None]) * 2"
    assert names_of(y.grad_fn) == []
    assert {line_of_node(node) for node in nodes_of(y)} >= {"yield x.sin()", "yield x.cos()", "return h.exp()"}


def line_of_node(node):
    origin = origin_of(node._sequence_nr())
    return origin and origin.place.text


def test_a_debugger_that_listens_in_frames_that_run_already_goes_on():
    def local(frame, event, arg):
        if frame.f_code.co_name == "debugged":
            heard.append((event, frame.f_lineno - frame.f_code.co_firstlineno))
        return local

    def debugged():
        sys._getframe().f_trace = local
        sys.settrace(lambda *_: None)
        x = x3()
        with record():
            y = x.sin()
        y = y * 1
        with pytest.raises(ZeroDivisionError), record():
            y = y / (1 / 0)
        sys.settrace(None)
        return y

    heard = []
    debugged()
    lines = [line for event, line in heard if event == "line"]
    assert [line for i, line in enumerate(lines) if i == 0 or lines[i - 1] != line] == [3, 4, 5, 4, 6, 7, 8, 7, 9]
    assert "exception" in {event for event, _ in heard}


@by_settrace
def test_who_replaces_the_trace_function_inside_keeps_it():
    def theirs(frame, event, arg):
        return None

    try:
        with record():
            known = x3().sin()
            sys.settrace(theirs)
            beside = x3().cos()
            deeper = helper(x3())
        assert sys.gettrace() is theirs
        with record():
            again = x3().tan()
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)
    assert (line_of(known), line_of(again)) == ("known = x3().sin()", "again = x3().tan()")
    assert line_of(beside) in {"beside = x3().cos()", None}  # the frame still tells
    assert line_of(deeper) in {"deeper = helper(x3())", None}


@by_settrace
def test_who_wraps_the_trace_function_inside_may_go_on_calling_it():
    with record():
        inner = sys.gettrace()
        sys.settrace(lambda frame, event, arg: inner(frame, event, arg))
        helper(x3())
    y = helper(x3()) * 2
    sys.settrace(None)
    assert line_of(y) is None


def test_an_error_of_who_traced_before_comes_through():
    def theirs(frame, event, arg):
        if frame.f_code.co_name == "helper":
            raise KeyError("quit")

    sys.settrace(theirs)
    try:
        with pytest.raises(KeyError, match="quit"), record():
            helper(x3())
        assert sys.gettrace() is None
    finally:
        sys.settrace(None)


def compiled(record_it):
    """Results, and how often was compiled, of a program with a compiled module and a compiled function."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    net, places = Block(), []
    fast_net = torch.compile(net, backend="aot_eager")

    @torch.compile(backend="aot_eager")
    def fast(x):
        y = x.sin()
        print(end="")  # breaks the graph
        return helper(y) * x

    found = []
    for rows in (2, 2, 4):
        x = torch.ones(rows, 3, requires_grad=True)
        with record() if record_it else torch.enable_grad():
            y = fast_net(x)
            z = fast(y)
            w = helper(z) * 2
        w.sum().backward()
        found += [w.detach(), x.grad]
        places.append([line_of(each) for each in (y, z, w)])
    counters = torch._dynamo.utils.counters
    return found, dict(counters["stats"]), dict(counters["frames"]), dict(counters["graph_break"]), places


@pytest.mark.filterwarnings("ignore")
def test_it_is_aside_inside_compiled_functions():
    *plain, nothing = compiled(record_it=False)
    *beside, places = compiled(record_it=True)
    torch.testing.assert_close(beside[0], plain[0], rtol=0, atol=0)
    assert beside[1:] == plain[1:]
    assert plain[1]["unique_graphs"] >= 3
    assert places == [["y = fast_net(x)", "z = fast(y)", "w = helper(z) * 2"]] * 3
    assert nothing == [[None] * 3] * 3


@pytest.mark.filterwarnings("ignore")
def test_recording_and_not_recording_share_what_is_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = torch.compile(Block(), backend="aot_eager")
    x = torch.ones(2, 3, requires_grad=True)
    net(x)
    first = dict(torch._dynamo.utils.counters["stats"])
    with record():
        net(x)
    net(x)
    assert dict(torch._dynamo.utils.counters["stats"]) == first


def test_an_installed_package_counts_when_it_is_named(tmp_path, monkeypatch):
    place = tmp_path / "site-packages" / "installed_package"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("def double(x):\n    return x.sin() * 2\n")
    monkeypatch.syspath_prepend(place.parent)
    package = __import__("installed_package")
    with record():
        first = package.double(x3())
    with record(packages=("installed_package",)):
        second = package.double(x3())
        with record():
            third = package.double(x3())
    assert [line_of(each) for each in (first, second, third)] == [
        "first = package.double(x3())", "return x.sin() * 2", "return x.sin() * 2"]  # fmt: skip


@pytest.mark.parametrize("packages", ["torch", (1,), ("torch", None)])
def test_packages_that_are_no_sequence_of_names(packages):
    with pytest.raises(ArgumentError, match="packages must be a sequence of names of packages") as error:
        record(packages=packages)
    assert error.value.got == f"packages={packages!r}"
    assert "mypackage" in error.value.fix


@pytest.mark.parametrize("package", ["no_such_package", "no_such.package", ""])
def test_a_package_that_is_not_there(package):
    with pytest.raises(ValueMismatch, match="A package whose lines are to be recorded cannot be found") as error:
        record(packages=(package,))
    assert error.value.got == f"packages has {package!r}"
    assert "transformers" in error.value.fix


@pytest.mark.parametrize(
    ("name", "own"),
    [("<stdin>", True), ("<ipython-input-3-5f>", True), ("/tmp/ipykernel_1/2.py", True), ("<doctest a.b[0]>", True),
     ("<frozen importlib._bootstrap>", False), ("<eval_with_key>.1", False), (torch.__file__, False),
     (threading.__file__, False), (pytest.__file__, False), ("relative/script.py", True), ("<string>", True),
     ("/usr/lib/python3/dist-packages/x.py", False), (sys.modules[Table.__module__].__file__, False)],
)  # fmt: skip
def test_which_files_are_the_users(name, own):
    frames = {}
    code = compile("import sys; frames['f'] = sys._getframe()", name, "exec")
    exec(code, {"frames": frames})
    assert UserFiles(()).own(frames["f"]) is own


def test_code_that_a_library_generates_is_the_librarys():
    frames = {}
    code = compile("import sys; frames['f'] = sys._getframe()", "<string>", "exec")
    exec(code, {"frames": frames, "__file__": torch.__file__})
    assert not UserFiles(()).own(frames["f"])


@settings(deadline=None)
@example(entries=2, steps=[(1, 0, False), (1, 0, True), (1, 0, False), (1, 0, True)])
@given(
    entries=st.integers(2, 40),
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=120),
)
def test_a_table_is_bounded_and_tells_the_truth_or_nothing(entries, steps):
    table, known, stop = Table(entries), {}, 0
    bases = [table.function(f"file{i}.py", f"f{i}") for i in range(4)]
    module, outermost = nn.Identity(), 0
    for number, (made, place, recorded) in enumerate(steps, 1):
        numbers = range(stop, stop + made)
        stop += made
        if recorded:
            call = table.call(outermost, weakref.ref(module))
            outermost = outermost or call
            table.note(stop, bases[place] + number, call)
            known |= dict.fromkeys(numbers, (f"file{place}.py", number))
        else:
            table.skip(stop)
        assert len(table) <= entries
    for each in range(stop + 3):
        found = table.origin(each)
        assert found is None or (found.place.file, found.place.line) == known.get(each)
        assert found is None or {call.number for call in found.calls} >= {outermost}
        assert found is None or len(found.calls) <= 2
    newest = [each for each in range(stop - 1, -1, -1) if each in known][:1]
    assert all(table.origin(each) is not None for each in newest if stop - each <= steps[-1][0])
    assert len(table._columns.modules) <= len(table)
    assert len(table._columns.older) <= 2


def test_a_long_recording_forgets_the_older_half(tables, monkeypatch):
    def work():
        kept = []
        with record():
            for _ in range(150):
                kept.append(x3().sin())
                kept.append(x3().cos())
        return kept

    monkeypatch.setattr(Table.__init__, "__defaults__", (100,))
    kept = in_thread(work)
    lines = [line_of(each) for each in kept]
    assert set(lines) == {None, "kept.append(x3().sin())", "kept.append(x3().cos())"}
    known = [i for i, line in enumerate(lines) if line]
    assert known == list(range(known[0], 300))
    assert 40 <= len(known) <= 100
    assert len(tables.all[0]) <= 100


def test_functions_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(tracing, "FUNCTIONS", 5)
    made = []
    with record():
        for k in range(30):
            names = {}
            exec(f"def f{k}(x):\n    return x * {k}\n", names)
            made.append(names[f"f{k}"](x3()))
    assert {place_of(each.grad_fn) for each in made} == {("<string>", 2)}
    assert {origin_of(each.grad_fn._sequence_nr()).place.function for each in made} == {f"f{k}" for k in range(30)}


def test_the_function_is_named_with_its_class():
    with record():
        y = Block()(torch.ones(2, 3, requires_grad=True))
    assert origin_of(y.grad_fn._sequence_nr()).place.function == "Block.forward"


def test_the_in_place_check_of_torch_still_speaks():
    with record():
        y = x3().exp()
        z = y.sin()
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_tracer_does_not_end_what_it_did_not_begin():
    tracer = Tracer(Table(), UserFiles(()))
    tracer.look()
    assert tracer.stop(None) == []
    assert sys.gettrace() is None
