"""PB211: nothing that the root depends on requires grad."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, root_name, useless
from pullback.diagnose.evidence.cuts.found import Cut, Found, Leaf
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.slices import Part, called, definitions, dotted, sources_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark, Subject
from pullback.language import say


class PlainInputs(RootWithoutGraph):
    """Nothing that the root is computed from requires grad: it is made of plain tensors only.

    Tensors do not require grad unless one asks for it: ``torch.randn(3)`` is data. Only parameters of modules
    (``nn.Parameter``), tensors made with ``requires_grad=True``, and what is computed from these require grad.

    Say which tensor the gradient is wanted by: ``w = torch.zeros(3, requires_grad=True)``, or
    ``x.requires_grad_()`` before it is used. Often the wrong thing was differentiated: the targets, or the
    output of something that is no model. Setting it on the result instead is no cure: nothing behind the result
    has been recorded.
    """

    code = "PB211"
    title = "Nothing that the root is computed from requires grad."

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = found_in(case)
        if found.cuts or found.root is None or found.answer is not False:
            return None
        if any(isinstance(leaf.thing, nn.Module | nn.Parameter) for leaf in found.leaves):
            return None
        roots = case.asked.tensors if case.asked is not None else []
        leaves = [
            leaf
            for leaf in found.leaves
            if isinstance(leaf.thing, Tensor) and all(leaf.thing is not each for each in roots if _is_made(found, each))
        ]
        root = root_name(case, found)
        others = _others(case) if not leaves else []
        if others:
            return self._wrong_root(case, found, root, others)
        sure = bool(leaves) and (case.tape is not None or all(leaf.sure for leaf in leaves))
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += _way(found.root) if not leaves else []
        marks += [self._cut(leaf).mark(say("does not require grad")) for leaf in leaves[:3]]
        subjects = [
            Subject.of(leaf.thing, case.name_of(leaf.thing, leaf.body.source.text(leaf.node)), "input")
            for leaf in leaves
        ]
        names = list(dict.fromkeys(leaf.body.source.text(leaf.node) for leaf in leaves))
        wanted = _wanted(case, names) or names[:1] or ["x"]
        return self.found(
            say(
                "{root} is computed from {names} only, and no tensor among them requires grad.",
                root=root,
                names=", ".join(names[:4]),
            )
            if names
            else say("{root} is computed from new tensors only, and none of them requires grad.", root=root),
            marks,
            Fix(
                say("Make the tensor that the gradient is wanted by require grad before it is used."),
                "\n".join(f"{name}.requires_grad_()" for name in wanted),
                self._edits(case, leaves),
                "medium",
            ),
            tensors=subjects[:4],
            confidence="high" if sure and not found.off else "medium",
            useless=useless(root),
        )

    def _wrong_root(self, case: Case, found: Found, root: str, others: list[str]) -> Diagnosis:
        """Another value beside the root does have a graph: that one was meant."""
        assert found.root is not None
        node, body = found.root.node, found.root.body
        marks = [case.mark(say("{name} has no graph here", name=root)), *_way(found.root)]
        edits = (body.source.replaced(node, others[0]),) if case.root is node and isinstance(node, ast.expr) else ()
        return self.found(
            say(
                "{root} is computed from tensors only that do not require grad; {other} beside it has a graph.",
                root=root,
                other=others[0],
            ),
            marks,
            Fix(
                say("Differentiate the value that depends on the parameters."),
                f"{others[0]}.backward()",
                edits,
                "medium",
            ),
            tensors=[case.subject(each, "root", root) for each in (case.asked.tensors[:1] if case.asked else [])],
            confidence="medium" if found.off else "high",
            useless=useless(root),
        )

    @staticmethod
    def _cut(leaf: Leaf) -> Cut:
        parts = definitions(leaf.node, leaf.body) if isinstance(leaf.node, ast.Name | ast.Attribute) else []
        if len(parts) == 1 and not parts[0].how:
            return Cut("plain", parts[0].node, parts[0].body)
        return Cut("plain", leaf.node, leaf.body)

    @staticmethod
    def _edits(case: Case, leaves: list[Leaf]) -> tuple[Edit, ...]:
        """Where the gradient is wanted by just one tensor: it is to require grad where it is made."""
        wanted = case.asked.inputs if case.asked is not None and case.asked.inputs else []
        mine = [leaf for leaf in leaves if any(leaf.thing is each for each in wanted)] or leaves
        if len({id(leaf.thing) for leaf in mine}) != 1 or not isinstance(mine[0].node, ast.Name):
            return ()
        parts = definitions(mine[0].node, mine[0].body)
        if len(parts) != 1 or parts[0].statement is None or parts[0].how:
            return ()
        return (parts[0].body.source.inserted_after(parts[0].statement, f"{mine[0].node.id}.requires_grad_()"),)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return ""

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        return Fix("")

    @staticmethod
    def bad():
        import torch

        x = torch.randn(5)
        y = (x * 3).sin().sum()
        y.backward()

    @staticmethod
    def good():
        import torch

        x = torch.randn(5, requires_grad=True)
        y = (x * 3).sin().sum()
        y.backward()


def _way(root: Part) -> list[Mark]:
    """The lines that the value of a root came by, as long as there is one way only."""
    marks: list[Mark] = []
    part = root
    while len(marks) < 4:
        if isinstance(part.node, ast.Name | ast.Attribute):
            known = definitions(part.node, part.body)
            parts = [Part(each.node, each.body, each.path + part.path) for each in known]
        elif isinstance(part.node, ast.Call):
            parts = called(part)
        else:
            parts = sources_of(part) if part.path or isinstance(part.node, ast.Subscript) else []
            parts = [each for each in parts if each.path or each.body is not part.body] or parts[:1]
        if len(parts) != 1 or not isinstance(parts[0].node, ast.expr):
            break
        part = parts[0]
        mark = Cut("plain", part.node, part.body).mark(say("does not require grad"))
        if all(mark.place != each.place for each in marks):
            marks.append(mark)
        elif not isinstance(part.node, ast.Name | ast.Attribute | ast.Call | ast.Dict | ast.Tuple):
            break
    return marks


def _is_made(found: Found, root: Tensor) -> bool:
    """Whether the root was computed or unpacked, rather than made as a leaf for which the gradient is wanted."""
    node = found.root.node if found.root is not None else None
    if found.root is None or not isinstance(node, ast.Name | ast.Attribute):
        return True
    return any(part.path for part in definitions(node, found.root.body)) and root.numel() == 1


def _others(case: Case) -> list[str]:
    """The other numbers that the failing function holds, with a graph: by name."""
    held = dict(case.site.local) if case.site is not None else {}
    roots = case.asked.tensors if case.asked is not None else []
    return [
        name
        for name, thing in held.items()
        if issubclass(type(thing), Tensor)
        and thing.numel() == 1
        and thing.requires_grad
        and not thing.is_leaf
        and all(thing is not each for each in roots)
    ]


def _wanted(case: Case, names: list[str]) -> list[str]:
    """Of the inputs, those whose gradient the program reads; else those that an object keeps."""
    read = {
        (dotted(each.value) or "").rpartition(".")[2]
        for source in {frame.file: frame.source for frame in case.frames}.values()
        for each in ast.walk(source.tree)
        if isinstance(each, ast.Attribute) and each.attr == "grad"
    }
    return [name for name in names if name.rpartition(".")[2] in read] or [name for name in names if "." in name]
