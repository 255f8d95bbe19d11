"""PB217: a sample was drawn with sample() rather than rsample()."""

from __future__ import annotations

import ast

from torch.distributions import Distribution

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.slices import definitions
from pullback.diagnose.values import Fix
from pullback.language import say


class SampleWithoutGradient(RootWithoutGraph):
    """A sample was drawn with ``sample()``, which no gradient goes through.

    ``Distribution.sample()`` draws under ``no_grad``. ``rsample()`` draws the same, but as a function of the
    parameters and of noise (the reparameterization trick), and so has a gradient by the parameters: ``mean + std *
    noise``.

    Use ``rsample()`` where the distribution has it (``has_rsample``: Normal, Gamma, Beta, Dirichlet, ...). Discrete
    ones (Categorical, Bernoulli) have not: take a score-function estimator, ``-(reward * dist.log_prob(action))``, or
    a relaxed distribution (``RelaxedOneHotCategorical``).
    """

    code = "PB217"
    title = "A sample was drawn with sample(), which no gradient goes through."
    kinds = ("sample",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) draws without recording how the sample depends on the parameters of the "
            "distribution; "
            "all of {root} comes from it.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("drawn without a gradient here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        kind = _kind(cut)
        func = cut.node.func if isinstance(cut.node, ast.Call) else None
        if kind is not None and not kind.has_rsample:
            return Fix(
                say("This distribution has no rsample(): use the log-probability of the sample (REINFORCE)."),
                f"loss = -(reward * {cut.operand_text}.log_prob(sample)).mean()",
            )
        if not isinstance(func, ast.Attribute):
            return Fix(say("Draw with rsample()."), "rsample()")
        edits = (cut.source.replaced(func, f"{cut.source.text(func.value)}.rsample"),)
        return fix_of(cut, say("Draw with rsample()."), edits, "high" if kind is not None else "medium")

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 2)
        mean, spread = net(torch.randn(8, 4)).chunk(2, 1)
        latent = torch.distributions.Normal(mean, spread.exp()).sample()
        loss = latent.pow(2).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 2)
        mean, spread = net(torch.randn(8, 4)).chunk(2, 1)
        latent = torch.distributions.Normal(mean, spread.exp()).rsample()
        loss = latent.pow(2).mean()
        loss.backward()


def _kind(cut: Cut) -> type[Distribution] | None:
    """The distribution that was drawn from."""
    operand = cut.operand
    thing = cut.body.evaluated(operand)
    if isinstance(thing, Distribution):
        return type(thing)
    makers = [operand] if isinstance(operand, ast.Call) else []
    if isinstance(operand, ast.Name):
        makers = [each.node for each in definitions(operand, cut.body) if isinstance(each.node, ast.Call)]
    for maker in makers:
        kind = cut.body.evaluated(maker.func)
        if isinstance(kind, type) and issubclass(kind, Distribution):
            return kind
    return None
