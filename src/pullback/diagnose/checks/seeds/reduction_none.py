"""PB102: a loss that was not reduced."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import mark_node, operand
from pullback.diagnose.evidence.seeds.roots import called_root
from pullback.diagnose.evidence.seeds.vectors import criterion_made, node_unreduced, unreduced, unseeded
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say


class ReductionNone(Cause):
    """A loss made with ``reduction="none"`` has one value for each sample, and only a scalar can be differentiated.

    ``reduction="none"`` (``reduce=False`` in old code) is meant for weighting or masking the samples before they are
    averaged. The averaging is then left to the program.

    Write ``loss.mean().backward()``, ``(loss * weights).sum().backward()``, or leave ``reduction`` at its default,
    ``"mean"``. Mind that with padding the mean over all elements is not the mean over those that count: divide the sum
    by the number of them.
    """

    code = "PB102"
    title = "backward() was called on a loss that was not reduced: it has one value for each sample."
    says = ("grad can be implicitly created only for scalar outputs",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        pair = unseeded(case)
        if pair is None or case.site is None:
            return None
        written, node = unreduced(case, pair), node_unreduced(pair.root)
        if written is None and node is None:
            return None
        root, name = pair.root, called_root(case, pair)
        marks = [case.mark(say("{name} has {count} elements here", name=name, count=root.numel()))]
        made = case.line_of(node)
        if written is not None:
            marks.append(written.definition.mark(say("the loss is not reduced here"), written.call))
            if written.keyword is None and (criterion := criterion_made(case, written)) is not None:
                told = "none" in criterion.text
                what = say('reduction="none" was set here') if told else say("the criterion was made here")
                marks.insert(1, criterion.mark(what))
        elif made is not None:
            marks.append(case.mark_at(made, say("the loss is not reduced here")))
        if (written is None or written.keyword is None) and not any("none" in each.text for each in marks):
            marks[1:1] = _told(case)
        short = operand(case, pair.written)
        edits = (case.site.source.replaced(pair.written, f"{short}.mean()"),) if pair.written is not None else ()
        return self.found(
            say(
                'The loss function was told reduction="none", so {name} has shape {shape}: one value for each of the '
                "{count} elements. Without a reduction there is no single number to go down.",
                name=name,
                shape=tuple(root.shape),
                count=root.numel(),
            ),
            marks,
            Fix(
                say("Average the values before backward (or weight them and sum)."),
                case.site.source.code(*edits) or f"{name}.mean().backward()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(root, "root", name)],
            useless=[say("backward(torch.ones_like(loss)): it runs, but it is the sum, N times the mean")],
        )

    @staticmethod
    def bad():
        import torch

        criterion = torch.nn.MSELoss(reduction="none")
        net = torch.nn.Linear(3, 1)
        loss = criterion(net(torch.randn(4, 3)), torch.zeros(4, 1))
        loss.backward()

    @staticmethod
    def good():
        import torch

        criterion = torch.nn.MSELoss(reduction="none")
        net = torch.nn.Linear(3, 1)
        loss = criterion(net(torch.randn(4, 3)), torch.zeros(4, 1))
        loss.mean().backward()


def _told(case: Case) -> list[Mark]:
    """The call with ``reduction="none"`` in the user's files, if there is just one: in a table of criteria, say."""
    calls = [
        (source, node)
        for source in {frame.file: frame.source for frame in case.frames}.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and any(
            each.arg == "reduction" and isinstance(each.value, ast.Constant) and each.value.value == "none"
            for each in node.keywords
        )
    ]
    what = say('reduction="none" was set here')
    return [mark_node(source, node, what) for source, node in calls] if len(calls) == 1 else []
