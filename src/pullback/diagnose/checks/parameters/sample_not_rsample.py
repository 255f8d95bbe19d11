"""PBA146: ``sample()`` where a gradient by the parameters of the distribution is meant."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.lost import LostParameters, behind, leaves_of, root_values
from pullback.diagnose.evidence.training.samples import DISCRETE, drawn, has_score
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix, Subject
from pullback.language import say

CUTS = frozenset({"detach", "detach_", "get data", "tensor", "as_tensor"})


class SampleNotRsample(Fault):
    """A sample of a distribution reaches the loss, but was drawn with ``sample()``, which no gradient goes through.

    ``Distribution.sample()`` draws under ``no_grad``. If something else behind the loss requires grad, a decoder or a
    critic, ``backward()`` runs without an error, and what made the mean and the scale of the distribution learns
    nothing from the sample. In a variational autoencoder the encoder then follows the KL term alone.

    Draw with ``rsample()``: the same numbers, as a function of the parameters and of noise. Discrete distributions
    (Categorical, Bernoulli) have none: use a relaxed one (``RelaxedOneHotCategorical``), or a score-function estimator
    with ``log_prob``, in which ``sample()`` is right. ``requires_grad_()`` on the sample does not help.
    """

    code = "PBA146"
    title = "A sample that the loss depends on was drawn with sample(), which cuts the parameters of its distribution."
    hears = DISCRETE | {"normal", "_standard_gamma", "_sample_dirichlet", "expand", "rand", "randn", "empty"}

    def __init__(self) -> None:
        self._drew = False
        self._scored: dict[int, bool] = {}
        self._discrete: set[tuple[str, int]] = set()
        self._lost = LostParameters(self._cuts)

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._lost.passes_now(audit, backward)
        if not self._drew:
            return
        calls = behind(audit.tape, root_values(audit, backward))
        for sampled in drawn(calls):
            if sampled.name not in DISCRETE and self._halves(audit, backward, calls, sampled):
                assert sampled.spot is not None
                leaves = leaves_of(list(sampled.inputs)).values()
                subjects = [audit.subject(each, "parameter") for each in leaves]
                names = ", ".join(each.name for each in subjects[:4])
                audit.report(self._finding(sampled.spot, subjects, names, "medium"))
                return

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        self._drew = self._drew or not call.grad or call.name in DISCRETE

    def before_step(self, audit: Audit, step: Step) -> None:
        self._lost.steps_now(step)

    def at_end(self, audit: Audit) -> None:
        for lost in self._lost.at_end(audit):
            audit.report(self._finding(lost.cut.spot, lost.subjects, lost.names, "high"))

    def _cuts(self, audit: Audit, call: Call) -> bool:
        if not drawn([call]):
            return False
        if call.number not in self._scored:
            self._scored[call.number] = has_score(audit.tape, call)
        if call.spot is not None and call.name in DISCRETE:
            self._discrete.add((call.spot.file, call.spot.line))
        return not self._scored[call.number]

    def _halves(self, audit: Audit, backward: Backward, calls: list[Call], sampled: Call) -> bool:
        """Whether the parameters get a gradient in this pass, yet none through the sample, which only others use."""
        assert sampled.spot is not None
        reached = {id(leaf) for leaf in backward.leaves}
        above = set(leaves_of(list(sampled.inputs)))
        if not above or not above <= reached:
            return False
        dependent = {value.number for value in sampled.outputs}
        below: set[int] = set()
        last = sampled
        for call in reversed(calls):
            if call.number <= sampled.number or not any(value.number in dependent for value in call.inputs):
                continue
            within = call.spot is not None and call.spot.line == sampled.spot.line and not call.grad
            if not within and (call.name in CUTS or not call.grad):
                continue
            dependent |= {value.number for value in (*call.outputs, *(each for each, _, _ in call.writes))
                          if value.dtype.is_floating_point}  # fmt: skip
            if not within:
                below |= {id(value.tensor()) for value in call.inputs if value.leaf and value.requires_grad}
            last = call
        arrives = any(value.number in dependent for value in root_values(audit, backward))
        return arrives and last is not sampled and not above & below and not has_score(audit.tape, sampled)

    def _finding(self, spot: Spot, subjects: list[Subject], names: str, sure: Confidence) -> Diagnosis:
        node, source = spot.node, spot.source
        discrete = (spot.file, spot.line) in self._discrete
        edits: tuple[Edit, ...] = ()
        if not discrete and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            new = f"{source.text(node.func.value)}.r{node.func.attr}"
            edits = (source.replaced(node.func, new),) if node.func.attr == "sample" else ()
        if discrete:
            fix = Fix(
                say("This distribution has no rsample(): use a relaxed one, or the log-probability of the sample."),
                "loss = -(reward * dist.log_prob(action)).mean()",
            )
        else:
            code = source.code(*edits) or "dist.rsample()"
            fix = Fix(say("Draw with rsample()."), code, edits, "high" if sure == "high" else "medium")
        return self.found(
            say(
                "{text} draws without recording how the sample depends on {names}; the loss is computed from it, and "
                "no log-probability of it takes part: no gradient comes to {names} by this way.",
                text=" ".join(spot.text.split()),
                names=names,
            ),
            [spot.mark(say("drawn without a gradient here"))],
            fix,
            tensors=subjects[:4],
            confidence=sure,
            useless=[say("requires_grad_() on the sample: it makes a leaf, not a way to the parameters")],
        )

    @staticmethod
    def bad():
        import torch
        from torch.distributions import Normal

        encoder, decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.randn(6, 4)
            code = Normal(encoder(x), 1.0).sample()
            optimizer.zero_grad()
            (decoder(code) - x).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch
        from torch.distributions import Normal

        encoder, decoder = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.randn(6, 4)
            code = Normal(encoder(x), 1.0).rsample()
            optimizer.zero_grad()
            (decoder(code) - x).square().mean().backward()
            optimizer.step()
