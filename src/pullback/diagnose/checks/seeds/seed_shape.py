"""PB105: a seed of another shape than its root."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.seeds.fixes import edits_of, matching
from pullback.diagnose.evidence.seeds.roots import Pair, called_root, pairs, seeds_written
from pullback.diagnose.evidence.transforms import transform_in
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


def misshapen(case: Case) -> Pair | None:
    """The first root whose seed has another shape."""
    if case.library_frame("torch/autograd/__init__.py", "_make_grads") is None:
        return None
    for pair in pairs(case):
        if not isinstance(pair.root, Tensor) or not isinstance(pair.seed, Tensor) or pair.root.is_nested:
            continue
        if pair.seed.shape != pair.root.shape:
            return pair
    return None


class SeedShape(Cause):
    """A seed has the shape of its output; it is not broadcast.

    The seed (``gradient=``, ``grad_tensors``, ``grad_outputs``) has one weight for each element of the output. Shapes
    (N, 1) and (N,) differ, and a single number does not stand for all.

    Write ``torch.ones_like(y)``, or bring what you have into the shape of the output: ``seed.reshape(y.shape)``,
    ``seed.expand_as(y)``. With several outputs the seeds stand in the order of the outputs.

    When the seed in question is not the first one, torch's message may be about broadcasting ("The size of tensor a
    must match ...") or about an ambiguous Boolean value: it fails at comparing the seeds while it makes its message.
    """

    code = "PB105"
    title = "A seed has another shape than the output that it belongs to."
    says = ("mismatch in shape: grad_output", "the size of tensor a", "boolean value of tensor")

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = misshapen(case)
        if pair is None or case.site is None or case.says("is_grads_batched") or transform_in(case) is not None:
            return None
        if pair.root.dim() == 0 and pair.seed.numel() == 1:
            return None
        name = called_root(case, pair)
        text, sure = matching(case, pair)
        edits = edits_of(case, pair, text)
        several = case.asked is not None and len(case.asked.roots) > 1
        marks = [case.mark(say("{name} has shape {root}, its seed {seed}", name=name,
                               root=tuple(pair.root.shape), seed=tuple(pair.seed.shape)))]  # fmt: skip
        marks += made(case, pair.seed, pair.seed_written or seeds_written(case), say("the seed was made here"))
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        cause = say(
            "The seed of {name} has shape {seed}, but {name} has shape {root}: there must be one weight for each "
            "element of the output, and seeds are not broadcast.",
            name=name, seed=tuple(pair.seed.shape), root=tuple(pair.root.shape),
        )  # fmt: skip
        notes = [say("It is the seed at position {number}, counted from 0.", number=pair.number)] if several else []
        if not case.says("mismatch in shape"):
            notes.append(say("Torch's own message is about something else: it failed while it was making its message."))
        return self.found(
            cause,
            marks,
            Fix(say("Give the seed the shape of its output."), text or "torch.ones_like(...)", edits, sure),
            tensors=[case.subject(pair.root, "root", name), case.subject(pair.seed, "seed", say("the seed"))],
            notes=notes,
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(2, 5, requires_grad=True)
        scores = (w * 3).mean(dim=0)
        weights = torch.arange(5.0).unsqueeze(0)
        scores.backward(weights)

    @staticmethod
    def good():
        import torch

        w = torch.randn(2, 5, requires_grad=True)
        scores = (w * 3).mean(dim=0)
        weights = torch.arange(5.0)
        scores.backward(weights)
