"""PBA148: a leaf as a plain attribute of a module."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward, Step, leaves_behind
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.training.loop import held, in_optimizers
from pullback.diagnose.evidence.training.untrained import Untrained
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


@dataclass
class _Found:
    """An attribute of a module, and the leaf behind it."""

    owner: str
    attribute: str
    code: Any
    leaf: int
    computed: bool


class PlainAttribute(Fault):
    """A tensor that requires grad is a plain attribute of a module: it gets gradients, but is not a parameter.

    ``nn.Module`` registers only ``nn.Parameter``. ``self.scale = torch.ones(1, requires_grad=True)`` takes part in the
    forward pass and gets a gradient, yet ``net.parameters()`` does not have it: the optimizer never moves it,
    ``state_dict()`` does not save it, ``.to(device)`` leaves it where it is. ``self.w = nn.Parameter(t) * 0.1`` is the
    same: the product is a plain tensor, and the parameter behind it is known to nobody.

    Write ``self.scale = nn.Parameter(torch.ones(1))``, and compute from it in ``forward``. ``register_buffer`` is for
    what is not trained. Setting ``requires_grad`` once more does not help.
    """

    code = "PBA148"
    title = "A tensor that requires grad is a plain attribute of a module: no optimizer trains it."

    def __init__(self) -> None:
        self._untrained = Untrained()
        self._found: dict[tuple[str, str], _Found] = {}
        self._asked: set[int] = set()
        self._trains = False

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        self._asked.update(id(each) for each in backward.inputs if isinstance(each, Tensor))
        looks = self._untrained.looks
        self._untrained.passes_now(audit, backward)
        if self._untrained.looks > looks and self._untrained.left:
            self._look(audit)

    def before_step(self, audit: Audit, step: Step) -> None:
        self._trains = True

    def _look(self, audit: Audit) -> None:
        trained = in_optimizers(audit)
        for name, root in held(audit, nn.Module):
            own = {id(each) for each in root.parameters()}
            if not own & trained:
                continue
            for inner, module in root.named_modules():
                for attribute, thing in list(module.__dict__.items()):
                    if isinstance(thing, Tensor) and thing.requires_grad and not attribute.startswith("_"):
                        self._attribute(f"{name}.{inner}" if inner else name, module, attribute, thing, own)

    def _attribute(self, owner: str, module: nn.Module, attribute: str, thing: Tensor, own: set[int]) -> None:
        leaves = [thing] if thing.grad_fn is None else leaves_behind([thing.grad_fn])
        for leaf in leaves:
            left = self._untrained.left.get(id(leaf))
            if left is None or left.tensor() is not leaf or id(leaf) in own:
                continue
            code = getattr(vars(type(module)).get("__init__"), "__code__", None)
            if code is not None and user_files(()).own_file(code.co_filename):
                kind = type(module).__qualname__
                self._found[kind, attribute] = _Found(owner, attribute, code, id(leaf), thing is not leaf)

    def at_end(self, audit: Audit) -> None:
        if not self._trains:
            return
        now = {id(each) for each in self._untrained.now(audit)}
        for found in self._found.values():
            left = self._untrained.left[found.leaf]
            leaf = left.tensor()
            if leaf is not None and leaf.grad is None:  # somebody takes its gradient and clears it
                continue
            if id(left) not in now or found.leaf in self._asked:
                continue
            source = source_of(found.code.co_filename)
            scope = source.function_at(found.code.co_firstlineno, "__init__")
            line = _assigned(source, scope, found.attribute)
            reads = rf"\.{re.escape(found.attribute)}\.grad\b"
            if line is None or line.value is None or any(re.search(reads, each) for each in source.lines):
                continue
            edits = self._edits(source, line) if not found.computed else ()
            audit.report(
                self.found(
                    say(
                        "{owner}.{attribute} is a plain tensor, not a parameter: what is behind it gets gradients, but "
                        "{owner}.parameters() does not have it, and so no optimizer made from that does.",
                        owner=found.owner,
                        attribute=found.attribute,
                    ),
                    [Mark.at(Place(source.file, line.lineno, "__init__"), say("not known to the module"),
                             source.span(line))],
                    Fix(
                        say("Make it an nn.Parameter, and compute from that in forward()."),
                        source.code(*edits) or f"self.{found.attribute} = torch.nn.Parameter(...)",
                        edits,
                        "high" if edits else "medium",
                    ),
                    tensors=[left.subject],
                    useless=[say("requires_grad = True on it: it has a gradient, but nobody who uses it")],
                )
            )  # fmt: skip

    @staticmethod
    def _edits(source: Source, line: ast.Assign | ast.AnnAssign) -> tuple[Edit, ...]:
        value = line.value
        if not isinstance(value, ast.Call):
            return ()
        call: ast.expr = value
        if isinstance(value.func, ast.Attribute) and value.func.attr == "requires_grad_":
            return (source.replaced(value, f"torch.nn.Parameter({source.text(value.func.value)})"),)
        flags = [each for each in value.keywords if each.arg == "requires_grad"]
        if len(flags) != 1:
            return ()
        text, flag = source.text(call), source.text(flags[0])
        for part in (f", {flag}", f"{flag}, ", flag):
            if text.count(part) == 1:
                return (source.replaced(value, f"torch.nn.Parameter({text.replace(part, '')})"),)
        return ()

    @staticmethod
    def bad():
        import torch

        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.scale = torch.ones(1, requires_grad=True)

            def forward(self, x):
                return self.layer(x) * self.scale

        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        class Scaled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.scale = torch.nn.Parameter(torch.ones(1))

            def forward(self, x):
                return self.layer(x) * self.scale

        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


def _assigned(source: Source, scope: ast.AST, attribute: str) -> ast.Assign | ast.AnnAssign | None:
    """The statement of ``__init__`` that makes the attribute, if it says there that it is to be trained."""
    for node in ast.walk(scope):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if any(isinstance(each, ast.Attribute) and each.attr == attribute for each in targets):
            text = source.text(node.value)
            return node if "requires_grad" in text or "Parameter(" in text else None
    return None
