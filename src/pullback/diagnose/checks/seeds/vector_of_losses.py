"""PB103: several losses in one tensor."""

from __future__ import annotations

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.roots import called_root
from pullback.diagnose.evidence.seeds.vectors import is_unreduced, unseeded, vector_of_losses
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class VectorOfLosses(Cause):
    """Several scalar losses in one tensor are a vector, and need to be combined before ``backward``.

    ``nn.DataParallel`` gathers what each device returns: a module that returns its loss gives one loss for each
    device, and the program that ran on one GPU fails on two. ``torch.stack([loss_a, loss_b])`` does the same by hand.

    Combine them: ``loss.mean().backward()`` (devices with equal shares of the batch), or ``loss.sum()`` (tasks). To
    weight the tasks write ``(weights * losses).sum()``. With DistributedDataParallel each process has a loss of its
    own, and the question does not arise.
    """

    code = "PB103"
    title = "backward() was called on a vector of several losses."
    says = ("grad can be implicitly created only for scalar outputs",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = unseeded(case)
        if pair is None or case.site is None or not (count := vector_of_losses(pair.root)) or is_unreduced(case, pair):
            return None
        root, name = pair.root, called_root(case, pair)
        marks = [case.mark(say("{name} is {count} losses here", name=name, count=count))]
        marks += made(case, pair.root, pair.written, say("the losses were put together here"))
        short = operand(case, pair.written)
        edits = (case.site.source.replaced(pair.written, f"{short}.mean()"),) if pair.written is not None else ()
        parallel = bool(case.holds(nn.DataParallel))
        cause = (
            say(
                "nn.DataParallel returned one loss for each of {count} devices, so {name} has shape {shape}.",
                name=name, count=count, shape=tuple(root.shape),
            )
            if parallel
            else say(
                "{name} has shape {shape}: it was put together from {count} scalar losses (as nn.DataParallel does "
                "with a loss computed in the module, one for each device). Torch does not add them up by itself.",
                name=name, count=count, shape=tuple(root.shape),
            )
        )  # fmt: skip
        return self.found(
            cause,
            marks,
            Fix(
                say("Average them (or sum them) before backward."),
                case.site.source.code(*edits) or f"{name}.mean().backward()",
                edits,  # a sum is as likely as a mean
                "medium",
            ),
            tensors=[case.subject(root, "root", name)],
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        parts = [(w * k).pow(2).sum() for k in range(1, 4)]
        total = torch.stack(parts)
        total.backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        parts = [(w * k).pow(2).sum() for k in range(1, 4)]
        total = torch.stack(parts).sum()
        total.backward()
