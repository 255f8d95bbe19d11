"""PB109: a seed that is no tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.seeds.roots import Pair, called_root, is_simple, pairs, seeds_written
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class SeedNotTensor(Cause):
    """A seed is a tensor: a number, a list or a NumPy array is not taken.

    Torch goes through what it is given as seeds, so a number "is not iterable", and of a list or an array it looks at
    the first element.

    Write ``loss.backward()`` for the seed 1.0, ``(2 * loss).backward()`` for a factor, and
    ``y.backward(torch.as_tensor(weights).to(y))`` for an array.
    """

    code = "PB109"
    title = "backward() was given a seed that is no tensor."
    says = ("gradients can be either tensors or none, but got", "object is not iterable")
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        wrong = self._wrong(case)
        if wrong is None or case.site is None:
            return None
        pair, seed = wrong
        name, kind = called_root(case, pair), type(seed).__name__
        text = self._text(case, pair, seed)
        edits: tuple[Edit, ...] = ()
        if text and pair.seed_written is not None:
            edits = (case.site.source.replaced(pair.seed_written, text),)
        marks: list[Mark] = [case.mark(say("the seed is of type {kind}", kind=kind))]
        marks += made(case, None, pair.seed_written, say("the seed was made here"))
        return self.found(
            say("The seed of {name} is of type {kind}; torch takes tensors only.", name=name, kind=kind),
            marks,
            Fix(
                say("Make it a tensor of the dtype and device of {name}.", name=name),
                text or "loss.backward()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(pair.root, "root", name)],
        )

    @staticmethod
    def _wrong(case: Case) -> tuple[Pair, Any] | None:
        asked = case.asked
        if asked is None or not all(isinstance(root, Tensor) for root in asked.roots):
            return None
        if asked.verb == "grad" and case.says("object is not iterable") and not asked.seeds:
            return None
        node = seeds_written(case)
        for pair in pairs(case):
            seed = pair.seed
            if seed is None or isinstance(seed, Tensor | bool):
                continue
            alone = len(asked.roots) == 1
            return Pair(pair.number, pair.root, seed, pair.written, node if alone else pair.seed_written), seed
        return None

    @staticmethod
    def _text(case: Case, pair: Pair, seed: Any) -> str:
        written = case.text(pair.seed_written)
        root = case.text(pair.written)
        if not written or not isinstance(pair.root, Tensor):
            return ""
        try:
            shape = torch.as_tensor(seed).shape
        except (TypeError, ValueError, RuntimeError):
            return ""
        dtype = str(pair.root.dtype)
        tensor = f"torch.as_tensor({written}).to({root})" if is_simple(pair.written) else ""
        tensor = tensor or f"torch.as_tensor({written}, dtype={dtype})"
        if shape == pair.root.shape:
            return tensor
        if shape.numel() == pair.root.numel():
            return f"{tensor}.reshape({tuple(pair.root.shape)})"
        return f"{tensor}.expand({tuple(pair.root.shape)})" if shape.numel() == 1 and not shape else ""

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = w.exp()
        weights = [1.0, 0.5, 0.25]
        y.backward(weights)

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = w.exp()
        weights = [1.0, 0.5, 0.25]
        y.backward(torch.tensor(weights))
