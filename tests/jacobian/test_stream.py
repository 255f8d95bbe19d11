"""J in blocks of rows and in a file: against rows by plain ``torch.autograd.grad``, within a limit that is measured."""

import json
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pullback as pb
from pullback.errors import ArgumentError, MemoryLimitError, StrategyError, ValueMismatch
from pullback.executors.memory import measured
from pullback.jacobian import store
from pullback.jacobian.stream import bytes_of_pass

CPU = torch.device("cpu")


def plain_rows(f, *args):
    """J row by row, by plain reverse passes; outputs and inputs laid end to end, zeros where no graph leads."""
    leaves = [arg.clone().requires_grad_() for arg in args]
    tree = f(*leaves)
    parts = [tree] if isinstance(tree, torch.Tensor) else list(tree.values())
    rows = []
    for part in parts:
        for element in part.flatten():
            if element.requires_grad:
                grads = torch.autograd.grad(
                    element, leaves, torch.ones_like(element), retain_graph=True, allow_unused=True
                )
            else:
                grads = [None] * len(leaves)
            pairs = zip(grads, leaves, strict=True)
            rows.append(torch.cat([(torch.zeros_like(x) if grad is None else grad).flatten() for grad, x in pairs]))
    return torch.stack(rows) if rows else torch.zeros(0, sum(leaf.numel() for leaf in leaves))


def several(a, b, unused):
    return {
        "p": torch.sin(a[:, None] * b.flatten()),
        "dead": torch.zeros(3, dtype=a.dtype),
        "q": b.sum() * a,
        "ints": torch.arange(2),
        "none": a[:0],
    }


POINT = tuple(
    torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for shape in ((4,), (2, 3), (2,))
)


def together(J, *args, **keywords):
    """The blocks as one matrix; that they follow each other is checked."""
    blocks, at = [], 0
    for rows, block in J.iter_rows(*args, **keywords):
        assert isinstance(rows, range)
        assert (rows.start, rows.step) == (at, 1)
        assert block.shape == (len(rows), J.shape[1])
        assert len(rows)
        at = rows.stop
        blocks.append(block)
    assert at == J.shape[0]
    return torch.cat(blocks) if blocks else torch.zeros(J.shape)


@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
@pytest.mark.parametrize("rows", [None, 1, 5])
@pytest.mark.parametrize("memory", ["8KiB", None])
def test_several_inputs_and_outputs_some_of_them_dead(strategy, rows, memory):
    J = pb.jacobian(several, *POINT, wrt=(0, 1, 2), strategy=strategy)
    expected = plain_rows(several, *POINT)
    torch.testing.assert_close(together(J, memory, rows=rows), expected)
    assert expected.shape == (33, 12)
    assert J.plan().chosen == strategy or strategy == "auto"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [None, 3])
def test_every_dtype(dtype, rows):
    x = torch.randn(6, dtype=torch.float64).to(dtype)

    def f(x):
        return torch.outer(x, x**2).flatten()

    found = together(pb.jacobian(f, x), "1MiB", rows=rows)
    assert found.dtype == dtype
    tolerance = {} if dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found.double(), plain_rows(f, x.double()), **tolerance)


def test_inputs_of_different_dtypes_share_their_common_one():
    a, b = torch.randn(3, dtype=torch.float64), torch.randn(2)
    J = pb.jacobian(lambda a, b: torch.outer(a, b.double()), a, b, wrt=(0, 1))
    found = together(J, rows=4)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, plain_rows(lambda a, b: torch.outer(a, b), a, b.double()))


W = torch.randn(3, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))
Z = torch.randn(4, dtype=torch.complex128, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("strategy", ["auto", "rows"])
def test_complex_rows_follow_torch(strategy):
    def f(z):
        return (W @ z) ** 2 + z.conj()[:3]

    found = together(pb.jacobian(f, Z, strategy=strategy), rows=2)
    torch.testing.assert_close(found, plain_rows(f, Z))


@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
def test_holomorphic_rows_are_the_complex_derivative(strategy):
    J = pb.jacobian(lambda z: (W @ z) ** 2, Z, holomorphic=True, strategy=strategy)
    found = together(J, rows=2)
    torch.testing.assert_close(found, 2 * (W @ Z)[:, None] * W)
    assert not found.is_conj()


def test_a_function_that_is_not_holomorphic_is_refused_before_the_first_block():
    with pytest.raises(ValueMismatch, match="Cauchy–Riemann"):
        pb.jacobian(lambda z: z.conj() * z, Z, holomorphic=True).iter_rows()


@pytest.mark.parametrize("strategy", ["auto", "rows"])
def test_blocks_stay_differentiable(strategy):
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    J = pb.jacobian(lambda x: torch.outer(x**3, x).flatten(), x, create_graph=True, strategy=strategy)
    for rows, block in J.iter_rows("1MiB", rows=5):
        (found,) = torch.autograd.grad(block.square().sum(), x, retain_graph=True)

        def again(x, rows=rows):
            return torch.func.jacrev(lambda x: torch.outer(x**3, x).flatten())(x)[rows.start : rows.stop]

        expected = torch.func.grad(lambda x, again=again: again(x).square().sum())(x.detach())
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_nothing_by_nothing(shape):
    J = pb.jacobian(lambda x: x * 2, torch.ones(shape))
    assert list(J.iter_rows()) == []


def test_rows_without_columns_and_outputs_without_a_graph():
    ((rows, block),) = pb.jacobian(lambda x: x.sum() * torch.ones(3), torch.ones(0)).iter_rows()
    assert (rows, block.shape) == (range(3), (3, 0))
    J = pb.jacobian(lambda x: torch.ones(5, 2), torch.ones(3))
    torch.testing.assert_close(together(J, rows=4), torch.zeros(10, 3))
    assert "nothing to run" in str(J.plan())


def wide(n, m):
    w = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return lambda x: torch.tanh(w @ x), w


@pytest.mark.parametrize("strategy", ["rows", "columns"])
@pytest.mark.parametrize("part", [1.0, 1.5, 4.0, 20.0])
def test_what_is_allocated_stays_under_the_limit(strategy, part):
    m, n = (400, 300) if strategy == "rows" else (60, 20)
    f, _ = wide(n, m)
    x = torch.randn(n, dtype=torch.float64)
    J = pb.jacobian(f, x, strategy=strategy, verify=False)
    side = "reverse" if strategy == "rows" else "forward"
    limit = int(part * (bytes_of_pass(J._passes, side) + 2 * n * 8)) + 1
    expected = plain_rows(f, x)
    held = []  # the block that a loop still holds while the next one is made

    def read():
        for rows, block in J.iter_rows(limit):
            torch.testing.assert_close(block, expected[rows.start : rows.stop])
            held[:] = [weakref.ref(block)]

    def walk():
        for _, _block in J.iter_rows(limit):
            pass

    read()
    _, peak = measured(walk, CPU)
    assert peak <= limit
    if part == 1:
        assert [len(rows) for rows, _ in J.iter_rows(limit)] == [1] * m
    assert held[0]() is None


def test_blocks_are_large_where_the_limit_is():
    f, _ = wide(50, 2000)
    J = pb.jacobian(f, torch.randn(50, dtype=torch.float64))
    matrix = 2000 * 50 * 8
    tight, loose = (len(list(J.iter_rows(limit))) for limit in (matrix // 4, 4 * matrix))
    assert loose == 1
    assert 8 <= tight <= 40


def test_a_limit_too_small_for_one_row_says_how_much_it_takes():
    f, _ = wide(500, 100)
    J = pb.jacobian(f, torch.randn(500, dtype=torch.float64), strategy="rows")
    with pytest.raises(MemoryLimitError) as caught:
        J.iter_rows(5000)
    assert caught.value.what == "not even one row at a time is within the memory limit"
    assert caught.value.got == "a limit of 5,000 bytes, of which a row takes 4,000"
    least = int(caught.value.fix.split()[0].removeprefix("memory="))
    with pytest.raises(MemoryLimitError):
        J.iter_rows(least - 1)
    assert [len(rows) for rows, _ in J.iter_rows(least)] == [1] * 100


def test_few_inputs_take_forward_passes_and_many_take_reverse_passes():
    f, _ = wide(4, 2000)
    tall = pb.jacobian(f, torch.randn(4, dtype=torch.float64))
    calls = count_passes(tall)
    torch.testing.assert_close(together(tall), torch.func.jacfwd(f)(tall._lin.problem.tree))
    assert tall.plan().chosen == "columns"
    assert calls["pull"] <= 4  # verification alone
    g, _ = wide(2000, 4)
    flat = pb.jacobian(g, torch.randn(2000, dtype=torch.float64))
    together(flat)
    assert flat.plan().chosen == "rows"


def count_passes(J):
    calls = {"pull": 0}
    original = J._lin.pull

    def pull(cotangents):
        calls["pull"] += 1
        return original(cotangents)

    J._lin.pull = pull
    return calls


def test_examples_that_do_not_mix_are_held_and_spread():
    w = torch.randn(5, 3, dtype=torch.float64)
    x = torch.randn(60, 3, dtype=torch.float64)

    def f(x):
        return {"a": torch.tanh(x @ w.T), "dead": torch.zeros(60, 2), "b": x.prod(1)}

    J = pb.jacobian(f, x)
    found = together(J, "200KiB", rows=7)
    torch.testing.assert_close(found, plain_rows(f, x))
    plan = J.plan()
    assert plan.chosen == "blocks"
    assert plan.passes <= 6
    assert "rows in 69 blocks of up to 7" in str(plan)


def neighbours(x):
    return x.sin() * x.roll(1) + x.roll(-1) ** 2


def test_the_entries_of_a_pattern_are_held_and_spread():
    x = torch.randn(600, dtype=torch.float64)
    J = pb.jacobian(neighbours, x)
    limit = 400_000
    found = together(J, limit)
    torch.testing.assert_close(found, plain_rows(neighbours, x))
    plan = J.plan()
    assert plan.passes < 10
    assert "sparse" not in plan.chosen
    calls = count_passes(J)
    _, peak = measured(lambda: [None for _ in J.iter_rows(limit)], CPU)
    assert peak <= limit
    assert calls["pull"] < 20


def test_a_hidden_input_among_the_entries():
    x, y = torch.randn(600, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    J = pb.jacobian(lambda y, x: {"dead": torch.zeros(2), "live": neighbours(x)}, y, x, wrt=(0, 1))
    expected = plain_rows(lambda y, x: {"dead": torch.zeros(2), "live": neighbours(x)}, y, x)
    torch.testing.assert_close(together(J, rows=100), expected)
    assert J.plan().passes < 10


@pytest.mark.parametrize("strategy", ["colored-rows", "blocks"])
def test_a_strategy_that_is_asked_for_is_taken(strategy):
    x = torch.randn(40, 2, dtype=torch.float64)
    J = pb.jacobian(torch.tanh, x, strategy=strategy)
    torch.testing.assert_close(together(J, rows=9), plain_rows(torch.tanh, x))
    assert J.plan().chosen == strategy


def test_a_strategy_that_cannot_is_refused():
    J = pb.jacobian(lambda x: x.sum() * x, torch.randn(30, 2), strategy="blocks")
    with pytest.raises(StrategyError) as caught:
        J.iter_rows()
    assert caught.value.what == "strategy 'blocks' cannot deliver this Jacobian in blocks of rows"
    assert "examples mix" in caught.value.got
    assert "'rows' always can" in caught.value.fix


def test_inside_a_transform_it_is_refused():
    with pytest.raises(StrategyError, match=r"inside a torch\.func transform"):
        torch.func.grad(lambda x: next(pb.jacobian(torch.sin, x).iter_rows())[1].sum())(torch.ones(3))


def test_a_prepared_jacobian_delivers_its_entries():
    x = torch.rand(50, dtype=torch.float64)
    prepared = pb.prepare(neighbours, x)
    at = torch.rand(50, dtype=torch.float64)
    torch.testing.assert_close(together(prepared(at), rows=20), plain_rows(neighbours, at))


@pytest.mark.parametrize("wrong", [True, 1.5, "3", torch.tensor(3)])
def test_rows_that_are_no_number_are_refused(wrong):
    with pytest.raises(ArgumentError, match="rows is how many rows a block has at most"):
        pb.jacobian(torch.sin, torch.ones(3)).iter_rows(rows=wrong)


def test_rows_and_memory_of_no_amount_are_refused():
    J = pb.jacobian(torch.sin, torch.ones(3))
    with pytest.raises(ValueMismatch, match="a block has at least one row"):
        J.iter_rows(rows=0)
    with pytest.raises(ValueMismatch, match="not an amount of memory"):
        J.iter_rows("1 gigabyte")


class WrongUnderVmap(torch.autograd.Function):
    """Its reverse pass is right alone and wrong in a batch."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return Doubled.apply(g) * ctx.saved_tensors[0]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(g):
        return 2 * g

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, g):
        return 3 * g, in_dims[0]


def test_a_wrong_batching_rule_is_found_out():
    x = torch.randn(30, dtype=torch.float64)
    J = pb.jacobian(lambda x: WrongUnderVmap.apply(x).cumsum(0), x, strategy="rows")
    expected = torch.tril(torch.ones(30, 30, dtype=torch.float64)) * 2 * x
    with pytest.warns(pb.errors.PullbackWarning, match="disagrees with a plain reverse pass"):
        found = together(J, rows=20)
    torch.testing.assert_close(found, expected)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    limit=st.integers(3000, 40_000),
    rows=st.none() | st.integers(1, 50),
    dead=st.booleans(),
)
def test_any_shape_and_limit(m, n, limit, rows, dead):
    w = torch.randn(m, n, dtype=torch.float64, generator=torch.Generator().manual_seed(m * 41 + n))
    x = torch.linspace(-1, 1, n, dtype=torch.float64)

    def f(x):
        return {"a": torch.sin(w @ x), "b": torch.zeros(int(dead), dtype=torch.float64), "c": x.sum()}

    J = pb.jacobian(f, x)
    try:
        found = together(J, limit, rows=rows)
    except MemoryLimitError as error:
        limit = int(error.fix.split()[0].removeprefix("memory="))
        found = together(J, limit, rows=rows)
    expected = torch.cat([torch.cos(w @ x)[:, None] * w, torch.zeros(int(dead), n), torch.ones(1, n)])
    torch.testing.assert_close(found, expected)
    if rows is not None:
        assert all(len(part) <= rows for part, _ in J.iter_rows(limit, rows=rows))


# Files


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def read_safetensors(path):
    """What a file holds, by the format's description."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    about, entry = header.pop("__metadata__"), header.pop("jacobian")
    assert not header
    assert all(isinstance(each, str) for each in about.values())
    start, stop = entry["data_offsets"]
    assert (start, 8 + length + stop) == (0, len(data))
    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
             "C64": torch.complex64}  # fmt: skip
    raw = torch.frombuffer(bytearray(data[8 + length :]), dtype=kinds[entry["dtype"]])
    return raw.reshape(entry["shape"]), about


@pytest.mark.parametrize("memory", ["8KiB", None])
def test_an_npy_file_is_the_matrix(tmp_path, memory):
    path = tmp_path / "jacobian.npy"
    assert pb.jacobian(several, *POINT, wrt=(0, 1, 2)).save(path, memory=memory) == path
    found = np.load(path, mmap_mode="r")
    assert isinstance(found, np.memmap)
    assert found.flags.c_contiguous
    torch.testing.assert_close(torch.from_numpy(np.array(found)), plain_rows(several, *POINT))
    assert names(tmp_path) == ["jacobian.npy"]


@pytest.mark.parametrize("memory", ["8KiB", None])
def test_a_safetensors_file_is_the_matrix_and_says_what_is_where(tmp_path, memory):
    path = tmp_path / "jacobian.safetensors"
    pb.jacobian(several, *POINT, wrt=(0, 1, 2)).save(str(path), memory=memory)
    found, about = read_safetensors(path)
    torch.testing.assert_close(found, plain_rows(several, *POINT))
    assert json.loads(about["shape"]) == [33, 12]
    assert json.loads(about["columns"]) == [
        {"name": "a", "shape": [4], "slice": [0, 4]},
        {"name": "b", "shape": [2, 3], "slice": [4, 10]},
        {"name": "unused", "shape": [2], "slice": [10, 12]},
    ]
    assert json.loads(about["rows"])[2] == {"name": "output['q']", "shape": [4], "slice": [27, 31]}


def test_safetensors_itself_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = pb.jacobian(several, *POINT, wrt=(0, 1, 2)).save(tmp_path / "jacobian.safetensors")
    found = safetensors.load_file(path)
    assert set(found) == {"jacobian"}
    torch.testing.assert_close(found["jacobian"], plain_rows(several, *POINT))


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [(dtype, suffix) for suffix, dtypes in store.FORMATS.items() for dtype in dtypes],
    ids=lambda each: str(each).removeprefix("torch."),
)
def test_every_dtype_that_a_format_has(tmp_path, dtype, suffix):
    x = torch.randn(3, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    J = pb.jacobian(lambda x: torch.outer(x, x), x)
    path = J.save(tmp_path / f"J{suffix}")
    found = torch.from_numpy(np.load(path)) if suffix == ".npy" else read_safetensors(path)[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found, J.matrix(), rtol=0, atol=0)


def test_holomorphic_and_differentiable_jacobians_are_written_too(tmp_path):
    path = pb.jacobian(lambda z: (W @ z) ** 2, Z, holomorphic=True).save(tmp_path / "J.npy")
    torch.testing.assert_close(torch.from_numpy(np.load(path)), 2 * (W @ Z)[:, None] * W)
    x = torch.randn(3, dtype=torch.float64)
    path = pb.jacobian(torch.sin, x, create_graph=True).save(path)
    torch.testing.assert_close(torch.from_numpy(np.load(path)), x.cos().diag())


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_an_empty_matrix_is_a_file_too(tmp_path, suffix, shape):
    path = pb.jacobian(lambda x: x * 2, torch.ones(shape, dtype=torch.float64)).save(tmp_path / f"J{suffix}")
    found = torch.from_numpy(np.load(path)) if suffix == ".npy" else None
    if found is None:
        text = path.read_bytes()
        assert json.loads(text[8:])["jacobian"] == {"dtype": "F64", "shape": [0, 0], "data_offsets": [0, 0]}
    else:
        assert found.shape == (0, 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("passes", [1, 30, 70])
def test_what_interrupts_leaves_no_half_file_and_harms_no_whole_one(tmp_path, error, before, passes):
    path = tmp_path / "J.npy"
    if before:
        path.write_bytes(b"precious")
    x = torch.randn(100, dtype=torch.float64)
    calls, armed = [], []

    def interrupt(gradient):
        calls.append(gradient)
        if armed and len(calls) >= passes:  # again and again: a failing batch is tried one by one
            raise error

    def f(x):
        y = x.sin()
        y.register_hook(interrupt)
        return y.cumsum(0)

    J = pb.jacobian(f, x, strategy="rows", verify=False)
    with pytest.raises(MemoryLimitError) as caught:
        J.iter_rows(1000)
    least = int(caught.value.fix.split()[0].removeprefix("memory="))  # then there is a pass for each row
    calls.clear()
    armed.append(True)
    with pytest.raises(error):
        J.save(path, memory=least)
    assert passes <= len(calls) <= passes + 1
    assert names(tmp_path) == (["J.npy"] if before else [])
    if before:
        assert path.read_bytes() == b"precious"


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path):
    path = tmp_path / "J.npy"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        pb.jacobian(torch.sin, torch.ones(3)).save(path)
        assert reader.read() == b"old"
    assert np.load(path).shape == (3, 3)


def test_a_link_stays_a_link(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "J.npy").write_bytes(b"old")
    link = tmp_path / "J.npy"
    link.symlink_to(real / "J.npy")
    assert pb.jacobian(torch.sin, torch.ones(3)).save(link) == link
    assert link.is_symlink()
    assert np.load(real / "J.npy").shape == (3, 3)


def test_memory_for_a_file_stays_under_the_limit(tmp_path):
    f, _ = wide(300, 400)
    J = pb.jacobian(f, torch.randn(300, dtype=torch.float64), strategy="rows")
    together(J, rows=1)  # verified
    limit = 200_000
    _, peak = measured(lambda: J.save(tmp_path / "J.npy", memory=limit), CPU)
    assert peak <= limit < 300 * 400 * 8


def test_the_progress_of_a_file_is_shown(tmp_path, capsys):
    J = pb.jacobian(torch.sin, torch.ones(40), strategy="rows")
    J.save(tmp_path / "J.npy", memory=J.shape[1] * 4 * 12, progress=True)
    assert "rows of jacobian.npy" in capsys.readouterr().err
    J.save(tmp_path / "J.npy", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("path", "what", "got", "fix"),
    [
        ("J.pt", "the suffix says the format", "'J.pt'", ".npy or .safetensors"),
        ("J", "the suffix says the format", "'J'", ".npy or .safetensors"),
        ("missing/J.npy", "there is no such folder", "missing", "make it first"),
        ("folder.npy", "this is a folder", "folder.npy", "a file in it"),
    ],
)
def test_a_path_that_will_not_do_is_refused_before_anything_runs(tmp_path, path, what, got, fix):
    (tmp_path / "folder.npy").mkdir()
    J = pb.jacobian(torch.sin, torch.ones(3))
    calls = count_passes(J)
    with pytest.raises(ValueMismatch) as caught:
        J.save(tmp_path / path)
    assert caught.value.what.startswith(what)
    assert got in caught.value.got
    assert fix in caught.value.fix
    assert calls["pull"] == 0


@pytest.mark.parametrize("path", [3, None, b"J.npy"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ArgumentError) as caught:
        pb.jacobian(torch.sin, torch.ones(3)).save(path)
    assert caught.value.what == "path is no path"
    assert caught.value.got == repr(path)
    assert caught.value.fix == 'J.save("jacobian.npy")'


def test_a_layout_and_a_dtype_that_a_format_has_not(tmp_path):
    J = pb.jacobian(torch.sin, torch.ones(3, dtype=torch.bfloat16))
    with pytest.raises(ValueMismatch) as caught:
        J.save(tmp_path / "J.npy")
    assert str(caught.value) == ".npy has no such dtype\n  got: bfloat16\n  fix: a path that ends in .safetensors"
    with pytest.raises(ValueMismatch) as caught:
        pb.jacobian(torch.sin, Z).save(tmp_path / "J.safetensors")
    assert str(caught.value) == ".safetensors has no such dtype\n  got: complex128\n  fix: a path that ends in .npy"
    with pytest.raises(ValueMismatch, match="there is no such layout of a file") as caught:
        J.save(tmp_path / "J.safetensors", layout="csr")
    assert caught.value.got == "layout='csr'"
    assert names(tmp_path) == []


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["auto", "rows", "columns"])
def test_blocks_on_a_gpu(tmp_path, strategy):
    w = wide(300, 400)[1].cuda()
    x = torch.randn(300, dtype=torch.float64, device="cuda")

    def on_gpu(x):
        return torch.tanh(w @ x)

    expected = (1 - torch.tanh(w @ x) ** 2)[:, None] * w
    J = pb.jacobian(on_gpu, x, strategy=strategy)
    found = together(J, "2MiB", rows=90)
    assert found.is_cuda
    torch.testing.assert_close(found, expected)
    path = J.save(tmp_path / "J.npy", memory="2MiB")
    torch.testing.assert_close(torch.from_numpy(np.load(path)), expected.cpu())
