"""PBA132: modules or parameters in a plain list or dictionary of a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.training.loop import in_optimizers
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

LOOKS = 4


@dataclass
class _Found:
    """Something in a plain container."""

    owner: str
    kind: str
    file: str
    init: str
    first: int
    attribute: str
    registered: str
    count: int
    parameters: list[ref[Tensor]]
    others: list[ref[Tensor]]
    declared: bool
    numbers: list[float]


class Unregistered(Fault):
    """Parameters that take part in the loss are in a plain list or dictionary of a module, which hides them from it.

    ``nn.Module`` registers what is assigned to its attributes, but does not look into Python's lists and dictionaries.
    Modules in ``self.layers = [...]`` compute and get gradients, yet ``net.parameters()`` does not yield them: the
    optimizer never moves them, ``state_dict()`` does not save them, ``.to(device)`` leaves them where they are.

    Use ``nn.ModuleList``, ``nn.ModuleDict``, ``nn.Sequential`` or ``nn.ParameterList``. Setting ``requires_grad`` on
    them does not help: they have gradients already.
    """

    code = "PBA132"
    title = "Parameters in a plain list or dictionary of a module are unknown to it, and no optimizer trains them."

    def __init__(self) -> None:
        self._looks = 0
        self._found: dict[tuple[str, str], _Found] = {}

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if not backward.record.accumulates or self._looks >= LOOKS:
            return
        self._looks += 1
        reached = {id(leaf) for leaf in backward.leaves}
        for name, module in audit.modules():
            known = {id(each) for each in module.parameters()}
            if (hidden := reached - known) != reached or hidden:
                self._search(name, module, hidden)

    def _search(self, name: str, root: nn.Module, hidden: set[int]) -> None:
        for inner, module in root.named_modules():
            for attribute, thing in list(module.__dict__.items()):
                if attribute.startswith("_") or not isinstance(thing, list | tuple | dict) or not thing:
                    continue
                parts = list(thing.values() if isinstance(thing, dict) else thing)
                lost = [each for each in _parameters(parts) if id(each) in hidden]
                if not lost:
                    continue
                kind = "Parameter" if isinstance(parts[0], Tensor) else "Module"
                registered = f"{kind}{'Dict' if isinstance(thing, dict) else 'List'}"
                code = _init(type(module))
                if code is None:
                    continue
                self._found[type(module).__qualname__, attribute] = _Found(
                    f"{name}.{inner}" if inner else name,
                    type(module).__name__,
                    code.co_filename,
                    code.co_name,
                    code.co_firstlineno,
                    attribute,
                    registered,
                    len(lost),
                    [ref(each) for each in lost],
                    [ref(each) for each in module.parameters()],
                    all(isinstance(each, nn.Parameter) for each in lost),
                    [_numbers(each) for each in lost],
                )

    def at_end(self, audit: Audit) -> None:
        trained = in_optimizers(audit)
        for found in self._found.values():
            if any((each := one()) is not None and id(each) in trained for one in found.parameters):
                continue
            source = source_of(found.file)
            marks, edits = self._lines(source, found)
            if not marks or not (found.declared or _meant(found, trained, edits)):
                continue
            audit.report(
                self.found(
                    say(
                        "{owner}.{attribute} is a plain container: {count} parameters in it get gradients, but "
                        "{owner}.parameters() does not have them, and so no optimizer made from it does.",
                        owner=found.owner,
                        attribute=found.attribute,
                        count=found.count,
                    ),
                    marks,
                    Fix(
                        say("Keep them in a container that the module knows."),
                        source.code(*edits) or f"self.{found.attribute} = torch.nn.{found.registered}(...)",
                        edits,
                        "high" if edits else "medium",
                    ),
                    useless=[say("requires_grad = True on them: they have gradients, but nobody who uses these")],
                )
            )

    @staticmethod
    def _lines(source: Source, found: _Found) -> tuple[list[Mark], tuple[Edit, ...]]:
        """Where the container is assigned, and the edit that makes another kind of it."""
        scope = source.function_at(found.first, found.init)
        for node in ast.walk(scope):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            if any(isinstance(each, ast.Attribute) and each.attr == found.attribute for each in targets):
                place = Place(found.file, node.lineno, found.init)
                text = source.text(node.value)
                edit = source.replaced(node.value, f"{_prefix(source, scope)}{found.registered}({text})")
                return [Mark.at(place, say("not known to the module"), source.span(node))], (edit,)
        return [], ()

    @staticmethod
    def bad():
        import torch
        from torch import nn

        class Ensemble(nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = {"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)}
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return self.scale * sum(head(x) for head in self.heads.values())

        model = Ensemble()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch
        from torch import nn

        class Ensemble(nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, x):
                return self.scale * sum(head(x) for head in self.heads.values())

        model = Ensemble()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()


def _parameters(parts: list[Any]) -> Iterator[Tensor]:
    for part in parts[:1000]:
        if isinstance(part, nn.Module):
            yield from part.parameters()
        elif isinstance(part, nn.Parameter) or (isinstance(part, Tensor) and part.is_leaf and part.requires_grad):
            yield part
        elif isinstance(part, list | tuple):
            yield from _parameters(list(part))


def _numbers(tensor: Tensor) -> float:
    """A number that changes when the tensor is written to."""
    with torch.no_grad():
        return float(tensor.double().flatten()[:1000].sum()) if tensor.dtype.is_floating_point else 0.0


def _meant(found: _Found, trained: set[int], edits: tuple[Edit, ...]) -> bool:
    """Whether plain tensors were made to be trained with the module: nothing else has moved them."""
    now = [each() for each in found.parameters]
    return (
        any("requires_grad" in (edit.text or "") for edit in edits)
        and any((each := one()) is not None and id(each) in trained for one in found.others)
        and all(each is not None and _numbers(each) == was for each, was in zip(now, found.numbers, strict=True))
    )


def _init(kind: type) -> Any:
    """The code of the user's ``__init__``."""
    for each in kind.__mro__:
        code = getattr(vars(each).get("__init__"), "__code__", None)
        if code is not None and user_files(()).own_file(code.co_filename):
            return code
    return None


def _prefix(source: Source, scope: ast.AST) -> str:
    """How the file spells ``torch.nn``, with a dot."""
    for each in source.around(scope):
        if isinstance(each, ast.ClassDef):
            for base in each.bases:
                text = source.text(base)
                if text.endswith(".Module"):
                    return text.removesuffix("Module")
    return "torch.nn."
