"""Pattern: where a matrix can be non-zero, from any matrix, as text, as a plot, and in a file."""

import copy
import dataclasses
import io
import json
import pickle
import sys
import zipfile
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pullback.data import pattern as module
from pullback.data.braille import MANY, picture
from pullback.data.pattern import Pattern
from pullback.errors import ArgumentError, GraphError, StrategyError, ValueMismatch

MATRICES = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12))
SQUARES = st.integers(0, 8).flatmap(lambda n: hnp.arrays(bool, (n, n)))
PAIRS = hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6).flatmap(
    lambda shape: st.tuples(hnp.arrays(bool, shape), hnp.arrays(bool, shape))
)
FORMATS = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
IN_ANY_ORDER = "Pattern.from_coordinates(rows, columns, shape) takes nonzeros in any order"

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


def says(error, what, got, fix):
    """Whether an error has this text, and no more."""
    assert str(error.value) == f"{what}\n  got: {got}\n  fix: {fix}"


def dense(pattern):
    return pattern.to_scipy().toarray()


def tridiagonal(n):
    return Pattern.of(scipy.sparse.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1]))


def known(matrix, word="found"):
    """A pattern that explains its entries."""
    rows, columns = np.nonzero(matrix)
    return Pattern.from_coordinates(
        rows, columns, matrix.shape, fingerprint="f", scope="local", explain=lambda i, j: f"{word} ({i}, {j})"
    )


# ------------------------------------------------------------------------------------------- made from a matrix


@settings(deadline=None)
@given(MATRICES)
def test_a_dense_matrix_comes_back(matrix):
    for value in (matrix, matrix.astype(float), matrix * 1j, torch.from_numpy(matrix), torch.from_numpy(matrix * 2.0)):
        assert np.array_equal(dense(Pattern.of(value)), matrix)


@settings(deadline=None)
@given(MATRICES, st.sampled_from(["csr", "csc", "coo", "bsr", "lil", "dok"]))
def test_a_sparse_array_comes_back_from_any_format(matrix, form):
    csr = scipy.sparse.csr_array(matrix)
    sparse = csr.tobsr(blocksize=(1, 1)) if form == "bsr" else csr.asformat(form)
    assert Pattern.of(sparse) == Pattern.of(matrix)


@settings(deadline=None)
@given(MATRICES, st.sampled_from(LAYOUTS))
def test_a_sparse_tensor_comes_back_from_any_layout(matrix, layout):
    assert Pattern.of(torch.from_numpy(matrix * 1.0).to_sparse(layout=layout)) == Pattern.of(matrix)


@settings(deadline=None)
@given(MATRICES)
def test_a_stored_diagonal_counts_whole(matrix):
    i, j = np.indices(matrix.shape)
    stored = scipy.sparse.csr_array(matrix).todia()  # which may end before the last column
    whole = np.isin(j - i, stored.offsets) & (j < stored.data.shape[1])
    assert Pattern.of(stored) == Pattern.of(whole)
    assert Pattern.of(stored).covers(Pattern.of(matrix))


@pytest.mark.parametrize("form", FORMATS)
def test_a_stored_zero_counts(form):
    stored = scipy.sparse.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    assert Pattern.of(stored.asformat(form)) == Pattern.of(np.eye(2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stored_zero_of_a_tensor_counts(layout):
    stored = torch.sparse_coo_tensor([[0, 1], [0, 1]], [0.0, 1.0], (2, 2), check_invariants=True)
    assert Pattern.of(stored.to_sparse(layout=layout)) == Pattern.of(np.eye(2))


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc])
def test_a_block_of_a_tensor_counts_whole(layout):
    matrix = torch.ones(4, 6).triu()
    blocks = np.kron([[1, 1, 1], [0, 1, 1]], np.ones((2, 2)))
    assert Pattern.of(matrix.to_sparse(layout=layout, blocksize=(2, 2))) == Pattern.of(blocks)
    assert Pattern.of(scipy.sparse.csr_array(matrix.numpy()).tobsr(blocksize=(2, 2))) == Pattern.of(blocks)


def test_repeated_elements_of_a_sparse_tensor_count_once():
    repeated = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, -1.0], (1, 2), check_invariants=True)
    assert Pattern.of(repeated) == Pattern.of(np.array([[0, 1]]))


def test_a_sparse_tensor_of_rows():
    rows = torch.sparse_coo_tensor([[1]], [[1.0, 0.0, 2.0]], (2, 3), check_invariants=True)
    assert Pattern.of(rows) == Pattern.of(np.array([[0, 0, 0], [1, 0, 1]]))


def test_a_tensor_that_requires_grad_and_a_number_that_is_none_count():
    value = torch.tensor([[0.0, torch.nan]], requires_grad=True)
    assert Pattern.of(value) == Pattern.of(np.array([[0.0, np.nan]])) == Pattern.of(np.array([[0, 1]]))


def test_a_pattern_is_its_own_pattern():
    pattern = Pattern.of(np.eye(2))
    assert Pattern.of(pattern) is pattern


@pytest.mark.parametrize(
    ("matrix", "got"),
    [
        ([[1, 0]], "list"),
        (3.0, "float"),
        (np.array([["a"]]), "ndarray of dtype <U1"),
        (np.array([[None]]), "ndarray of dtype object"),
    ],
)
def test_what_is_no_matrix_is_refused(matrix, got):
    with pytest.raises(ArgumentError) as error:
        Pattern.of(matrix)
    fix = "give a NumPy array of numbers, a torch tensor or a scipy.sparse array: np.asarray(...)"
    says(error, "a pattern is made from a matrix", got, fix)


@pytest.mark.parametrize(
    "matrix", [np.ones(3), torch.ones(3), scipy.sparse.coo_array(np.ones(3)), torch.ones(3).to_sparse()]
)
def test_a_vector_is_refused(matrix):
    with pytest.raises(ValueMismatch) as error:
        Pattern.of(matrix)
    says(error, "a pattern is two-dimensional", "shape (3,)", "give (m, n)")


# -------------------------------------------------------------------------------------- made from coordinates


@settings(deadline=None)
@given(MATRICES, st.randoms(use_true_random=False))
def test_coordinates_in_any_order_and_repeated(matrix, random):
    entries = np.argwhere(matrix).tolist() * 2
    random.shuffle(entries)
    rows, columns = [i for i, _ in entries], [j for _, j in entries]
    expected = Pattern.of(matrix)
    assert Pattern.from_coordinates(rows, columns, matrix.shape) == expected
    assert Pattern.from_coordinates(torch.tensor(rows, dtype=torch.int32), np.array(columns, int), matrix.shape) == (
        expected
    )


@settings(deadline=None)
@given(MATRICES)
def test_coordinates_are_given_back(matrix):
    rows, columns = Pattern.of(matrix).coordinates()
    assert np.array_equal(rows, np.nonzero(matrix)[0])
    assert np.array_equal(columns, np.nonzero(matrix)[1])


def test_rows_and_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueMismatch) as error:
        Pattern.from_coordinates([0, 1], [0], (2, 2))
    says(error, "rows and columns differ in length", "2 and 1", "give one of each for a nonzero")


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "what", "got", "fix"),
    [
        ([0, 2], [0, 0], (2, 3), "a row lies outside the matrix", "row 2, shape (2, 3)", "rows run from 0 to 1"),
        ([0], [-1], (2, 3), "a column lies outside the matrix", "column -1, shape (2, 3)", "columns run from 0 to 2"),
        ([0], [0], (0, 3), "a row lies outside the matrix", "row 0, shape (0, 3)", "rows there are none"),
    ],
)
def test_coordinates_outside_the_shape_are_refused(rows, columns, shape, what, got, fix):
    with pytest.raises(ValueMismatch) as error:
        Pattern.from_coordinates(rows, columns, shape)
    says(error, what, got, fix)


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        ([0.5], "shape (1,), dtype float64"),
        ([True], "shape (1,), dtype bool"),
        (0, "shape (), dtype int64"),
        ([[0]], "shape (1, 1), dtype int64"),
        ([[0], [0, 1]], "shape (), dtype object"),
    ],
)
def test_coordinates_that_are_no_integers_are_refused(rows, got):
    with pytest.raises(ArgumentError) as error:
        Pattern.from_coordinates(rows, [0], (2, 2))
    says(error, "rows are not one-dimensional integers", got, "give a list, array or tensor of integers")


@pytest.mark.parametrize("shape", [3, (3,), (1, 2, 3), (1.5, 2), None])
def test_a_shape_is_two_integers(shape):
    with pytest.raises(ArgumentError) as error:
        Pattern.from_coordinates([], [], shape)
    says(error, "a shape is two integers", repr(shape), "give shape (m, n)")


def test_a_shape_is_not_negative():
    with pytest.raises(ValueMismatch) as error:
        Pattern.from_coordinates([], [], (2, -1))
    says(error, "a shape is not negative", "(2, -1)", "give shape (m, n)")


# ------------------------------------------------------------------------------------------------ an honest value


def test_its_arrays_are_its_own_and_read_only():
    indptr, indices = np.array([0, 1]), np.array([1])
    pattern = Pattern((1, 2), indptr, indices)
    indices[0] = 0
    assert (0, 1) in pattern
    for array in (pattern.indptr, pattern.indices, pattern.row(0), pattern.T.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        pattern.shape = (2, 2)
    pattern.to_scipy().indices[0] = 0
    pattern.to_torch()[1][0] = 0
    assert (0, 1) in pattern


@pytest.mark.parametrize(("columns", "dtype"), [(5, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_the_integers_are_32_bits_where_that_fits(columns, dtype):
    pattern = Pattern.from_coordinates([0], [columns - 1], (1, columns))
    assert pattern.indptr.dtype == pattern.indices.dtype == pattern.coordinates()[0].dtype == dtype
    assert (0, columns - 1) in pattern
    assert str(pattern).splitlines()[1].startswith("[")


@pytest.mark.parametrize(
    ("indptr", "indices", "what", "got", "fix"),
    [
        ([0, 1], [0], "indptr does not fit the shape", "2 numbers for 2 rows", IN_ANY_ORDER),
        ([1, 1, 1], [0], "indptr does not rise from 0 to the 1 indices", "from 1 to 1", IN_ANY_ORDER),
        ([0, 1, 2], [0], "indptr does not rise from 0 to the 1 indices", "from 0 to 2", IN_ANY_ORDER),
        ([0, 2, 1], [0], "indptr does not rise from 0 to the 1 indices", "from 0 to 1, with a step down", IN_ANY_ORDER),
        (
            [0, -1, 1],
            [0],
            "indptr does not rise from 0 to the 1 indices",
            "from 0 to 1, with a step down",
            IN_ANY_ORDER,
        ),
        (
            [0, 0, 1],
            [3],
            "a column lies outside the matrix",
            "columns from 3 to 3, shape (2, 3)",
            "columns run from 0 to 2",
        ),
        (
            [0, 0, 1],
            [-1],
            "a column lies outside the matrix",
            "columns from -1 to -1, shape (2, 3)",
            "columns run from 0 to 2",
        ),
        ([0, 1, 3], [2, 1, 0], "the columns of a row do not ascend", "row 1", IN_ANY_ORDER),
        ([0, 2, 3], [1, 1, 0], "the columns of a row do not ascend", "row 0", IN_ANY_ORDER),
    ],
)
def test_what_are_not_the_rows_of_a_matrix_is_refused(indptr, indices, what, got, fix):
    with pytest.raises(ValueMismatch) as error:
        Pattern((2, 3), np.array(indptr), np.array(indices))
    says(error, what, got, fix)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=4), st.lists(st.integers(-1, 3), max_size=4))
def test_the_rows_of_a_matrix_are_accepted_exactly_where_they_are_some(indptr, indices):
    parts = [indices[a:b] for a, b in pairwise(indptr)]
    good = (
        len(indptr) == 4
        and indptr == sorted(indptr)
        and (indptr[0], indptr[-1]) == (0, len(indices))
        and all(0 <= j < 3 for j in indices)
        and all(part == sorted(set(part)) for part in parts)
    )
    try:
        Pattern((3, 3), np.array(indptr), np.array(indices))
    except ValueMismatch:
        assert not good
    else:
        assert good


def test_steps_so_large_that_they_overflow_are_refused():
    with pytest.raises(ValueMismatch, match="indptr does not rise"):
        Pattern((3, 3), np.array([0, 2**63 - 1, -2, 1]), np.array([0]))


def test_a_scope_is_one_of_two():
    with pytest.raises(ValueMismatch) as error:
        Pattern.from_coordinates([], [], (1, 1), scope="everywhere")
    says(error, "there is no such scope", "'everywhere'", "scope='global' or scope='local'")


def test_a_fingerprint_is_text():
    with pytest.raises(ArgumentError) as error:
        Pattern.from_coordinates([], [], (1, 1), fingerprint=b"f")
    says(error, "the fingerprint is not text", "bytes", "give a str")


@settings(deadline=None)
@given(PAIRS)
def test_equal_means_the_same_shape_and_positions(pair):
    one, other = map(Pattern.of, pair)
    assert (one == other) == np.array_equal(*pair)
    if one == other:
        assert hash(one) == hash(other)
    renamed = dataclasses.replace(one, fingerprint="other", scope="local", _explain=lambda i, j: "")
    assert renamed == one
    assert hash(renamed) == hash(one)


def test_equal_to_nothing_else():
    pattern = Pattern.of(np.zeros((2, 3)))
    assert pattern != Pattern.of(np.zeros((2, 4)))
    assert pattern != np.zeros((2, 3)).tolist()
    assert len({pattern, Pattern.of(np.zeros((2, 3))), Pattern.of(np.ones((2, 3)))}) == 2


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy])
def test_a_copy_is_equal_and_read_only_and_knows_no_program(again):
    pattern = known(np.eye(2))
    other = again(pattern)
    assert other == pattern
    assert (other.fingerprint, other.scope, other._explain) == ("f", "local", None)
    assert not other.indices.flags.writeable


# ---------------------------------------------------------------------------------------------------- questions


@settings(deadline=None)
@given(MATRICES)
def test_what_it_tells_of_a_matrix(matrix):
    pattern = Pattern.of(matrix)
    m, n = matrix.shape
    assert pattern.nnz == matrix.sum()
    assert pattern.density == (matrix.mean() if matrix.size else 0)
    assert pattern.max_row == max(matrix.sum(1), default=0)
    assert pattern.max_column == max(matrix.sum(0), default=0)
    assert all(pattern.row(i).tolist() == np.flatnonzero(matrix[i]).tolist() for i in range(m))
    assert all(pattern.column(j).tolist() == np.flatnonzero(matrix[:, j]).tolist() for j in range(n))
    inside = [[0 <= i < m and 0 <= j < n and matrix[i, j] for j in range(-1, n + 1)] for i in range(-1, m + 1)]
    assert [[(i, j) in pattern for j in range(-1, n + 1)] for i in range(-1, m + 1)] == inside


@settings(deadline=None)
@given(MATRICES)
def test_transposed_twice_is_the_same(matrix):
    pattern = dataclasses.replace(Pattern.of(matrix), fingerprint="f", scope="local")
    assert np.array_equal(dense(pattern.T), matrix.T)
    again = pattern.T.T
    assert again == pattern
    assert pattern.T.scope == "local"
    assert pattern.T.fingerprint != "f"  # the transposed pattern is never taken for that of the program
    assert again.fingerprint == "f"
    assert not Pattern.of(matrix).T.fingerprint


@settings(deadline=None)
@given(SQUARES)
def test_symmetric_means_equal_to_the_transposed(matrix):
    assert Pattern.of(matrix).symmetric == np.array_equal(matrix, matrix.T)
    assert Pattern.of(matrix | matrix.T).symmetric


def test_a_matrix_that_is_not_square_is_not_symmetric():
    assert not Pattern.of(np.zeros((2, 3))).symmetric


@settings(deadline=None)
@given(MATRICES)
def test_torch_takes_its_arrays(matrix):
    crow, col = Pattern.of(matrix).to_torch()
    tensor = torch.sparse_csr_tensor(crow, col, torch.ones(len(col)), matrix.shape, check_invariants=True)
    assert np.array_equal(tensor.to_dense().numpy(), matrix)


@settings(deadline=None)
@given(PAIRS)
def test_union_and_subset(pair):
    one, other = map(Pattern.of, pair)
    assert np.array_equal(dense(one | other), pair[0] | pair[1])
    assert one.issubset(other) == other.covers(one) == bool((pair[0] <= pair[1]).all())
    assert one.issubset(one | other)
    assert (one | other).covers(other)


def test_a_union_is_of_one_program_only_if_both_are_and_local_if_either_is():
    one, other = known(np.eye(2)), Pattern.of(np.ones((2, 2)))
    assert (one | one).fingerprint == "f"
    assert not (one | other).fingerprint
    assert (one | other).scope == (other | one).scope == "local"
    assert (other | other).scope == "global"


@pytest.mark.parametrize("combine", [Pattern.issubset, Pattern.covers, Pattern.__or__])
def test_patterns_of_different_shapes_do_not_compare(combine):
    with pytest.raises(ValueMismatch) as error:
        combine(Pattern.of(np.ones((2, 3))), Pattern.of(np.ones((3, 2))))
    assert error.value.what == "the patterns are of different shapes"
    assert error.value.got in {"(2, 3) and (3, 2)", "(3, 2) and (2, 3)"}
    assert error.value.fix == "give two patterns of one shape; pattern.T is the transposed one"


@pytest.mark.parametrize("combine", [Pattern.issubset, Pattern.covers])
def test_a_pattern_compares_with_a_pattern(combine):
    with pytest.raises(ArgumentError) as error:
        combine(Pattern.of(np.ones((2, 3))), np.ones((2, 3)))
    says(error, "the other is not a Pattern", "ndarray", "Pattern.of(matrix)")


def test_a_union_with_something_else_is_a_type_error():
    with pytest.raises(TypeError):
        Pattern.of(np.eye(2)) | 3


@pytest.mark.parametrize("entry", [3, (1,), (0, 1, 2), (0.5, 1), "ab", None])
def test_an_entry_is_two_integers(entry):
    with pytest.raises(ArgumentError) as error:
        entry in Pattern.of(np.eye(2))  # noqa: B015
    says(error, "an entry is two integers", repr(entry), "(i, j) in pattern")


@pytest.mark.parametrize(
    ("ask", "what", "got", "fix"),
    [
        (lambda p: p.row(2), "there is no row 2", "2 rows", "rows run from 0 to 1"),
        (lambda p: p.row(-1), "there is no row -1", "2 rows", "rows run from 0 to 1"),
        (lambda p: p.column(3), "there is no column 3", "3 columns", "columns run from 0 to 2"),
        (lambda p: p.explain(7, 0), "there is no row 7", "2 rows", "rows run from 0 to 1"),
        (lambda p: p.explain(0, 7), "there is no column 7", "3 columns", "columns run from 0 to 2"),
        (lambda p: Pattern.of(np.ones((0, 1))).row(0), "there is no row 0", "0 rows", "rows there are none"),
    ],
)
def test_rows_and_columns_that_are_not_there(ask, what, got, fix):
    with pytest.raises(ValueMismatch) as error:
        ask(Pattern.of(np.ones((2, 3))))
    says(error, what, got, fix)


def test_a_row_is_an_integer():
    with pytest.raises(ArgumentError) as error:
        Pattern.of(np.ones((2, 3))).row(0.5)
    says(error, "a row is an integer", "0.5", "rows run from 0 to 1")


# --------------------------------------------------------------------------------------------------- explanations


def test_a_zero_is_explained_without_a_program():
    pattern = Pattern.of(np.eye(2))
    assert pattern.explain(0, 1) == "entry (0, 1) is zero at every x of this shape that takes the same branches"
    assert dataclasses.replace(pattern, scope="local").explain(0, 1) == "entry (0, 1) is zero at this x"


def test_a_nonzero_is_explained_by_the_program():
    pattern = known(np.array([[0, 1]]))
    assert pattern.explain(0, 1) == "found (0, 1)"
    assert pattern.explain(np.int32(0), torch.tensor(1)) == "found (0, 1)"
    assert pattern.T.explain(1, 0) == "found (0, 1)"
    assert pattern.T.T.explain(0, 1) == "found (0, 1)"


def test_a_union_explains_an_entry_by_the_pattern_that_has_it():
    union = known(np.array([[1, 0, 0]]), "one") | known(np.array([[1, 1, 0]]), "other")
    assert union.explain(0, 0) == "one (0, 0)"
    assert union.explain(0, 1) == "other (0, 1)"
    assert union.explain(0, 2) == "entry (0, 2) is zero at this x"
    assert (Pattern.of(np.eye(2)) | known(np.eye(2))).explain(0, 0) == "found (0, 0)"


@pytest.mark.parametrize("combine", [lambda p: p, lambda p: p.T, lambda p: p | p])
def test_a_nonzero_without_a_program_is_not_explained(combine):
    with pytest.raises(GraphError) as error:
        combine(Pattern.of(np.eye(2))).explain(0, 0)
    says(
        error,
        "this pattern cannot explain entry (0, 0): it knows no program",
        "a pattern that was loaded from a file, or made from a matrix",
        "ask the pattern that was found from the program",
    )


# -------------------------------------------------------------------------------------------------------- as text


def slow_picture(matrix, width, height):
    """The same picture, dot by dot: the dots of each character, as Unicode numbers them, are 0 3, 1 4, 2 5, 6 7."""
    m, n = matrix.shape
    high, wide = 4 * height, 2 * (width - 2)
    scale = max(m / high, n / wide, 1)
    high, wide = -int(-m / scale // 1), -int(-n / scale // 1)
    numbers = {(0, 0): 0, (1, 0): 1, (2, 0): 2, (0, 1): 3, (1, 1): 4, (2, 1): 5, (3, 0): 6, (3, 1): 7}
    lines = []
    for top in range(0, high, 4):
        line = ""
        for left in range(0, wide, 2):
            code = 0x2800
            for (down, right), number in numbers.items():
                if any(
                    i * high // m == top + down and j * wide // n == left + right
                    for i in range(m)
                    for j in range(n)
                    if matrix[i, j]
                ):
                    code |= 1 << number
            line += chr(code)
        lines.append(line)
    if len(lines) == 1:
        return [f"[{lines[0]}]"]
    edges = ["⎡⎤", *["⎢⎥"] * (len(lines) - 2), "⎣⎦"]
    return [edge[0] + line + edge[1] for edge, line in zip(edges, lines, strict=True)]


@settings(deadline=None)
@given(
    hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20)),
    st.integers(3, 8),
    st.integers(1, 4),
)
def test_the_picture_is_that_of_a_slow_renderer(matrix, width, height):
    drawn = picture(*Pattern.of(matrix).coordinates(), matrix.shape, width=width, height=height)
    assert drawn.splitlines() == slow_picture(matrix, width, height)


@settings(deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(3, 80), st.integers(1, 40))
def test_the_picture_fits_and_keeps_its_proportions(m, n, width, height):
    corner = np.array([0, m - 1]), np.array([0, n - 1])
    lines = picture(*corner, (m, n), width=width, height=height).splitlines()
    assert len(lines) <= height
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= width
    full = len(lines) == height or len(lines[0]) == width
    whole = len(lines) == -(-m // 4) and len(lines[0]) - 2 == -(-n // 2)
    assert full or whole
    high, wide = len(lines) * 4, (len(lines[0]) - 2) * 2
    assert abs(high - m * wide / n) < 4 + 2 * m / n or abs(wide - n * high / m) < 2 + 4 * n / m


def test_a_small_pattern_in_print():
    assert str(tridiagonal(12)) == ("Pattern 12 x 12, 34 nonzeros, density 23.6%, global\n⎡⠻⣦⡀⠀⠀⠀⎤\n⎢⠀⠈⠻⣦⡀⠀⎥\n⎣⠀⠀⠀⠈⠻⣦⎦")
    assert repr(tridiagonal(12)) == "Pattern(12 x 12, 34 nonzeros, density 23.6%, global)"


def test_a_large_pattern_in_print():
    header, *lines = str(tridiagonal(10_000)).splitlines()
    assert header == "Pattern 10,000 x 10,000, 29,998 nonzeros, density 0.03%, global"
    assert len(lines) == 29
    assert {len(line) for line in lines} == {60}


def test_a_narrow_terminal_is_respected(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    _, *lines = str(tridiagonal(10_000)).splitlines()
    assert {len(line) for line in lines} == {20}
    assert len(lines) == 9


def test_a_pattern_without_elements_is_a_header():
    assert str(Pattern.of(np.zeros((0, 3)))) == "Pattern 0 x 3, 0 nonzeros, density 0%, global"
    assert str(Pattern.of(np.zeros((1, 3)))) == "Pattern 1 x 3, 0 nonzeros, density 0%, global\n[⠀⠀]"


# -------------------------------------------------------------------------------------------------------- as a plot


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def drawn(ax):
    """The positions and the colours of what is drawn."""
    (squares,) = ax.collections
    return np.asarray(squares.get_offsets()), squares.get_facecolors()


def test_a_plot_has_a_square_for_each_nonzero(plt, tmp_path):
    ax = tridiagonal(5).spy()
    offsets, colours = drawn(ax)
    rows, columns = tridiagonal(5).coordinates()
    assert offsets.tolist() == np.stack([columns, rows], axis=1).tolist()
    assert len(colours) == 1
    assert ax.get_title() == "5 x 5, 13 nonzeros"
    assert ax.get_ylim() == (4.5, -0.5)
    ax.figure.savefig(tmp_path / "spy.png")
    pixels = plt.imread(tmp_path / "spy.png")
    assert (pixels[..., 2] > pixels[..., 0] + 0.2).any()


def test_a_plot_goes_where_it_is_told(plt):
    _, ax = plt.subplots()
    assert tridiagonal(5).spy(ax) is ax


@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_a_plot_in_the_colours_of_a_colouring(plt, axis, kind):
    colors = [0, 1, 2, 0, -1]
    pattern = tridiagonal(5)
    ax = pattern.spy(coloring=SimpleNamespace(axis=axis, colors=kind(colors)))
    offsets, painted = drawn(ax)
    mine = [colors[int(place)] for place in offsets[:, 0 if axis == "columns" else 1]]
    by_color = {
        color: {tuple(paint) for paint, own in zip(painted, mine, strict=True) if own == color} for color in mine
    }
    assert all(len(paints) == 1 for paints in by_color.values())
    assert len({next(iter(paints)) for paints in by_color.values()}) == 4
    assert by_color[-1] == {(0.8, 0.8, 0.8, 1.0)}
    assert ax.get_title() == "5 x 5, 13 nonzeros, 3 colours"


def test_a_colouring_without_an_axis_is_one_of_columns(plt):
    colors = np.array([0, 1, 2, 0, -1])
    with_axis = tridiagonal(5).spy(coloring=SimpleNamespace(axis="columns", colors=colors))
    without = tridiagonal(5).spy(coloring=SimpleNamespace(colors=colors))
    assert np.array_equal(drawn(with_axis)[1], drawn(without)[1])


def test_many_colours_are_all_different(plt):
    pattern = Pattern.of(np.eye(60))
    _, painted = drawn(pattern.spy(coloring=SimpleNamespace(axis="rows", colors=np.arange(60))))
    assert len(np.unique(painted, axis=0)) == 60


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2), (1, 1000), (1000, 1)])
def test_a_plot_of_an_empty_or_a_narrow_matrix(plt, tmp_path, shape):
    for matrix in (np.zeros(shape), np.ones(shape)):
        coloring = SimpleNamespace(axis="rows", colors=np.zeros(shape[0], dtype=int))
        for each in (None, coloring):
            Pattern.of(matrix).spy(coloring=each).figure.savefig(tmp_path / "spy.png")
        plt.close("all")


def test_a_plot_of_very_many_nonzeros_draws_those_that_can_be_told_apart(plt, tmp_path):
    n = 100_000
    pattern = tridiagonal(n)
    ax = pattern.spy(coloring=SimpleNamespace(axis="columns", colors=np.arange(n) % 3))
    offsets, _ = drawn(ax)
    assert len(offsets) < 2000 < MANY < pattern.nnz
    assert all((int(i), int(j)) in pattern for j, i in offsets)
    assert len(np.unique(offsets[:, 0] * 500 // n)) == 500
    assert ax.get_title() == "100,000 x 100,000, 299,998 nonzeros, 3 colours"
    ax.figure.savefig(tmp_path / "spy.pdf")
    assert (tmp_path / "spy.pdf").stat().st_size < 200_000


@pytest.mark.parametrize(
    "coloring", [3, SimpleNamespace(axis="diagonals", colors=[0, 0]), SimpleNamespace(axis="rows", colors=[0.5, 1.0])]
)
def test_what_is_no_colouring_is_refused(coloring):
    with pytest.raises(ArgumentError) as error:
        Pattern.of(np.eye(2)).spy(coloring=coloring)
    fix = "give something with .axis, 'rows' or 'columns', and .colors, an integer for each of these"
    says(error, "this is not a colouring", type(coloring).__name__, fix)


def test_a_colouring_of_another_matrix_is_refused():
    with pytest.raises(ValueMismatch) as error:
        Pattern.of(np.ones((2, 3))).spy(coloring=SimpleNamespace(axis="columns", colors=[0, 1]))
    what, fix = "the colouring is not one of this pattern's columns", "give one colour for each of the 3 columns"
    says(error, what, "colors of shape (2,)", fix)


def test_without_matplotlib_a_plot_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(StrategyError) as error:
        Pattern.of(np.eye(2)).spy()
    assert error.value.what == "a plot needs matplotlib"
    assert "matplotlib" in error.value.got
    assert error.value.fix == "pip install pullback[plot]; or print(pattern)"


# -------------------------------------------------------------------------------------------------------- in a file


@settings(deadline=None)
@given(matrix=MATRICES, fingerprint=st.text(), scope=st.sampled_from(["global", "local"]))
def test_a_file_gives_the_pattern_back(tmp_path_factory, matrix, fingerprint, scope):
    pattern = dataclasses.replace(known(matrix), fingerprint=fingerprint, scope=scope)
    path = tmp_path_factory.mktemp("patterns") / "saved"
    pattern.save(path)
    for again in (Pattern.load(path), Pattern.load(str(path), fingerprint)):
        assert again == pattern
        assert again.indptr.dtype == pattern.indptr.dtype
        assert (again.fingerprint, again.scope, again._explain) == (fingerprint, scope, None)


def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "saved.npz"
    known(np.eye(2)).save(path)
    with pytest.raises(ValueMismatch) as error:
        Pattern.load(path, "g")
    says(
        error,
        "this pattern belongs to a different program",
        f"fingerprint 'f' in {path}, but the program has 'g'",
        "find the pattern of this program anew and save it: pattern.save(path)",
    )
    known(np.eye(2)).T.save(path)
    with pytest.raises(ValueMismatch, match="a different program"):
        Pattern.load(path, "f")


def refused(path, reason):
    with pytest.raises(ValueMismatch) as error:
        Pattern.load(path)
    assert error.value.what == "this file holds no pattern, or a damaged one"
    assert error.value.got.startswith(f"{path}: ")
    assert reason in error.value.got
    assert error.value.fix == "find the pattern anew and save it: pattern.save(path)"


def write(path, indptr=(0, 1, 2), indices=(0, 1), **about):
    """A file as :meth:`Pattern.save` writes it, but for what is given."""
    text = json.dumps({"format": module.FORMAT, "shape": [2, 2], "fingerprint": "", "scope": "global"} | about)
    with path.open("wb") as file:
        np.savez(file, about=np.frombuffer(text.encode(), np.uint8), indptr=indptr, indices=indices)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("a,b\n1,2\n")
    refused(path, "File is not a zip file")
    path.write_bytes(b"")
    refused(path, "File is not a zip file")
    with path.open("wb") as file:
        np.savez(file, x=np.ones(3))
    refused(path, "There is no item named 'about.npy' in the archive")
    torch.save({"x": torch.ones(3)}, path)
    refused(path, "There is no item named 'about.npy' in the archive")


def test_an_object_in_a_file_is_not_unpickled(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        np.savez(file, about=np.array([{}], dtype=object), indptr=[0], indices=[0])
    refused(path, "allow_pickle=False")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"format": "pullback.Pattern 2"}, "its format is 'pullback.Pattern 2', not 'pullback.Pattern 1'"),
        ({"shape": [2]}, "a shape is two integers: [2]"),
        ({"shape": [3, 2]}, "indptr does not fit the shape: 3 numbers for 3 rows"),
        ({"shape": [2, 1]}, "a column lies outside the matrix: columns from 0 to 1, shape (2, 1)"),
        ({"scope": "none"}, "there is no such scope: 'none'"),
        ({"fingerprint": 3}, "the fingerprint is not text: int"),
        ({"indptr": [0, 2, 1]}, "indptr does not rise from 0 to the 2 indices"),
        ({"indptr": [0, 2, 2], "indices": [1, 0]}, "the columns of a row do not ascend: row 0"),
        ({"indices": [0.0, 1.0]}, "indices are not one-dimensional integers"),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path, parts, reason):
    path = tmp_path / "file"
    write(path)
    assert Pattern.load(path) == Pattern.of(np.eye(2))
    write(path, **parts)
    refused(path, reason)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "file"
    dataclasses.replace(tridiagonal(20), fingerprint="f").save(path)
    return path.read_bytes()


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_never_yields_another_pattern(tmp_path_factory, saved, data):
    damaged = bytearray(saved)
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(saved) - 1)) :]
    else:
        place = data.draw(st.integers(0, len(saved) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(damaged)
    try:
        found = Pattern.load(path)
    except ValueMismatch as error:
        assert error.what == "this file holds no pattern, or a damaged one"  # noqa: PT017
    else:
        assert (found, found.fingerprint, found.scope) == (tridiagonal(20), "f", "global")


def test_a_file_that_is_not_there_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        Pattern.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        Pattern.of(np.eye(2)).save(tmp_path / "no" / "folder")


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    old = Pattern.of(np.eye(2))
    old.save(path)

    def interrupted(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Pattern.of(np.ones((2, 2))).save(path)
    assert Pattern.load(path) == old
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_the_new_file_takes_the_place_of_the_old_at_once(tmp_path):
    path, old = tmp_path / "file", Pattern.of(np.eye(2))
    old.save(path)
    (tmp_path / "same").hardlink_to(path)
    Pattern.of(np.ones((2, 2))).save(path)
    assert Pattern.load(tmp_path / "same") == old  # nothing was written over it


def test_a_save_replaces_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file"
    for matrix in (np.eye(2), np.ones((2, 3))):
        Pattern.of(matrix).save(path)
        assert Pattern.load(path) == Pattern.of(matrix)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        assert set(archive.namelist()) == {"about.npy", "indptr.npy", "indices.npy"}
