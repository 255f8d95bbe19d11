"""PB106: a seed with one element for an output without dimensions."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.seeds.seed_shape import misshapen
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.seeds.fixes import edits_of, matching
from pullback.diagnose.evidence.seeds.roots import called_root
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SeedForScalar(Cause):
    """The seed of a scalar has no dimensions: shape (1,) is not shape ().

    A loss such as ``x.mean()`` has been without dimensions since torch 0.4; programs written before (Wasserstein GANs
    with ``one = torch.FloatTensor([1])``, ``mone = one * -1``) pass a seed of shape (1,).

    Write ``one = torch.tensor(1.0)``; or leave the seed out and give the sign to the loss: ``(-d_real).backward()``
    means the same as ``d_real.backward(mone)``. An older torch is no cure.
    """

    code = "PB106"
    title = "A scalar was given a seed of shape (1,), which is not a scalar."
    says = ("mismatch in shape: grad_output", "the size of tensor a", "boolean value of tensor")

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = misshapen(case)
        if pair is None or case.says("is_grads_batched") or pair.root.dim() != 0 or pair.seed.numel() != 1:
            return None
        name = called_root(case, pair)
        text, sure = matching(case, pair)
        edits = edits_of(case, pair, text)
        marks = [case.mark(say("{name} has shape (), its seed {seed}", name=name, seed=tuple(pair.seed.shape)))]
        marks += made(case, pair.seed, pair.seed_written, say("the seed was made here"))
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        return self.found(
            say(
                "{name} has no dimensions, its seed has shape {seed}. Torch 0.3 had no scalars; since then both have "
                "to have the shape ().",
                name=name, seed=tuple(pair.seed.shape),
            ),
            marks,
            Fix(say("Make the seed a scalar, or leave it out and write the factor into the loss."), text, edits, sure),
            tensors=[case.subject(pair.root, "root", name), case.subject(pair.seed, "seed", say("the seed"))],
            useless=[say("an older torch: the shapes have differed since 0.4")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        minus = torch.FloatTensor([-1])
        net(torch.randn(4, 3)).mean().backward(minus)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        minus = torch.tensor(-1.0)
        net(torch.randn(4, 3)).mean().backward(minus)
