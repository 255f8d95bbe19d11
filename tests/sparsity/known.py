"""What is known of the patterns in the sweeps: operator -> reason. Each list is exact; a test fails if it is not.

Measured on torch 2.13, CPU, over the few samples of each operator.
"""

from __future__ import annotations

# The reverse pass cannot be recorded at some sample.
UNRECORDABLE = {
    "to_sparse": "a sparse tensor has no elements to follow",
}

# The database says that they have second derivatives, and they have not.
NOT_TWICE = {
    "nn.functional.ctc_loss": "the derivative of its backward is not implemented",
}

_ONE = "of one element, all derivatives are zero"
_VALUES = "none of the points tried reaches some of the entries"
_DENSE = "all elements of a matrix are taken to depend on each other; its triangles are not followed"
_COSINES = "cosines that are exactly zero"

# The pattern has entries that are zero at all points tried.
INEXACT = {
    "_segment_reduce.lengths": "no rule for its backward",
    "_segment_reduce.offsets": "no rule for its backward",
    "cdist": "with p = 0 all derivatives are zero",
    "cholesky": _DENSE,
    "cholesky_inverse": _DENSE,
    "clamp": _VALUES,
    "corrcoef": "of two numbers the correlation is always 1",
    "fft.hfft": _COSINES,
    "fft.hfftn": _COSINES,
    "fft.irfft": _COSINES,
    "fft.irfftn": _COSINES,
    "grid_sampler_2d": _VALUES,
    "linalg.cholesky": _DENSE,
    "linalg.cholesky_ex": _DENSE,
    "linalg.lu": _DENSE,
    "linalg.lu_factor": _DENSE,
    "linalg.lu_factor_ex": _DENSE,
    "linalg.lu_solve": _DENSE,
    "linalg.qr": _DENSE,
    "log_softmax": _ONE,
    "log_softmax.with_dtype": _ONE,
    "lu": _DENSE,
    "masked.cumprod": "the mask makes some factors constant, which the pattern does not know",
    "median": _VALUES,
    "msort": _VALUES,
    "nanmedian": _VALUES,
    "native_layer_norm": _ONE,
    "nn.functional.adaptive_max_pool3d": _VALUES,
    "nn.functional.alpha_dropout": "the database fixes the random numbers",
    "nn.functional.cosine_embedding_loss": "a margin that the points do not cross",
    "nn.functional.dropout": "the database fixes the random numbers",
    "nn.functional.fractional_max_pool2d": "where the random windows lie is not known",
    "nn.functional.fractional_max_pool3d": "where the random windows lie is not known",
    "nn.functional.grid_sample": _VALUES,
    "nn.functional.layer_norm": _ONE,
    "nn.functional.max_pool3d": _VALUES,
    "nn.functional.multi_head_attention_forward": "zeros that a mask makes inside softmax are not known",
    "nn.functional.multi_margin_loss": _ONE,
    "nn.functional.multilabel_margin_loss": _VALUES,
    "nn.functional.normalize": _ONE,
    "nn.functional.pdist": "with p = 0 all derivatives are zero",
    "nn.functional.scaled_dot_product_attention": "zeros that a mask makes inside softmax are not known",
    "nn.functional.softmin": _ONE,
    "nn.functional.softmin.with_dtype": _ONE,
    "ormqr": _DENSE,
    "qr": _DENSE,
    "softmax": _ONE,
    "softmax.with_dtype": _ONE,
    "sort": _VALUES,
}

LISTED = UNRECORDABLE | NOT_TWICE | INEXACT

# Modules whose pattern has entries that are zero at all points tried.
MODULES = {
    "nn.AdaptiveMaxPool3d": _VALUES,
    "nn.FractionalMaxPool2d": "where the random windows lie is not known",
    "nn.FractionalMaxPool3d": "where the random windows lie is not known",
    "nn.GRU.eval": _VALUES,
    "nn.GRU.train": _VALUES,
    "nn.LogSoftmax": _ONE,
    "nn.MaxPool2d": _VALUES,
    "nn.MaxPool3d": _VALUES,
    "nn.MultiheadAttention.eval": "zeros that a mask makes inside softmax are not known",
    "nn.MultiheadAttention.train": "zeros that a mask makes inside softmax are not known",
    "nn.PReLU": _VALUES,
    "nn.RNN.eval": _VALUES,
    "nn.RNN.train": _VALUES,
    "nn.Softmax": _ONE,
    "nn.Softmin": _ONE,
}
