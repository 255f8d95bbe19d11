"""PB117: batched seeds of another shape."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.seeds.roots import called_root, pairs
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class BatchedSeed(Cause):
    """With ``is_grads_batched=True`` the seed has one dimension more than the output: the first counts the seeds.

    For an output of shape (3,) and five seeds the tensor has shape (5, 3). The identity, ``torch.eye(3)``, gives the
    whole Jacobian. For an output of several dimensions reshape it: ``torch.eye(y.numel()).reshape(-1, *y.shape)``.
    """

    code = "PB117"
    title = "A batch of seeds does not fit the output: behind the batch dimension it must have the output's shape."
    says = ("is_grads_batched",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        for pair in pairs(case):
            if not isinstance(pair.seed, Tensor) or not isinstance(pair.root, Tensor):
                continue
            if pair.seed.shape[1:] == pair.root.shape:
                continue
            name = called_root(case, pair)
            marks = [case.mark(say("{name} has shape {root}, the batch of seeds {seed}", name=name,
                                   root=tuple(pair.root.shape), seed=tuple(pair.seed.shape)))]  # fmt: skip
            marks += made(case, pair.seed, pair.seed_written, say("the seeds were made here"))
            return self.found(
                say(
                    "{name} has shape {root}, so N seeds for it have the shape (N, *{root}); these have {seed}.",
                    name=name, root=tuple(pair.root.shape), seed=tuple(pair.seed.shape),
                ),
                marks,
                Fix(
                    say("Put the number of seeds first, and the output's shape behind it."),
                    f"torch.eye({name}.numel()).reshape(-1, *{name}.shape)    # the whole Jacobian",
                ),
                tensors=[case.subject(pair.root, "root", name), case.subject(pair.seed, "seed", say("the seeds"))],
            )  # fmt: skip
        return None

    @staticmethod
    def bad():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)

    @staticmethod
    def good():
        import torch

        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
