"""What is known to be out of the ordinary: operator -> reason. Each list is exact; a test fails if it is not.

Measured on torch 2.13, CPU, over all samples. "Wrong" means: finite differences say so.
"""

from __future__ import annotations

# strategy="columns" is refused at some sample: neither the forward formula nor the derivative of the backward by its
# seed works and agrees with the reverse pass.
NO_FORWARD = {
    "_segment_reduce.lengths": "no forward formula; the derivative of its backward is not implemented",
    "_segment_reduce.offsets": "no forward formula; the derivative of its backward is not implemented",
    "cdist": "no forward formula; _cdist_backward has no derivative for p other than 2",
    "logcumsumexp": "forward formula and double backward are only good to 3e-6 in float64",
    "native_layer_norm": "see NOISE: forward passes differ from reverse ones by noise",
    "nn.functional.ctc_loss": "no forward formula; the derivative of its backward is not implemented",
    "nn.functional.embedding_bag": "no forward formula; the derivative of its backward is not implemented",
    "nn.functional.linear_cross_entropy.chunked_none": "its autograd.Function has neither jvp nor double backward",
    "nn.functional.multi_margin_loss": "no forward formula; the derivative of its backward is not implemented",
    "nn.functional.multilabel_margin_loss": "no forward formula; the derivative of its backward is not implemented",
    "nn.functional.pdist": "no forward formula; the derivative of _pdist_backward is not implemented",
}

# The forward formula disagrees with the reverse pass: Pullback warns and takes another way.
FORWARD_IS_WRONG = {
    "cholesky_inverse": "wrong in the fifth digit",
    "logcumsumexp": "only good to 3e-6 in float64",
    "nn.functional.linear_cross_entropy.chunked": "the value is right and the tangent is not",
    "nn.functional.linear_cross_entropy.chunked_none": "the value is right and the tangent is not",
    "scatter_reduce.prod": "wrong",
}

# The batching rule of the backward disagrees with the plain backward: Pullback warns and takes another way.
BATCHING_IS_WRONG = {
    "cdist": "_cdist_backward under vmap mixes the batch",
    "roll": "of a 0-dim tensor, under vmap: it rolls the batch",
}

# The plain backward itself is wrong. Pullback's J is what .backward() gives; it warns where forward mode is right.
ROWS_ARE_WRONG = {
    "as_strided_scatter": "the input's gradient is not masked where the source is written",
    "nn.functional.max_unpool1d": "an index that occurs twice counts twice in the gradient, once in the value",
    "nn.functional.max_unpool2d": "an index that occurs twice counts twice in the gradient, once in the value",
    "nn.functional.max_unpool3d": "an index that occurs twice counts twice in the gradient, once in the value",
}

# The plain backward is wrong if only some of the outputs get a seed, and right if the others get zeros, as in J.
WRONG_WITHOUT_OTHER_SEEDS = {
    "native_group_norm": "the gradients of mean and rstd are dropped where the first output has none",
}

# Derivatives that are zero in exact arithmetic, and rounding noise of two kinds in two ways.
NOISE = {
    "native_layer_norm": "of one feature, without bias: exactly 0 when batched, 1e-13 in a plain pass",
}

# The function is not defined at a sample: its value is NaN, and NaN reaches other entries by other ways.
UNDEFINED = {
    "__rpow__": "a negative number to a fractional power",
}

# Refused as an input: its tensors are sparse, and J @ v has no meaning for the elements that are not stored.
SPARSE_INPUT = {
    "sparse.mm.reduce": "a CSR matrix",
    "sparse.sampled_addmm": "a CSR matrix",
}

WARNED = FORWARD_IS_WRONG | BATCHING_IS_WRONG | ROWS_ARE_WRONG | NOISE | UNDEFINED
LISTED = WARNED | NO_FORWARD | WRONG_WITHOUT_OTHER_SEEDS | SPARSE_INPUT

_NOT_IMPLEMENTED = "no forward formula; the derivative of its backward is not implemented"

# Modules of which strategy="columns" is refused.
MODULES_WITHOUT_FORWARD = {
    "nn.CTCLoss": _NOT_IMPLEMENTED,
    "nn.LinearCrossEntropyLoss": NO_FORWARD["nn.functional.linear_cross_entropy.chunked_none"],
    "nn.MultiLabelMarginLoss": _NOT_IMPLEMENTED,
    "nn.MultiMarginLoss": _NOT_IMPLEMENTED,
}

# Modules that the database calls where they are not defined: Pullback warns where the value is NaN.
MODULES_UNDEFINED = {
    "nn.CrossEntropyLoss": "the mean of no number: every target is ignored",
    "nn.KLDivLoss": "the logarithm of a negative number",
    "nn.LPPool1d": "a negative number to the power 1.5",
    "nn.LPPool2d": "a negative number to the power 1.5",
    "nn.LPPool3d": "a negative number to the power 1.5",
}

# Modules whose forward formula disagrees with the reverse pass.
MODULES_WHOSE_FORWARD_IS_WRONG = {
    "nn.LinearCrossEntropyLoss": FORWARD_IS_WRONG["nn.functional.linear_cross_entropy.chunked"],
}

MODULES = MODULES_WHOSE_FORWARD_IS_WRONG | MODULES_WITHOUT_FORWARD | MODULES_UNDEFINED

_NO_RULE = "an operation of its backward has no sparsity rule: every result is taken to depend on every operand"

# Of strategies forced one by one, on the smallest sample or an arrangement of it: Pullback warns and takes another way.
FORCED_WARNED: dict[str, str] = {
    "_segment_reduce.lengths": _NO_RULE,
    "_segment_reduce.offsets": _NO_RULE,
    "as_strided_scatter": ROWS_ARE_WRONG["as_strided_scatter"],
    "cholesky_inverse": FORWARD_IS_WRONG["cholesky_inverse"],
    "grid_sampler_2d": _NO_RULE,
    "nn.functional.grid_sample": _NO_RULE,
    "nn.functional.linear_cross_entropy.chunked": FORWARD_IS_WRONG["nn.functional.linear_cross_entropy.chunked"],
    "nn.functional.max_unpool1d": ROWS_ARE_WRONG["nn.functional.max_unpool1d"],
    "scatter_reduce.prod": FORWARD_IS_WRONG["scatter_reduce.prod"],
}

# The same for modules.
FORCED_MODULES_WARNED: dict[str, str] = {}
