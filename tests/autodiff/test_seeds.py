"""Seeds on their own: what each means, the structures they come in, and the text of every refusal."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import pullback as pb
from pullback.autodiff.seeds import OneHot, Weights, assign, checked_cast, cotangent
from pullback.errors import ArgumentError, PullbackError, SeedError, ValueMismatch

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGER = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
Pair = namedtuple("Pair", "mean spread")


@dataclasses.dataclass
class Prediction:
    mean: object
    spread: object


pytree.register_pytree_node(
    Prediction,
    lambda each: ([each.mean, each.spread], None),
    lambda values, _: Prediction(*values),
    flatten_with_keys_fn=lambda each: (
        [(pytree.GetAttrKey("mean"), each.mean), (pytree.GetAttrKey("spread"), each.spread)],
        None,
    ),
)


def output(*shape, dtype=torch.float32):
    """An output with a graph and a grad_fn."""
    return torch.ones(shape, dtype=dtype, requires_grad=True) * 2


def parts(error, what, got, fix):
    """The three parts of an error, exactly."""
    __tracebackhide__ = True
    assert (error.value.what, error.value.got, error.value.fix) == (what, got, fix)
    assert str(error.value) == f"{what}\n  got: {got}\n  fix: {fix}"


# ------------------------------------------------------------------------------------------------- checked_cast


@pytest.mark.parametrize("dtype", FLOATING + COMPLEX + INTEGER)
def test_a_cast_to_the_same_dtype_is_the_tensor_itself(dtype):
    value = torch.ones(3).to(dtype)
    assert checked_cast(value, dtype, name="s") is value


def test_a_dtype_without_derivatives_asks_for_no_cast():
    value = torch.tensor([0.5])
    assert checked_cast(value, torch.int64, name="s") is value


@pytest.mark.parametrize("source", INTEGER + FLOATING + COMPLEX)
@pytest.mark.parametrize("target", FLOATING + COMPLEX)
def test_a_cast_that_loses_nothing_is_torchs_own(source, target):
    value = torch.tensor([0, 1, 1, 0]).to(source)
    cast = checked_cast(value, target, name="s")
    assert cast.dtype == target
    assert torch.equal(cast, torch.tensor([0, 1, 1, 0]).to(target))


def test_rounding_passes():
    value = torch.tensor([0.1, 1 / 3], dtype=torch.float64)
    for dtype in FLOATING:
        assert torch.equal(checked_cast(value, dtype, name="s"), value.to(dtype))
    assert checked_cast(torch.tensor([2**24 + 1]), torch.float32, name="s").item() == 2**24


def test_what_is_infinite_or_no_number_already_stays_so():
    value = torch.tensor([float("inf"), float("nan"), -float("inf"), -0.0], dtype=torch.float64)
    cast = checked_cast(value, torch.float16, name="s")
    assert torch.equal(cast.isnan(), value.isnan())
    assert torch.equal(cast[[0, 2]], torch.tensor([float("inf"), -float("inf")], dtype=torch.float16))


def test_a_cast_that_overflows_is_refused():
    with pytest.raises(SeedError) as error:
        checked_cast(torch.tensor([1e5, -3e5, 1.0]), torch.float16, name="the seed")
    parts(
        error,
        "the seed overflows in torch.float16",
        "2 of 3 entries of torch.float32, the largest 3e+05",
        "scale it down, or compute in a wider dtype than torch.float16",
    )


def test_an_integer_too_large_is_refused():
    with pytest.raises(SeedError) as error:
        checked_cast(torch.tensor([70000, 1]), torch.float16, name="v")
    assert error.value.what == "v overflows in torch.float16"
    assert error.value.got == "1 of 2 entries of torch.int64, the largest 7e+04"
    assert checked_cast(torch.tensor([65504]), torch.float16, name="v").item() == 65504
    with pytest.raises(SeedError, match=r"1 of 1 entries of torch\.uint64, the largest 7e\+04"):
        checked_cast(torch.tensor([70000], dtype=torch.uint64), torch.float16, name="v")


def test_a_sum_that_overflows_is_no_value_that_does():
    value = torch.full((4,), 3e38, dtype=torch.float64)
    assert torch.equal(checked_cast(value, torch.float32, name="v"), value.float())
    assert torch.equal(checked_cast(value.to(torch.complex128), torch.complex64, name="v"), value.to(torch.complex64))


def test_a_cast_that_underflows_to_zero_is_refused():
    with pytest.raises(SeedError) as error:
        checked_cast(torch.tensor([1e-9, 0.0, -1e-10]), torch.float16, name="the seed")
    parts(
        error,
        "the seed underflows to zero in torch.float16",
        "2 of 3 entries of torch.float32, the largest 1e-09",
        "scale it up (and the result down after), or compute in a wider dtype than torch.float16",
    )
    assert checked_cast(torch.tensor([6e-8]), torch.float16, name="subnormal").item() > 0


@pytest.mark.parametrize("target", FLOATING)
def test_an_imaginary_part_is_not_dropped(target):
    with pytest.raises(SeedError) as error:
        checked_cast(torch.tensor([1 + 2j, 3, -4j]), target, name="u")
    parts(
        error,
        f"u has an imaginary part that {target} drops",
        "2 of 3 entries of torch.complex64, the largest 4",
        "take its .real, if only the real part is meant",
    )
    assert checked_cast(torch.tensor([1 + 0j]), target, name="u").dtype == target


@pytest.mark.parametrize(("part", "word"), [(1e-60, "underflows to zero"), (1e60, "overflows")])
@pytest.mark.parametrize("real", [True, False])
def test_each_part_of_a_complex_number_is_looked_at(part, word, real):
    value = torch.tensor([complex(part, 1) if real else complex(1, part), 2.0], dtype=torch.complex128)
    with pytest.raises(SeedError, match=word) as error:
        checked_cast(value, torch.complex64, name="u")
    assert error.value.got.startswith("1 of 2 entries of torch.complex128")


def test_a_real_number_too_large_for_a_complex_dtype_is_refused():
    with pytest.raises(SeedError, match=r"overflows in torch\.complex64"):
        checked_cast(torch.tensor([1e300], dtype=torch.float64), torch.complex64, name="u")


def test_a_conjugate_view_and_an_eight_bit_float_are_cast():
    value = torch.tensor([1 + 2j], dtype=torch.complex128).conj()
    assert torch.equal(checked_cast(value, torch.complex64, name="u"), torch.tensor([1 - 2j]))
    small = torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)
    assert torch.equal(checked_cast(small, torch.float32, name="u"), torch.tensor([0.5, 448.0]))


def test_a_cast_is_differentiable_and_empty_or_expanded_tensors_are_cast():
    value = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert checked_cast(value, torch.float32, name="u").requires_grad
    assert checked_cast(torch.ones(0, 3), torch.float16, name="u").shape == (0, 3)
    assert torch.equal(checked_cast(torch.tensor(2.0).expand(3), torch.float16, name="u"), torch.full((3,), 2.0).half())


def test_a_cast_works_where_no_number_can_be_seen():
    assert checked_cast(torch.ones(2, device="meta"), torch.float16, name="u").dtype == torch.float16
    cast = torch.func.vmap(lambda row: checked_cast(row, torch.float16, name="u"))(torch.ones(2, 3))
    assert cast.dtype == torch.float16


@given(
    number=st.floats(allow_nan=False),
    source=st.sampled_from([torch.float32, torch.float64]),
    target=st.sampled_from(FLOATING),
)
def test_a_cast_passes_exactly_when_the_value_survives(number, source, target):
    value = torch.tensor([number], dtype=torch.float64).to(source)
    cast = value.to(target)
    survives = bool((value.isfinite() == cast.isfinite()).all() and ((value == 0) == (cast == 0)).all())
    if survives:
        assert torch.equal(checked_cast(value, target, name="u"), cast)
    else:
        with pytest.raises(SeedError):
            checked_cast(value, target, name="u")


# ------------------------------------------------------------------------------------------ one output, what seeds mean

THREE = [
    (torch.tensor([1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]),
    (torch.tensor([1, 2, 3]), [1.0, 2.0, 3.0]),
    (torch.tensor([True, False, True]), [1.0, 0.0, 1.0]),
    (torch.tensor(4.0).expand(3), [4.0, 4.0, 4.0]),
    (torch.arange(6.0)[::2], [0.0, 2.0, 4.0]),
    ("ones", [1.0, 1.0, 1.0]),
    ("mean", [1 / 3, 1 / 3, 1 / 3]),
    (2, [2.0, 2.0, 2.0]),
    (-0.5, [-0.5, -0.5, -0.5]),
    (np.float64(0.25), [0.25, 0.25, 0.25]),
    (2 + 0j, [2.0, 2.0, 2.0]),
    (2**70, [2.0**70] * 3),
    (OneHot(1), [0.0, 1.0, 0.0]),
    (OneHot(-1), [0.0, 0.0, 1.0]),
    (OneHot((0,)), [1.0, 0.0, 0.0]),
    (OneHot(slice(0, 2)), [1.0, 1.0, 0.0]),
    (OneHot(torch.tensor(2)), [0.0, 0.0, 1.0]),
    (OneHot(torch.tensor([True, False, True])), [1.0, 0.0, 1.0]),
    (torch.ones_like, [1.0, 1.0, 1.0]),
    (lambda y: y * 2, [4.0, 4.0, 4.0]),
    (lambda y: "mean", [1 / 3, 1 / 3, 1 / 3]),
    (lambda y: OneHot(0), [1.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(("seed", "weights"), THREE, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_what_a_seed_means(seed, weights, dtype):
    found = cotangent(output(3, dtype=dtype), seed, "y")
    assert found.shape == (3,)
    assert found.dtype == dtype
    assert not found.requires_grad
    torch.testing.assert_close(found, torch.tensor(weights, dtype=dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_an_output_of_one_element_needs_no_seed(shape):
    assert torch.equal(cotangent(output(*shape), None, "y"), torch.ones(shape))


def test_an_index_of_many_axes():
    assert cotangent(output(2, 3), OneHot((1, 2)), "y").nonzero().tolist() == [[1, 2]]
    assert cotangent(output(2, 3), OneHot((..., 2)), "y").nonzero().tolist() == [[0, 2], [1, 2]]
    assert cotangent(output(), OneHot(()), "y").item() == 1


@pytest.mark.parametrize("seed", ["ones", "mean", 3.0, torch.ones(0, 2), torch.zeros_like])
def test_an_output_without_elements_takes_a_seed(seed):
    assert cotangent(output(0, 2), seed, "y").shape == (0, 2)


def test_a_complex_number_seeds_a_complex_output():
    assert torch.equal(cotangent(output(2, dtype=torch.complex64), 1j, "y"), torch.tensor([1j, 1j]))


def test_a_function_sees_the_output_without_its_graph():
    seen = []
    cotangent(output(2), lambda y: seen.append(y) or y, "y")
    assert not seen[0].requires_grad


def test_a_function_may_fail_in_its_own_way():
    with pytest.raises(ZeroDivisionError):
        cotangent(output(2), lambda y: 1 / 0, "y")


# ----------------------------------------------------------------------------------------- one output, what is refused

SHAPES = [
    ((4, 1), (4,), "seed.reshape(4)"),
    ((4,), (2, 2), "seed.reshape(2, 2)"),
    ((1,), (), "seed.reshape(())"),
    ((1, 4), (4, 1), "seed.reshape(4, 1)"),
    ((2, 3), (3, 2), "seed.mT if its axes are swapped, else seed.reshape(3, 2)"),
    ((), (4,), "seed.expand(4), if every element is to have that weight"),
    ((1,), (4,), "seed.expand(4), if every element is to have that weight"),
    ((3,), (4, 3), "seed.expand(4, 3), if every element is to have that weight"),
    (
        (2, 2),
        (2,),
        "seed[0] for one of the 2 seeds stacked here; for a whole Jacobian, pb.jacobian_of(y, x).dense() "
        "or pb.jacobian(f, x).dense()",
    ),
    ((3,), (4,), "one weight for each element of the output: a tensor of shape (4,), or torch.ones_like(y)"),
    ((3,), (), "one weight for each element of the output: a tensor of shape (), or torch.ones_like(y)"),
]


@pytest.mark.parametrize(("given_shape", "needed", "fix"), SHAPES)
def test_nothing_is_broadcast(given_shape, needed, fix):
    with pytest.raises(SeedError) as error:
        cotangent(output(*needed), torch.ones(given_shape), "output['loss']")
    parts(error, "the seed for output['loss'] has the wrong shape", f"seed {given_shape}, output {needed}", fix)


@given(st.lists(st.integers(0, 3), max_size=3), st.lists(st.integers(0, 3), max_size=3))
def test_a_tensor_seed_passes_exactly_when_the_shapes_are_equal(first, second):
    if first == second:
        assert cotangent(output(*second), torch.ones(first), "y").shape == tuple(second)
    else:
        with pytest.raises(SeedError, match="wrong shape"):
            cotangent(output(*second), torch.ones(first), "y")


@pytest.mark.parametrize(("given_shape", "needed", "fix"), [each for each in SHAPES if each[2].startswith("seed.")])
def test_what_a_shape_error_says_to_write_works(given_shape, needed, fix):
    seed = torch.ones(given_shape)
    for code in fix.partition(", if")[0].replace(" if its axes are swapped", "").split(", else "):
        assert eval(code, {"seed": seed}).shape == needed


def test_another_device_is_refused():
    with pytest.raises(SeedError) as error:
        cotangent(output(2), torch.ones(2, device="meta"), "output[1]")
    parts(error, "the seed for output[1] is on another device", "seed on meta, output on cpu", "seed.to('cpu')")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_device_is_refused_on_a_gpu():
    y = output(2).cuda()
    with pytest.raises(SeedError) as error:
        cotangent(y, torch.ones(2), "y")
    parts(error, "the seed for y is on another device", f"seed on cpu, output on {y.device}", f"seed.to('{y.device}')")
    for seed in ["ones", 2.0, OneHot(0), torch.ones(2, dtype=torch.float64, device=y.device)]:
        assert cotangent(y, seed, "y").device == y.device


def test_a_sparse_seed_or_output_is_told():
    with pytest.raises(SeedError) as error:
        cotangent(output(2), torch.ones(2).to_sparse(), "y")
    parts(error, "the seed for y is not a dense tensor", "torch.sparse_coo", "seed.to_dense()")
    sparse = torch.eye(2).to_sparse().requires_grad_() * 2
    with pytest.raises(SeedError) as error:
        cotangent(sparse, "ones", "y")
    parts(
        error,
        "y is sparse, so only a tensor can be its seed",
        "torch.sparse_coo and the seed 'ones'",
        "y.to_dense() before the backward, or a seed of the output's shape and layout",
    )


def jagged(*lengths):
    return torch.nested.nested_tensor([torch.ones(length, 3) for length in lengths], layout=torch.jagged)


def test_a_nested_output_is_seeded_by_what_is_shaped_like_it():
    y = jagged(2, 4).requires_grad_() * 2
    for seed in ("ones", 1.0, torch.ones_like, torch.ones_like(y.detach())):
        assert cotangent(y, seed, "y").values().tolist() == [[1.0] * 3] * 6


@pytest.mark.parametrize("seed", [torch.ones(3), torch.ones(2, 4, 3), jagged(1, 5)], ids=["flat", "padded", "jagged"])
def test_a_nested_output_and_a_seed_of_other_lengths(seed):
    with pytest.raises(SeedError, match="the seed for y has the wrong shape"):
        cotangent(jagged(2, 4).requires_grad_() * 2, seed, "y")


@pytest.mark.parametrize(
    ("shape", "size"), [((4,), "4 elements"), ((2, 3), "6 elements"), ((0,), "no elements"), ((2, 0), "no elements")]
)
def test_no_seed_for_many_elements_is_explained(shape, size):
    with pytest.raises(SeedError) as error:
        cotangent(output(*shape), None, "y")
    parts(
        error,
        "y is not a single number, so its backward needs a seed: one weight for each element",
        f"shape {shape}, {size}, and no seed",
        '"ones", which is y.sum().backward(); "mean", which is y.mean().backward(); pb.seed.onehot(index) for '
        f"one element; or a tensor of shape {shape}",
    )


def test_no_seed_for_a_complex_number_is_explained():
    with pytest.raises(SeedError) as error:
        cotangent(output(dtype=torch.complex64), None, "y")
    parts(
        error,
        "y is complex, so its backward needs a seed",
        "torch.complex64 and no seed",
        "seed=1.0 for the gradient of the real part, seed=1j for that of the imaginary part, or a real output such "
        "as y.abs()",
    )


KINDS = [
    (np.ones(2), ArgumentError, "ndarray", "torch.from_numpy(seed), of shape (2,)"),
    (np.float32(1), ArgumentError, "float32", "float(seed)"),
    ([1.0, 2.0], ArgumentError, "list", "torch.tensor(seed), of shape (2,)"),
    ((1.0, 2.0), ArgumentError, "tuple", "torch.tensor(seed), of shape (2,)"),
    ([torch.ones(2)], ArgumentError, "list", "seed[0] alone"),
    ([torch.tensor(1.0), torch.tensor(2.0)], ArgumentError, "list", "torch.stack(seed), of shape (2,)"),
    (object(), ArgumentError, "object", 'a tensor of shape (2,), a number, "ones", "mean" or pb.seed.onehot(index)'),
]


@pytest.mark.parametrize(("seed", "kind", "got", "fix"), KINDS, ids=[each[2] for each in KINDS])
def test_what_is_no_seed_is_told(seed, kind, got, fix):
    with pytest.raises(kind) as error:
        cotangent(output(2), seed, "y")
    parts(error, "the seed for y is not a tensor", got, fix)


def test_a_bool_is_not_a_weight():
    with pytest.raises(ArgumentError) as error:
        cotangent(output(2), True, "y")
    parts(
        error,
        "the seed for y is True",
        "a bool where the weights go",
        "pb.backward(y, seed, retain_graph=True), if that was meant",
    )


@pytest.mark.parametrize("seed", [Weights({"a": 1.0}), {"a": 1.0}])
def test_names_for_an_output_without_one(seed):
    with pytest.raises(SeedError) as error:
        cotangent(output(2), seed, "y")
    parts(
        error,
        "weights by name for y, which has none",
        "names 'a'",
        "return a dict of outputs: pb.backward({'task_a': a, 'task_b': b}, pb.seed.weights(...))",
    )


def test_a_word_that_is_no_seed():
    with pytest.raises(ValueMismatch) as error:
        cotangent(output(2), "sum", "y")
    parts(error, "there is no such seed for y", "'sum'", '"ones" or "mean"')


def test_a_number_that_the_output_cannot_hold():
    with pytest.raises(SeedError, match=r"the seed for y overflows in torch\.float16"):
        cotangent(output(2, dtype=torch.float16), 1e5, "y")
    with pytest.raises(SeedError, match="the seed for y has an imaginary part"):
        cotangent(output(2), 1j, "y")
    with pytest.raises(SeedError) as error:
        cotangent(output(2), 10**400, "y")
    parts(error, "the seed for y is too large", "an int beyond float64", "a number that float64 holds")


@pytest.mark.parametrize(
    ("shape", "index", "first"), [((4,), 9, "0"), ((2, 3), (0, 5), "(0, 0)"), ((), 0, "()"), ((4,), 1.5, "0")]
)
def test_an_index_beyond_the_output(shape, index, first):
    with pytest.raises(SeedError) as error:
        cotangent(output(*shape), OneHot(index), "y")
    assert error.value.what == "y has no element at this index"
    assert error.value.got.startswith(f"index {index!r} for shape {shape}: ")
    assert error.value.fix == f"a number for each axis, within {shape}: pb.seed.onehot({first}) is the first element"


@pytest.mark.parametrize("index", [True, False, None])
def test_an_index_that_would_select_everything(index):
    with pytest.raises(SeedError) as error:
        cotangent(output(4), OneHot(index), "y")
    parts(
        error,
        f"{index} is no index of an element of y",
        f"index {index} for shape (4,)",
        "a number for each axis, within (4,): pb.seed.onehot(0) is the first element",
    )


@pytest.mark.parametrize("index", [(True,), (0, True), torch.tensor(True)], ids=str)
def test_a_bool_is_no_index_in_a_tuple_or_a_tensor_either(index):
    with pytest.raises(SeedError, match="is no index of an element of y") as error:
        cotangent(output(4), OneHot(index), "y")
    assert error.value.fix == "a number for each axis, within (4,): pb.seed.onehot(0) is the first element"


def test_a_mask_of_an_output_without_axes_is_an_index():
    assert cotangent(output(), OneHot(torch.tensor(True)), "y").item() == 1


def test_an_index_that_selects_nothing():
    with pytest.raises(SeedError, match="the index selects no element of y"):
        cotangent(output(4), OneHot(slice(4, None)), "y")


def test_a_function_that_returns_a_function():
    with pytest.raises(ArgumentError, match="not a tensor"):
        cotangent(output(2), lambda y: lambda z: z, "y")


# -------------------------------------------------------------------------------------------------------- structures


def two():
    return output(), output(3)


a, b = two()
STRUCTURES = [
    ((a, b), (1.0, "ones"), ["output[0]", "output[1]"]),
    ([a, b], (1.0, "ones"), ["output[0]", "output[1]"]),
    ({"p": a, "q": b}, {"q": "ones", "p": 1.0}, ["output['p']", "output['q']"]),
    ({"p": a, "q": b}, OrderedDict(q="ones", p=1.0), ["output['p']", "output['q']"]),
    ({"p": a, "q": b}, Weights({"q": "ones", "p": 1.0}), ["output['p']", "output['q']"]),
    (Pair(a, b), Pair(1.0, "ones"), ["output.mean", "output.spread"]),
    (Pair(a, b), (1.0, "ones"), ["output.mean", "output.spread"]),
    (Pair(a, b), Weights({"mean": 1.0, "spread": "ones"}), ["output.mean", "output.spread"]),
    (Prediction(a, b), Prediction(1.0, "ones"), ["output.mean", "output.spread"]),
    (Prediction(a, b), Weights({"mean": 1.0, "spread": "ones"}), ["output.mean", "output.spread"]),
    ({"p": [a, {"r": b}]}, {"p": [1.0, {"r": "ones"}]}, ["output['p'][0]", "output['p'][1]['r']"]),
    ({"p": {"r": a, "s": b}}, Weights({"p": {"r": 1.0, "s": "ones"}}), ["output['p']['r']", "output['p']['s']"]),
]


@pytest.mark.parametrize(("outputs", "seed", "names"), STRUCTURES)
def test_each_output_gets_its_own_seed(outputs, seed, names):
    assert [(tensor is a, value, name) for tensor, value, name in assign(outputs, seed)] == [
        (True, 1.0, names[0]),
        (False, "ones", names[1]),
    ]


@pytest.mark.parametrize("seed", [None, "ones", "mean", 2.0, 1j, torch.ones_like])
@pytest.mark.parametrize("outputs", [(a, b), {"p": a, "q": [b]}])
def test_one_word_number_or_function_holds_for_each(outputs, seed):
    assert [value for _, value, _ in assign(outputs, seed)] == [seed, seed]


def test_one_word_holds_for_a_branch():
    found = assign({"p": [a, b], "q": a}, {"p": "ones", "q": 2.0})
    assert [value for _, value, _ in found] == ["ones", "ones", 2.0]


def test_a_tensor_for_a_structure_of_one_output():
    seed = torch.ones(3)
    assert assign([b], seed)[0][1] is seed
    assert assign({"p": {"q": b}}, OneHot(1))[0][1] == OneHot(1)


def test_a_bare_output_is_called_by_its_shape_and_maker():
    assert assign(b, "ones")[0][2] == "the output of shape (3,) (MulBackward0)"
    assert assign(torch.ones(2, requires_grad=True), "ones")[0][2] == "the output of shape (2,)"


def test_one_tensor_for_several_outputs():
    with pytest.raises(SeedError) as error:
        assign({"task_a": a, "task_b": [b]}, torch.ones(3))
    parts(
        error,
        "one seed for 2 outputs",
        "Tensor for output['task_a'], output['task_b'][0]",
        "give a seed for each in the same structure, or pb.seed.weights(name=...) for a dict",
    )
    with pytest.raises(SeedError, match="one seed for 2 outputs"):
        assign((a, b), OneHot(0))


@pytest.mark.parametrize("seed", [Weights({"task_a": 1.0, "tsk_b": b}), {"task_a": 1.0, "tsk_b": b}])
def test_a_misspelt_name(seed):
    with pytest.raises(ValueMismatch) as error:
        assign({"task_a": a, "task_b": b}, seed)
    parts(
        error,
        "no output is called 'tsk_b'",
        "a seed for 'tsk_b'; outputs 'task_a', 'task_b'",
        "did you mean 'task_b'?",
    )


def test_a_name_that_is_like_no_other():
    with pytest.raises(ValueMismatch) as error:
        assign({"p": {"task_a": a}}, Weights({"p": {"zzz": 1.0}}))
    parts(
        error,
        "no output of output['p'] is called 'zzz'",
        "a seed for 'zzz'; outputs 'task_a'",
        "use the outputs' own names",
    )


@pytest.mark.parametrize("seed", [Weights({"task_a": 1.0}), {"task_a": 1.0}])
def test_no_task_is_forgotten_in_silence(seed):
    with pytest.raises(ValueMismatch) as error:
        assign({"task_a": a, "task_b": b, "task_c": b}, seed)
    parts(
        error,
        "output 'task_b', 'task_c' has no seed",
        "seeds for 'task_a'; outputs 'task_a', 'task_b', 'task_c'",
        "pb.seed.weights(task_a=..., task_b=0.0, task_c=0.0): 0.0 leaves an output out",
    )


@pytest.mark.parametrize("names", [("p", "q"), ("task a", "p"), ("p", "lambda"), ("0", "p")])
def test_the_weights_to_write_for_a_forgotten_task_are_python(names):
    outputs = dict.fromkeys(names, a)
    with pytest.raises(ValueMismatch, match="has no seed") as error:
        assign(outputs, {names[1]: 1.0})
    code = error.value.fix.partition(": 0.0 leaves")[0].replace("...", "1.0")
    written = eval(code, {"pb": pb})
    assert [value for _, value, _ in assign(outputs, written)] == [0.0, 1.0]


@pytest.mark.parametrize("seed", [(1.0,), (1.0, 2.0, 3.0), (), {"p": 1.0}])
def test_too_few_or_too_many_seeds(seed):
    with pytest.raises(SeedError) as error:
        assign((a, b), seed)
    given_keys = ", ".join(map(repr, seed if isinstance(seed, dict) else range(len(seed)))) or "none"
    parts(
        error,
        "the seeds do not match the outputs",
        f"seeds {given_keys}; outputs 0, 1",
        "one seed for each of the 2, nested as they are; 0.0 leaves an output out",
    )


def test_weights_for_outputs_without_names():
    with pytest.raises(SeedError) as error:
        assign((a, b), Weights({"task_a": 1.0}))
    parts(
        error,
        "weights by name need outputs with names",
        "output, a tuple of 2",
        "return a dict of outputs, or give the seeds in their structure",
    )


OUTPUTS = [
    (a.item(), "float", "keep it a tensor: .item(), .numpy() and float() leave the graph"),
    (np.ones(2), "ndarray", "keep it a tensor: .item(), .numpy() and float() leave the graph"),
    (None, "NoneType", "leave it out of the outputs"),
    (object(), "object", "give its tensors: a tensor, or a dict or tuple of them"),
]


@pytest.mark.parametrize(("value", "got", "fix"), OUTPUTS, ids=[each[1] for each in OUTPUTS])
def test_an_output_that_is_no_tensor(value, got, fix):
    with pytest.raises(ArgumentError) as error:
        assign((a, value), "ones")
    parts(error, "output[1] is not a tensor", got, fix)
    with pytest.raises(ArgumentError, match="output is not a tensor"):
        assign(value, "ones")


@pytest.mark.parametrize("outputs", [[], {}, ()])
def test_no_output_at_all(outputs):
    with pytest.raises(ArgumentError) as error:
        assign(outputs, None)
    parts(error, "there is no output to differentiate", f"an empty {type(outputs).__name__}", "pb.backward(y)")


@given(
    tree=st.recursive(
        st.just("leaf"),
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3)
            | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_any_structure_is_matched_by_its_own(tree):
    outputs = pytree.tree_map(lambda _: output(2), tree)
    seeds = pytree.tree_map(lambda y: y.detach() * 3, outputs)
    if isinstance(outputs, torch.Tensor):
        outputs, seeds = [outputs], [seeds]
    found = assign(outputs, seeds)
    assert [id(each) for each, _, _ in found] == [id(each) for each in pytree.tree_leaves(outputs)]
    assert [id(seed) for _, seed, _ in found] == [id(seed) for seed in pytree.tree_leaves(seeds)]


def test_every_refusal_is_a_pullback_error_that_torch_users_catch():
    assert issubclass(SeedError, RuntimeError)
    assert issubclass(ValueMismatch, ValueError)
    assert issubclass(ArgumentError, TypeError)
    assert all(issubclass(each, PullbackError) for each in (SeedError, ValueMismatch, ArgumentError))
