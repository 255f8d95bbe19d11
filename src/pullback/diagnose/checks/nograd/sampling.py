"""PBA342: a parameter that enters only through a random sample."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import mark_of
from pullback.diagnose.evidence.numbers.zero import cut_leaves, is_builtin
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

SAMPLES = (
    "BernoulliBackward",
    "NormalBackward",
    "PoissonBackward",
    "BinomialBackward",
    "GeometricBackward",
    "CauchyBackward",
)
INSTEAD = {
    "Bernoulli": "torch.distributions.RelaxedBernoulli(temperature, probs=p).rsample()"
    "    # or: p + (sample - p).detach()",
    "Normal": "mean + std * torch.randn_like(mean)",
    "Poisson": "mean + mean.sqrt() * torch.randn_like(mean)    # an approximation; or a score-function estimator",
}


class Sampling(Fault):
    """The derivative of a random sample by the parameters of its distribution is defined as zero.

    ``torch.bernoulli(p)``, ``torch.normal(mean, std)``, ``torch.poisson(rate)`` take tensors that require grad, and
    their results require grad; but the backward returns zeros, so that ``p``, ``mean`` and ``std`` never learn.

    Where the sample can be written as a function of the parameters and of noise, write it so:
    ``mean + std * torch.randn_like(mean)``, or ``torch.distributions.Normal(mean, std).rsample()``. For discrete
    samples: a relaxed distribution, the straight-through estimator, or a score-function estimator with ``log_prob``.
    """

    code = "PBA342"
    title = "A tensor gets a gradient of zero: it is used only as the parameter of a random sample."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        found: dict[Node, list[Tensor]] = {}
        for leaf, node in cut_leaves(backward, lambda node, _: is_builtin(node, SAMPLES)):
            found.setdefault(node, []).append(leaf)
        for node, leaves in found.items():
            audit.report(self._finding(audit, backward, node, leaves))

    def _finding(self, audit: Audit, backward: Backward, node: Node, leaves: list[Tensor]) -> Diagnosis:
        kind = node.name().partition("Backward")[0]
        name = audit.name_of(leaves[0], "a leaf")
        marks = mark_of(audit, node, say("drawn here"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        return self.found(
            say(
                "Every way from the output to {name} goes through {operation}, a random sample. Its derivative by its "
                "parameters is defined as zero: {name} gets a gradient of exactly zero.",
                name=name, operation=kind.lower(),
            ),
            marks,
            Fix(
                say("Write the sample as a function of its parameters and of noise, or use an estimator."),
                INSTEAD.get(kind, ""),
            ),
            tensors=[audit.subject(leaf, "leaf") for leaf in leaves[:3]],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        mean = torch.zeros(5, requires_grad=True)
        sample = torch.normal(mean, 1.0)
        ((sample - 2) ** 2).mean().backward()

    @staticmethod
    def good():
        import torch

        mean = torch.zeros(5, requires_grad=True)
        sample = mean + torch.randn_like(mean)
        ((sample - 2) ** 2).mean().backward()
