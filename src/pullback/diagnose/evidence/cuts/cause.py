"""What the checks of roots without a graph have in common."""

from __future__ import annotations

import ast
from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.cuts.found import Cut, Found
from pullback.diagnose.evidence.cuts.look import concerns, found_in
from pullback.diagnose.evidence.freed.report import dropped
from pullback.diagnose.evidence.slices import dotted
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.transforms import transform_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix, Mark, Subject
from pullback.language import say

# So many places of one kind are marked.
PLACES = 5


class RootWithoutGraph(Cause):
    """A cause of a root that has no graph; what was found on the way to it decides.

    Attributes:
        kinds: The kinds of cuts that are this cause.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    says: ClassVar[tuple[str, ...]] = (
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "does not require grad and does not have a grad_fn",
        "object has no attribute 'backward'",
        "object is not iterable",
    )
    raises = (RuntimeError, AttributeError, TypeError)

    def fits(self, case: Case) -> bool:
        """Whether it is about such a root."""
        return super().fits(case) and concerns(case) and transform_in(case) is None

    def diagnose(self, case: Case) -> Diagnosis | None:
        """By the cuts that were found."""
        found = found_in(case)
        mine = [cut for cut in found.cuts if cut.kind in self.kinds]
        if not mine or found.root is None:
            return None
        confidence = self.confidence(found, mine)
        root = root_name(case, found)
        return self.found(
            self.cause(case, mine[0], root),
            marks_of(case, mine, self.what(mine[0]), root),
            self.fix(case, mine[0], mine),
            tensors=subjects(case, mine[0]),
            confidence=confidence,
            useless=useless(root),
            notes=self.notes(case, mine[0]),
            apart=apart(found, mine) if confidence != "high" else "",
            wants="" if confidence == "high" or case.tape is not None else say(
                "Does {name} require grad before line {line} runs?",
                name=mine[0].operand_text or mine[0].text,
                line=mine[0].node.lineno,
            ),
        )  # fmt: skip

    def confidence(self, found: Found, mine: list[Cut]) -> Confidence:
        """High if nothing else comes into question."""
        if not mine[0].sure:
            return "medium" if mine[0] is found.cuts[0] else "low"
        sure = [cut for cut in found.cuts if cut.sure]
        if all(cut.kind in self.kinds for cut in sure) or (mine[0].exact and mine[0] is found.cuts[0]):
            return "high"
        return "medium" if mine[0] is found.cuts[0] else "low"

    @abstractmethod
    def cause(self, case: Case, cut: Cut, root: str) -> str:
        """Why the root has no graph."""

    @abstractmethod
    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        """What to write instead."""

    def what(self, cut: Cut) -> str:
        """What the line with the cut is marked with."""
        return say("the graph ends here")

    def notes(self, case: Case, cut: Cut) -> tuple[str, ...]:
        """What else there is to know."""
        return ()


def detached_later(found: Found, cut: Cut) -> bool:
    """Whether a value is detached as a whole that is computed, in the same function, from what a cut gives."""
    statement = cut.statement
    targets = getattr(statement, "targets", ())
    given = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return not cut.exact and any(
        each.kind == "detach" and each.body.scope is cut.body.scope and given & _read(each) for each in found.cuts
    )


def _read(cut: Cut) -> set[str]:
    """The names from which the operand of a cut is computed, also through the comprehension around it."""
    parts: list[ast.AST] = [cut.operand] if cut.operand is not None else []
    for each in cut.source.around(cut.node):
        parts += [part.iter for part in getattr(each, "generators", ())]
        if isinstance(each, ast.stmt):
            break
    return {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}


def root_name(case: Case, found: Found) -> str:
    """What the root is called, or how it is written."""
    text = " ".join(found.root.text.split()) if found.root is not None else ""
    if not text or len(text) > 60:
        return say("the root")
    return text


def marks_of(case: Case, cuts: list[Cut], what: str, root: str) -> list[Mark]:
    """The failing line, and the lines that cut, each after what turned the recording off there."""
    marks = [case.mark(say("{name} has no graph here", name=root))]
    for cut in cuts[:PLACES]:
        off = cut.region_mark(say("nothing is recorded from here on"))
        for mark in (off, cut.mark(what)):
            if mark is not None and all((mark.place, mark.span) != (each.place, each.span) for each in marks[1:]):
                marks.append(mark)
    return marks


def subjects(case: Case, cut: Cut) -> list[Subject]:
    """The root and the operand, if they are tensors that are still alive."""
    found = found_in(case)
    told: list[Subject] = []
    pairs = [(found.root.node, found.root.body, "root")] if found.root is not None else []
    if cut.operand is not None:
        pairs.append((cut.operand, cut.body, "operand"))
    for node, body, role in pairs:
        thing = body.evaluated(node)
        if isinstance(thing, Tensor):
            subject = Subject.of(thing, body.source.text(node), role)
            if all(subject.name != each.name for each in told):
                told.append(subject)
    if not told and case.asked is not None and case.asked.tensors:
        told.append(case.subject(case.asked.tensors[0], "root"))
    return told


def useless(root: str) -> list[str]:
    """The cures that are told everywhere and mend nothing here."""
    name = root if root.isidentifier() else "loss"
    return [
        say(
            "{name}.requires_grad = True (or {name}.requires_grad_()): the error goes, but {name} is then a leaf "
            "of its "
            "own, and no parameter ever gets a gradient.",
            name=name,
        ),
        say("torch.tensor({name}, requires_grad=True): the same, with a copy.", name=name),
        say("retain_graph=True: keeps a graph that is there; here none was recorded."),
        say(
            "torch.enable_grad() or torch.set_grad_enabled(True) around backward() only: it is the forward pass that "
            "has to be recorded."
        ),
    ]


def apart(found: Found, mine: list[Cut]) -> str:
    """The other places that come into question."""
    others = [cut for cut in found.cuts if cut not in mine]
    if not others:
        return say("It is not known whether {name} required grad.", name=mine[0].operand_text or mine[0].text)
    return say(
        "Also in question: line {line}, {text}.", line=others[0].node.lineno, text=others[0].text
    )  # fmt: skip


def without_block(source: Source, block: ast.With | ast.AsyncWith, context: ast.expr | None = None) -> tuple[Edit, ...]:
    """The edits that take statements out of a ``with``; none where they would not mean the same outside."""
    first, last = block.lineno, block.end_lineno or block.lineno
    if len(block.items) > 1 or any(_changes(each) for each in ast.walk(block)):
        return ()
    indent = source.indent(first)
    if block.body[0].lineno == first:
        return (Edit(source.file, first, last, indent + "; ".join(source.text(each) for each in block.body)),)
    begin = block.body[0].lineno
    inner = source.indent(begin)
    lines = [indent + line[len(inner) :] if line.startswith(inner) else line for line in source.lines[begin - 1 : last]]
    return (Edit(source.file, first, last, "\n".join(lines)),)


def _changes(node: ast.AST) -> bool:
    """Whether a statement may need that nothing is recorded, or cannot be moved to the left."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and "\n" in node.value
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Subscript) for each in node.targets)
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name == "step" or (name.endswith("_") and not name.endswith("__"))


def replaced(cut: Cut, text: str) -> tuple[Edit, ...]:
    """The edit that puts a text in place of what cuts."""
    return (cut.source.replaced(cut.node, text),)


def left_out(source: Source, call: ast.expr, operand: ast.expr) -> tuple[Edit, ...]:
    """The edit that puts an operand in place of a call on it; of ``x = x.detach()`` nothing is left."""
    statement = source.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        only = len(statement.targets) == 1 and source.text(statement.targets[0]) == source.text(operand)
        if only and (gone := dropped(source, statement)):
            return gone
    text = source.text(operand)
    plain = isinstance(operand, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return (source.replaced(call, text if plain else f"({text})"),)


def with_keyword(source: Source, call: ast.Call, name: str, value: str) -> tuple[Edit, ...]:
    """The edit that gives a call a keyword."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return (source.replaced(keyword.value, value),)
    text = source.text(call)
    inner = text[:-1].rstrip().removesuffix(",")
    comma = "" if inner.endswith("(") else ", "
    return (source.replaced(call, f"{inner}{comma}{name}={value})"),)


def wrapped_operand(cut: Cut) -> str:
    """The operand as it is written, in brackets where it needs them before a dot."""
    text = cut.source.text(cut.operand) if cut.operand is not None else ""
    return text if isinstance(cut.operand, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def name_of(node: ast.expr | None) -> str:
    """A name or attribute as it is written; ``x`` of anything else."""
    return (dotted(node) if node is not None else None) or "x"


def fix_of(cut: Cut, text: str, edits: tuple[Edit, ...], confidence: Confidence, code: str = "") -> Fix:
    """A fix whose code is that of its edits, if no other is given."""
    return Fix(text, code or cut.source.code(*edits), edits, confidence)
