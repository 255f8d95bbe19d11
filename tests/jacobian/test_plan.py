"""The plan: bids, refusals, the choice, chunks, substitutions, in print."""

import pytest
import torch

import pullback as pb
from pullback.errors import ArgumentError, MemoryLimitError, StrategyError, ValueMismatch


def test_a_plan_before_anything_is_built():
    plan = pb.jacobian(lambda x: x.cumsum(0), torch.ones(5)).plan()
    assert plan.passes == 5
    assert plan.chosen == "rows"
    text = str(plan)
    assert "Jacobian 5 x 5" in text
    assert "one forward pass for each input element" in text
    assert "refused" in text
    assert "ran" not in text
    assert repr(plan) == "Plan(rows, 5 passes, 5 x 5)"


def test_a_plan_says_what_was_done():
    J = pb.jacobian(lambda x: x.cumsum(0), torch.ones(5))
    J.matrix()
    text = str(J.plan())
    assert "ran: reverse, batched by vmap, in one chunk of 5" in text
    assert "verified: a random seed times J equals a plain reverse pass" in text


def test_nothing_to_do_is_said():
    J = pb.jacobian(lambda x: x.argmax(), torch.ones(5))
    assert not J.matrix().any()
    assert "every derivative is zero" in str(J.plan())
    assert J.plan().passes == 0


def test_substitutions_are_said():
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.from_numpy(x.detach().numpy() ** 2)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return torch.from_numpy(2 * x.detach().numpy() * g.detach().numpy())

    x = torch.randn(4)
    J = pb.jacobian(Old.apply, x, strategy="rows")
    torch.testing.assert_close(J.matrix(), (2 * x).diag())
    assert "reverse, one pass at a time" in str(J.plan())
    assert "note: reverse, batched by vmap" in str(J.plan())
    with pytest.warns(pb.errors.PullbackWarning, match="reverse-over-reverse"):
        pushed = J @ x  # NumPy cuts the second reverse pass: the rows are taken instead
    torch.testing.assert_close(pushed, 2 * x * x)
    assert any("Jv from all rows" in note for note in J.plan().notes)


def test_a_strategy_that_cannot():
    with pytest.raises(StrategyError) as caught:
        pb.jacobian(lambda x: x.sum(), torch.ones(5), strategy="blocks").matrix()
    assert "no leading dimension" in caught.value.got
    assert "now 'rows'" in caught.value.fix
    with pytest.raises(ValueMismatch) as caught:
        pb.jacobian(torch.sin, torch.ones(5), strategy="fastest")
    assert "'auto'" in caught.value.fix
    assert "'columns'" in caught.value.fix


@pytest.mark.parametrize("memory", ["2 GiBs", "", "-1MB", 0, -5])
def test_no_amount_of_memory(memory):
    with pytest.raises(ValueMismatch, match="memory"):
        pb.jacobian(torch.sin, torch.ones(5), memory=memory)


@pytest.mark.parametrize("memory", [True, [1], torch.ones(1)])
def test_not_memory_at_all(memory):
    with pytest.raises(ArgumentError, match="memory"):
        pb.jacobian(torch.sin, torch.ones(5), memory=memory)


def test_chunks_fit_the_memory_limit():
    def f(x):
        return (x.cumsum(0) ** 2).cumsum(0)

    x = torch.rand(400, dtype=torch.float64)
    J = pb.jacobian(f, x, memory="1.5MB")
    matrix = J.matrix()
    plan = J.plan()
    assert len(plan.chunks) > 2
    assert sum(plan.chunks) == plan.passes == 400
    torch.testing.assert_close(matrix, pb.jacobian(f, x).matrix())


def test_a_result_beyond_the_limit_is_refused_before_it_is_made():
    with pytest.raises(MemoryLimitError) as caught:
        pb.jacobian(lambda x: x.cumsum(0), torch.ones(1000), memory="1MB").matrix()
    assert "4,000,000 bytes, the limit is 1,000,000" in caught.value.got
    assert isinstance(caught.value, MemoryError)


def test_out_of_memory_halves_the_chunk(monkeypatch):
    from pullback.executors import local

    def stingy(one):
        def many(stacks):
            if stacks[0].shape[0] > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return local.looped(one)(stacks)

        return many

    monkeypatch.setattr(local, "batched", stingy)
    x = torch.randn(10)
    J = pb.jacobian(lambda x: x.cumsum(0) ** 2, x)
    matrix = J.matrix()
    monkeypatch.undo()
    torch.testing.assert_close(matrix, torch.func.jacrev(lambda x: x.cumsum(0) ** 2)(x))
    assert max(J.plan().chunks) <= 3
    assert any("halved" in note for note in J.plan().notes)


def test_close_calls_are_timed_and_others_are_not():
    def f(x):
        return x.cumsum(0).sin()

    timed = pb.jacobian(f, torch.randn(300))
    timed.matrix()
    assert set(timed.plan().seconds) == {"forward", "reverse"}
    assert "measured" in str(timed.plan())
    assert not pb.jacobian(lambda x: x[:2], torch.randn(300)).plan().seconds


@pytest.mark.parametrize(
    ("call", "error", "got", "fix"),
    [
        (lambda: pb.jacobian(3, torch.ones(2)), ArgumentError, "int", "pb.jacobian_of"),
        (lambda: pb.jacobian(torch.sin), ValueMismatch, "wrt=0 for 0 arguments", "pb.jacobian(f, x)"),
        (lambda: pb.jacobian(torch.sin, torch.ones(2), wrt=1), ValueMismatch, "wrt=1 for 1 argument", "wrt=1"),
        (lambda: pb.jacobian(torch.sin, torch.ones(2), wrt=True), ArgumentError, "wrt=True", "wrt=0"),
        (lambda: pb.jacobian(torch.sin, torch.ones(2), wrt=()), ValueMismatch, "wrt=()", "wrt=0"),
        (lambda: pb.jacobian(torch.mul, torch.ones(2), torch.ones(2), wrt=(0, 0)), ValueMismatch, "(0, 0)", "(0, 1)"),
        (lambda: pb.jacobian(torch.sin, 2.0), ArgumentError, "float", "torch.tensor(2.0)"),
        (lambda: pb.jacobian(torch.sin, torch.arange(3)), ArgumentError, "torch.int64", "x.float()"),
        (lambda: pb.jacobian(torch.sin, torch.eye(2).to_sparse()), ArgumentError, "sparse_coo", "to_dense"),
        (
            lambda: pb.jacobian(torch.sin, torch.ones(2), wrt="parameters"),
            ArgumentError,
            "builtin",
            "pb.jacobian(module, x, wrt='parameters')",
        ),
        (
            lambda: pb.jacobian(torch.nn.Linear(2, 2), torch.ones(2), wrt=("wieght",)),
            ValueMismatch,
            "'wieght'",
            "wrt=('weight',)",
        ),
        (
            lambda: pb.jacobian(torch.nn.Tanh(), torch.ones(2), wrt="parameters"),
            ValueMismatch,
            "Tanh",
            "wrt=0",
        ),
        (lambda: pb.jacobian(lambda x: None, torch.ones(2)), ArgumentError, "NoneType", "return a tensor"),
        (lambda: pb.jacobian(lambda x: x.sum().item(), torch.ones(2)), ArgumentError, "float", ".item()"),
    ],
)
def test_bad_arguments(call, error, got, fix):
    with pytest.raises(error) as caught:
        call()
    assert got in caught.value.got
    assert fix in caught.value.fix


def test_errors_of_f_come_through_unchanged():
    class Own(Exception):
        pass

    def f(x):
        raise Own("mine")

    with pytest.raises(Own, match="mine"):
        pb.jacobian(f, torch.ones(2))
    with pytest.raises(KeyboardInterrupt):
        pb.jacobian(lambda x: (_ for _ in ()).throw(KeyboardInterrupt), torch.ones(2))


def test_negative_indices_count_from_the_end():
    J = pb.jacobian(torch.mul, torch.ones(2), torch.full((2,), 3.0), wrt=-1)
    torch.testing.assert_close(J.matrix(), torch.eye(2))
    assert J.inputs.names == ("argument 1",)
