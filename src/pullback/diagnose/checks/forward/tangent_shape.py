"""PB832: a tangent does not have the shape of its primal."""

from __future__ import annotations

import ast
import re
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import shape_of, transforms_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say

MAKERS = frozenset({"ones", "zeros", "randn", "rand"})


class TangentShape(Cause):
    """A tangent does not have the shape of the tensor that it belongs to.

    A tangent is a direction: one number for each element of the primal. It is not broadcast. ``torch.ones_like(x)``
    always fits, and so does ``torch.randn_like(x)`` for a random direction. A direction along one coordinate is a
    tensor of zeros with a one in it. A scalar direction of a vector is written ``v.expand_as(x)``.

    The tangents of the *results* are what ``jvp`` returns; they have the shapes of the results.
    """

    code = "PB832"
    title = "A tangent does not have the shape of its primal."
    says = ("forward gradient that has a different size", "of the corresponding primal")

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        primal, tangent, number = _pair(case)
        sizes = re.findall(r"of size (\[[\d, ]*\])", case.message) or re.findall(
            r"torch\.Size\((\[[\d, ]*\])\)", case.message
        )
        if primal is None and len(sizes) < 2:
            return None
        wanted = shape_of(primal) if primal is not None else None
        given = shape_of(tangent) if tangent is not None else None
        edits, confidence = _edits(case.site, number, wanted)
        return self.found(
            say("The primal has shape {primal}, its tangent {tangent}.",
                primal=wanted if wanted is not None else sizes[0], tangent=given if given is not None else sizes[-1]),
            [case.mark(say("the tangent is given here"))],
            Fix(
                say("Give the tangent the shape of the primal: torch.ones_like(x), or your direction."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                confidence,
            ),
            tensors=[
                case.subject(each, role)
                for each, role in ((primal, "primal"), (tangent, "tangent"))
                if each is not None
            ],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        place = torch.zeros(2, 3)
        torch.func.jvp(torch.sin, (place,), (torch.ones(3),))

    @staticmethod
    def good():
        import torch

        place = torch.zeros(2, 3)
        torch.func.jvp(torch.sin, (place,), (torch.ones(2, 3),))


def _pair(case: Case) -> tuple[Tensor | None, Tensor | None, int]:
    """The primal and tangent that do not fit, and their number among the arguments."""
    for transform in reversed(transforms_in(case)):
        first, second = transform.local.get("primals"), transform.local.get("tangents")
        if isinstance(first, tuple) and isinstance(second, tuple):
            for number, pair in enumerate(zip(first, second, strict=False)):
                if all(isinstance(each, Tensor) for each in pair) and shape_of(pair[0]) != shape_of(pair[1]):
                    return (*pair, number)
    local: dict[str, Any] = case.library_frame("autograd/forward_ad.py", "make_dual") or {}
    primal, tangent = local.get("tensor"), local.get("tangent")
    if isinstance(primal, Tensor) and isinstance(tangent, Tensor):
        return primal, tangent, 0
    return None, None, 0


def _edits(site: Frame, number: int, shape: tuple[int, ...] | None) -> tuple[tuple[Edit, ...], Confidence]:
    """The edit that gives a tangent made on the spot the right shape."""
    call = site.node
    if not isinstance(call, ast.Call) or shape is None or not call.args:
        return (), "medium"
    given = next((each.value for each in call.keywords if each.arg in {"tangents", "tangent"}), call.args[-1])
    if isinstance(given, ast.Tuple | ast.List) and number < len(given.elts):
        given = given.elts[number]
    made = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in MAKERS
    if (
        not made
        or not isinstance(given, ast.Call)
        or not all(isinstance(each, ast.Constant | ast.Tuple) for each in given.args)
    ):
        return (), "medium"
    kept = [f"{each.arg}={site.source.text(each.value)}" for each in given.keywords]
    text = f"{site.source.text(given.func)}({', '.join([*map(str, shape), *kept] if shape else ['()', *kept])})"
    return (site.source.replaced(given, text),), "high"
