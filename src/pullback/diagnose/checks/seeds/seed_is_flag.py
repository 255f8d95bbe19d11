"""PB108: True where a seed goes."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.seeds.roots import seeds_written
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SeedIsFlag(Cause):
    """The first argument of ``backward`` is the seed, not ``retain_graph``.

    ``loss.backward(True)`` asks for a backward pass with the seed True. The flags come after it: write
    ``loss.backward(retain_graph=True)``. Before you do, ask whether the graph has to be kept at all: a second backward
    pass over the same graph is rarely meant, and keeping it costs its memory.
    """

    code = "PB108"
    title = "backward() was given a flag in the place of the seed."
    says = ("'bool' object is not iterable", "gradients can be either tensors or none, but got bool")
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        asked = case.asked
        if asked is None or case.site is None:
            return None
        flags = [seed for seed in asked.seeds if isinstance(seed, bool)]
        node = seeds_written(case)
        if not flags:
            return None
        wanted = "retain_graph" if asked.retain_graph is None else "create_graph"
        # As a keyword (gradient=True) the name itself has to change too: there is no edit of an expression for it.
        keyword = case.call is not None and any(each.value is node for each in case.call.keywords)
        text = f"{wanted}={case.text(node) or flags[0]}"
        edits = (case.site.source.replaced(node, text),) if node is not None and not keyword else ()
        return self.found(
            say("{value} stands where backward() expects its seed, one weight for each element; the flag {flag} is "
                "meant.", value=flags[0], flag=wanted),
            [case.mark(say("the seed is {value}", value=flags[0]))],
            Fix(
                say("Name the flag."),
                case.site.source.code(*edits) or f"backward({text})",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(root, "root") for root in asked.tensors[:1]],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)

        def train(x):
            loss = net(x).square().mean()
            loss.backward(True)
            return loss

        train(torch.randn(4, 3))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)

        def train(x):
            loss = net(x).square().mean()
            loss.backward(retain_graph=True)
            return loss

        train(torch.randn(4, 3))
