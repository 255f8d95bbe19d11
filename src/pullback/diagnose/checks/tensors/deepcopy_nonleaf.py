"""PB516: a copy of something that holds a computed tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import sources_of
from pullback.diagnose.evidence.definitions import MAKERS, called, mark_node
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DeepcopyNonleaf(Cause):
    """``copy.deepcopy`` copies leaves, not computed tensors: those hang on a graph.

    Usually it is a module that keeps a result of its last forward pass as an attribute (``self.last = out``). Keep it
    without its history: ``self.last = out.detach()``; or copy the module before its first forward pass.

    The old ``torch.nn.utils.weight_norm`` and ``spectral_norm`` keep their computed weight too: use those of
    ``torch.nn.utils.parametrizations``.
    """

    code = "PB516"
    title = "copy.deepcopy met a computed tensor, which is not a leaf."
    says = ("support the deepcopy protocol",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("torch/_tensor.py", "__deepcopy__")
        tensor = (local or {}).get("self")
        if not isinstance(tensor, Tensor) or case.site is None:
            return None
        holder = next(_holders(case, tensor), None)
        marks = [case.mark(say("the copy is made here"))]
        edits: tuple[Edit, ...] = ()
        name = case.name_of(tensor, "a tensor")
        if holder is not None:
            name = holder[0]
            places = [(source, node) for source in sources_of(case) for node in _kept(source, holder[1])]
            places = [each for each in places if called(each[1]) not in MAKERS] or places
            for source, node in places[:3]:
                marks.append(mark_node(source, node, say("{name} is kept here", name=name)))
            read = any(_is_read(source, holder[1]) for source in sources_of(case))
            statement = case.site.statement
            first = holder[0].partition(".")[0]
            known = first in case.site.local or first in case.site.module
            if read and statement is not None and known and holder[0].replace(".", "").isidentifier():
                # What reads it may need its history: only the copy goes without.
                edits = (case.site.source.inserted_before(statement, f"{name} = {name}.detach()"),)
            elif len(places) == 1 and not read:
                source, node = places[0]
                plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
                text = source.text(node) if plain else f"({source.text(node)})"
                edits = (source.replaced(node, f"{text}.detach()"),)
        elif case.call is not None and len(case.call.args) >= 1:
            given = case.call.args[0]
            if case.site.evaluated(given) is tensor:
                name = case.text(given)
                edits = (case.site.source.replaced(given, f"{name}.detach()"),)
        made = case.line_of(tensor.grad_fn)
        told = {(each.place.file, each.place.line) for each in marks[1:]}
        if made is not None and (made.file, made.line) not in told:
            marks.append(case.mark_at(made, say("{name} was computed here", name=name)))
        node_name = tensor.grad_fn.name() if tensor.grad_fn is not None else "?"
        return self.found(
            say("{name} is a computed tensor ({node}) with its graph behind it, and that is not copied.", name=name,
                node=node_name),
            marks,
            Fix(
                say("Keep it without its history: detach()."),
                case.site.source.code(*edits) or f"{name} = {name}.detach()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "kept", name)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import copy

        import torch

        class Gate(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.nn.Linear(3, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.open = self.inner(x).sigmoid()
                return x * self.open  # type: ignore[no-any-return]

        gate = Gate()
        gate(torch.randn(2, 3))
        twin = copy.deepcopy(gate)
        assert twin

    @staticmethod
    def good():
        import copy

        import torch

        class Gate(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.nn.Linear(3, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                opened: torch.Tensor = self.inner(x).sigmoid()
                self.open = opened.detach()
                return x * opened

        gate = Gate()
        gate(torch.randn(2, 3))
        twin = copy.deepcopy(gate)
        assert twin


def _holders(case: Case, tensor: Tensor) -> Iterator[tuple[str, str]]:
    """The attributes of modules that hold a tensor, directly or in a container: path, and name."""
    for name, module in case.holds(nn.Module):
        for path, part in module.named_modules():
            for attribute, thing in [*part.__dict__.items(), *part._buffers.items()]:
                if _holds(thing, tensor, 2):
                    yield ".".join(each for each in (name, path, attribute) if each), attribute


def _holds(thing: Any, tensor: Tensor, depth: int) -> bool:
    if thing is tensor:
        return True
    if depth and type(thing) in (list, tuple, dict):
        return any(_holds(each, tensor, depth - 1) for each in (thing.values() if isinstance(thing, dict) else thing))
    return False


def _is_read(source: Source, attribute: str) -> bool:
    """Whether the program reads an attribute of this name."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load)
        for node in ast.walk(source.tree)
    )


def _kept(source: Source, attribute: str) -> Iterator[ast.expr]:
    """The values that are assigned to an attribute of this name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == attribute:
                    yield node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and isinstance(node.func.value, ast.Attribute)
            and node.func.value.attr == attribute
            and node.args
        ):
            yield node.args[0]
