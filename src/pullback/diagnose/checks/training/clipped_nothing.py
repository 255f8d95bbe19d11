"""PBA111: an exhausted generator of parameters."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.evidence.training.loop import assignments, calls_named
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say


class ClippedNothing(Fault):
    """A generator of parameters had been used up already, so that clipping saw no parameter.

    ``net.parameters()`` returns a generator, which can be gone through once. If the optimizer was made from the same
    generator, nothing is left for ``clip_grad_norm_``: no gradient is clipped.

    Make a list once, ``params = list(net.parameters())``, or write ``net.parameters()`` at each place. A smaller
    ``max_norm`` changes nothing: there is nothing that it is applied to.
    """

    code = "PBA111"
    title = "The gradients were not clipped: the generator of parameters was used up already."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "is an empty generator, no gradient clipping" not in message:
            return
        source = source_of(mark.place.file)
        scope = source.function_at(mark.place.line, mark.place.function.rpartition(".")[2])
        marks = [Mark(mark.place, say("nothing is left to be clipped"), mark.span, mark.text)]
        edits: tuple[Edit, ...] = ()
        name = ""
        for call in calls_named(scope, "clip_grad_norm_", "clip_grad_value_"):
            if call.args and call.lineno <= mark.place.line <= (call.end_lineno or call.lineno):
                name = source.text(call.args[0])
        for made in (assignments(source, scope, name), assignments(source, source.tree, name)) if name else ():
            for each in made:
                if isinstance(each.value, ast.Call) and not edits:
                    edits = (source.replaced(each.value, f"list({source.text(each.value)})"),)
                    place = mark.place._replace(line=each.lineno)
                    marks.append(Mark.at(place, say("a generator, which can be gone through once")))
        audit.report(
            self.found(
                say(
                    "{name} is a generator that has been gone through before: it yields no more parameters.",
                    name=name or "parameters",
                ),
                marks,
                Fix(
                    say("Make a list of the parameters."),
                    source.code(*edits) or "params = list(net.parameters())",
                    edits,
                    "high" if edits else "medium",
                ),
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        weights = net.parameters()
        optimizer = torch.optim.SGD(weights, lr=0.01)
        net(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        weights = list(net.parameters())
        optimizer = torch.optim.SGD(weights, lr=0.01)
        net(torch.ones(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
