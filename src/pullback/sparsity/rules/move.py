"""Operations that move elements: run on the labels themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import Sets, union

_MOVES = (
    "roll", "flip", "rot90", "constant_pad_nd", "slice_backward", "select_backward", "diagonal_backward", "cat",
    "stack", "repeat", "tril", "triu", "diag_embed", "slice_scatter", "select_scatter", "diagonal_scatter",
    "as_strided_scatter", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "_reshape_alias", "reshape",
    "view", "_unsafe_view", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand", "slice", "select",
    "alias", "detach", "unfold", "diagonal", "as_strided", "split", "split_with_sizes", "unbind", "narrow",
    "movedim", "view_copy", "permute_copy", "transpose_copy", "slice_copy", "select_copy", "expand_copy",
    "unsqueeze_copy", "squeeze_copy", "diagonal_copy", "as_strided_copy", "t_copy", "detach_copy", "alias_copy",
    "unfold_copy", "split_copy", "split_with_sizes_copy", "unbind_copy", "_reshape_copy", "_reshape_from_tensor",
    "_chunk_cat", "block_diag", "broadcast_in_dim", "collapse_view", "split_dim",
)  # fmt: skip


@rule(*_MOVES)
def move(call: Call) -> list[Sets | None]:
    """Each element is an element of an operand, or a constant."""
    parts: list[list[Sets]] = [[] for _ in call.shapes]
    for operand in call.seeded:
        assert operand.sets is not None
        for term in operand.sets.terms:
            outs = as_list(run_on_labels(call, operand, term.labels))
            weights: list[Any] = [term.weight] * len(outs)
            if isinstance(term.weight, Tensor):
                weights = as_list(run_on_labels(call, operand, term.weight.expand(operand.shape)))
            for k, (labels, weight) in enumerate(zip(outs, weights, strict=True)):
                placed = type(term)(term.root, labels, term.rows, weight)
                parts[k].append(Sets(tuple(labels.shape), (placed,)))
    return [union(shape, found) if found else None for shape, found in zip(call.shapes, parts, strict=True)]


@rule(
    "clone", "copy", "contiguous", "_to_copy", "lift_fresh", "positive", "conj", "_conj", "resolve_conj", "lift",
    "to", "_fused_dropout_identity", "convert_element_type", "view_of",
)  # fmt: skip
def same(call: Call) -> Sets | None:
    """The elements as they are, in another dtype, layout or place."""
    source = call.args[1] if call.op._schema.name.startswith("aten::copy") else call.args[0]
    if not isinstance(source, Operand) or source.sets is None:
        return None
    return source.sets.expand(call.shapes[0])


@rule(
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_empty_strided", "_new_zeros_with_same_feature_meta", "rand_like", "randn_like", "randint_like",
    "_local_scalar_dense",
)  # fmt: skip
def nothing(call: Call) -> list[Sets | None]:
    """Only the operand's shape matters."""
    return [None for _ in call.shapes]


def run_on_labels(call: Call, operand: Operand, labels: Tensor) -> Any:
    """The operation on one operand's labels; other floating-point operands are zero, indices are themselves."""
    fill = torch.zeros((), dtype=labels.dtype)

    def replacement(each: Operand) -> Any:
        if each is operand:
            return labels
        if each.dtype.is_floating_point or each.dtype.is_complex or each.sets is not None:
            return fill.expand(each.shape)
        return each.value

    return call.run_on(replacement)


def as_list(value: Any) -> list[Any]:
    """One result or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]
