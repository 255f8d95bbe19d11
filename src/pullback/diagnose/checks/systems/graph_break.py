"""PB923: a compiled function that may not be split, with something that splits it."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.systems.compiled_backward import CompiledBackward
from pullback.diagnose.checks.systems.compiled_twice import compilations
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


class GraphBreak(Cause):
    """``torch.compile(fullgraph=True)`` met something that it cannot record, and was told not to split the function.

    A number taken out of a tensor (``.item()``, ``float(loss)``), ``print``, a condition on values, NumPy and calls of
    C extensions end the recording. Without ``fullgraph=True`` the function is split there: the part runs as ordinary
    Python, and the gradients are the same.

    Take the marked line out of the compiled function (return the loss, and log it outside), or leave out
    ``fullgraph=True``. Detach what is logged only.
    """

    code = "PB923"
    title = "A function compiled with fullgraph=True does something that the compiler cannot record."

    def diagnose(self, case: Case) -> Diagnosis | None:
        kind = type(case.error)
        if "torch._dynamo" not in kind.__module__ or case.site is None:
            return None
        if kind.__name__ != "Unsupported" and not case.says("data-dependent expression"):
            return None
        if (other := CompiledBackward()).fits(case) and other.diagnose(case) is not None:
            return None
        places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', case.message)
        inside = [(file, int(line), name) for file, line, name in places if user_files(()).own_file(file)][-1:]
        calls = compilations(case)
        marks = [case.mark(say("the compiled function is called here"))]
        marks += [Mark.at(Place(source.file, node.lineno, ""), say("compiled here"), source.span(node))
                  for source, node in calls[:3]]  # fmt: skip
        marks += [Mark.at(Place(*each), say("the compiler cannot record this")) for each in inside]
        edits: tuple[Edit, ...] = ()
        for source, node in calls if len(calls) == 1 else ():
            full = [each for each in node.keywords if each.arg == "fullgraph"] if isinstance(node, ast.Call) else []
            if full and user_files(()).own_file(source.file):
                edits = Rewrite(source).replace(full[0].value, "False").edits()
        text = source_of(inside[0][0]).lines[inside[0][1] - 1].strip() if inside else ""
        why = case.message.partition("\n")[0]
        return self.found(
            say("The compiler met {line}, which it cannot record ({why}), and fullgraph=True forbids to split the "
                "function there.", line=text or say("a part"), why=why),
            marks,
            Fix(
                say("Take that out of the compiled function, or allow it to be split: fullgraph=False."),
                calls[0][0].code(*edits).strip() if edits else "torch.compile(f)",
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def scaled(x):
            if x.sum().item() > 0:
                return x * 2
            return x

        torch.compile(scaled, backend="eager", fullgraph=True)(torch.ones(3, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        def scaled(x):
            return torch.where(x.sum() > 0, x * 2, x)

        torch.compile(scaled, backend="eager", fullgraph=True)(torch.ones(3, requires_grad=True)).sum().backward()
