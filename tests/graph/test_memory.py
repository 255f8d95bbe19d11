"""The bytes that a graph keeps, and those that checkpointing would save, held against torch's own allocator."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import ValueMismatch
from pullback.graph.memory import human
from tests.graph.allocator import ROUNDING, freed_by
from tests.graph.programs import PROGRAMS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
everywhere = pytest.mark.parametrize("device", DEVICES)
WIDTH = 1024
HOW = {"use_reentrant": False, "preserve_rng_state": False}


def leaf(*shape, device="cpu"):
    return torch.randn(*shape, device=device, requires_grad=True)


def storages_of(graph):
    return [storage.bytes for storage in graph.storages if storage.owner is None]


def exactly(expected, device):
    """What an allocator that rounds makes of the storages."""
    step = ROUNDING[device]
    return sum(-(-size // step) * step for size in expected)


def measured(build, device="cpu"):
    """What ``pb.graph`` says of an output, and what the allocator takes back when its graph alone goes.

    ``build`` returns the output, and all that is the user's own.
    """
    told = []

    def make():
        output, *own = build()
        graph = pb.graph(output, {})
        told.extend([graph.memory(), storages_of(graph), own])
        return [output.grad_fn]

    freed = freed_by(make, device=device)
    memory, storages, _ = told
    assert memory.kept == sum(storages)
    return memory, exactly(storages, device), freed


# ------------------------------------------------------------------------------------------------------ sums and owners

SUMMED = ["mlp", "cnn", "resnet18", "transformer", "lstm", "attention", "gan_step", "maml", "shared_storage"]


@pytest.mark.parametrize("name", SUMMED)
def test_every_table_sums_to_what_is_kept(name):
    with pb.record():
        program = PROGRAMS[name]()
    graph = pb.graph(program.outputs, program.names)
    memory = graph.memory()
    assert memory.kept == sum(storages_of(graph)) > 0
    for table in (memory.by_module(), memory.by_operation(), memory.by_line()):
        assert sum(row.bytes for row in table) == memory.kept
        assert sum(row.tensors for row in table) == len(storages_of(graph))
        assert [row.bytes for row in table] == sorted((row.bytes for row in table), reverse=True)
        assert len({row.name for row in table}) == len(table)


def test_owned_apart():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    x = torch.ones(4, WIDTH)
    memory = pb.graph(model(x)).memory()
    # of the first layer the input, for tanh its result, of the second the weight
    assert memory.kept == 4 * WIDTH * 4
    assert memory.owned == (4 * WIDTH + WIDTH) * 4
    assert {storage.owner for storage in pb.graph(model(x)).storages} == {"x", None, "model.2.weight"}


@everywhere
def test_views_of_parameters_are_owned(device):
    def build():
        weight = leaf(4, WIDTH, device=device)
        x = leaf(WIDTH, device=device)
        return (weight[1] * x).sum(), weight, x

    memory, _, freed = measured(build, device)
    assert memory.kept == freed == 0
    assert memory.owned == (4 + 1) * WIDTH * 4


@everywhere
def test_a_storage_that_several_nodes_keep_counts_once(device):
    def build():
        x = leaf(WIDTH, device=device)
        h = x + 1
        return (h.sin() + h.cos() + h.view(2, -1).exp().flatten() * h[:1]).sum(), x

    memory, told, freed = measured(build, device)
    assert memory.kept == 2 * WIDTH * 4  # h, and the result of exp
    assert told == freed


@everywhere
def test_expanded_tensors_count_what_they_lie_in(device):
    def build():
        x = leaf(1, device=device)
        wide = (x + 1).expand(1000)
        return wide.sin().sum(), x

    memory, told, freed = measured(build, device)
    assert memory.kept == 4
    assert told == freed


@everywhere
def test_a_slice_keeps_the_whole(device):
    def build():
        x = leaf(WIDTH, device=device)
        return (x + 2)[:3].sin().sum(), x

    memory, told, freed = measured(build, device)
    assert memory.kept == WIDTH * 4
    assert told == freed


# ------------------------------------------------------------------------------------------------- after a backward


def test_after_backward_nothing_is_kept():
    x = leaf(WIDTH)
    y = (x + 1).sin().exp().sum()
    before = pb.graph(y).memory()
    y.backward(retain_graph=True)
    again = pb.graph(y).memory()
    assert (again.kept, again.freed) == (before.kept, False)
    assert before.kept == 2 * WIDTH * 4
    y.backward()
    after = pb.graph(y).memory()
    assert (after.kept, after.freed) == (0, True)
    assert str(after).splitlines()[0].startswith("0 B kept by the graph alone")
    assert "A backward pass has freed what this graph kept; only what is listed is left." in str(after)


def test_a_part_that_was_freed():
    x = leaf(WIDTH)
    h = (x + 1).sin()
    other = h.exp()
    h.sum().backward()
    memory = pb.graph(other.sum()).memory()
    assert memory.freed
    assert memory.kept == WIDTH * 4


class Careless(Function):
    """Keeps on its context what backward does not free."""

    @staticmethod
    def forward(ctx, x):
        ctx.one = x + 1
        ctx.more = {"list": [x + 2, None], "number": 3}
        ctx.save_for_backward(x + 3)
        return x * 2

    @staticmethod
    def backward(ctx, u):
        return u * 2


@everywhere
def test_what_a_custom_function_puts_on_its_context(device):
    def build():
        x = leaf(WIDTH, device=device)
        return Careless.apply(x).sum(), x

    memory, told, freed = measured(build, device)
    assert memory.kept == 3 * WIDTH * 4
    assert told == freed
    x = leaf(WIDTH)
    y = Careless.apply(x).sum()
    y.backward()
    after = pb.graph(y).memory()
    assert after.kept == 2 * WIDTH * 4
    assert [row.name for row in after.by_operation()] == ["Careless"]


def test_packed_by_a_hook_is_told():
    """What a hook packs cannot be seen, unless it is a tensor; either way the sum says so."""
    x = leaf(WIDTH)
    with torch.autograd.graph.save_on_cpu():
        y = (x + 1).sin().sum()
    memory = pb.graph(y).memory()
    assert memory.hidden == ("Sin: self: packed by a hook",)
    assert str(memory).endswith("A lower bound: Sin: self: packed by a hook")
    assert memory.kept == WIDTH * 4  # save_on_cpu keeps a tuple with the copy in it
    with torch.autograd.graph.saved_tensors_hooks(lambda t: None, lambda _: x.detach()):
        z = (x + 1).sin().sum()
    assert pb.graph(z).memory().hidden == ("Sin: self: packed by a hook",) or pb.graph(z).memory().kept == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_bytes_by_dtype(dtype):
    x = torch.ones(100, dtype=dtype, requires_grad=True)
    assert pb.graph((x + 1).sin().sum()).memory().kept == 100 * dtype.itemsize


# ------------------------------------------------------------------------------------------------------- checkpointing


class Around(nn.Module):
    """A model in one part of which checkpointing is switched on."""

    def __init__(self, before, part, after, times=1):
        super().__init__()
        self.before, self.part, self.after, self.times = before, part, after, times

    def forward(self, x, is_checkpointed):
        h = self.before(x)
        part = partial(checkpoint, self.part, **HOW) if is_checkpointed else self.part
        for _ in range(self.times):
            h = part(h)
        return self.after(h).sum()


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Twice(nn.Module):
    """Uses what it is given twice, once through a view."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x).relu() * x.view_as(x).sigmoid()


def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def linear():
    return nn.Linear(WIDTH, WIDTH)


def layer():
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)


def convolutions():
    return nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1))


FLAT = (64, WIDTH)
CHECKPOINTED = {
    "perceptron": (lambda: Around(linear(), perceptron(), linear()), FLAT),
    "perceptron after tanh": (lambda: Around(nn.Sequential(linear(), nn.Tanh()), perceptron(), linear()), FLAT),
    "perceptron before tanh": (lambda: Around(linear(), perceptron(), nn.Tanh()), FLAT),
    "residual": (lambda: Around(linear(), Residual(perceptron()), linear()), FLAT),
    "normalized residual": (
        lambda: Around(linear(), Residual(nn.Sequential(nn.LayerNorm(WIDTH), perceptron())), nn.LayerNorm(WIDTH)),
        FLAT,
    ),
    "transformer layer": (lambda: Around(nn.Linear(64, 64), layer(), layer()), (16, 32, 64)),
    "convolutions": (lambda: Around(nn.Conv2d(3, 8, 3), convolutions(), nn.ReLU()), (4, 3, 34, 34)),
    "input that nothing keeps": (lambda: Around(linear(), Apply(lambda h: (h + 1).sin().exp()), linear()), FLAT),
    "input that nothing keeps, nothing saved": (lambda: Around(linear(), Apply(lambda h: h + 1), linear()), FLAT),
    "input is a view": (
        lambda: Around(nn.Sequential(linear(), nn.Unflatten(1, (4, -1))), Apply(lambda h: h.sin().exp()), nn.Flatten()),
        FLAT,
    ),
    "input is a slice": (
        lambda: Around(nn.Sequential(linear(), Apply(lambda h: h[:, :100])), Apply(lambda h: h.sin().exp()), nn.Tanh()),
        FLAT,
    ),
    "input used twice": (lambda: Around(linear(), Twice(), linear()), FLAT),
    "input is the user's": (lambda: Around(nn.Identity(), perceptron(), linear()), FLAT),
    "softmax": (lambda: Around(linear(), Apply(lambda h: h.softmax(-1) * h), linear()), FLAT),
    "reshape inside": (
        lambda: Around(linear(), Apply(lambda h: h.view(64, 4, -1).transpose(1, 2).exp().reshape(64, -1)), linear()),
        FLAT,
    ),
    "dropout": (lambda: Around(linear(), nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)), linear()), FLAT),
    "in place": (lambda: Around(linear(), nn.Sequential(linear(), nn.ReLU(inplace=True)), linear()), FLAT),
    "after a norm": (
        lambda: Around(nn.Sequential(linear(), nn.LayerNorm(WIDTH)), Apply(lambda h: (h + 1).sin().exp()), linear()),
        FLAT,
    ),
    "called three times": (lambda: Around(linear(), perceptron(), linear(), times=3), FLAT),
    "called three times, keeps its result": (
        lambda: Around(linear(), nn.Sequential(perceptron(), nn.Tanh()), nn.Identity(), times=3),
        FLAT,
    ),
    "several layers": (
        lambda: Around(perceptron(), nn.Sequential(*[Residual(perceptron()) for _ in range(3)]), perceptron()),
        FLAT,
    ),
}  # fmt: skip


def freed_with(build, shape, device, is_checkpointed):
    """What the allocator takes back when the graph goes; what is the user's stays."""
    own = []

    def make():
        torch.manual_seed(0)
        model = build().to(device)
        x = torch.randn(*shape, device=device)
        own.extend([model, x])
        return [model(x, is_checkpointed).grad_fn]

    return freed_by(make, device=device)


@everywhere
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_checkpointing_saves_what_is_told(case, device):
    build, shape = CHECKPOINTED[case]
    torch.manual_seed(0)
    model = build().to(device)
    x = torch.randn(*shape, device=device)
    with pb.record():
        loss = model(x, is_checkpointed=False)
    memory = pb.graph(loss, model).memory()
    plain = freed_with(build, shape, device, is_checkpointed=False)
    less = freed_with(build, shape, device, is_checkpointed=True)
    assert memory.kept == pytest.approx(plain, rel=0.01)
    assert memory.checkpointed("part") == pytest.approx(plain - less, rel=0.05, abs=0.01 * plain)


def test_checkpointing_a_block_of_a_stack():
    """Advice is sorted, and no more than the whole."""
    model = nn.Sequential(*[Residual(perceptron()) for _ in range(4)])
    x = torch.randn(*FLAT)
    memory = pb.graph(model(x).sum()).memory()
    saves = {name: memory.checkpointed(f"model.{name}") for name in "0123"}
    assert all(0 < size < memory.kept for size in saves.values())
    assert saves["1"] == saves["2"]
    said = [line for line in str(memory).splitlines() if "torch.utils.checkpoint" in line]
    assert 1 <= len(said) <= 3


# ----------------------------------------------------------------------------------------------------- modules by name


def two_layers():
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    x = torch.randn(8, WIDTH)
    with pb.record():
        loss = second(first(x).sin().tanh()).sum()
    return pb.graph(loss, {"first": first, "second": second}).memory()


def test_inside():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, 1), nn.Sigmoid()))
    with pb.record():
        loss = model(torch.randn(8, WIDTH)).sum()
    memory = pb.graph(loss).memory()
    assert memory.inside("model.1") == sum(memory.inside(f"model.1.{number}") for number in (0, 1, 2))
    assert memory.inside("model.1.0") == 8 * WIDTH * 4
    assert memory.inside("model") == memory.kept
    rows = {row.name: row.bytes for row in memory.by_module()}
    assert rows["model.1.0"] == memory.inside("model.1.0")


@pytest.mark.parametrize("ask", ["inside", "checkpointed"])
def test_an_unknown_module(ask):
    with pytest.raises(ValueMismatch) as caught:
        getattr(two_layers(), ask)("third")
    assert str(caught.value) == (
        f"no module is called 'third' in this graph\n  got: first, second\n  fix: graph.memory().{ask}('first')"
    )


def test_a_module_where_there_is_none():
    x = leaf(3)
    with pytest.raises(ValueMismatch) as caught:
        pb.graph(x.sin()).memory().checkpointed("net")
    assert str(caught.value) == (
        "no module is called 'net' in this graph\n  got: a graph without modules\n  fix: with pb.record(): y = model(x)"
    )


def test_the_root_of_a_named_model_is_called_nothing():
    model = nn.Linear(WIDTH, 1)
    with pb.record():
        loss = model(torch.ones(4, WIDTH)).sin().sum()
    memory = pb.graph(loss, model).memory()
    assert memory.inside("") == 4 * WIDTH * 4  # its input, which is nobody's; the argument of sin is kept outside
    assert [row.name for row in memory.by_module()] == ["Linear", "(outside modules)"]
    with pytest.raises(ValueMismatch) as caught:
        memory.checkpointed("net")
    assert caught.value.got.strip()


# --------------------------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2, "1.0 MiB"),
        (3.1 * 1024**2, "3.1 MiB"),
        (1024**3, "1.0 GiB"),
        (1024**4, "1.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_a_size_for_a_reader(size, text):
    assert human(size) == text


@pytest.mark.parametrize("size", [1024**2 - 1, 1024**3 - 1, 1024**4 - 1, 1024**2 - 40])
def test_a_size_has_no_more_than_four_digits_before_the_point(size):
    assert not human(size).startswith("1024")


def table(text, title):
    """The rows of one table in the printed text."""
    (part,) = [part for part in text.split("\n\n") if part.startswith(title)]
    return part.splitlines()


def test_the_printed_table():
    text = str(two_layers())
    # of first its result for sin, and the result of tanh; of parameters and inputs x and the second weight
    assert text.splitlines()[0] == "64.0 KiB kept by the graph alone, 36.0 KiB of parameters and inputs beside it"
    assert table(text, "operation") == [
        "operation        kept  tensors",
        "Sin          32.0 KiB        1",
        "Tanh         32.0 KiB        1",
    ]
    assert "Under torch.no_grad() nothing of it would be kept: 64.0 KiB less." in text
    assert not any(part.startswith("module") for part in text.split("\n\n"))  # all of it is outside
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_printed_table_is_bounded_and_merges_what_differs_by_number():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 4), "act": nn.Tanh()}) for _ in range(20))

        def forward(self, x):
            for each in self.layers:
                x = each["act"](each["up"](x))
            return x.sum()

    net = Net()
    with pb.record():
        loss = net(leaf(2, 4))
    memory = pb.graph(loss).memory()
    rows = table(str(memory), "module")
    assert len(memory.by_module()) > 12
    assert any(row.startswith("net.layers.*.act ") for row in rows)
    assert sum(int(row.split()[-1]) for row in rows[1:]) == sum(row.tensors for row in memory.by_module())


def test_more_rows_than_are_shown():
    names = [f"net{chr(97 + i)}" for i in range(20)]
    nets = {name: nn.Tanh() for name in names}
    x = leaf(2, 4)
    with pb.record():
        y = x
        for net in nets.values():
            y = net(y)
    memory = pb.graph(y.sum(), nets).memory()
    rows = table(str(memory), "module")
    assert len(rows) == 1 + 12 + 1
    assert re.match(r"\d+ more ", rows[-1])
    assert sum(int(row.split()[-1]) for row in rows[1:]) == sum(row.tensors for row in memory.by_module())
    assert repr(memory) == str(memory)


def test_nothing_kept_says_little():
    memory = pb.graph(leaf(3) + 1).memory()
    assert str(memory) == "0 B kept by the graph alone, 0 B of parameters and inputs beside it"


def test_by_line_is_empty_where_nothing_was_recorded():
    assert pb.graph(leaf(3).sin().exp()).memory().by_line() == ()


def test_a_cuda_free_meta_graph():
    """Sizes that no memory stands behind."""
    x = torch.ones(WIDTH, device="meta", requires_grad=True)
    assert pb.graph((x + 2).sin().sum()).memory().kept == WIDTH * 4


@everywhere
def test_the_caller_is_told_the_same_before_and_after_a_replay(device):
    x = leaf(64, 64, device=device)
    loss = functional.gelu(x @ x).sum()
    graph = pb.graph(loss)
    before = graph.memory().kept
    graph.replay()
    assert pb.graph(loss).memory().kept == before > 0
