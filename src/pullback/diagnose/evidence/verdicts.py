"""Which of the reasons for a mismatch in gradcheck the numbers speak for."""

from __future__ import annotations

import ast
import re
from typing import Literal

import torch
from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.gradchecks import Comparison
from pullback.diagnose.evidence.transforms import Defined

Verdict = Literal["complex", "random", "precision", "kink", "second", "cut", "formula"]
RANDOM = re.compile(r"\b(rand\w*|bernoulli\w*|dropout\w*|multinomial|normal_?|poisson|uniform_|rrelu)\b|_like_?rand")
CUTTING = frozenset({"detach", "data", "item", "numpy", "no_grad", "tolist"})


def verdict(case: Case, comparison: Comparison) -> Verdict:
    """The reason that fits the evidence; "formula" where nothing else explains it."""
    if comparison.second:
        return "second"
    wrong = comparison.wrong
    if wrong and _conjugated(wrong):
        return "complex"
    if random_evidence(case, comparison) and _huge(comparison):
        return "random"
    if _huge(comparison) and not comparison.functions:
        return "random"
    if low_precision(comparison) and _noise(comparison):
        return "precision"
    if _kink(comparison):
        return "kink"
    if not comparison.functions and cuts(comparison.defined):
        return "cut"
    return "formula"


def _conjugated(wrong: list[tuple[int, int, complex, complex]]) -> bool:
    """Whether the two differ by signs of real or imaginary parts only."""
    if not any(one.imag or two.imag for _, _, one, two in wrong):
        return False
    return all(
        abs(abs(one.real) - abs(two.real)) + abs(abs(one.imag) - abs(two.imag)) < 1e-3 * (abs(one) + abs(two))
        for _, _, one, two in wrong
    )


def _huge(comparison: Comparison) -> bool:
    """Whether differences are of the size that a jump over a step of 1e-6 gives."""
    if comparison.analytical is None or comparison.numerical is None or not comparison.numerical.numel():
        return False
    with torch._C.DisableTorchFunction(), torch.no_grad():
        numerical = comparison.numerical.abs().nan_to_num(0.0, 0.0).max().item()
        analytical = comparison.analytical.abs().nan_to_num(0.0, 0.0).max().item()
    return bool(numerical > 1e4 * (analytical + 1))


def random_evidence(case: Case, comparison: Comparison) -> list[str]:
    """What draws random numbers: modules in train mode that the function names, and calls in its text."""
    found = [name for name, module in dropouts(case, comparison.defined, comparison.function)]
    where = comparison.defined
    if where is not None:
        found += [where.text(node) for node in random_calls(where)]
    return found


def random_calls(where: Defined) -> list[ast.Call]:
    """The calls in a function that draw random numbers."""
    calls = []
    for node in ast.walk(where.scope):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if RANDOM.fullmatch(name):
                calls.append(node)
    return calls


def dropouts(case: Case, where: Defined | None, function: object) -> list[tuple[str, nn.Module]]:
    """The user's modules that drop at random now, and that the function names, by name."""
    named = {node.id for node in ast.walk(where.scope) if isinstance(node, ast.Name)} if where is not None else set()
    found = []
    for name, module in case.holds(nn.Module):
        inner = [each for each in module.modules() if type(each).__name__.lower().find("drop") >= 0 and each.training]
        if inner and (module is function or name in named or not named):
            found.append((name, module))
    return found


def low_precision(comparison: Comparison) -> bool:
    """Whether an input, or the result, is less precise than float64."""
    low = {torch.float32, torch.float16, torch.bfloat16, torch.complex64}
    tensors: list[Tensor] = [each for each in comparison.inputs if each.requires_grad]
    numerical = comparison.numerical
    return any(each.dtype in low for each in tensors) or (numerical is not None and numerical.dtype in low)


def _noise(comparison: Comparison) -> bool:
    """Whether the difference is of the size of rounding in float32 over a step of 1e-6."""
    wrong = comparison.wrong
    if not wrong:
        return True
    scale = max(max(abs(one), abs(two)) for _, _, one, two in wrong)
    return all(abs(one - two) <= 0.3 * (scale + 1) for _, _, one, two in wrong)


def _kink(comparison: Comparison) -> bool:
    """Whether the entries that differ are at elements where differences see two slopes, or where there is none."""
    wrong, about = comparison.wrong, comparison.differing
    if not wrong or about is None:
        return False
    if any(one != one or two != two or abs(one) == float("inf") for _, _, one, two in wrong):
        return not comparison.functions
    with torch._C.DisableTorchFunction(), torch.no_grad():
        values = about.detach().reshape(-1).tolist()
    if any(row >= len(values) for row, _, _, _ in wrong):
        return False
    special = all(values[row] == round(values[row], 0) for row, _, _, _ in wrong if isinstance(values[row], float))
    tied = len({values[row] for row, _, _, _ in wrong}) < len({row for row, _, _, _ in wrong})
    half = all(abs((one - two).real * 2 - round((one - two).real * 2)) < 1e-3 for _, _, one, two in wrong)
    if comparison.functions:  # a wrong formula would hardly be half a slope off, and only at zero
        return half and special and all(abs(abs(one - two) - 0.5) < 1e-3 for _, _, one, two in wrong)
    return special or tied


def cuts(where: Defined | None) -> list[ast.expr]:
    """The expressions of a function that cut the graph."""
    found: list[ast.expr] = []
    for node in ast.walk(where.scope) if where is not None else ():
        if isinstance(node, ast.Attribute) and node.attr in CUTTING:
            found.append(node)
    return found
