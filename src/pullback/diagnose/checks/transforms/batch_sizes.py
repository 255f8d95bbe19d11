"""PB815: the arguments of vmap have batches of different sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, only_call, set_keyword, shape_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class BatchSizes(Cause):
    """``vmap`` maps over one dimension of each argument, and these dimensions are not equally long.

    With ``in_dims=0``, the default, the first dimension of *every* tensor argument is the batch. Weights, a matrix or a
    mask that all samples share have no batch: their entry in ``in_dims`` is ``None``.

    ``vmap(f, in_dims=(None, 0))(weight, batch)`` maps over the batch alone. If both are batches, one is of the wrong
    length, or its samples are in another dimension: ``in_dims=(0, 1)``. All pairs of two batches are two nested
    ``vmap``: ``vmap(vmap(f, (None, 0)), (0, None))(a, b)``. Expanding the shared tensor by hand works, and only costs.
    """

    code = "PB815"
    title = "The arguments of vmap have mapped dimensions of different sizes."
    says = ("to have the same size in the mapped dimension",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in transforms_in(case, *FUNC) if each.function == "vmap_impl"]
        if not found or case.site is None:
            return None
        args, dims = tuple(found[-1].local.get("args") or ()), found[-1].local.get("in_dims")
        names = found[-1].defined.parameters if found[-1].defined is not None else []
        named = [names[at] if at < len(names) else f"args[{at}]" for at in range(len(args))]
        told = ", ".join(
            f"{name}: {shape_of(each)}" for name, each in zip(named, args, strict=True) if isinstance(each, Tensor)
        )
        wanted = _wanted(args, dims)
        edits: tuple[Edit, ...] = ()
        made = only_call(case.site, ("vmap",))
        if made is not None and wanted is not None:
            edits = set_keyword(case.site, made, "in_dims", wanted, 1)
        return self.found(
            say(
                "With in_dims={dims} the samples are in these dimensions: {told}. They differ in length.",
                dims=dims, told=told,
            ),
            [case.mark(say("vmap is applied here"))],
            Fix(
                say("Give None in in_dims for each argument that all samples share."),
                f"torch.vmap(f, in_dims={wanted or '(None, 0)'})",
                edits,
                "medium",
            ),
            tensors=[case.subject(each, "argument", name) for name, each in zip(named, args, strict=True)
                     if isinstance(each, Tensor)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def through(weight, row):
            return weight @ row

        torch.vmap(through)(torch.ones(2, 3), torch.ones(5, 3))

    @staticmethod
    def good():
        import torch

        def through(weight, row):
            return weight @ row

        torch.vmap(through, in_dims=(None, 0))(torch.ones(2, 3), torch.ones(5, 3))


def _wanted(args: tuple[Any, ...], dims: Any) -> str | None:
    """The in_dims without the parameters, if those are what makes the difference."""
    tensors = all(isinstance(each, Tensor) for each in args)
    if dims != 0 or not tensors:
        return None
    shared = [isinstance(each, nn.Parameter) or (each.requires_grad and each.is_leaf) for each in args]
    sizes = {(shape_of(each) or (0,))[0] for each, alone in zip(args, shared, strict=True) if not alone}
    if len(sizes) != 1 or not any(shared):
        return None
    return f"({', '.join('None' if alone else '0' for alone in shared)})"
