"""Limits of size, of memory, and of sense: what is refused, in which words, and what large patterns fall back on."""

import subprocess
import sys

import numpy as np
import pytest

from pullback.coloring import (
    check,
    color_bidirectional,
    color_columns,
    color_rows,
    color_symmetric,
    compiled,
    greedy,
    kernels,
    recover_bidirectional,
    recover_direct,
    substitution,
    symmetric,
)
from pullback.data.coloring import Bicoloring, Coloring, SymmetricColoring
from pullback.errors import ValueMismatch
from tests.coloring.patterns import arrow, band, brusselator, csr, taking


def test_a_pattern_that_is_not_symmetric_is_refused():
    with pytest.raises(ValueMismatch, match=r"(?s)needs a symmetric pattern.*shape \(2, 3\)\n.*color_columns"):
        color_symmetric(csr([0], [1], (2, 3)))
    with pytest.raises(ValueMismatch, match=r"where some \(i, j\) has no \(j, i\)"):
        color_symmetric(csr([0], [1], (2, 2)))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueMismatch, match=r"(?s)no such symmetric coloring.*'path'.*'star' or 'acyclic'"):
        color_symmetric(band(3, 1), "path")


def test_a_coloring_of_another_pattern_is_refused():
    with pytest.raises(ValueMismatch, match=r"(?s)another size.*\(5,\) colors for \(4,\) lines"):
        recover_direct(band(4, 1), color_columns(band(5, 1)))
    with pytest.raises(ValueMismatch, match="another size"):
        recover_bidirectional(band(4, 1), color_bidirectional(band(5, 1)))
    with pytest.raises(ValueMismatch, match=r"(?s)cannot be read.*stand nowhere by themselves.*substitution"):
        recover_direct(band(9, 1), color_symmetric(band(9, 1), "acyclic"))
    with pytest.raises(ValueMismatch, match="cannot be read"):
        recover_direct(band(9, 1), color_columns(csr([], [], (9, 9))))
    with pytest.raises(ValueMismatch, match=r"(?s)does not determine.*values stay unknown"):
        substitution(band(9, 2), color_symmetric(band(9, 1), "acyclic"))


def test_colorings_print_themselves():
    assert repr(color_columns(band(1000, 1))) == "Coloring(3 passes for 1,000 columns (optimal, by natural order))"
    assert str(color_rows(band(9, 0))) == "1 pass for 9 rows (optimal, by natural order)"
    assert "symmetric columns, acyclic (optimal" in repr(color_symmetric(band(9, 1), "acyclic"))
    assert "(at least 6, by " in str(color_columns(brusselator(9), 0.0))
    assert str(color_bidirectional(arrow(9))).startswith(("2 reverse + 1 forward", "1 reverse + 2 forward"))


def test_long_rows_are_split_off_where_sets_of_colors_would_not_fit(monkeypatch):
    monkeypatch.setattr(greedy, "MOST_BYTES", 1)
    monkeypatch.setattr(greedy, "MOST_BYTES_A_ROW", 16)
    n = 400
    pattern = csr(*np.nonzero(band(n, 1).toarray() + (np.arange(n)[:, None] == 0) * (np.arange(n) < 200)), (n, n))
    coloring = color_columns(pattern)
    assert coloring.order == "long rows split off"
    assert check.is_valid_columns(pattern, coloring)
    assert 200 <= coloring.count <= 206
    assert check.is_valid_bidirectional(pattern, color_bidirectional(pattern))


def test_more_than_64_colors_take_more_words(monkeypatch):
    """A guess that is too small is doubled until the colors fit."""
    pattern = csr(np.repeat(np.arange(3), 90), np.concatenate([np.arange(90) + 30 * i for i in range(3)]), (3, 150))
    found = greedy.first_fit(greedy.Graph.of(pattern), np.arange(150), guess=0)
    assert found is not None
    assert found[1] == 90


def test_dense_vertices_get_a_color_each_where_their_neighbours_are_too_many(monkeypatch):
    monkeypatch.setattr(symmetric, "MOST_PAIRS", {True: 3000, False: 3000})
    for kind, judge in (("star", check.is_valid_star), ("acyclic", check.is_valid_acyclic)):
        coloring = color_symmetric(arrow(200), kind)
        assert judge(arrow(200), coloring)
        assert coloring.count == 2


def test_without_numba_the_same_kernels_run_as_python():
    with taking("python"):
        assert not kernels.is_compiled()
        assert kernels.kernel("star") is getattr(compiled.star, "py_func", compiled.star)
    hidden = "import sys; sys.modules['numba'] = None\n"
    program = hidden + (
        "from scipy.sparse import csr_array; import numpy as np\n"
        "from pullback.coloring import color_columns, color_symmetric, kernels\n"
        "A = csr_array(np.eye(6) + np.eye(6, k=1) + np.eye(6, k=-1))\n"
        "assert not kernels.is_compiled()\n"
        "print(color_columns(A).count, color_symmetric(A, 'star').count, color_symmetric(A, 'acyclic').count)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3", "3", "2"], done.stderr


def test_both_paths_give_the_same_first_fit():
    pattern = brusselator(7)
    with taking("compiled"):
        one = color_columns(pattern, 0.0)
    with taking("python"):
        two = color_columns(pattern, 0.0)
    assert one == two


def test_a_read_only_pattern_is_fine():
    pattern = band(9, 1)
    pattern.indptr = pattern.indptr.astype(np.int64)
    pattern.indptr.flags.writeable = False
    assert color_columns(pattern).count == 3


def test_long_chains_of_substitution_show_in_the_depth():
    coloring = color_symmetric(band(400, 1), "acyclic")
    assert substitution(band(400, 1), coloring).depth == 200


PATH = csr([0, 1, 1, 2], [1, 0, 2, 1], (3, 3))


@pytest.mark.parametrize(
    ("judge", "pattern", "good", "bad"),
    [
        (check.is_valid_columns, csr([0, 0], [0, 1], (1, 2)), [0, 1], [[0, 0], [0, -1], [0, 2]]),
        (check.is_valid_rows, csr([0, 1], [0, 0], (2, 1)), [0, 1], [[0, 0], [-1, 0], [0, 2]]),
        (check.is_valid_star, band(4, 1), [0, 1, 2, 0], [[0, 1, 0, 1], [0, 0, 1, 2], [0, 1, 2, -1]]),
        (check.is_valid_star, PATH, [-1, 0, -1], [[0, -1, 0], [-1, -1, -1]]),
        (check.is_valid_acyclic, band(4, 1), [0, 1, 0, 1], [[0, 0, 1, 0], [0, 1, 0, -1]]),
        (
            check.is_two_colored_forest,
            csr([0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3], (4, 4)),
            [0, 1, 0, 2],
            [[0, 1, 0, 1]],
        ),
    ],
)
def test_the_judges_tell_good_from_bad(judge, pattern, good, bad):
    def colored(colors):
        array, count = np.array(colors, np.int32), max(colors) + 1
        if judge in {check.is_valid_columns, check.is_valid_rows}:
            return Coloring("rows" if judge is check.is_valid_rows else "columns", array, count, 0, "hand")
        return SymmetricColoring("star", array, count, 0, "hand")

    assert judge(pattern, colored(good))
    assert not any(judge(pattern, colored(colors)) for colors in bad)


def test_the_judge_of_both_sides_tells_good_from_bad():
    pattern = csr([0, 0, 1], [0, 1, 0], (2, 2))

    def colored(rows, columns):
        counts = max(rows) + 1, max(columns) + 1
        return Bicoloring(np.array(rows, np.int32), np.array(columns, np.int32), *counts, 0, "hand")

    assert check.is_valid_bidirectional(pattern, colored([0, -1], [0, -1]))
    assert check.is_valid_bidirectional(pattern, colored([-1, -1], [0, 1]))
    assert not check.is_valid_bidirectional(pattern, colored([0, -1], [-1, 0]))
    assert not check.is_valid_bidirectional(pattern, colored([0, -1], [1, -1]))
