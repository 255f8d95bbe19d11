"""PBA517: a tangent that is lost on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

ESCAPES = frozenset({"tolist", "item", "numpy", "__float__", "__array__"})


class LostTangent(Fault):
    """In forward mode a copy of the numbers has no tangent, and ``unpack_dual`` gives None for it without a word.

    A dual tensor carries its tangent through torch's operations. ``tolist()``, ``item()``, ``numpy()`` hand out numbers
    only; what is computed from them counts as constant.

    Stay with torch's operations between ``make_dual`` and ``unpack_dual``.
    """

    code = "PBA517"
    title = "A dual tensor lost its tangent: numbers were taken out of it on the way."
    hears = ESCAPES | {"_unpack_dual"}

    def __init__(self) -> None:
        self._escaped: list[tuple[str, Spot]] = []

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        level = torch.autograd.forward_ad._current_level
        if level < 0 or call.spot is None or not args or not isinstance(args[0], Tensor):
            if level < 0:
                self._escaped.clear()
            return
        if call.name in ESCAPES:
            if torch._VF._unpack_dual(args[0], level=level)[1] is not None:
                self._escaped.append((call.name, call.spot))
            return
        if not self._escaped or result[1] is not None:
            return
        name, spot = self._escaped[-1]
        audit.report(
            self.found(
                say(
                    "The tensor has no tangent: {operation} took plain numbers out of a dual tensor before, and what "
                    "is computed from them is a constant.",
                    operation=name,
                ),
                [spot.mark(say("the tangent is lost here")), call.spot.mark(say("unpacked here"))],
                Fix(say("Stay with torch's operations between make_dual and unpack_dual.")),
            )
        )

    @staticmethod
    def bad():
        import torch
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            x = forward.make_dual(torch.tensor(0.5), torch.tensor(1.0))
            y = torch.full((2,), x.item()).exp()
            tangent = forward.unpack_dual(y).tangent

    @staticmethod
    def good():
        import torch
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            x = forward.make_dual(torch.tensor(0.5), torch.tensor(1.0))
            y = x.expand(2).exp()
            print(x.item())
            tangent = forward.unpack_dual(y).tangent
