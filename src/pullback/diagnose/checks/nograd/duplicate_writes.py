"""PBA347: several values written to one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

MOST = 1 << 22


class DuplicateWrites(Fault):
    """Of several values that are written to one place only one stays, but the backward gives all of them a gradient.

    ``out[index] = values`` and ``scatter`` do not add up. With an index that occurs twice it is not defined which
    value stays; the backward, which cannot know, gathers the gradient for each of them, also for those that are not
    in the result.

    To add them up: ``out.index_add(0, index, values)``, ``index_put(..., accumulate=True)``, ``scatter_add``,
    ``scatter_reduce``. To keep one: make the index unique.
    """

    code = "PBA347"
    title = "Values were written to an index that occurs twice: those that were overwritten get a gradient too."
    hears = frozenset({"__setitem__", "index_put", "index_put_", "index_copy", "index_copy_", "scatter", "scatter_"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or inside_functorch():
            return
        index, values = self._given(call.name, args, kwargs)
        if index is None or not isinstance(values, Tensor) or not values.requires_grad or not call.grad:
            return
        twice = _duplicates(call.name, args, index)
        if not twice:
            return
        name = audit.name_of(values, "the values")
        audit.report(
            self.found(
                say(
                    "The index has {count} entries of which {twice} name a place that occurred before. Only one value "
                    "stays at each place, which one is not defined; the backward gives a gradient to all of {name}.",
                    count=index.shape[-1], twice=twice, name=name,
                ),
                [call.spot.mark(say("written here"))],
                Fix(
                    say("Add up what goes to one place, or make the index unique."),
                    f"out = out.index_put((index,), {name}, accumulate=True)",
                ),
                tensors=[audit.subject(values, "values")],
            )
        )  # fmt: skip

    @staticmethod
    def _given(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, Any]:
        """The places as rows of coordinates in columns, and the values."""
        if name == "__setitem__" and len(args) == 3:
            return _rows(args[1]), args[2]
        if name.startswith("index_put"):
            accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
            places = args[1] if len(args) > 1 else kwargs.get("indices")
            return (None, None) if accumulate else (_rows(places), args[2] if len(args) > 2 else kwargs.get("values"))
        index = args[2] if len(args) > 2 else kwargs.get("index")
        values = args[3] if len(args) > 3 else kwargs.get("src", kwargs.get("source"))
        if kwargs.get("reduce") is not None or not isinstance(index, Tensor):
            return None, None
        return index, values

    @staticmethod
    def bad():
        import torch

        message = torch.randn(4, 2, requires_grad=True)
        node = torch.tensor([0, 2, 2, 1])
        state = torch.zeros(3, 2)
        state[node] = message
        state.pow(2).sum().backward()

    @staticmethod
    def good():
        import torch

        message = torch.randn(4, 2, requires_grad=True)
        node = torch.tensor([0, 2, 2, 1])
        state = torch.zeros(3, 2).index_add(0, node, message)
        state[torch.tensor([0, 1])] = message[:2]
        state.pow(2).sum().backward()


def _rows(key: Any) -> Tensor | None:
    parts = list(key) if isinstance(key, tuple | list) else [key]
    tensors = [each for each in parts if isinstance(each, Tensor)]
    if not tensors or any(each.dtype is torch.bool or each.is_floating_point() for each in tensors):
        return None
    if sum(each.numel() for each in tensors) > MOST:
        return None
    return torch.stack([each.reshape(-1) for each in torch.broadcast_tensors(*tensors)])


def _duplicates(name: str, args: tuple[Any, ...], index: Tensor) -> int:
    """How many entries of an index name a place that another one named before."""
    if index.numel() > MOST or not index.numel():
        return 0
    if not name.startswith("scatter"):
        rows = index if index.dim() == 2 else index.reshape(1, -1)
        return int(rows.shape[1] - torch.unique(rows, dim=1).shape[1])
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
    lines = index.movedim(dim, -1).reshape(-1, index.shape[dim]).sort(-1).values
    return int((lines[:, 1:] == lines[:, :-1]).sum().item())
