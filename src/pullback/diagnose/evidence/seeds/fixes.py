"""The seed that was meant, as it should be written."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.definitions import Scene, called, followed, operand
from pullback.diagnose.evidence.seeds.roots import Pair, is_simple
from pullback.diagnose.values import Confidence, Edit

ONES = ("ones", "ones_like", "full", "full_like", "new_ones")


def made_by(case: Case, node: ast.expr | None) -> str:
    """The name of what made a seed: ``ones`` of ``torch.ones(3)``, through the names that it has."""
    if isinstance(node, ast.Call):
        return called(node)
    if node is None or case.site is None:
        return ""
    found = followed(case, Scene.of(case.site, len(case.frames) - 1), node)
    return called(found[-1].value) if found else ""


def matching(case: Case, pair: Pair) -> tuple[str, Confidence]:
    """A seed of the root's shape and device, written with what was given: the same values where that is possible."""
    root, seed = pair.root, pair.seed
    name, text = case.text(pair.written), operand(case, pair.seed_written)
    simple = is_simple(pair.written)
    assert isinstance(root, Tensor)
    if made_by(case, pair.seed_written) in ("ones", "ones_like", "new_ones") and simple:
        return f"torch.ones_like({name})", "high"
    if not isinstance(seed, Tensor) or not text:
        return f"torch.ones_like({name})" if simple else "", "low"
    size = f"{name}.shape" if simple else str(tuple(root.shape))
    if seed.numel() == root.numel():
        return f"{text}.reshape({size})", "high"
    if seed.numel() == 1:
        return f"{text}.reshape(()).expand({size})", "medium"
    try:
        seed.expand(root.shape)
    except RuntimeError:
        return (f"torch.ones_like({name})" if simple else ""), "low"
    return f"{text}.expand({size})", "medium"


def edits_of(case: Case, pair: Pair, text: str) -> tuple[Edit, ...]:
    """The edit that puts a text where a seed is written."""
    if case.site is None or pair.seed_written is None or not text:
        return ()
    return (case.site.source.replaced(pair.seed_written, text),)
