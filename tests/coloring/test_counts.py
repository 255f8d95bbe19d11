"""How many passes: what theory gives, and what others publish, as upper limits."""

import numpy as np
import pytest
from scipy import sparse

from pullback.coloring import (
    color_bidirectional,
    color_columns,
    color_rows,
    color_symmetric,
    column_bound,
    recover_direct,
    row_bound,
    substitution,
)
from tests.coloring.patterns import PATHS, arrow, band, brusselator, bundle_adjustment, convolution, csr, taking


@pytest.fixture(params=PATHS)
def path(request):
    with taking(request.param):
        yield request.param


def test_broyden_tridiagonal_takes_3(path):
    assert color_columns(band(20_000, 1)).count == 3
    assert color_rows(band(20_000, 1)).count == 3


@pytest.mark.parametrize("half", [1, 2, 5])
def test_a_band_takes_as_many_as_diagonals(path, half):
    coloring = color_columns(band(500, half))
    assert (coloring.count, coloring.gap) == (2 * half + 1, 0)


@pytest.mark.parametrize("half", [1, 2, 3, 5])
def test_a_symmetric_band_takes_the_published_counts(path, half):
    """Gebremedhin, Tarafdar, Pothen, Walther 2009: 2 b + 1 colors for a star coloring, b + 1 for an acyclic one."""
    pattern = band(300, half)
    assert color_symmetric(pattern, "star").count == 2 * half + 1
    assert color_symmetric(pattern, "acyclic").count == half + 1


@pytest.mark.parametrize(("N", "most"), [(30, 6), (32, 8), (64, 8), (128, 8)])
def test_brusselator_takes_a_lattice(path, N, most):
    """Greedy orders give 12 (ColPack and all others), iterated greedy 10; the bound is 6."""
    coloring = color_columns(brusselator(N), 2.0)
    assert coloring.bound == 6
    assert coloring.count <= most


def test_brusselator_of_an_odd_size_takes_at_most_10():
    assert color_columns(brusselator(31), 2.0).count <= 10


def test_symmetric_brusselator_takes_no_more_than_colpack(path):
    pattern = brusselator(16)
    assert color_symmetric(pattern, "star", 1.0).count <= 9
    assert color_symmetric(pattern, "acyclic", 1.0).count <= 7


def test_convolution_takes_its_window_by_rows(path):
    pattern = convolution(24)
    rows, columns = color_rows(pattern), color_columns(pattern)
    assert (rows.count, rows.gap) == (49, 0)
    assert (columns.count, columns.gap) == (147, 0)
    assert color_bidirectional(pattern).count == 49


def test_bundle_adjustment_takes_12_by_columns(path):
    pattern = bundle_adjustment(10, 100, 500)
    assert color_columns(pattern).count == 12
    both = color_bidirectional(pattern)
    assert (both.row_count, both.column_count) == (0, 12)


@pytest.mark.parametrize("n", [3, 50, 4000])
def test_arrowhead_takes_3_on_both_sides(path, n):
    coloring = color_bidirectional(arrow(n))
    assert (coloring.count, coloring.gap) == (3, 0)
    assert color_columns(arrow(n)).count == n


def test_arrow_hessian_takes_2(path):
    assert color_symmetric(arrow(300), "star").count == 2
    assert color_symmetric(arrow(300), "acyclic").count == 2


def test_a_star_without_a_diagonal_is_read_from_its_hub_alone(path):
    coloring = color_symmetric(arrow(300, diagonal=False), "star")
    assert coloring.count == 1
    assert coloring.colors[0] == 0
    assert set(coloring.colors[1:]) == {-1}


def test_a_border_of_two_takes_5_on_both_sides(path):
    """Two dense rows, two dense columns and a diagonal: one-sided colorings take 202."""
    border, eye = np.ones((2, 200)), np.eye(200)
    pattern = sparse.csr_array(np.block([[border, np.zeros((2, 2))], [eye, border.T]]))
    assert color_bidirectional(pattern).count == 5


def test_random_patterns_take_no_more_than_colpack():
    """ColPack at 20,000 x 20,000 with 5 nonzeros a row on average: 16 or 17 colors, by order, where the bound is 16."""
    random = np.random.default_rng(0)
    pattern = csr(*random.integers(0, 20_000, (2, 100_000)), (20_000, 20_000))
    assert color_columns(pattern).gap <= 1
    assert color_rows(pattern).gap <= 1


def test_nothing_takes_nothing(path):
    for shape in [(0, 0), (0, 5), (5, 0), (4, 4)]:
        empty = csr([], [], shape)
        assert color_columns(empty).count == color_rows(empty).count == 0
        assert color_bidirectional(empty).count == 0
        assert set(color_columns(empty).colors) <= {-1}
        assert len(recover_direct(empty, color_columns(empty))) == 0
    for kind in ("star", "acyclic"):
        assert color_symmetric(csr([], [], (4, 4)), kind).count == 0
        assert substitution(csr([], [], (0, 0)), color_symmetric(csr([], [], (0, 0)), kind)).depth == 0


def test_a_diagonal_takes_1(path):
    for coloring in (color_columns(band(9, 0)), color_symmetric(band(9, 0), "star"), color_bidirectional(band(9, 0))):
        assert (coloring.count, coloring.gap) == (1, 0)


def test_a_dense_matrix_takes_its_smaller_side(path):
    full = sparse.csr_array(np.ones((7, 4)))
    assert (color_columns(full).count, color_rows(full).count, color_bidirectional(full).count) == (4, 7, 4)
    assert color_symmetric(sparse.csr_array(np.ones((6, 6))), "star").count == 6


def test_bounds_are_the_fullest_lines():
    pattern = convolution(10)
    assert (column_bound(pattern), row_bound(pattern)) == (147, 49)
    assert (column_bound(csr([], [], (0, 3))), row_bound(csr([], [], (0, 3)))) == (0, 0)
