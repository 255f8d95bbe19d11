"""On random patterns: every coloring is valid, and gives back every nonzero from the compressed answers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pullback.coloring import (
    color_bidirectional,
    color_columns,
    color_rows,
    color_symmetric,
    recover_bidirectional,
    recover_direct,
    substitution,
)
from pullback.coloring.check import (
    is_two_colored_forest,
    is_valid_acyclic,
    is_valid_bidirectional,
    is_valid_columns,
    is_valid_rows,
    is_valid_star,
)
from tests.coloring.patterns import PATHS, patterns, seeds, taking, values

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
both_paths = pytest.mark.parametrize("path", PATHS)
BUDGET = 0.01


@both_paths
@given(pattern=patterns())
@quick
def test_columns(path, pattern):
    with taking(path):
        coloring = color_columns(pattern, BUDGET)
    assert is_valid_columns(pattern, coloring)
    assert coloring.bound <= coloring.count
    assert all((coloring.colors < 0) == (np.bincount(pattern.indices, minlength=pattern.shape[1]) == 0))
    J, nonzeros = values(pattern)
    answers = seeds(coloring.colors, coloring.count) @ J.T
    assert np.array_equal(answers.ravel()[recover_direct(pattern, coloring)], nonzeros)


@both_paths
@given(pattern=patterns())
@quick
def test_rows(path, pattern):
    with taking(path):
        coloring = color_rows(pattern, BUDGET)
    assert is_valid_rows(pattern, coloring)
    assert coloring.bound <= coloring.count
    J, nonzeros = values(pattern)
    answers = seeds(coloring.colors, coloring.count) @ J
    assert np.array_equal(answers.ravel()[recover_direct(pattern, coloring)], nonzeros)


@both_paths
@given(pattern=patterns())
@quick
def test_both_sides(path, pattern):
    with taking(path):
        coloring = color_bidirectional(pattern, BUDGET)
    assert is_valid_bidirectional(pattern, coloring)
    assert coloring.bound <= coloring.count
    J, nonzeros = values(pattern)
    by_rows = (seeds(coloring.row_colors, coloring.row_count) @ J).ravel()
    by_columns = (seeds(coloring.column_colors, coloring.column_count) @ J.T).ravel()
    side, place = recover_bidirectional(pattern, coloring)
    assert np.array_equal(by_rows[place[side == 0]], nonzeros[side == 0])
    assert np.array_equal(by_columns[place[side == 1]], nonzeros[side == 1])


@given(pattern=patterns())
@settings(max_examples=30, deadline=None)
def test_both_sides_is_never_worse_than_one(pattern):
    one = min(color_columns(pattern, 0.2).count, color_rows(pattern, 0.2).count)
    assert color_bidirectional(pattern, 0.4).count <= one


@both_paths
@given(pattern=patterns(symmetric=True))
@quick
def test_star(path, pattern):
    with taking(path):
        coloring = color_symmetric(pattern, "star", BUDGET)
        plan = substitution(pattern, coloring)
    assert is_valid_star(pattern, coloring)
    assert coloring.bound <= coloring.count
    H, nonzeros = values(pattern, symmetric=True)
    answers = seeds(coloring.colors, coloring.count) @ H
    assert np.array_equal(answers.ravel()[recover_direct(pattern, coloring)], nonzeros)
    assert np.array_equal(plan.recover(answers), nonzeros)
    assert plan.depth <= 1


@both_paths
@given(pattern=patterns(symmetric=True))
@quick
def test_acyclic(path, pattern):
    with taking(path):
        coloring = color_symmetric(pattern, "acyclic", BUDGET)
        plan = substitution(pattern, coloring)
    assert is_valid_acyclic(pattern, coloring)
    assert coloring.bound <= coloring.count
    if (pattern.diagonal() != 0).all():
        assert is_two_colored_forest(pattern, coloring)
    H, nonzeros = values(pattern, symmetric=True)
    assert np.array_equal(plan.recover(seeds(coloring.colors, coloring.count) @ H), nonzeros)


@given(pattern=patterns(symmetric=True))
@settings(max_examples=30, deadline=None)
def test_acyclic_levels_are_the_same_on_both_paths(pattern):
    with taking("compiled"):
        coloring = color_symmetric(pattern, "acyclic", BUDGET)
        one = substitution(pattern, coloring)
    with taking("python"):
        two = substitution(pattern, coloring)
    assert np.array_equal(one.level_starts, two.level_starts)
    H, _ = values(pattern, symmetric=True)
    answers = seeds(coloring.colors, coloring.count) @ H
    assert np.array_equal(one.recover(answers), two.recover(answers))


@given(pattern=patterns(symmetric=True))
@settings(max_examples=30, deadline=None)
def test_acyclic_takes_no_more_than_star_and_star_no_more_than_columns(pattern):
    star = color_symmetric(pattern, "star", 0.3)
    assert color_symmetric(pattern, "acyclic", 0.3).count <= star.count
    assert star.count <= color_columns(pattern, 0.3).count


@both_paths
@given(pattern=patterns())
@settings(max_examples=20, deadline=None)
def test_colorings_are_the_same_in_every_run(path, pattern):
    with taking(path):
        assert color_columns(pattern, 5.0) == color_columns(pattern, 5.0)
