"""PB809: primals and tangents of a jvp are not tuples of the same structure."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, transform_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class JvpTuples(Cause):
    """``torch.func.jvp(f, primals, tangents)`` wants two tuples: the arguments of ``f``, and a tangent for each.

    ``f`` is called as ``f(*primals)``, so that even one argument stands in a tuple: ``jvp(f, (x,), (v,))``. The
    tangents have the structure of the primals: a tuple of two for two arguments, a dict where an argument is a dict.

    A list is no tuple. An argument that is not differentiated gets ``torch.zeros_like`` as its tangent, or is closed
    over: ``jvp(lambda x: f(x, data), (x,), (v,))``. Python numbers are no tangents: ``torch.tensor(1.0)``.
    ``torch.autograd.functional.jvp`` is different: it takes a bare tensor too.
    """

    code = "PB809"
    title = "The primals and tangents of torch.func.jvp are not two tuples of the same structure."
    says = (
        "Expected primals to be a tuple",
        "Expected primals and tangents to have the same python structure",
        "Expected tangents to only contain Tensors",
        "Expected primals to contain at least one Tensor",
        "to have the same argspec as the primals",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        transform = transform_in(case, *FUNC)
        if transform is None or case.site is None:
            return None
        primals, tangents = transform.local.get("primals"), transform.local.get("tangents")
        edits = (*_wrapped(case, "primals", 1, primals), *_wrapped(case, "tangents", 2, tangents))
        lines = {(each.first, each.last) for each in edits}
        if len(edits) == 2 and len(lines) == 1:  # both on one line: one edit of the call
            edits = _both(case, primals, tangents)
        return self.found(
            say(
                "primals is {primals} and tangents is {tangents}; both have to be tuples, with one tangent for each "
                "argument of the function.",
                primals=_kind(primals), tangents=_kind(tangents),
            ),
            [case.mark(say("called here"))],
            Fix(
                say("Put each argument and each tangent into a tuple: jvp(f, (x,), (v,))."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        speed = torch.ones(2)
        where = torch.zeros(2)
        torch.func.jvp(torch.cos, where, speed)

    @staticmethod
    def good():
        import torch

        speed = torch.ones(2)
        where = torch.zeros(2)
        torch.func.jvp(torch.cos, (where,), (speed,))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return say("a tensor")
    if isinstance(value, tuple | list):
        return say("a {kind} with {count} entries", kind=type(value).__name__, count=len(value))
    return type(value).__name__


def _text(case: Case, name: str, position: int, value: Any) -> tuple[ast.expr, str] | None:
    """The argument as it is written, and as a tuple; None if it is one."""
    given = case.argument(name, position)
    if given is None or case.site is None:
        return None
    text = case.site.source.text(given)
    if isinstance(value, Tensor):
        return given, f"({text},)"
    if isinstance(value, list):
        inner = ", ".join(case.site.source.text(each) for each in given.elts) if isinstance(given, ast.List) else ""
        comma = "," if isinstance(given, ast.List) and len(given.elts) == 1 else ""
        return given, f"({inner}{comma})" if inner else f"tuple({text})"
    return None


def _wrapped(case: Case, name: str, position: int, value: Any) -> tuple[Edit, ...]:
    pair = _text(case, name, position, value)
    return (case.site.source.replaced(*pair),) if pair is not None and case.site is not None else ()


def _both(case: Case, primals: Any, tangents: Any) -> tuple[Edit, ...]:
    first, second = _text(case, "primals", 1, primals), _text(case, "tangents", 2, tangents)
    if first is None or second is None or case.call is None or case.site is None:
        return ()
    function = case.argument("func", 0)
    if function is None or len(case.call.args) + len(case.call.keywords) != 3:
        return ()
    called = f"{case.text(case.call.func)}({case.text(function)}, {first[1]}, {second[1]})"
    return (case.site.source.replaced(case.call, called),)
