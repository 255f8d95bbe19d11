"""Reverse passes of single functions: losses, distances, bags, attention and recurrent cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.sparsity.call import Call, Operand, all_of, everything, rule
from pullback.sparsity.sets import Sets, union


@rule("hardshrink_backward", "softshrink_backward", "elu_backward", "hardtanh_backward", "leaky_relu_backward",
      "hardsigmoid_backward", "hardswish_backward", "mish_backward", "softplus_backward", "log_sigmoid_backward",
      "rrelu_with_noise_backward", "gelu_backward", "silu_backward", "threshold_backward", "huber_loss_backward",
      "mse_loss_backward", "smooth_l1_loss_backward", "soft_margin_loss_backward", "native_dropout_backward",
      "binary_cross_entropy_backward")  # fmt: skip
def slope(call: Call) -> Any:
    """Each element is the gradient's times a slope; nothing where the slope is known to be zero."""
    gradient, shape = call.args[0], call.shapes[0]
    if call.seeded != [gradient]:
        return all_of(call, shape).scaled(None)
    found = gradient.sets.expand(shape).scaled(None)
    others = (operand for operand in call.operands if operand is not gradient)
    if call.step.writes or any(operand.value is None for operand in others):
        return found
    slopes = call.run_on(lambda operand: _ones(call, operand) if operand is gradient else operand.value)
    zeros = (slopes == 0).cpu()
    return found.only(~zeros) if bool(zeros.any()) else found


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(call: Call) -> Any:
    """Each sample's elements depend on the gradient of its loss."""
    gradient, shape = call.args[0], call.shapes[0]
    if call.seeded != [gradient]:
        return NotImplemented
    by_sample = gradient.sets.move(lambda part: part.unsqueeze(-1)) if gradient.ndim else gradient.sets
    return by_sample.expand(shape).scaled(None)


@rule("_ctc_loss_backward")
def ctc_loss_backward(call: Call) -> Any:
    """Each sequence's elements depend on the gradient of its loss; nothing beyond its length."""
    gradient, shape = call.args[0], call.shapes[0]
    if call.seeded != [gradient]:
        return NotImplemented
    by_sequence = gradient.sets.move(lambda part: part.unsqueeze(-1)) if gradient.ndim else gradient.sets
    found = by_sequence.expand(shape).scaled(None)
    lengths = call.args[3].value if isinstance(call.args[3], Operand) else torch.tensor(call.args[3])
    if lengths is None or len(shape) != 3:
        return found
    return found.only((torch.arange(shape[0])[:, None] < lengths.cpu().reshape(1, -1))[:, :, None])


@rule("_pdist_backward")
def pdist_backward(call: Call) -> Any:
    """The same for the distances within one set of points, listed by pairs."""
    gradient, (count, width) = call.args[0], call.shapes[0]
    if call.seeded != [gradient]:
        return NotImplemented
    pairs = torch.triu_indices(count, count, offset=1)
    ends = [gradient.sets.accumulate(end, (count,)) for end in pairs]
    points = union((count,), ends).move(lambda part: part.reshape(count, 1))
    return points.expand((count, width)).scaled(None)


@rule("_embedding_bag_backward", "_embedding_bag_dense_backward")
def embedding_bag_backward(call: Call) -> Any:
    """A row depends on the gradients of the bags that it is in."""
    gradient, indices = call.args[:2]
    if call.seeded != [gradient]:
        return NotImplemented
    width = gradient.shape[1]
    bags = _bags(call, indices.numel, gradient.shape[0])
    if indices.value is None or bags is None:
        return gradient.sets.reduce([0], keepdim=True).scaled(None).expand(call.shapes[0])
    target = indices.value.cpu().reshape(-1, 1).long() * width + torch.arange(width)
    padding = call.named["padding_idx"]
    if padding >= 0:
        target = torch.where(indices.value.cpu().reshape(-1, 1) == padding, -1, target)
    return gradient.sets.move(lambda part: part[bags]).accumulate(target, call.shapes[0]).scaled(None)


@rule("_embedding_bag_per_sample_weights_backward")
def bag_weights_backward(call: Call) -> Any:
    """The weight of an index depends on the gradient of its bag."""
    gradient, indices = call.args[0], call.args[2]
    if call.seeded != [gradient]:
        return NotImplemented
    bags = _bags(call, indices.numel, gradient.shape[0])
    if bags is None:
        return NotImplemented
    found = gradient.sets.reduce([1], keepdim=False).move(lambda part: part[bags]).scaled(None)
    padding = call.named["padding_idx"]
    return found if padding < 0 or indices.value is None else found.only(indices.value.cpu() != padding)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
      "_scaled_dot_product_fused_attention_overrideable_backward")  # fmt: skip
def attention_backward(call: Call) -> Any:
    """Head by head; a query depends on its own gradient, keys and values on those of all queries that see them."""
    gradient = call.args[0]
    if call.seeded != [gradient] or gradient.ndim != 4:
        return NotImplemented
    by_query = gradient.sets.reduce([3], keepdim=True).scaled(None)
    seen = _seen(call, gradient)
    found: list[Sets | None] = []
    for shape, role in zip(call.shapes, ("query", "key", "value", "bias"), strict=False):
        if role == "query":
            found.append(by_query.expand(shape))
        elif role == "bias":
            found.append(_summed_to(by_query.expand((*gradient.shape[:3], shape[-1])), shape))
        else:
            source = by_query if role == "key" else gradient.sets.scaled(None)
            found.append(_from_queries(source, shape, seen))
    return found


def _seen(call: Call, gradient: Operand) -> Tensor | None:
    """Which keys each query is known to see at most, ``(batch or 1, heads or 1, queries, keys)``; None for all."""
    named = call.named
    queries, keys = gradient.shape[2], call.shapes[1][2]
    on_cpu = "for_cpu" in call.op._schema.name
    seen = None
    if named.get("is_causal") and (queries == keys or on_cpu):
        seen = torch.ones(1, 1, queries, keys, dtype=torch.bool).tril()
    mask = named.get("attn_mask", named.get("attn_bias"))
    if isinstance(mask, Operand) and mask.value is not None:
        value = mask.value.detach().cpu()
        allowed = value if value.dtype is torch.bool else value != -torch.inf
        allowed = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
        seen = allowed if seen is None else seen & allowed
    return seen


def _from_queries(source: Sets, shape: tuple[int, ...], seen: Tensor | None) -> Sets:
    """What keys and values depend on: the queries that see them."""
    queries, keys = source.shape[2], shape[2]
    if seen is None:
        by_key = source.reduce([2], keepdim=True)
    else:
        key, query = seen.expand(*seen.shape[:2], queries, keys).any(dim=1).any(dim=0).mT.nonzero().numpy().T
        by_key = source.relate(2, key, query, keys)
        by_key = by_key.only(seen.any(dim=2)[..., None].expand(*seen.shape[:2], keys, 1))
    if shape[1] != source.shape[1]:
        # Neighbouring heads of queries share one of keys.
        shared = by_key.move(lambda part: part.reshape(part.shape[0], shape[1], -1, *part.shape[2:]))
        by_key = shared.reduce([2], keepdim=False)
    return by_key.expand(shape)


def _summed_to(source: Sets, shape: tuple[int, ...]) -> Sets:
    """The sum over the dimensions along which a shape was broadcast."""
    lead = len(source.shape) - len(shape)
    result = source.reduce(range(lead), keepdim=False) if lead else source
    return result.reduce([dim for dim, size in enumerate(shape) if size == 1], keepdim=True)


@rule("_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell_backward")
def cell_backward(call: Call) -> Any:
    """Each hidden unit of each sample for itself; the gates lie side by side."""
    batch, hidden = next(operand.shape for operand in call.operands if operand.sets is not None)
    unit = union((batch, hidden), [operand.sets for operand in call.seeded if operand.sets is not None]).scaled(None)
    if any(operand.shape != (batch, hidden) for operand in call.seeded):
        return NotImplemented

    def gates(shape: tuple[int, ...]) -> Sets:
        if len(shape) == 1:
            return gates((batch, *shape)).reduce([0], keepdim=False)
        return unit.move(lambda part: part.repeat(1, shape[1] // hidden))

    return [gates(shape) for shape in call.shapes]


@rule("_cudnn_rnn_backward", "miopen_rnn_backward", "mkldnn_rnn_layer_backward")
def recurrent_backward(call: Call) -> Any:
    """Each sequence of the batch for itself; weights depend on all."""
    arguments = call.named
    dense = everything(call)
    gradients = [arguments.get(name) for name in ("grad_output", "grad_hy", "grad_cy")]
    if arguments.get("batch_sizes") or [each for each in call.seeded if each not in gradients]:
        return dense
    first = bool(arguments.get("batch_first")) and "mkldnn" not in call.op._schema.name
    outer = arguments["input"].shape
    parts = []
    for place, gradient in enumerate(gradients):
        if isinstance(gradient, Operand) and gradient.sets is not None:
            dim = 0 if first and not place else 1
            over = [each for each in range(gradient.ndim) if each != dim]
            parts.append(gradient.sets.reduce(over, keepdim=False).scaled(None))
    batch = union((outer[0 if first else 1],), parts)
    states = {
        arguments[name].shape for name in ("hx", "hx_", "cx", "cx_tmp") if isinstance(arguments.get(name), Operand)
    }
    for place, shape in enumerate(call.shapes):
        if place == 0 and shape == outer:
            dense[0] = batch.move(lambda part: part.reshape((-1, 1, 1) if first else (1, -1, 1))).expand(shape)
        elif len(shape) == 3 and shape in states:
            dense[place] = batch.move(lambda part: part.reshape(1, -1, 1)).expand(shape)
    return dense


def _bags(call: Call, count: int, bags: int) -> Tensor | None:
    """For each index the bag that it is in; None where that is not known."""
    named = call.named
    offsets: Operand | None = named.get("offsets")
    direct: Operand | None = named["offset2bag"]
    if offsets is not None and offsets.value is not None:
        starts = offsets.value.cpu().long()
        return (torch.searchsorted(starts, torch.arange(count), right=True) - 1).clamp(max=bags - 1)
    if direct is not None and direct.value is not None and direct.numel == count:
        return direct.value.cpu().long()
    return None


def _ones(call: Call, operand: Operand) -> Tensor:
    device = call.step.reads[0].device
    return torch.ones(operand.shape, dtype=operand.dtype, device=device)
