"""PB912: float16 parameters under a GradScaler."""

from __future__ import annotations

import ast

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import sources
from pullback.diagnose.evidence.functions.scaler import optimizer_of, parameters_of
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark, Subject
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


class HalfGradients(Cause):
    """A GradScaler was to unscale the gradients of float16 parameters.

    Mixed precision keeps the parameters in float32 and lets ``torch.autocast`` run the operations in float16; so the
    gradients are float32, and dividing them by the scale loses nothing. After ``model.half()`` (or
    ``torch_dtype=torch.float16`` on loading, or a parameter made in float16) the gradients are float16, where the
    unscaled values vanish.

    Leave the model in float32 and put the forward pass under ``torch.autocast``. With bfloat16 no scaler is needed.
    """

    code = "PB912"
    title = "A GradScaler was to unscale the gradients of float16 parameters."
    says = ("Attempting to unscale FP16 gradients",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        optimizer = optimizer_of(case)
        if optimizer is None:
            return None
        half = [each for each in parameters_of(case, optimizer) if each[1].dtype == torch.float16]
        casts = [each for source in sources(case) for each in _casts(source) if not _of_data(case, each[1])]
        marks = [case.mark(say("the gradients are unscaled here"))]
        marks += [
            Mark.at(Place(source.file, node.lineno, ""), say("made float16 here"), source.span(node))
            for source, node in casts[:4]
        ]
        edits = _edits(*casts[0]) if len(casts) == 1 else ()
        names = ", ".join(name for name, _ in half[:6])
        tensors = [Subject.of(each, name, "parameter") for name, each in half[:6] if isinstance(each, Tensor)]
        return self.found(
            say(
                "{count} parameters are float16 ({names}), and so are their gradients. GradScaler wants float32 "
                "parameters, with the operations under autocast.",
                count=len(half),
                names=names,
            ),
            marks,
            Fix(
                say("Keep the parameters in float32, and run the forward pass under torch.autocast."),
                casts[0][0].code(*edits) if edits else "with torch.autocast(device_type): loss = model(x)",
                edits,
                "medium",
            ),
            tensors=tensors,
            useless=[say("optimizer.step() without the scaler: then small gradients are lost.")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1).half()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        loss = net(torch.randn(4, 3).half()).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(torch.randn(4, 3)).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def _casts(source: Source) -> list[tuple[Source, ast.expr]]:
    """The calls that make parameters or modules float16: those with tensors in their arguments are left out."""
    found: list[tuple[Source, ast.expr]] = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        statement = source.statement(node)
        own = isinstance(statement, ast.Expr) and statement.value is node
        own = own or (isinstance(statement, ast.Assign) and statement.value is node)
        text = source.text(node)
        made = any(each.arg == "requires_grad" for each in node.keywords) or "Parameter(" in text
        bare = node.func.attr == "half" and not node.args
        if (own and (bare or (node.func.attr == "to" and _half(node)))) or (made and _half(node)):
            found.append((source, node))
    return found


def _of_data(case: Case, node: ast.expr) -> bool:
    """Whether it is a tensor that is cast, as inputs are, rather than a module or a parameter."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    held = [frame.evaluated(node.func.value) for frame in case.frames]
    return any(isinstance(each, Tensor) and not (each.is_leaf and each.requires_grad) for each in held)


def _half(call: ast.Call) -> bool:
    values = [*call.args, *(each.value for each in call.keywords)]
    return any(isinstance(each, ast.Attribute) and each.attr in ("float16", "half") for each in values)


def _edits(source: Source, node: ast.expr) -> tuple[Edit, ...]:
    """The model left in float32."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or not user_files(()).own_file(source.file)
    ):
        return ()
    rewrite = Rewrite(source)
    if node.func.attr == "half":
        statement = source.statement(node)
        if isinstance(statement, ast.Expr):
            return rewrite.remove(statement).edits()
        return rewrite.replace(node, source.text(node.func.value)).edits()
    for each in [*node.args, *(word.value for word in node.keywords)]:
        if isinstance(each, ast.Attribute) and each.attr in ("float16", "half"):
            rewrite.replace(each, f"{source.text(each.value)}.float32")
    return rewrite.edits()
