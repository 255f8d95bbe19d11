"""PB210: all parameters on the way to the root are frozen."""

from __future__ import annotations

import re

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, root_name, useless
from pullback.diagnose.evidence.cuts.found import Cut, Leaf
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.cuts.switches import freezes_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Subject
from pullback.language import say


class Frozen(RootWithoutGraph):
    """All parameters that the root depends on are frozen: none of them requires grad.

    A graph is recorded only where something requires grad. If ``requires_grad`` was switched off for every
    parameter, and the inputs do not require grad either, then nothing is recorded and ``backward()`` has
    nowhere to go.

    Freeze the part that is to stay, and leave the part that is to be trained:
    ``net.backbone.requires_grad_(False)`` rather than a loop over ``net.parameters()``; a new head made after
    freezing requires grad by itself. Give the optimizer the parameters that are trained. ``model.train()`` does
    not unfreeze anything: it is about dropout and batch norm.
    """

    code = "PB210"
    title = "All parameters that the root depends on are frozen, so it has no graph."

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = found_in(case)
        frozen = [leaf for leaf in found.leaves if _is_frozen(leaf.thing)]
        if found.cuts or found.root is None or not frozen:
            return None
        root = root_name(case, found)
        names, subjects = self._named(case, frozen)
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += [each.mark(say("requires_grad is switched off here")) for each in freezes_of(case)[:3]]
        places = {(leaf.node.lineno, leaf.body.source.file): leaf for leaf in reversed(frozen)}
        marks += [
            self._used(leaf).mark(say("only frozen parameters are used here")) for leaf in list(places.values())[:2]
        ]
        return self.found(
            say(
                "{root} depends on {names}: {count} parameters, and none of them requires grad; nothing else on "
                "the way "
                "requires grad either.",
                root=root,
                names=", ".join(names[:3]),
                count=len(subjects),
            ),
            marks,
            self._fix(case, frozen),
            tensors=subjects[:4],
            confidence="high" if found.answer is False and not found.off else "medium",
            useless=useless(root),
            notes=[say("model.train() does not change requires_grad.")],
        )

    @staticmethod
    def _used(leaf: Leaf) -> Cut:
        return Cut("frozen", leaf.node, leaf.body)

    @staticmethod
    def _named(case: Case, frozen: list[Leaf]) -> tuple[list[str], list[Subject]]:
        names: list[str] = []
        subjects: list[Subject] = []
        for leaf in frozen:
            text = leaf.body.source.text(leaf.node)
            if isinstance(leaf.thing, nn.Module):
                name = case.names.modules.get(id(leaf.thing), text)
                parts = [(f"{name}.{inner}", each) for inner, each in leaf.thing.named_parameters()]
            else:
                name, parts = case.name_of(leaf.thing, text), [(text, leaf.thing)]
            if name not in names:
                names.append(name)
                subjects += [Subject.of(each, case.name_of(each, inner), "frozen") for inner, each in parts]
        return names, subjects

    @staticmethod
    def _fix(case: Case, frozen: list[Leaf]) -> Fix:
        leaf = frozen[0]
        text = leaf.body.source.text(leaf.node)
        if isinstance(leaf.thing, nn.Module) and leaf.body.depth == 0:
            name = case.names.modules.get(id(leaf.thing), text)
            text = re.sub(r"\.(\d+)", r"[\1]", name)  # a part of a Sequential
        code = f"{text}.requires_grad_(True)"
        switches = freezes_of(case)
        edits: tuple[Edit, ...] = ()
        if len(switches) == 1 and leaf.body.source is switches[0].source and leaf.body.depth == 0:
            statement = switches[0].outermost
            edits = (switches[0].source.inserted_after(statement, code),) if statement is not None else ()
        return Fix(say("Unfreeze the part that is to be trained, and give it to the optimizer."), code, edits, "medium")

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return ""

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        return Fix("")

    @staticmethod
    def bad():
        import torch

        class Classifier(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Linear(4, 4)
                self.head = torch.nn.Linear(4, 2)
                self.requires_grad_(False)

            def forward(self, x):
                return self.head(self.body(x).relu())

        model = Classifier()
        loss = model(torch.randn(3, 4)).logsumexp(1).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        class Classifier(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Linear(4, 4).requires_grad_(False)
                self.head = torch.nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.body(x).relu())

        model = Classifier()
        loss = model(torch.randn(3, 4)).logsumexp(1).mean()
        loss.backward()


def _is_frozen(thing: object) -> bool:
    """Whether it is a module, or a parameter of one."""
    return isinstance(thing, nn.Module | nn.Parameter)
