"""PB921: a second derivative through a compiled function."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of, sources
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


class CompiledTwice(Cause):
    """A second derivative was asked for through a function of torch.compile.

    The compiler makes a forward and one backward of a function. The backward is compiled too, and has no derivative of
    its own, so gradient penalties, Hessians and ``create_graph=True`` do not go through it. Run what needs second
    derivatives uncompiled (``torch.compiler.disable``, or the original module ``compiled._orig_mod``), or compile the
    whole computation with the first derivative in it, written with ``torch.func.grad``.
    """

    code = "PB921"
    title = "A second derivative was asked for through a function of torch.compile."
    says = ("does not currently support double backward",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        calls = compilations(case)
        graphs = [
            (source, call)
            for source, call in calls_of(case, {"grad", "backward"})
            if any(each.arg == "create_graph" for each in call.keywords)
        ]
        marks = [case.mark(say("the second derivative is asked for here"))]
        marks += [
            Mark.at(Place(source.file, node.lineno, ""), say("compiled here"), source.span(node))
            for source, node in calls[:3]
        ]
        marks += [
            Mark.at(Place(source.file, call.lineno, ""), say("the first derivative"), source.span(call))
            for source, call in graphs[:2]
        ]
        edits = _edits(*calls[0]) if len(calls) == 1 else ()
        return self.found(
            say("The function is compiled together with its backward, and that backward has no derivative."),
            marks,
            Fix(
                say("Run it uncompiled where second derivatives are needed."),
                calls[0][0].code(*edits) if edits else "torch.compiler.disable(f)",
                edits,
                "high" if edits else "medium",
            ),
            useless=[say("retain_graph=True: the graph is not freed, it does not exist.")],
        )

    @staticmethod
    def bad():
        import torch

        @torch.compile(backend="aot_eager")
        def energy(x):
            return (x.cos() * x**2).sum()

        x = torch.randn(4, requires_grad=True)
        (force,) = torch.autograd.grad(energy(x), x, create_graph=True)
        force.pow(2).sum().backward()

    @staticmethod
    def good():
        import torch

        def energy(x):
            return (x.cos() * x**2).sum()

        x = torch.randn(4, requires_grad=True)
        (force,) = torch.autograd.grad(energy(x), x, create_graph=True)
        force.pow(2).sum().backward()


def compilations(case: Case) -> list[tuple[Source, ast.expr]]:
    """The calls (or bare decorators) of ``torch.compile`` in the files of the program."""
    found: list[tuple[Source, ast.expr]] = []
    for source in sources(case):
        for node in ast.walk(source.tree):
            text = source.text(node.func) if isinstance(node, ast.Call) else ""
            named = text == "torch.compile" or (text.endswith(".compile") and "re" not in text.split("."))
            if isinstance(node, ast.Call) and named:
                found.append((source, node))
            elif isinstance(node, ast.FunctionDef):
                found += [(source, each) for each in node.decorator_list if source.text(each) == "torch.compile"]
    return found


def _edits(source: Source, node: ast.expr) -> tuple[Edit, ...]:
    """The function without the compiler."""
    if not user_files(()).own_file(source.file):
        return ()
    around = source.parent(node)
    if isinstance(around, ast.FunctionDef) and node in around.decorator_list:
        return (Edit(source.file, node.lineno, node.end_lineno or node.lineno, None),)
    if isinstance(node, ast.Call) and node.args:
        text = source.text(node.args[0])
        return Rewrite(source).replace(node, f"({text})" if isinstance(node.args[0], ast.Lambda) else text).edits()
    return ()
