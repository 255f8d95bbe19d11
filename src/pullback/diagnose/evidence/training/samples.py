"""Samples that were drawn with ``sample()``, and what was done with them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import key_of
from pullback.diagnose.evidence.training.lost import is_cut
from pullback.diagnose.recorders.tape import Call, Tape

SAMPLES = frozenset({"sample", "sample_n"})
# What draws from a distribution that cannot be written as a function of its parameters and of noise.
DISCRETE = frozenset({"bernoulli", "multinomial", "poisson", "binomial", "geometric_", "bernoulli_"})
# What hands the numbers of a sample on.
SAME = frozenset({
    "detach", "detach_", "get data", "clone", "stack", "cat", "hstack", "vstack", "__getitem__", "view", "reshape",
    "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_tensors", "to", "float", "double", "long", "flatten",
    "index_select", "gather", "clamp", "clip", "tanh", "contiguous", "permute", "transpose", "unbind", "split",
    "chunk", "type", "item", "as_tensor", "tensor", "set data",
})  # fmt: skip


def is_sample(spot: Spot) -> bool:
    """Whether it is a call of ``sample()`` of a distribution as the user writes it."""
    node = spot.node
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAMPLES


def drawn(calls: Iterable[Call]) -> list[Call]:
    """The calls within ``sample()`` whose operand had a graph."""
    return [
        call for call in calls
        if call.spot is not None and is_sample(call.spot)
        and ((is_cut(call) and not call.grad)
             or (call.name in DISCRETE and any(value.requires_grad for value in call.inputs)))
    ]  # fmt: skip


def has_score(tape: Tape, sampled: Call) -> bool:
    """Whether a log-probability of a sample, or of its distribution, was computed: a score-function estimator."""
    assert sampled.spot is not None
    parameters = {value.number for value in sampled.inputs if value.requires_grad}
    same = {value.number for value in sampled.outputs}
    for call in tape.calls:
        if call.number < sampled.number:
            continue
        if call.spot is not None and key_of(call.spot) == key_of(sampled.spot):
            same |= {value.number for value in call.outputs}
            parameters |= {value.number for value in call.inputs if value.requires_grad}
            continue
        mine = {value.number for value in call.inputs}
        if not mine & (same | parameters):
            continue
        if _is_log_prob(call):
            return True
        if call.name in SAME and mine & same:
            same |= {value.number for value in call.outputs}
    return False


def _is_log_prob(call: Call) -> bool:
    node = call.spot.node if call.spot is not None else None
    if not isinstance(node, ast.Call):
        return False
    return isinstance(node.func, ast.Attribute) and node.func.attr == "log_prob"
