"""PB807: a cotangent of a vjp has not the shape or dtype of its output."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import FUNC, shape_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say
from pullback.words import dtype_name

MAKERS = frozenset({"ones", "zeros", "randn", "rand"})


class CotangentShape(Cause):
    """A cotangent given to the function that ``torch.func.vjp`` returns has not the shape of its output.

    A cotangent holds one weight for each element of the output; it is not broadcast. ``torch.ones_like(out)`` always
    fits. A Python number is no cotangent: for a scalar output it is ``torch.tensor(1.0)``.

    The shape that is needed is that of the *output*, not that of the input. Real cotangents are converted to the
    output's dtype silently, a complex one for a real output is refused: take its real part.
    For several outputs torch's own text may be of "tensor a" and "tensor b" and name the wrong one of them.
    """

    code = "PB807"
    title = "A cotangent given to a vjp does not have the shape or dtype of its output."
    says = (
        "Mismatch in shape: grad_output",
        "The size of tensor a",
        "both grad_output and output are required",
        "gradients can be either Tensors or None, but got",
        "Boolean value of Tensor with more than one value",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in transforms_in(case, *FUNC) if each.name == "vjp_fn"]
        if not found or case.site is None or found[-1].caller is not case.site:
            return None
        outputs = list(found[-1].local.get("flat_primals_out") or ())
        seeds = list(found[-1].local.get("flat_cotangents") or ())
        wrong = next((at for at, pair in enumerate(zip(outputs, seeds, strict=False)) if not _fits(*pair)), None)
        if wrong is None:
            return None
        output, seed = outputs[wrong], seeds[wrong]
        edits = _like(case.site, shape_of(output)) if len(seeds) == 1 else ()
        return self.found(
            say(
                "Output {number} has shape {shape} and dtype {dtype}, its cotangent is {seed}.",
                number=wrong, shape=shape_of(output), dtype=dtype_name(output.dtype), seed=_told(seed),
            ),
            [case.mark(say("the cotangent is given here"))],
            Fix(
                say("Pass a cotangent with the shape of the output: torch.ones_like(out), or your weights."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        matrix = torch.ones(4, 2)
        _, pull = torch.func.vjp(lambda v: matrix @ v, torch.ones(2))
        pull(torch.ones(2))

    @staticmethod
    def good():
        import torch

        matrix = torch.ones(4, 2)
        _, pull = torch.func.vjp(lambda v: matrix @ v, torch.ones(2))
        pull(torch.tensor([1.0, 0.0, 2.0, -1.0]))


def _fits(output: Tensor, seed: Any) -> bool:
    if not isinstance(seed, Tensor):
        return False
    return shape_of(output) == shape_of(seed) and output.dtype.is_complex == seed.dtype.is_complex


def _told(seed: Any) -> str:
    if isinstance(seed, Tensor):
        return f"{shape_of(seed)} {dtype_name(seed.dtype)}"
    return f"{type(seed).__name__} {seed!r}" if isinstance(seed, int | float | complex) else type(seed).__name__


def _like(site: Frame, shape: tuple[int, ...] | None) -> tuple[Edit, ...]:
    """The edit that gives a cotangent made on the spot the right shape: ``torch.ones(2)``, or a number."""
    node = site.node
    if not isinstance(node, ast.Call) or len(node.args) != 1 or shape is None:
        return ()
    given = node.args[0]
    if isinstance(given, ast.Constant) and shape == ():
        return (
            (site.source.replaced(given, f"torch.tensor({site.source.text(given)})"),) if "torch" in site.module else ()
        )
    plain = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in MAKERS
    if plain and isinstance(given, ast.Call) and all(isinstance(each, ast.Constant | ast.Tuple) for each in given.args):
        kept = [f"{each.arg}={site.source.text(each.value)}" for each in given.keywords if each.arg != "size"]
        inner = ", ".join([*(map(str, shape) or ()), *kept]) if shape else ", ".join(["()", *kept])
        return (site.source.replaced(given, f"{site.source.text(given.func)}({inner})"),)
    return ()
