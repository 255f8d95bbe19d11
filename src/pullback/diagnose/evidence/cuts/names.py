"""The operations of torch that end a graph, by name."""

from __future__ import annotations

# What a root may be that is no tensor any more.
NUMBERS = (
    "float", "int", "bool", "complex", "numpy.ndarray", "numpy.float16", "numpy.float32", "numpy.float64",
    "numpy.int32", "numpy.int64", "numpy.bool", "numpy.bool_", "numpy.complex64", "numpy.complex128",
)  # fmt: skip
# Attributes that tell something of a tensor, and are none.
TOLD = frozenset({
    "shape", "dtype", "device", "requires_grad", "is_leaf", "grad_fn", "ndim", "is_cuda", "layout", "itemsize",
    "nbytes", "names", "output_nr", "__name__", "__class__", "training",
})  # fmt: skip
# Attributes that are the same tensor seen otherwise.
SAME = frozenset({"T", "mT", "H", "mH", "real", "imag", "values"})
# Methods that leave the values as they are, on the way to numpy or a number.
CARRIED = frozenset({"detach", "cpu", "clone", "contiguous", "resolve_conj", "resolve_neg"})
CASTS = frozenset({"long", "int", "short", "char", "byte", "bool"})
INTEGER_CLASSES = frozenset({"LongTensor", "IntTensor", "ShortTensor", "CharTensor", "ByteTensor", "BoolTensor"})
CLASSES = frozenset({"FloatTensor", "DoubleTensor", "HalfTensor", "Tensor", *INTEGER_CLASSES})
INDICES = frozenset({
    "argmax", "argmin", "argsort", "argwhere", "nonzero", "multinomial", "searchsorted", "bucketize", "count_nonzero",
    "matrix_rank", "bincount", "where", "histc", "unique", "unique_consecutive",
})  # fmt: skip
# Calls that give values and indices.
PAIRS = frozenset({"max", "min", "topk", "sort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"})
COMPARISONS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "equal", "greater", "greater_equal", "less", "less_equal", "not_equal",
    "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isin", "signbit", "all", "any",
    "logical_and", "logical_or", "logical_not", "logical_xor", "allclose",
})  # fmt: skip
# Operations that are registered without a derivative, though their result is a floating-point number.
WITHOUT = frozenset({
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1",
    "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "spherical_bessel_j0", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
})  # fmt: skip
# Calls whose result does not depend on the values of what they are given.
NEW = frozenset({
    "zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm",
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros",
    "new_ones", "new_empty", "new_full", "size", "numel", "dim", "len", "range", "isinstance", "hasattr", "type",
})  # fmt: skip
LINEAR = frozenset({
    "sum", "mean", "reshape", "view", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "cat", "stack",
    "neg", "to", "float", "double", "half", "clone", "contiguous", "expand", "repeat", "cumsum", "diff", "trace",
    "diagonal", "requires_grad_", "add", "sub", "enumerate", "zip", "list", "tuple",
})  # fmt: skip
