"""PBA311: attention weights that are normalised over the queries."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.numbers.find import inside_functorch, origin
from pullback.diagnose.evidence.transforms import keyword_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.language import say

PRODUCTS = frozenset({"matmul", "__matmul__", "bmm"})
# What leaves the weights of a row where they are.
BETWEEN = frozenset({"dropout", "to", "type_as", "float", "half", "bfloat16", "contiguous", "clone"})
MOST = 1000


class AttentionSoftmax(Fault):
    """The weights of an attention were normalised over the queries, and then summed over the keys.

    ``weights @ values`` sums over the last dimension of the weights, the keys. With ``softmax(scores, dim=-2)``, or
    ``dim=1`` of (batch, queries, keys), it is the queries that share a total of one: the weights of one query add up to
    any number, and what one query sees depends on the other queries (in a causal model also on later ones).

    The softmax belongs over the dimension that the product sums over: ``scores.softmax(dim=-1)``.
    """

    code = "PBA311"
    title = "Attention weights were normalised over the queries, not over the keys that they weigh."
    hears = PRODUCTS | {"softmax"}

    def __init__(self) -> None:
        self._over_queries: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, Tensor) or given.dim() < 3 or inside_functorch():
            return
        if call.name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and dim % given.dim() == given.dim() - 2 and min(given.shape[-2:]) > 1:
                self._over_queries[call.number] = tuple(given.shape)
                if len(self._over_queries) > MOST:
                    self._over_queries.popitem(last=False)
            return
        value = audit.tape.value_of(given)
        maker = origin(value, BETWEEN) if value is not None else None
        shape = self._over_queries.get(maker.number) if maker is not None else None
        if maker is None or shape != tuple(given.shape) or call.spot is None or maker.spot is None:
            return
        edits = _over_keys(maker.spot)
        audit.report(
            self.found(
                say(
                    "The softmax of scores of shape {shape} makes its dimension {dim} sum to one; this product sums "
                    "over dimension {last}, whose weights add up to any number.",
                    shape=shape, dim=len(shape) - 2, last=len(shape) - 1,
                ),
                [maker.spot.mark(say("normalised over the queries here")),
                 call.spot.mark(say("summed over the keys here"))],
                Fix(
                    say("Normalise over the last dimension."),
                    maker.spot.source.code(*edits).strip() if edits else "scores.softmax(dim=-1)",
                    edits,
                    "medium",
                ),
                tensors=[audit.subject(given, "weights", "the weights")],
                confidence="medium",
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        query, key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        x = torch.randn(4, 6, 8)
        weights = torch.softmax(query(x) @ key(x).transpose(1, 2) / 8**0.5, dim=1)
        (weights @ x).square().mean().backward()

    @staticmethod
    def good():
        import torch

        query, key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        x = torch.randn(4, 6, 8)
        weights = torch.softmax(query(x) @ key(x).transpose(1, 2) / 8**0.5, dim=-1)
        (weights @ x).square().mean().backward()
        slots = torch.softmax(query(x[:, :3]) @ key(x).transpose(1, 2), dim=1)
        slots = slots / slots.sum(dim=-1, keepdim=True)
        (slots @ x).square().mean().backward()


def _over_keys(spot: Spot) -> tuple[Edit, ...]:
    """The edit of ``softmax(scores, 1)``, ``softmax(scores, dim=1)`` or ``scores.softmax(1)``."""
    call = spot.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "softmax":
        return ()
    dim = keyword_of(call, "dim", min(len(call.args) - 1, 1)) if call.args else keyword_of(call, "dim")
    return (spot.source.replaced(dim, "-1"),) if dim is not None else ()
