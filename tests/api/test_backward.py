"""``pb.backward`` and ``pb.grad``: torch's numbers bit for bit, and the text of every refusal."""

from __future__ import annotations

import contextlib
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pullback as pb
from pullback.errors import ArgumentError, GraphError, SeedError, ValueMismatch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
FUNCTIONS = [
    lambda x: x * x,
    lambda x: x.sin() * 3,
    lambda x: x.flatten().cumsum(0),
    lambda x: x.sum(),
    lambda x: x.reshape(-1, 1) * x.reshape(1, -1),
    lambda x: x.expand(2, *x.shape),
]


@pytest.fixture
def x():
    return torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)


def parts(error, what, got, fix):
    """The three parts of an error, exactly."""
    __tracebackhide__ = True
    assert (error.value.what, error.value.got, error.value.fix) == (what, got, fix)


def same_bits(ours, theirs):
    """Equal to the last bit, NaN included."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert bits(ours) == bits(theirs)


def bits(tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).tolist()


# -------------------------------------------------------------------------------------------------- torch's numbers


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dtype=st.sampled_from(DTYPES),
    seed_dtype=st.sampled_from([*DTYPES, torch.int64, torch.bool]),
    function=st.sampled_from(FUNCTIONS),
    random=st.integers(0, 2**31),
    twice=st.booleans(),
)
def test_backward_adds_what_torch_adds_bit_for_bit(shape, dtype, seed_dtype, function, random, twice):
    generator = torch.Generator().manual_seed(random)
    ours = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    weights = torch.randn(function(ours).shape, generator=generator).to(seed_dtype)
    if seed_dtype.is_complex and not dtype.is_complex:
        weights = weights.real
    for _ in range(1 + twice):
        pb.backward(function(ours), weights)
        torch.autograd.backward(function(theirs), weights.to(dtype))
    same_bits(ours.grad, theirs.grad)
    [found] = [pb.grad(function(ours), ours, weights)]
    same_bits(found, torch.autograd.grad(function(theirs), theirs, weights.to(dtype))[0])


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES[:4]), min_size=4, max_size=4),
    kind=st.sampled_from([tuple, list, lambda values: {f"task_{i}": each for i, each in enumerate(values)}]),
)
def test_a_structure_of_outputs_is_one_pass_of_torch(sizes, dtypes, kind):
    ours = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()

    def outputs(x):
        return [(x[:size] ** 2).to(dtype) for size, dtype in zip(sizes, dtypes, strict=False)]

    seeds = [torch.arange(size).to(dtype) for size, dtype in zip(sizes, dtypes, strict=False)]
    pb.backward(kind(outputs(ours)), kind(seeds))
    torch.autograd.backward(outputs(theirs), seeds)
    same_bits(ours.grad, theirs.grad)


@settings(deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3),
    dtype=st.sampled_from(DTYPES),
    chosen=st.sets(st.integers(0, 1)),
    retain_graph=st.sampled_from([None, False, True]),
    create_graph=st.booleans(),
    random=st.integers(0, 2**31),
)
def test_every_option_is_torchs(shapes, dtype, chosen, retain_graph, create_graph, random):
    generator = torch.Generator().manual_seed(random)
    values = [torch.randn(2, generator=generator).to(dtype) for _ in range(2)]
    seeds = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    options = {"retain_graph": retain_graph, "create_graph": create_graph}
    results = []
    for backward, grad in ((pb.backward, pb.grad), (torch.autograd.backward, torch.autograd.grad)):
        leaves = [value.clone().requires_grad_() for value in values]
        outputs = [leaves[0].prod().expand(shape) * leaves[1].sum() for shape in shapes]
        with no_word_of_a_cycle():
            backward(outputs, seeds, inputs=[leaves[place] for place in sorted(chosen)] or None, **options)
        added = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None  # break the cycle
        kept = retain_graph or (retain_graph is None and create_graph)
        with contextlib.nullcontext() if kept else pytest.raises(RuntimeError, match="freed"):
            grad(outputs, leaves, seeds)
        fresh = [leaves[0].prod().expand(shape) * leaves[1].sum() for shape in shapes]
        results.append(added + list(grad(fresh, leaves, seeds, **options)))
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            same_bits(ours, theirs)
            assert ours.requires_grad == theirs.requires_grad == create_graph


@contextlib.contextmanager
def no_word_of_a_cycle():
    """Without torch's warning of a reference cycle, which comes once in a process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
        yield


@pytest.fixture
def every_warning():
    """Torch's warnings each time, not once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.parametrize(
    ("seed", "weights"),
    [
        ("ones", torch.ones(4)),
        ("mean", torch.full((4,), 0.25)),
        (2, torch.full((4,), 2.0)),
        (pb.seed.onehot(2), torch.tensor([0.0, 0.0, 1.0, 0.0])),
        (torch.ones(4, dtype=torch.float64), torch.ones(4)),
        (torch.tensor([1, 0, 1, 0]) > 0, torch.tensor([1.0, 0.0, 1.0, 0.0])),
        (torch.tensor(2.0).expand(4), torch.full((4,), 2.0)),
        (torch.arange(8.0)[::2], torch.tensor([0.0, 2.0, 4.0, 6.0])),
        (torch.sign, torch.ones(4)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_each_seed_adds(x, seed, weights):
    pb.backward(x**2, seed)
    same_bits(x.grad, 2 * x.detach() * weights)
    before = x.grad.clone()
    same_bits(pb.grad(x**2, x, seed), before)
    same_bits(x.grad, before)


def test_the_gradient_of_the_sum_and_of_the_mean(x):
    same_bits(pb.grad(x.exp(), x, "ones"), pb.grad(x.exp().sum(), x))
    same_bits(pb.grad(x.exp(), x, "mean"), pb.grad(x.exp().mean(), x))


def test_tasks_are_weighted_by_name(x):
    outputs = {"task_a": (x**2).sum(), "task_b": 3 * x}
    pb.backward(outputs, pb.seed.weights(task_b=torch.tensor([1.0, 0.0, 0.0, 2.0]), task_a=0.5))
    assert x.grad.tolist() == [4.0, 2.0, 3.0, 10.0]


def test_none_in_a_structure_is_the_seed_of_one_element_and_zero_leaves_out(x):
    assert pb.grad((x.sum(), 5 * x), x, (None, 0.0)).tolist() == [1.0] * 4
    with pytest.raises(SeedError, match=r"output\[1\] is not a single number"):
        pb.grad((x.sum(), 5 * x), x, (None, None))


def test_a_leaf_is_its_own_output(x):
    pb.backward(x, "ones")
    assert x.grad.tolist() == [1.0] * 4


def test_outputs_without_elements_give_zeros(x):
    assert pb.grad(x[:0] * 2, x, "ones").tolist() == [0.0] * 4


def test_a_holomorphic_seed(x):
    z = torch.tensor([1 + 1j, 2 - 1j], requires_grad=True)
    pb.backward(z**2, 1j)
    twin = z.detach().clone().requires_grad_()
    (twin**2).backward(torch.tensor([1j, 1j]))
    same_bits(z.grad, twin.grad)


def test_a_seed_that_requires_grad_holds_no_graph_unless_asked(x):
    weights = torch.ones(4, dtype=torch.float64, requires_grad=True)
    assert not pb.grad(x**2, x, weights).requires_grad
    pb.backward(x**2, weights)
    assert not x.grad.requires_grad
    assert weights.grad is None
    found = pb.grad(x**2, x, weights, create_graph=True)
    assert pb.grad(found, weights, "ones").tolist() == [2.0, 4.0, 6.0, 8.0]


def test_the_seed_is_left_as_it_is(x):
    weights = torch.arange(4.0)
    pb.backward(x**2, weights)
    assert weights.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x.grad.data_ptr() != weights.data_ptr()


def test_retain_graph_and_create_graph_are_torchs(x):
    y = x**3
    pb.backward(y, "ones", retain_graph=True)
    pb.backward(y, "ones")
    assert torch.equal(x.grad, 6 * x.detach() ** 2)
    first = pb.grad(x**3, x, "ones", create_graph=True)
    assert torch.equal(pb.grad(first, x, "ones"), 6 * x.detach())


@pytest.mark.usefixtures("every_warning")
def test_a_differentiable_gradient_in_grad_brings_torchs_warning_of_a_cycle(x):
    with pytest.warns(UserWarning, match="create a reference cycle"):
        pb.backward(x**3, "ones", create_graph=True)
    assert torch.equal(pb.grad(x.grad, x, "ones"), 6 * x.detach())
    x.grad = None


def test_inputs_restrict_what_is_accumulated(x):
    w = torch.ones(4, requires_grad=True)
    pb.backward(x * w, "ones", inputs=x)
    assert x.grad.tolist() == [1.0] * 4
    assert w.grad is None
    pb.backward(x * w, "ones", inputs={"w": w})
    assert w.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_an_input_of_backward_that_is_not_used_is_left_alone_as_in_torch(x):
    w = torch.ones(2, requires_grad=True)
    pb.backward(x * 2, "ones", inputs=[w])
    assert w.grad is None
    assert x.grad is None


def test_what_grad_accumulated_before_is_not_touched(x):
    pb.backward(x**2, "ones")
    before, kept = x.grad, x.grad.clone()
    pb.grad(x**2, x, "ones")
    assert x.grad is before
    same_bits(x.grad, kept)


def test_grad_answers_in_the_structure_of_the_inputs(x):
    w = torch.tensor(2.0, requires_grad=True)
    found = pb.grad(x * w, {"x": x, "rest": (w,)}, "ones")
    assert found["x"].tolist() == [2.0] * 4
    assert found["rest"][0].item() == 10.0
    assert x.grad is None
    assert w.grad is None


def test_the_parameters_of_a_module():
    layer = torch.nn.Linear(3, 2)
    named = pb.grad(layer(torch.ones(3)), dict(layer.named_parameters()), "ones")
    plain = pb.grad(layer(torch.ones(3)), layer.parameters(), "ones")
    assert set(named) == {"weight", "bias"}
    assert torch.equal(named["weight"], plain[0])
    pb.backward(layer(torch.ones(3)), "ones", inputs=layer.parameters())
    assert torch.equal(layer.weight.grad, plain[0])


def test_gradients_switched_off_do_not_stop_a_graph_that_exists(x):
    y = x**2
    with torch.no_grad():
        pb.backward(y, 1.0)
    assert torch.equal(x.grad, 2 * x.detach())


# ---------------------------------------------------------------------------------------------------- what is refused


def test_a_seed_error_names_the_output(x):
    with pytest.raises(SeedError) as error:
        pb.backward(x * 2, torch.ones(4, 1))
    parts(
        error,
        "the seed for the output of shape (4,) (MulBackward0) has the wrong shape",
        "seed (4, 1), output (4,)",
        "seed.reshape(4)",
    )
    with pytest.raises(SeedError, match=r"the seed for output\['loss'\]\[1\] has the wrong shape"):
        pb.grad({"loss": (x.sum(), x * 2)}, x, {"loss": (1.0, torch.ones(3))})
    assert x.grad is None


def test_a_half_precision_output_is_not_seeded_with_infinity(x):
    y = x.half() * 2
    torch.autograd.backward(y, torch.full((4,), 1e5), inputs=[x], retain_graph=True)
    assert x.grad.isinf().all()
    with pytest.raises(SeedError) as error:
        pb.backward(y, torch.full((4,), 1e5))
    parts(
        error,
        "the seed for the output of shape (4,) (MulBackward0) overflows in torch.float16",
        "4 of 4 entries of torch.float32, the largest 1e+05",
        "scale it down, or compute in a wider dtype than torch.float16",
    )


def test_a_name_error_is_a_value_error(x):
    with pytest.raises(ValueMismatch, match="did you mean 'fit'"):
        pb.backward({"fit": x.sum()}, pb.seed.weights(fitt=1.0))


def test_no_graph_since_nothing_requires_grad():
    y = torch.ones(2)
    with pytest.raises(GraphError) as error:
        pb.backward(y, "ones")
    parts(
        error,
        "the output of shape (2,) carries no graph: nothing it was computed from requires grad, or the path was cut",
        "requires_grad=False, torch.float32",
        "x.requires_grad_() before computing it; or look for .detach(), .data or torch.no_grad() on the way",
    )
    with pytest.raises(GraphError) as error:
        pb.grad({"y": y * 2}, y, "ones")
    parts(
        error,
        "output['y'] carries no graph, since none of the inputs requires grad",
        "requires_grad=False, torch.float32, shape (2,)",
        "x.requires_grad_() before computing it",
    )


@pytest.mark.parametrize("call", [pb.grad, lambda y, x, seed: pb.backward(y, seed, inputs=x)])
def test_no_graph_since_the_path_was_cut(x, call):
    with torch.no_grad():
        unrecorded = x * 2
    for y in (x.detach() * 2, unrecorded):
        with pytest.raises(GraphError) as error:
            call(y, x, "ones")
        parts(
            error,
            "the output of shape (4,) carries no graph, though the inputs require grad: the path between them was cut",
            "requires_grad=False, torch.float32",
            "look for .detach(), .data, torch.no_grad() or a new tensor made from numbers on the way",
        )


def test_no_graph_since_gradients_are_off(x):
    with torch.no_grad(), pytest.raises(GraphError) as error:
        pb.backward(x * 2, "ones")
    parts(
        error,
        "the output of shape (4,) carries no graph, and gradients are switched off here",
        "requires_grad=False, torch.float32",
        "compute it outside torch.no_grad()",
    )


def test_no_graph_in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    with pytest.raises(GraphError) as error:
        pb.backward(y, torch.ones(4))
    parts(
        error,
        "the output of shape (4,) was computed in inference mode, which records no graph",
        "requires_grad=False, torch.float32",
        "compute it outside torch.inference_mode()",
    )


@pytest.mark.parametrize("cut", [torch.argmax, lambda x: (x > 1).all(), lambda x: x.sum().long()])
def test_no_graph_through_integers(x, cut):
    y = cut(x)
    with pytest.raises(GraphError) as error:
        pb.backward(y)
    parts(
        error,
        f"the output of shape () is of {y.dtype}, which has no derivative",
        f"requires_grad=False, {y.dtype}",
        "differentiate what it was made from: argmax, comparisons and casts to integers cut the graph",
    )


def test_a_missing_graph_is_told_before_a_wrong_seed(x):
    with pytest.raises(GraphError):
        pb.backward(x.detach(), torch.ones(9))


@pytest.mark.parametrize("call", [pb.backward, lambda y, seed: pb.grad(y, leaf_of(y), seed)])
def test_a_freed_graph(x, call):
    y = x**2
    call(y, "ones")
    with pytest.raises(GraphError) as error:
        call(y, "ones")
    parts(
        error,
        "the graph of this output was freed by an earlier backward pass",
        "a second pass through the same graph",
        "retain_graph=True in the earlier pass; or add the losses up and pass once; or compute the output again",
    )
    assert type(error.value.__cause__) is RuntimeError
    assert "a second time" in str(error.value.__cause__)


def leaf_of(y):
    return y.grad_fn.next_functions[0][0].variable


def test_other_errors_of_torch_are_left_alone(x):
    y = (x * 1).exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        pb.backward(y, "ones")
    assert type(error.value) is RuntimeError


def test_an_output_that_left_the_graph(x):
    with pytest.raises(ArgumentError) as error:
        pb.backward((x.sum(), x.sum().item()))
    parts(
        error,
        "output[1] is not a tensor",
        "float",
        "keep it a tensor: .item(), .numpy() and float() leave the graph",
    )
    with pytest.raises(ArgumentError, match="output is not a tensor"):
        pb.grad(np.ones(3), x)


@pytest.mark.parametrize("inputs", [[], (), {}, iter([])])
def test_no_input_at_all(x, inputs):
    with pytest.raises(ArgumentError, match="there is no input to differentiate by"):
        pb.backward(x.sum(), inputs=inputs)
    with pytest.raises(ArgumentError) as error:
        pb.grad(x.sum(), [])
    parts(error, "there is no input to differentiate by", "an empty list", "inputs=[x]")
    assert x.grad is None


def test_an_input_that_is_no_tensor(x):
    for call in (lambda inputs: pb.grad(x.sum(), inputs), lambda inputs: pb.backward(x.sum(), inputs=inputs)):
        with pytest.raises(ArgumentError) as error:
            call({"x": x, "n": 3.0})
        parts(
            error,
            "inputs['n'] is not a tensor",
            "float",
            "give tensors: x, [x, w], model.parameters() or dict(model.named_parameters())",
        )


@pytest.mark.parametrize("seed", [None, torch.tensor(1.0)])
def test_an_input_that_does_not_require_grad(x, seed):
    w = torch.ones(2)
    for call in (
        lambda inputs: pb.grad(x.sum(), inputs, seed),
        lambda inputs: pb.backward(x.sum(), seed, inputs=inputs),
    ):
        with pytest.raises(GraphError) as error:
            call([x, w])
        parts(
            error,
            "inputs[1] does not require grad, so no graph leads to it",
            "shape (2,), torch.float32, requires_grad=False",
            "call .requires_grad_() on it before computing the outputs",
        )
        with pytest.raises(GraphError, match="the input does not require grad"):
            call(w)


def test_an_input_that_is_not_used(x):
    w = torch.ones(2, requires_grad=True)
    with pytest.raises(GraphError) as error:
        pb.grad(x.sum(), {"x": x, "w": w})
    parts(
        error,
        "the outputs do not depend on inputs['w']",
        "inputs['w'] (2,): no path of the graph leads there",
        "allow_unused=True gives None; if it should be used, look for a copy made after the outputs "
        "(x.to(), x * 1, x.view()) or for the path being cut",
    )
    with pytest.raises(GraphError, match="the outputs do not depend on the input\n"):
        pb.grad(x.sum(), w)
    found = pb.grad(x.sum(), {"x": x, "w": w}, allow_unused=True)
    assert found["w"] is None
    assert found["x"].tolist() == [1.0] * 4
    assert pb.grad(x.sum(), w, allow_unused=True) is None


def test_many_inputs_that_are_not_used(x):
    others = [torch.ones(2, requires_grad=True) for _ in range(10)]
    with pytest.raises(GraphError) as error:
        pb.grad(x.sum(), [x, *others])
    assert error.value.what == "the outputs do not depend on inputs[1] and 9 more"
    assert error.value.got.endswith("inputs[8] (2,) and 2 more: no path of the graph leads there")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    ours = torch.randn(100, device="cuda", requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    for seed in (torch.randn(100, device="cuda"), "ones", "mean", pb.seed.onehot(3), 2.0):
        pb.backward(ours.sin(), seed)
    with pytest.raises(SeedError, match="is on another device\n  got: seed on cpu, output on cuda:0"):
        pb.backward(ours.sin(), torch.ones(100))
    theirs.sin().backward(torch.ones(100, device="cuda"))
    same_bits(pb.grad(ours.sin(), ours, "ones"), theirs.grad)


# ------------------------------------------------------------------------------------------------------------ pb.seed


def test_the_seeds_have_their_names():
    assert pb.seed.__all__ == ["onehot", "weights"]
    assert repr(pb.seed.onehot((0, 1))) == "OneHot(index=(0, 1))"
    assert pb.seed.onehot(1) == pb.seed.onehot(1)
    assert pb.seed.weights(p=1.0).by_name == {"p": 1.0}


def test_an_error_survives_pickling(x):
    with pytest.raises(SeedError) as error:
        pb.backward(x * 2)
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)
    assert type(again) is SeedError
