"""PB806: the cotangents of a vjp do not mirror the outputs."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, shape_of, tensors_of, transform_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say


class CotangentStructure(Cause):
    """The function that ``torch.func.vjp`` returns wants one cotangent for each output, nested as the outputs are.

    ``out, vjp_fn = torch.func.vjp(f, x)``: if ``f`` returns a pair of tensors, ``vjp_fn`` takes one argument, a pair of
    tensors of the same shapes; if it returns one tensor, ``vjp_fn`` takes that tensor and no tuple around it; a dict of
    outputs needs a dict with the same keys.

    ``vjp_fn((a, b))`` is right for a pair, ``vjp_fn(a, b)`` is not: its second argument is ``retain_graph``. Where only
    some outputs count, pass ``torch.zeros_like(...)`` for the others.
    """

    code = "PB806"
    title = "The cotangents given to a vjp are not nested as the outputs of its function."
    says = ("pytree structure of cotangents to be the same",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transform = transform_in(case, *FUNC)
        if transform is None or case.site is None:
            return None
        outputs = tensors_of(list(transform.local.get("flat_primals_out") or ()))
        shapes = ", ".join(str(shape_of(each)) for each in outputs)
        text, edits, confidence = _mended(case, len(outputs))
        given, wanted = _structures(case.message)
        return self.found(
            say(
                "The function returns {wanted} ({count} tensors of shapes {shapes}), but the cotangent is {given}.",
                wanted=wanted, count=len(outputs), shapes=shapes, given=given,
            ),
            [case.mark(say("the cotangents are given here"))],
            Fix(text, "\n".join(each.text.strip() for each in edits if each.text), edits, confidence),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def polar(z):
            return z.norm(), z / z.norm()

        _, pull = torch.func.vjp(polar, torch.ones(2))
        pull(torch.tensor(1.0), torch.zeros(2))

    @staticmethod
    def good():
        import torch

        def polar(z):
            return z.norm(), z / z.norm()

        _, pull = torch.func.vjp(polar, torch.ones(2))
        pull((torch.tensor(1.0), torch.zeros(2)))


def _structures(message: str) -> tuple[str, str]:
    """The two structures in torch's text: ``*`` is a tensor."""
    found = re.search(r"cotangents: (.*), primal output: (.*)$", message, re.DOTALL)
    names = {"*": say("one tensor"), "(*,)": say("a tuple with one tensor")}
    if found is None:
        return "?", "?"
    given, wanted = found.group(1).strip(), found.group(2).strip()
    return names.get(given, given), names.get(wanted, wanted)


def _mended(case: Case, count: int) -> tuple[str, tuple[Edit, ...], Confidence]:
    call, source = case.call, case.site.source if case.site is not None else None
    if call is None or source is None or not call.args:
        return say("Pass cotangents nested as the outputs are."), (), "medium"
    texts = [source.text(each) for each in call.args]
    first, function = call.args[0], source.text(call.func)
    if len(call.args) == count > 1:
        edit = source.replaced(call, f"{function}(({', '.join(texts)}))")
        return say("Pass the cotangents as one tuple."), (edit,), "high"
    if count == 1 and isinstance(first, ast.Tuple) and len(first.elts) == 1:
        return (
            say("Pass the cotangent without the tuple."),
            (source.replaced(first, source.text(first.elts[0])),),
            "high",
        )
    if isinstance(first, ast.List) and count > 1 and len(first.elts) == count:
        inner = ", ".join(source.text(each) for each in first.elts)
        return say("Pass the cotangents as a tuple."), (source.replaced(first, f"({inner})"),), "high"
    if len(call.args) == 1 and count > 1 and not isinstance(first, ast.Tuple | ast.List | ast.Dict):
        edit = source.replaced(first, f"({', '.join(texts * count)})")
        return say("Pass one cotangent for each output, as a tuple."), (edit,), "medium"
    return say("Pass cotangents nested as the outputs are."), (), "medium"
