"""The operation that an error names, found in the graph and in the source."""

from __future__ import annotations

import ast
import re

from torch.autograd.graph import Node

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.freed.find import asking_frame, reached, root_nodes, sequence
from pullback.diagnose.values import Mark
from pullback.graph.values import Place


def plain(name: str) -> str:
    """``heaviside`` for ``aten::heaviside``, ``NotImplemented`` and ``HeavisideBackward0``, in small letters only."""
    last = name.rsplit("::", 1)[-1].split(".")[0]
    return re.sub(r"backward\d*$|[^a-z0-9]", "", last.lower())


def node_of(case: Case, operation: str) -> Node | None:
    """The node of an operation behind the failing pass's roots, the newest."""
    wanted = plain(operation)
    graph = reached(root_nodes(case))
    same = [node for node in graph if plain(node.name()) == wanted]
    refused = [
        node for node in graph if node.name() in {"NotImplemented", "WarnNotImplemented"} or "NotImpl" in node.name()
    ]
    return max(same or refused, key=sequence, default=None)


def operation_mark(case: Case, operation: str, what: str) -> list[Mark]:
    """The line that ran an operation: recorded, or the only call of that name in the functions that ran."""
    place = case.line_of(node_of(case, operation))
    if place is not None:
        return [case.mark_at(place, what)]
    wanted = plain(operation)
    asking = asking_frame(case)
    for frame in [each for each in (asking, *reversed(case.frames)) if each is not None]:
        calls = [
            each
            for each in ast.walk(frame.source.tree)
            if isinstance(each, ast.Call)
            and plain(each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", ""))
            == wanted
        ]
        if len(calls) == 1:
            return [Mark.at(Place(frame.file, calls[0].lineno, ""), what, frame.source.span(calls[0]))]
    return []
