"""PB816: out_dims of vmap do not fit the results."""

from __future__ import annotations

from typing import Any

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, only_call, set_keyword, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class OutDims(Cause):
    """``out_dims`` of ``vmap`` says where the batch stands in each result, and it does not fit the results.

    ``out_dims`` is one number for all results, or it has the structure of the results: for a pair, a tuple of two. The
    number may go from 0 to the number of dimensions of *one sample's* result: a scalar result becomes a vector, whose
    only dimension is 0.

    ``None`` is for a result that does not depend on the batch at all; a result that does must have a number.
    Leave ``out_dims`` out, and move the dimension afterwards with ``movedim``, if in doubt.
    """

    code = "PB816"
    title = "out_dims of vmap does not fit the results of the function."
    says = ("out_dims is not compatible with the structure", "can not return a BatchedTensor when out_dim is None",
            "Dimension out of range")  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in transforms_in(case, *FUNC) if each.name == "vmap"]
        inner = case.library_frame("_functorch/vmap.py", "_unwrap_batched")
        if not found or case.site is None or inner is None or found[-1].caller is not case.site:
            return None
        dims: Any = found[-1].local.get("out_dims")
        edits: tuple[Edit, ...] = ()
        made = only_call(case.site, ("vmap",))
        if made is not None:
            same = isinstance(dims, tuple) and len(set(map(repr, dims))) == 1 and isinstance(dims[0], int)
            edits = set_keyword(
                case.site, made, "out_dims", str(dims[0]) if same and "range" not in case.message else "0", 2
            )
        marks = [case.mark(say("vmap is applied here"))]
        if found[-1].defined is not None:
            marks += found[-1].defined.marks(say("this is returned"))
        return self.found(
            say("out_dims is {dims}, which does not fit what the function returns.", dims=dims),
            marks,
            Fix(
                say("Give one number for all results, or the structure of the results with a number in each place."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        def total(row):
            return row.sum()

        torch.vmap(total, out_dims=1)(torch.ones(4, 3))

    @staticmethod
    def good():
        import torch

        def total(row):
            return row.sum()

        torch.vmap(total)(torch.ones(4, 3))
