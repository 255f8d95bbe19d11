"""Patterns with known colorings, and random ones."""

import contextlib
import os

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from pullback.coloring.kernels import SWITCH

PATHS = ["compiled", "python"]


@contextlib.contextmanager
def taking(path):
    """Run kernels compiled, or in plain Python."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1" if path == "compiled" else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def csr(rows, columns, shape):
    """A sorted CSR pattern; places given twice count once."""
    rows, columns = np.asarray(rows, np.int64).ravel(), np.asarray(columns, np.int64).ravel()
    pattern = sp.coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=shape).tocsr()
    pattern.sum_duplicates()
    pattern.data[:] = 1
    return pattern


def band(n, half):
    """A symmetric band: ``half`` diagonals on each side of the main one."""
    i = np.arange(n)
    rows = np.concatenate([i[max(0, -k) : n - max(0, k)] for k in range(-half, half + 1)])
    columns = np.concatenate([i[max(0, k) : n - max(0, -k)] for k in range(-half, half + 1)])
    return csr(rows, columns, (n, n))


def arrow(n, diagonal=True):
    """A dense first row and column, and a diagonal."""
    i, zero = np.arange(1, n), np.zeros(n - 1, np.int64)
    rows, columns = [i, zero], [zero, i]
    if diagonal:
        rows.append(np.arange(n))
        columns.append(np.arange(n))
    return csr(np.concatenate(rows), np.concatenate(columns), (n, n))


def brusselator(N):
    """Two fields on a periodic grid: a 5-point stencil each, and the other field at the point."""
    k = np.arange(N * N).reshape(N, N)
    around = [k, np.roll(k, 1, 0), np.roll(k, -1, 0), np.roll(k, 1, 1), np.roll(k, -1, 1)]
    rows, columns = [], []
    for here in (0, N * N):
        for there in around:
            rows.append(k + here)
            columns.append(there + here)
        rows.append(k + here)
        columns.append(k + N * N - here)
    return csr(np.stack(rows), np.stack(columns), (2 * N * N, 2 * N * N))


def convolution(S, channels=3, reach=3):
    """A window of ``2 reach + 1`` squared over some channels of an S x S image, zero padding, one channel out."""
    y, x = np.mgrid[0:S, 0:S]
    rows, columns = [], []
    for channel in range(channels):
        for dy in range(-reach, reach + 1):
            for dx in range(-reach, reach + 1):
                inside = (y + dy >= 0) & (y + dy < S) & (x + dx >= 0) & (x + dx < S)
                rows.append((y * S + x)[inside])
                columns.append((channel * S * S + (y + dy) * S + x + dx)[inside])
    return csr(np.concatenate(rows), np.concatenate(columns), (S * S, channels * S * S))


def bundle_adjustment(cameras, points, observations):
    """Two residuals for each observation, of 9 numbers of a camera and 3 of a point."""
    random = np.random.default_rng(0)
    camera = np.concatenate([np.arange(cameras), random.integers(0, cameras, observations - cameras)])
    point = np.concatenate([np.arange(points), random.integers(0, points, observations - points)])
    columns = np.hstack([9 * camera[:, None] + np.arange(9), 9 * cameras + 3 * point[:, None] + np.arange(3)])
    rows = np.arange(2 * observations)[:, None] + np.zeros(12, np.int64)
    return csr(rows, np.repeat(columns, 2, axis=0), (2 * observations, 9 * cameras + 3 * points))


@st.composite
def patterns(draw, symmetric=False):
    """Small random CSR patterns, with empty lines and no lines, in both index types; some have dense lines."""
    m = draw(st.integers(0, 12))
    n = m if symmetric else draw(st.integers(0, 12))
    density = draw(st.sampled_from([0.05, 0.15, 0.3, 0.6]))
    seed = draw(st.integers(0, 2**20))
    random = np.random.default_rng(seed)
    dense = random.random((m, n)) < density
    if draw(st.booleans()) and m and n:
        dense[random.integers(m)] = True
        dense[:, random.integers(n)] = True
    if symmetric:
        dense |= dense.T
        diagonal = draw(st.sampled_from(["full", "empty", "some"]))
        if diagonal != "some":
            np.fill_diagonal(dense, diagonal == "full")
    pattern = draw(st.sampled_from([sp.csr_array, sp.csr_matrix]))(dense)
    if draw(st.booleans()):
        pattern.indptr, pattern.indices = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int64)
    return pattern


def values(pattern, symmetric=False):
    """Random integers on a pattern, as floats, so that sums of them are exact."""
    random = np.random.default_rng(1)
    J = np.zeros(pattern.shape)
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    J[rows, pattern.indices] = random.integers(1, 1000, len(pattern.indices))
    if symmetric:
        J = np.triu(J) + np.triu(J, 1).T
    return J, J[rows, pattern.indices]


def seeds(colors, count):
    """One row for each color, with ones where it is."""
    return (np.arange(count)[:, None] == np.asarray(colors)).astype(float)
