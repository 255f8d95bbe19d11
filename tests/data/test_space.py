"""Space: a pytree of tensors as one vector space, read and written in three forms."""

import math
from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from pullback.data.space import Form, Space
from pullback.errors import ArgumentError, PullbackError, ValueMismatch

Pair = namedtuple("Pair", ["first", "second"])

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
TENSORS = SHAPES.map(lambda shape: torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape))
INTEGERS = st.integers(1, 3).map(lambda size: torch.arange(size))
CONSTANTS = st.sampled_from([None, 3, 0.5, "text"])
TREES = st.recursive(
    TENSORS | INTEGERS | CONSTANTS,
    lambda inner: (
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=5,
)


def numbered(space, *lead):
    """A vector of the space, one tensor for each leaf, in which no two elements are equal."""
    flat = torch.arange(math.prod(lead) * space.size, dtype=torch.float64).reshape(*lead, space.size)
    return tuple(flat[..., leaf.slice].reshape(lead + leaf.shape) for leaf in space.leaves)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def the_error(kind, call):
    """The error that a call raises; all its three parts say something."""
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, PullbackError)
    assert caught.value.what
    assert caught.value.got
    assert caught.value.fix
    return caught.value


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_space_lays_the_floating_tensors_of_any_tree_end_to_end(tree):
    space = Space.of(tree)
    tensors = [
        value for value in pytree.tree_leaves(tree) if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    assert space.size == sum(tensor.numel() for tensor in tensors)
    assert space.shapes == tuple(tensor.shape for tensor in tensors)
    assert [leaf.slice for leaf in space.leaves] == [
        slice(offset, offset + tensor.numel()) for offset, tensor in zip(space.offsets, tensors, strict=True)
    ]
    assert len(set(space.names)) == len(space.names)
    assert_same(space.flatten(tree), tensors)


@settings(max_examples=60, deadline=None)
@given(TREES, st.sampled_from(list(Form)), st.integers(1, 3))
def test_what_was_written_is_read_back_in_every_form(tree, form, k):
    space = Space.of(tree)
    if not space.leaves:
        return
    values = numbered(space, k) if form is Form.STACK else numbered(space)
    written = space.write(values, form)
    if form is not Form.STRUCTURE:
        assert written.shape == ((space.size, k) if form is Form.STACK else (space.size,))
    found, read_as = space.read(written, name="v")
    # A tensor that is the whole structure may be of a shape that two forms share.
    assert read_as is form or space.treespec.is_leaf()
    if read_as is form:
        assert_same(found, values)


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_the_structure_is_rebuilt_with_constants_replaced(tree):
    space = Space.of(tree)
    rebuilt = space.unflatten(numbered(space), constant="constant")
    assert pytree.tree_structure(rebuilt) == space.treespec
    leaves = pytree.tree_leaves(rebuilt)
    assert all(leaf == "constant" for at, leaf in enumerate(leaves) if at not in space.positions)


@settings(max_examples=40, deadline=None)
@given(TREES, st.data())
def test_unit_vectors_are_rows_of_the_identity(tree, data):
    space = Space.of(tree)
    if not space.size:
        return
    indices = data.draw(st.lists(st.integers(0, space.size - 1), min_size=1, max_size=6))
    seeds = space.onehots(torch.tensor(indices))
    assert [seed.shape for seed in seeds] == [(len(indices), *leaf.shape) for leaf in space.leaves]
    torch.testing.assert_close(space.write(seeds, Form.STACK).mT, torch.eye(space.size, dtype=torch.float64)[indices])


def test_a_flat_vector_and_a_stack_of_columns_are_split_alike():
    space = Space.of({"a": torch.ones(2, 3), "b": torch.ones(())})
    (a, b), form = space.read(torch.arange(7.0), name="v")
    assert form is Form.FLAT
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert b.item() == 6
    stack = torch.stack([torch.arange(7.0), 10 + torch.arange(7.0)], dim=1)
    (a, b), form = space.read(stack, name="v")
    assert form is Form.STACK
    assert a.shape == (2, 2, 3)
    assert a[1].tolist() == [[10, 11, 12], [13, 14, 15]]
    assert b.tolist() == [6, 16]


def test_a_lone_tensor_of_its_own_shape_is_the_structure_itself():
    space = Space.of(torch.ones(3, 3))
    value = torch.arange(9.0).reshape(3, 3)
    (found,), form = space.read(value, name="v")
    assert form is Form.STRUCTURE
    assert found is value


def test_names_are_written_as_one_would_write_them():
    tree = {"weight": torch.ones(1), "rest": [torch.ones(1), Pair(torch.ones(1), torch.ones(1))]}
    assert Space.of(tree, name="x").names == (
        "x['weight']",
        "x['rest'][0]",
        "x['rest'][1].first",
        "x['rest'][1].second",
    )
    assert Space.of(torch.ones(1), name="x").names == ("x",)
    assert Space.of(torch.ones(1)).names == ("value",)


def test_children_of_the_root_can_be_named_by_index_or_key():
    by_index = Space.of((torch.ones(1), {"k": torch.ones(1)}), names={0: "x", 1: "y"})
    assert by_index.names == ("x", "y['k']")
    assert Space.of({"w": torch.ones(1)}, names={"w": "weight"}).names == ("weight",)


def test_offsets_skip_what_is_not_differentiated():
    space = Space.of((torch.ones(2), torch.arange(9), "text", torch.ones(3, 1), torch.ones(())))
    assert space.offsets == (0, 2, 5)
    assert space.positions == (0, 3, 4)
    assert space.size == 6


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_leaves_are_left_out_unless_asked_for(dtype):
    tree = {"x": torch.ones(2), "n": torch.zeros(3, dtype=dtype)}
    assert Space.of(tree).names == ("['x']",)
    both = Space.of(tree, integers=True)
    assert both.names == ("['x']", "['n']")
    assert both.size == 5
    assert both.dtype == torch.float32


def test_the_dtype_is_the_promoted_one():
    tree = [torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.complex64), torch.ones(1)]
    assert Space.of(tree).dtype == torch.complex64
    assert Space.of(tree).is_complex
    assert not Space.of(tree[0]).is_complex
    assert Space.of([]).dtype == torch.get_default_dtype()
    flat = Space.of(tree).write(Space.of(tree).zeros(), Form.FLAT)
    assert flat.dtype == torch.complex64


def test_the_order_of_dict_keys_does_not_matter():
    space = Space.of({"a": torch.ones(2), "b": torch.ones(2)})
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    turned = {"b": b, "a": a}
    assert_same(space.flatten(turned), [a, b])
    assert_same(space.read(turned, name="v")[0], [a, b])
    assert_same(space.flatten(OrderedDict(turned)), [a, b])


def test_a_restricted_space_is_laid_out_anew():
    tree = (torch.ones(2), "text", torch.ones(3), torch.ones(4))
    space = Space.of(tree, name="x").restrict([0, 2])
    assert space.names == ("x[0]", "x[3]")
    assert space.offsets == (0, 2)
    assert space.positions == (0, 3)
    assert space.size == 6
    assert_same(space.flatten(tree), [tree[0], tree[3]])
    assert space.unflatten(["first", "second"]) == ("first", None, None, "second")
    assert Space.of(tree).restrict([]).size == 0


def test_zeros_stand_behind_the_leading_dimensions():
    space = Space.of([torch.ones(2, dtype=torch.float16), torch.ones((), dtype=torch.complex128)])
    first, second = space.zeros(5, 4)
    assert first.shape == (5, 4, 2)
    assert first.dtype == torch.float16
    assert second.shape == (5, 4)
    assert second.dtype == torch.complex128


def test_a_space_says_what_it_is_made_of():
    space = Space.of({"a": torch.ones(4, 3), "b": torch.ones(2, dtype=torch.float64)}, name="x")
    assert space.describe() == "x['a'] (4, 3) float32, x['b'] (2,) float64"
    assert Space.of(()).describe() == "nothing"


def test_a_tensor_that_fits_no_form_is_refused():
    error = the_error(ValueMismatch, lambda: Space.of(torch.ones(2, 3), name="x").read(torch.ones(5), name="v"))
    assert "v does not fit x (2, 3) float32" in error.what
    assert "(5,)" in error.got
    assert "(6,)" in error.fix
    assert "(2, 3)" in error.fix


def test_a_tensor_for_a_structure_is_told_the_structure():
    error = the_error(ValueMismatch, lambda: Space.of({"a": torch.ones(2)}).read(torch.ones(2, 2, 2), name="v"))
    assert "structure" in error.fix
    assert "'a'" in error.fix
    assert "\n" not in error.fix


@pytest.mark.parametrize(
    "wrong", [{"a": torch.ones(2)}, {"a": torch.ones(2), "c": torch.ones(1)}, [torch.ones(2), torch.ones(1)]]
)
def test_another_structure_is_refused(wrong):
    space = Space.of({"a": torch.ones(2), "b": torch.ones(1)})
    error = the_error(ValueMismatch, lambda: space.read(wrong, name="v"))
    assert error.what == "the structure differs"
    assert "'b'" in error.fix


def test_a_leaf_of_the_wrong_shape_is_named():
    space = Space.of({"a": torch.ones(2), "b": torch.ones(1)})
    error = the_error(ValueMismatch, lambda: space.read({"a": torch.ones(2), "b": torch.ones(3)}, name="v"))
    assert error.what == "v['b'] has the wrong shape"
    assert error.got == "(3,)"
    assert error.fix == "give shape (1,)"


def test_a_leaf_that_is_no_tensor_is_named():
    space = Space.of({"a": torch.ones(2), "b": torch.ones(1)})
    error = the_error(ArgumentError, lambda: space.read({"a": torch.ones(2), "b": 1.0}, name="v"))
    assert error.what == "v['b'] is not a tensor"
    assert error.got == "float"


@pytest.mark.parametrize("wrong", [1.0, None, "text", [1.0, 2.0]])
def test_a_vector_that_is_no_tensor_is_refused(wrong):
    error = the_error(ArgumentError, lambda: Space.of(torch.ones(2)).read(wrong, name="v"))
    assert error.what == "v is not a tensor"
    assert error.got == type(wrong).__name__
    assert "torch.as_tensor" in error.fix
