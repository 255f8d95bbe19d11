"""PB411: detach_() on a tensor that an operation had kept."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import asking_frame
from pullback.diagnose.evidence.freed.flow import path_of
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.find import overwritten
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DetachedAfterSaved(Cause):
    """`y.detach_()` cuts the very tensor that an operation had kept for its backward, and its way back is gone with it.

    `detach_()` changes `y` for everybody: the graph that was built with it before needs the history that it has lost.

    Write `y = y.detach()`: a new tensor without history, the graph keeps its own. Or detach after the backward pass.
    """

    code = "PB411"
    title = "A tensor that an operation had kept for its backward was detached in place."
    says = ("has been detached in-place",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        asking = asking_frame(case)
        seen = case.once(overwritten)
        marks = [asking.mark(say("this backward pass needs the tensor with its history")) if asking else case.mark("")]
        read = case.line_of(seen.reader) if seen is not None else None
        if read is not None:
            marks.append(case.mark_at(read, say("an operation kept it here")))
        edits: tuple[Edit, ...] = ()
        name = seen.name if seen is not None and seen.name else say("the tensor")
        calls = [
            (frame, node)
            for frame in reversed(case.frames)
            for node in ast.walk(frame.source.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach_"
        ]
        spot = (
            next((call.spot for call in reversed(case.tape.calls) if call.name == "detach_"), None)
            if case.tape
            else None
        )
        if spot is not None:
            marks.append(spot.mark(say("detached in place here")))
        elif calls:
            marks.append(marked(calls[0][0].source, calls[0][1], say("detached in place here")))
        if len({node for _, node in calls}) == 1 and isinstance(calls[0][1].func, ast.Attribute):
            frame, node = calls[0]
            path = path_of(calls[0][1].func.value)
            statement = frame.source.statement(node)
            if path and isinstance(statement, ast.Expr) and statement.value is node:
                edits = (frame.source.replaced(node, f"{path} = {path}.detach()"),)
                name = path
        return self.found(
            say(
                "{name} was kept by an operation, and detach_() took its history away before the backward pass.",
                name=name,
            ),
            marks,
            Fix(
                say("Detach into a new tensor."),
                "\n".join((edit.text or "").strip() for edit in edits) or f"{name} = {name}.detach()",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(4, requires_grad=True)
        gate = (w * 3).tanh()
        mixed = (gate * w.exp()).sum()
        gate.detach_()
        mixed.backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(4, requires_grad=True)
        gate = (w * 3).tanh()
        mixed = (gate * w.exp()).sum()
        gate = gate.detach()
        mixed.backward()
