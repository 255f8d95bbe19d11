"""The leak watch: real small loops, each with one fault or none; it names the holder, the lines and the cure."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import inspect
import sys
import threading
import weakref
from collections import deque

import pytest
import torch
from torch import Tensor, nn

from pullback.errors import ValueMismatch
from pullback.graph.leaks import watch
from pullback.graph.leaks.growth import Growth
from pullback.graph.leaks.leak import Leak
from pullback.graph.leaks.watch import GraphWatch, watch_graphs

STEPS = 16
OUTPUTS: list[Tensor] = []


CALLED: list[object] = []


@pytest.fixture(autouse=True, scope="module")
def _small_heap():
    """What is there already need not be gone through in each test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _without_other_tests(monkeypatch):
    """The globals of a thousand other test modules are no part of these programs, and slow to go through."""
    found = watch.user_modules
    others = ("tests.", "benchmarks.")

    def few():
        return [module for module in found() if module.__name__ == __name__ or not module.__name__.startswith(others)]

    monkeypatch.setattr(watch, "user_modules", few)


@pytest.fixture(autouse=True)
def _clean():
    gc.collect()
    yield
    OUTPUTS.clear()
    CALLED.clear()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch() -> Tensor:
    return torch.randn(5, 4)


def loss_of(net: nn.Module) -> Tensor:
    return net(batch()).square().mean()


def line_of(function, text: str) -> int:
    """The number of the only line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (first + offset for offset, line in enumerate(lines) if text in line)
    return number


def only(w: GraphWatch) -> Leak:
    assert w.trouble == ()
    (leak,) = w.leaks
    return leak


def check(w: GraphWatch, function, *, holder: str, kind: str, fix: str, kept: str | None, created: str | None) -> Leak:
    """That the only leak is this one: the texts are parts of the lines of the function."""
    leak = only(w)
    assert leak.holder == holder
    assert leak.kind == kind
    assert leak.fix == fix
    if kept is None:
        assert leak.kept_at == ()
    else:
        assert [(place.file, place.line) for place in leak.kept_at] == [(__file__, line_of(function, kept))]
    if created is not None:
        assert leak.created is not None
        assert (leak.created.file, leak.created.line) == (__file__, line_of(function, created))
    assert leak.holder in str(w)
    assert f"fix: {fix}" in str(w)
    return leak


# --- faults


def losses_in_a_list():
    net, losses = model(), []
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            losses.append(loss)
    return w


def test_losses_in_a_list():
    leak = check(
        losses_in_a_list(),
        losses_in_a_list,
        holder="`losses` in losses_in_a_list (test_watch.py)",
        kind="kept",
        fix="losses.append(loss.detach())",
        kept="losses.append(loss)",
        created=None,
    )
    assert leak.created is not None
    assert leak.created.line == line_of(loss_of, "return net")
    assert leak.tensors == STEPS - 1  # the last is the variable `loss`
    assert leak.bytes == 0  # freed by the backward passes
    assert leak.per_step == 1
    assert "\n  it grows by 1 tensor a step\n" in leak.text


def outputs_of_an_evaluation():
    net, outputs = model().eval(), {}
    with watch_graphs(every=1) as w:
        for index in range(STEPS):
            outputs[index] = net(batch())
            w.step()
    return w


def test_outputs_of_an_evaluation_keep_what_was_saved():
    w = outputs_of_an_evaluation()
    leak = check(
        w,
        outputs_of_an_evaluation,
        holder="`outputs` in outputs_of_an_evaluation (test_watch.py)",
        kind="kept",
        fix="outputs[index] = net(batch()).detach()",
        kept="outputs[index]",
        created="outputs[index]",
    )
    assert leak.tensors == STEPS
    # Each step keeps its batch (5 x 4), the result of tanh (5 x 8) and nothing else: weights are not counted.
    assert leak.bytes == STEPS * (5 * 4 + 5 * 8) * 4
    assert str(w).startswith(
        f"graphs accumulate in one place ({STEPS + 1} samples over 0 backward passes and 16 steps)"
    )


def total_of_losses():
    net, total = model(), 0.0
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            total += loss
    return w


def test_total_of_losses():
    leak = check(
        total_of_losses(),
        total_of_losses,
        holder="`total` in total_of_losses (test_watch.py)",
        kind="growing",
        fix="total += loss.detach()",
        kept="total += loss",
        created="total += loss",
    )
    assert leak.tensors == 1
    assert leak.per_step > 5


def hidden_state():
    cell, h = nn.RNNCell(4, 6), torch.zeros(5, 6)
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            h = cell(batch(), h)
            loss = h.square().mean()
            loss.backward(retain_graph=True)
    return w


def test_hidden_state_never_detached():
    leak = check(
        hidden_state(),
        hidden_state,
        holder="`h` in hidden_state (test_watch.py)",
        kind="growing",
        fix="h = h.detach()",
        kept="h = cell",
        created="h = cell",
    )
    assert leak.bytes is not None
    assert leak.bytes > STEPS * 5 * 6 * 4


def states_of_an_lstm():
    net, state = nn.LSTM(4, 6), None
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            out, state = net(torch.randn(3, 5, 4), state)
            out.square().mean().backward(retain_graph=True)
    return w


def test_states_of_an_lstm():
    check(
        states_of_an_lstm(),
        states_of_an_lstm,
        holder="`state` in states_of_an_lstm (test_watch.py)",
        kind="growing",
        fix="state = tuple(part.detach() for part in state)",
        kept="out, state = net",
        created="out, state = net",
    )


class Trainer:
    def __init__(self) -> None:
        self.net = model()
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {"h": torch.zeros(5, 8)}
        self.cell = nn.RNNCell(4, 8)

    def step(self) -> None:
        loss = loss_of(self.net)
        self.history.append(loss)
        loss.backward()

    def unroll(self) -> None:
        self.cache["h"] = self.cell(batch(), self.cache["h"])
        self.cache["h"].mean().backward(retain_graph=True)


def test_attribute():
    trainer = Trainer()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            trainer.step()
    check(
        w,
        Trainer.step,
        holder="`trainer.history` of Trainer",
        kind="kept",
        fix="self.history.append(loss.detach())",
        kept="self.history.append",
        created=None,
    )


def test_element_of_an_attribute():
    trainer = Trainer()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            trainer.unroll()
    check(
        w,
        Trainer.unroll,
        holder="`trainer.cache['h']` of Trainer",
        kind="growing",
        fix="self.cache['h'] = self.cell(batch(), self.cache['h']).detach()",
        kept='self.cache["h"] = ',
        created='self.cache["h"] = ',
    )


def outputs_in_a_deque():
    net, last = model(), deque()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            out = net(batch())
            last.appendleft((out, 1))
            out.mean().backward()
    return w


def test_outputs_in_a_deque():
    check(
        outputs_in_a_deque(),
        outputs_in_a_deque,
        holder="`last` in outputs_in_a_deque (test_watch.py)",
        kind="kept",
        fix="last.appendleft((out.detach(), 1))",
        kept="last.appendleft",
        created="out = net",
    )


def outputs_in_a_global():
    net = model()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            out = net(batch())
            OUTPUTS.append(out.mean() * 2)
            out.mean().backward()
    return w


def test_global_variable():
    check(
        outputs_in_a_global(),
        outputs_in_a_global,
        holder=f"the global variable `OUTPUTS` of {__name__}",
        kind="kept",
        fix="OUTPUTS.append((out.mean() * 2).detach())",
        kept="OUTPUTS.append",
        created="OUTPUTS.append",
    )


def logger():
    seen = []

    def log(value):
        seen.append(value)

    return log


def test_closure():
    net, log = model(), logger()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            log(loss)
    check(
        w,
        logger,
        holder="`seen`, which log (test_watch.py) closes over",
        kind="kept",
        fix="seen.append(value.detach())",
        kept="seen.append",
        created=None,
    )


def running(net):
    kept = []
    while True:
        loss = loss_of(net)
        kept.append(loss)
        yield loss


def test_generator():
    losses = running(model())
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            next(losses).backward()
    check(
        w,
        running,
        holder="`kept` in the generator running (test_watch.py)",
        kind="kept",
        fix="kept.append(loss.detach())",
        kept="kept.append",
        created=None,
    )


class Normalize(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        x = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean.detach()


def test_running_mean_that_is_a_graph():
    net = nn.Sequential(Normalize(), nn.Linear(4, 1))
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss_of(net).backward()
    check(
        w,
        Normalize.forward,
        holder="`net.0.mean` of Normalize",
        kind="growing",
        fix="self.mean = (0.9 * self.mean + 0.1 * x.mean(0)).detach()",
        kept="self.mean = 0.9",
        created="self.mean = 0.9",
    )


class Average:
    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def update(self, value: Tensor) -> None:
        self.values += [value]


def test_metric_with_slots():
    net, metric = model(), Average()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            metric.update(loss)
    check(
        w,
        Average.update,
        holder="`metric.values` of Average",
        kind="kept",
        fix="self.values += [value.detach()]",
        kept="self.values +=",
        created=None,
    )


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_with_graphs():
    net = nn.Linear(4, 1, bias=False)
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss_of(net).backward(create_graph=True)
    leak = only(w)
    assert leak.holder == "`net.weight.grad`, a gradient that has a graph of its own"
    assert leak.kind == "growing"
    assert leak.fix.startswith("optimizer.zero_grad() (or .grad = None) after each step that used create_graph=True")
    net.weight.grad = None  # the cycle through the gradient's graph


def hooked(net):
    h = net(batch())
    h.register_hook(lambda grad: grad * h.sigmoid())
    h.mean().backward()


def test_cycle_through_a_hook():
    net = model()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            hooked(net)
    check(
        w,
        hooked,
        holder="`h`, which a lambda (test_watch.py) closes over",
        kind="cycle",
        fix="h_value = h.detach() outside, and h_value inside a lambda",
        kept="register_hook",
        created="h = net",
    )


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_cycle_through_a_context():
    x = torch.ones(10, requires_grad=True)
    gc.disable()  # it would find the cycles at some time: until then they stay
    try:
        with watch_graphs(every=1) as w:
            for _ in range(STEPS):
                Square.apply(x).sum().backward()
    finally:
        gc.enable()
    check(
        w,
        Square.forward,
        holder="`ctx.y` of Square",
        kind="cycle",
        fix="ctx.save_for_backward(y) instead of ctx.y = ...",
        kept="ctx.y = y",
        created=None,
    )


def inner_loop():
    net, losses = model(), []
    for _ in range(STEPS):
        loss = loss_of(net)
        loss.backward()
        losses.append(loss)


def test_a_function_that_has_returned():
    with watch_graphs(every=1) as w:
        inner_loop()
    check(
        w,
        inner_loop,
        holder="`losses` in inner_loop (test_watch.py)",
        kind="kept",
        fix="losses.append(loss.detach())",
        kept="losses.append",
        created=None,
    )


def test_the_spacing_of_its_own_finds_it_too():
    net, losses = model(), []
    with watch_graphs() as w:
        for _ in range(60):
            loss = loss_of(net)
            loss.backward()
            losses.append(loss)
    assert only(w).fix == "losses.append(loss.detach())"
    assert w.passes == 60


def test_two_leaks():
    net, losses, total = model(), [], torch.zeros(())
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            losses.append(loss)
            total = total + loss
    assert {leak.kind: leak.fix for leak in w.leaks} == {
        "kept": "losses.append(loss.detach())",
        "growing": "total = (total + loss).detach()",
    }
    assert str(w).startswith("graphs accumulate in 2 places (")


NOTEBOOK = """
for step in range(16):
    loss = loss_of(net)
    loss.backward()
    Out[step] = _ = loss
"""


def test_results_of_a_notebook():
    with watch_graphs(every=1) as w:
        code = compile(NOTEBOOK, "<ipython-input-1>", "exec")
        exec(code, {"__name__": "cells", "In": [], "Out": {}, "net": model(), "loss_of": loss_of})
    leak = only(w)
    assert leak.holder == "the global variable `Out` of cells"
    assert leak.kept_at == ()  # the source is nowhere
    assert leak.fix == "Out.clear(), and end the cell's last line with a semicolon"


# --- the cures, run


@pytest.mark.parametrize("faulty", [losses_in_a_list, total_of_losses, hidden_state, outputs_in_a_deque])
def test_the_fix_cures(faulty, tmp_path):
    leak = only(faulty())
    lines, first = inspect.getsourcelines(faulty)
    at = leak.kept_at[0].line - first
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    if leak.fix == "h = h.detach()":
        lines.insert(at, f"{indent}{leak.fix}\n")
    else:
        lines[at] = f"{indent}{leak.fix}\n"
    path = tmp_path / "cured.py"
    head = "from collections import deque\nimport torch\nfrom torch import nn\n"
    path.write_text(f"{head}from {__name__} import *\nfrom {__name__} import watch_graphs\n\n\n{''.join(lines)}")
    spec = importlib.util.spec_from_file_location("cured", path)
    cured = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cured)
    w = getattr(cured, faulty.__name__)()
    assert w.passes == STEPS
    assert w.leaks == ()
    assert w.trouble == ()


# --- nothing to find


def ordinary():
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    history = []
    for _ in range(40):
        loss = loss_of(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history += [loss.item(), loss.detach()]
        yield


def accumulating_gradients():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        for _ in range(4):
            (loss_of(net) / 4).backward()
            yield
        optimizer.step()
        optimizer.zero_grad()


def truncated_rnn():
    cell, h = nn.RNNCell(4, 6), torch.zeros(5, 6)
    for _ in range(40):
        h = cell(batch(), h.detach())
        h.square().mean().backward()
        yield


def full_deque():
    net, last = model(), deque(maxlen=20)
    for _ in range(100):
        loss = loss_of(net)
        loss.backward()
        last.append(loss)
        yield


def maml():
    weight = torch.randn(4, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)
    for _ in range(5):
        fast = weight
        for _ in range(8):
            inner = (batch() @ fast).square().mean()
            (grad,) = torch.autograd.grad(inner, fast, create_graph=True)
            fast = fast - 0.01 * grad
            yield
        optimizer.zero_grad()
        (batch() @ fast).square().mean().backward()
        optimizer.step()
        yield


def gan():
    generator, critic = nn.Linear(3, 4), model()
    optimizers = [torch.optim.Adam(net.parameters()) for net in (generator, critic)]
    for _ in range(20):
        fake = generator(torch.randn(5, 3))
        optimizers[1].zero_grad()
        (critic(fake.detach()).mean() - critic(batch()).mean()).backward()
        optimizers[1].step()
        yield
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()
        yield


def evaluation():
    net, outputs = model(), []
    for _ in range(40):
        with torch.no_grad():
            outputs.append(net(batch()))
        yield


def batches(net):
    while True:
        features = net(batch())
        yield features


def generator_of_batches():
    net = model()
    source = batches(nn.Linear(4, 4))
    for features in (next(source) for _ in range(40)):
        net(features).mean().backward()
        yield


def cleared_each_epoch():
    net, losses = model(), []
    for _ in range(5):
        for _ in range(10):
            loss = loss_of(net)
            loss.backward()
            losses.append(loss)
            yield
        float(sum(losses).detach())
        losses.clear()


class Meter:
    def __init__(self) -> None:
        self.values: list[Tensor] = []


def new_meter_each_epoch():
    net = model()
    for _ in range(5):
        meter = Meter()
        for _ in range(10):
            loss = loss_of(net)
            loss.backward()
            meter.values.append(loss)
            yield


def many_parts_each_step():
    net = model()
    for _ in range(30):
        parts = [loss_of(net) for _ in range(20)]
        torch.stack(parts).sum().backward()
        yield


def shared_features():
    net, features = model(), nn.Linear(4, 4)(batch())
    for _ in range(40):
        net(features).square().mean().backward(retain_graph=True)
        yield


def growing_curriculum():
    cell, x = nn.RNNCell(4, 6), torch.randn(40, 5, 4)
    for length in range(1, 40):
        h = torch.zeros(5, 6)
        for step in range(length):
            h = cell(x[step], h)
        h.square().mean().backward()
        yield


def gradient_penalty():
    net = model()
    for _ in range(30):
        x = batch().requires_grad_()
        (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        penalty = grad.square().mean()
        penalty.backward()
        net.zero_grad()
        yield


def replaced_best():
    net, best = model(), None
    for _ in range(40):
        loss = loss_of(net)
        loss.backward()
        if best is None or float(loss.detach()) < float(best.detach()):
            best = loss
        yield


FAULTLESS = [
    ordinary,
    accumulating_gradients,
    truncated_rnn,
    full_deque,
    maml,
    gan,
    evaluation,
    generator_of_batches,
    cleared_each_epoch,
    new_meter_each_epoch,
    many_parts_each_step,
    shared_features,
    growing_curriculum,
    gradient_penalty,
    replaced_best,
]


@pytest.mark.parametrize("loop", FAULTLESS)
@pytest.mark.parametrize("every", [1, 3, None])
def test_silent(loop, every):
    with watch_graphs(every=every) as w:
        for _ in loop():
            if loop is evaluation:
                w.step()
    assert w.trouble == ()
    assert w.samples > 5
    assert w.leaks == ()
    assert str(w).startswith(f"no graph accumulates ({w.samples} samples over {w.passes} backward passes")


# --- how it watches


def test_nothing_is_kept_alive():
    refs = []
    net = model()

    def step():
        out = net(batch())
        loss = out.mean()
        loss.backward()
        refs.extend([weakref.ref(out), weakref.ref(loss)])

    gc.disable()
    try:
        with watch_graphs(every=1) as w:
            for _ in range(STEPS):
                step()
                assert [ref() for ref in refs] == [None] * len(refs)
    finally:
        gc.enable()
    assert w.samples > STEPS


def test_a_variable_that_is_deleted_is_gone():
    net = model()
    gc.disable()
    try:
        with watch_graphs(every=1):
            out = net(batch())
            out.mean().backward()
            ref = weakref.ref(out)
            del out
            assert ref() is None
    finally:
        gc.enable()


def test_the_dict_of_locals_stays():
    net = model()
    with watch_graphs(every=1):
        mine = locals()
        loss_of(net).backward()
        assert mine["net"] is net


def test_the_engine_is_restored_and_nested_use_works():
    graph, alias = torch.autograd.graph._engine_run_backward, torch.autograd._engine_run_backward
    net = model()
    with watch_graphs() as outer:
        assert torch.autograd.graph._engine_run_backward is not graph
        assert torch.autograd._engine_run_backward is not alias
        loss_of(net).backward()
        with watch_graphs() as inner:
            loss_of(net).backward()
        loss_of(net).backward()
    assert (outer.passes, inner.passes) == (3, 1)
    assert torch.autograd.graph._engine_run_backward is graph
    assert torch.autograd._engine_run_backward is alias


def test_an_exception_passes_and_what_was_found_stays():
    net, losses = model(), []
    graph = torch.autograd.graph._engine_run_backward
    w = watch_graphs(every=1)

    def train():
        with w:
            for step in range(40):
                loss = loss_of(net)
                loss.backward()
                losses.append(loss)
                if step == 20:
                    raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()
    assert only(w).fix == "losses.append(loss.detach())"
    assert torch.autograd.graph._engine_run_backward is graph


def test_trouble_stays_inside(monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(sys.modules[GraphWatch.__module__], "Search", broken)
    net = model()
    with watch_graphs(every=1) as w:
        loss_of(net).backward()
    assert w.trouble == ("RuntimeError: broken",) * 2
    assert w.leaks == ()


class Touchy:
    """Says so if it is looked at by any code of its own."""

    touched = 0

    def __getattribute__(self, name):
        type(self).touched += 1
        return object.__getattribute__(self, name)

    @property
    def value(self):
        raise AssertionError

    def __iter__(self):
        raise AssertionError

    def __eq__(self, other):
        raise AssertionError

    __hash__ = None


class TouchyList(list):
    def __iter__(self):
        raise AssertionError


class Loud(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        CALLED.append(func)
        return super().__torch_function__(func, types, args, kwargs)


def test_no_code_of_the_user_runs():
    net, touchy, kept = model(), Touchy(), TouchyList()
    loud = torch.ones(2, requires_grad=True).as_subclass(Loud)
    CALLED.clear()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            kept.append(loss)
    assert only(w).holder == "`kept` in test_no_code_of_the_user_runs (test_watch.py)"
    assert CALLED == []
    assert Touchy.touched == 0
    assert loud is not None
    assert touchy is not None


def test_training_is_the_same_bit_for_bit():
    def train(context):
        torch.manual_seed(0)
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with context:
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss_of(net).backward()
                optimizer.step()
        return [parameter.detach() for parameter in net.parameters()]

    watched, plain = train(watch_graphs(every=1)), train(contextlib.nullcontext())
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


def test_threads_have_their_own_numbers():
    net, losses = model(), []
    results = []

    def work():
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
        results.append(True)

    with watch_graphs(every=1) as w:
        for _ in range(4):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert results == [True] * 4
    assert w.passes == 4 * STEPS
    assert w.trouble == ()
    assert w.leaks == ()

    def leak():
        for _ in range(STEPS):
            loss = loss_of(net)
            loss.backward()
            losses.append(loss)

    with watch_graphs(every=1) as w:
        thread = threading.Thread(target=leak)
        thread.start()
        thread.join()
    assert only(w).fix == "losses.append(loss.detach())"


def test_checkpoints_run_inside_a_backward_pass():
    from torch.utils.checkpoint import checkpoint

    net = model()
    with watch_graphs(every=1) as w:
        for _ in range(STEPS):
            x = batch().requires_grad_()
            checkpoint(net, x, use_reentrant=True).mean().backward()
    assert w.passes == STEPS
    assert w.leaks == ()


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_the_spacing_is_a_number_of_steps(every):
    with pytest.raises(ValueMismatch) as caught:
        watch_graphs(every=every)
    assert str(caught.value) == (
        f"The spacing of the looks is a number of steps.\n  got: every={every!r}\n  fix: every=10, or every=None"
    )


def test_every_so_many_steps():
    net = model()
    with watch_graphs(every=5) as w:
        for _ in range(20):
            loss_of(net).backward()
    assert (w.passes, w.samples) == (20, 5)  # four, and one at the end
    assert str(w) == "no graph accumulates (5 samples over 20 backward passes)"
    assert repr(w) == "<GraphWatch: 0 leaks>"


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        (range(12), True),
        ([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5], True),  # now and then
        ([0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5], False),  # levels off
        ([0, 5, 5, 5, 5, 5, 5, 5], False),
        ([*range(100), *[100] * 20], False),  # a full deque
        ([*range(8), *range(8)], False),  # cleared
        ([*range(8), *range(30)], True),  # cleared once, and then far beyond
        ([1, 2, 3], False),  # too few to say
    ],
)
def test_growth(values, steady):
    growth = Growth()
    for tick, value in enumerate(values):
        growth.add(tick, value)
    assert growth.is_steady is steady


def test_a_long_history_is_thinned_and_keeps_its_rate():
    growth = Growth()
    for tick in range(0, 3000, 3):
        growth.add(tick, 2 * tick)
    assert len(growth.points) <= 65
    assert growth.is_steady
    assert growth.rate == pytest.approx(2)
