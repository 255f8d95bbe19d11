"""PBA135: a misspelt ``requires_grad``."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.training.loop import user_sources
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class Misspelt(Fault):
    """An attribute that looks like ``requires_grad`` was set, but is none of torch's: it has no effect.

    Tensors and modules take any attribute. ``p.require_grad = False`` and ``module.requires_grad = False`` (a module
    has no such switch, only ``requires_grad_()``) run without a word and freeze nothing: the parameter goes on
    getting gradients, and the optimizer goes on changing it.

    Write ``p.requires_grad = False``, or ``p.requires_grad_(False)``, which raises if it is misspelt; for all
    parameters of a module ``module.requires_grad_(False)``. ``eval()`` and ``no_grad()`` do not freeze a parameter.
    """

    code = "PBA135"
    title = "An attribute that is almost requires_grad was set: it has no effect."

    def __init__(self) -> None:
        self._looks = 0
        self._passes = 0

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._passes += 1
        if self._passes & (self._passes - 1):  # at passes 1, 2, 4, 8, ...
            return
        misspelt = [
            (leaf, key)
            for leaf in backward.leaves
            for key in list(getattr(leaf, "__dict__", ()))
            if _is_like(key) and leaf.__dict__[key] is False
        ]
        leaves_any = len({id(leaf) for leaf, _ in misspelt}) < len({id(leaf) for leaf in backward.leaves})
        for leaf, key in misspelt:
            self._say(audit, key, audit.subject(leaf, "parameter").name, module=False, sure=leaves_any)
        for name, module in audit.modules():
            for inner, part in module.named_modules():
                for key, value in list(part.__dict__.items()):
                    if value is False and (key == "requires_grad" or _is_like(key)) and self._trains(part):
                        self._say(audit, key, f"{name}.{inner}" if inner else name, module=True, sure=True)

    @staticmethod
    def _trains(module: nn.Module) -> bool:
        return any(each.requires_grad for each in module.parameters())

    def _say(self, audit: Audit, key: str, name: str, *, module: bool, sure: bool) -> None:
        places = [
            (source, node)
            for source in user_sources(audit.frames())
            for node in _assignments(source, key)
        ]  # fmt: skip
        marks = [
            Mark.at(Place(source.file, node.lineno, ""), say("has no effect"), source.span(node))
            for source, node in places
        ]
        edits = tuple(_edit(source, node, module=module) for source, node in places)
        audit.report(
            self.found(
                say(
                    "{name} has an attribute {key} = False, which torch does not know: it is trained all the same.",
                    name=name,
                    key=key,
                ),
                marks[:1],
                Fix(
                    say("Say requires_grad_(False)."),
                    places[0][0].code(*edits[:1]) if edits else "p.requires_grad_(False)",
                    edits,
                    "high" if edits and sure else "medium",  # frozen throughout, nothing would be left to train
                ),
                useless=[say("eval() and no_grad() in its place: they do not freeze a parameter")],
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        net[0].requires_grad = False
        net(torch.randn(2, 4)).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        net[0].requires_grad_(False)
        net(torch.randn(2, 4)).sum().backward()


def _is_like(key: str) -> bool:
    if key in {"requires_grad", "_requires_grad"} or hasattr(Tensor, key):
        return False
    return bool(difflib.get_close_matches(key.lower(), ["requires_grad", "requiresgrad"], 1, 0.85))


def _assignments(source: Source, key: str) -> Iterator[ast.Assign]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == key:
                yield node


def _edit(source: Source, node: ast.Assign, *, module: bool) -> Edit:
    target = node.targets[0]
    assert isinstance(target, ast.Attribute)
    owner = source.text(target.value)
    return (
        source.replaced(node, f"{owner}.requires_grad_({source.text(node.value)})")
        if module
        else source.replaced(target, f"{owner}.requires_grad")
    )
