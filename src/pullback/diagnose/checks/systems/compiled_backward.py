"""PB922: a backward pass inside a compiled function."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.systems.compiled_twice import compilations
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


class CompiledBackward(Cause):
    """A function of torch.compile calls backward() or autograd.grad itself.

    The compiler records the forward computation and makes the backward from it; a backward pass within that it does not
    record, and with ``fullgraph=True`` it may not leave the graph there. Compile the forward pass only (the model, or a
    function that returns the loss), and call ``backward()`` outside. Inside, ``torch.func.grad`` can be compiled.

    Without ``fullgraph=True`` the function is split there and that part runs uncompiled.
    """

    code = "PB922"
    title = "A function of torch.compile calls backward() or autograd.grad itself."
    says = (
        "Unsupported Tensor.backward() call",
        "Unsupported: Tensor.backward",
        "using `torch.autograd.grad` with",
        "trace_autograd_ops",
        "torch.autograd, qualname: backward",
        "torch.autograd, qualname: grad",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        if "torch._dynamo" not in type(case.error).__module__:
            return None
        inside = [
            Mark.at(Place(file, int(line), name), say("a backward pass within the compiled function"))
            for file, line, name in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', case.message)
            if user_files(()).own_file(file)
        ][-1:]
        calls = compilations(case)
        marks = [case.mark(say("the compiled function is called here"))]
        marks += [
            Mark.at(Place(source.file, node.lineno, ""), say("compiled here"), source.span(node))
            for source, node in calls[:3]
        ]
        marks += inside
        edits: tuple[Edit, ...] = ()
        for source, node in calls if len(calls) == 1 else ():
            full = [each for each in node.keywords if each.arg == "fullgraph"] if isinstance(node, ast.Call) else []
            if full and user_files(()).own_file(source.file):
                edits = Rewrite(source).replace(full[0].value, "False").edits()
        text = source_of(inside[0].place.file).lines[inside[0].place.line - 1].strip() if inside else "backward()"
        return self.found(
            say(
                "The compiled function runs a backward pass itself ({line}), which the compiler does not record.",
                line=text,
            ),
            marks,
            Fix(
                say(
                    "Compile only the function that returns the loss, and call backward() outside; "
                    "or allow graph breaks."
                ),
                calls[0][0].code(*edits) if edits else "",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def train(x):
            loss = net(x).pow(2).mean()
            loss.backward()
            return loss

        train(torch.randn(4, 3))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def loss(x):
            return net(x).pow(2).mean()

        loss(torch.randn(4, 3)).backward()
