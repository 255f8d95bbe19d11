"""PB723: a method of a Function differentiates what was computed in it, while nothing is recorded there."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.functions.classes import Method, applied_marks, asked_marks, called, method_of, running
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class GradModeInside(Cause):
    """A method of a custom Function differentiates something that it computed itself, but nothing is recorded in there.

    ``forward`` and ``backward`` of a custom Function run with grad mode off (``backward`` at least without
    ``create_graph=True``). What is computed in them has no graph, even if its inputs require grad, so a
    ``torch.autograd.grad`` or ``.backward()`` in the same method finds nothing to go through. Adjoint methods for
    differential equations, implicit layers and hand-made checkpoints need just that. Switch the recording on around the
    computation:

        with torch.enable_grad():
            y = y.detach().requires_grad_()
            f = func(y)
            (vjp,) = torch.autograd.grad(f, y, grad)

    ``requires_grad_()`` alone does not help: it makes a leaf, but the operations after it are still not recorded.
    """

    code = "PB723"
    title = "A method of a custom Function differentiates what it computed without recording."
    says = ("does not require grad and does not have a grad_fn",)
    raises = (RuntimeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        inside = _inside(case)
        roots = case.asked.tensors if case.asked is not None else []
        if inside is None or not roots or roots[0].requires_grad:
            return None
        method, frame, marks = inside
        call = frame.node
        root = _root(frame, call)
        if "enable_grad" in method.text(method.node) or not _differentiable(case, frame):
            return None
        computed = _computing(frame, root)
        if not computed and not isinstance(root, ast.Call):
            return None
        edits = _edits(frame, computed)
        name = frame.source.text(root) if isinstance(root, ast.Name) else say("the root")
        first = [case.mark(say("{name} has no graph here", name=name))]
        first += [method.mark(each, say("computed here, without recording")) for each in computed[-1:]]
        return self.found(
            say(
                "torch switches grad mode off in {method}. So {name}, which is computed in there, has no graph, though "
                "what it is computed from requires grad.",
                method=method.name, name=name,
            ),
            [*first, *marks],
            Fix(
                say("Record the computation: put it into a torch.enable_grad() block."),
                frame.source.code(*edits) or "with torch.enable_grad():\n    ...",
                edits,
                "high" if edits else "medium",
            ),
            useless=[
                say("requires_grad_() on the input alone: the operations after it are still not recorded."),
                say("torch.enable_grad() around the outer backward(): torch switches grad mode off again inside."),
            ],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 3)

        class Recomputed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return net(x).tanh()

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                x = x.detach().requires_grad_()
                y = net(x).tanh()
                return torch.autograd.grad(y, x, grad)[0]

        x = torch.randn(2, 3, requires_grad=True)
        Recomputed.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 3)

        class Recomputed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return net(x).tanh()

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                x = x.detach().requires_grad_()
                with torch.enable_grad():
                    y = net(x).tanh()
                return torch.autograd.grad(y, x, grad)[0]

        x = torch.randn(2, 3, requires_grad=True)
        Recomputed.apply(x).sum().backward()


def _inside(case: Case) -> tuple[Method, Frame, list[Mark]] | None:
    """The method of a Function whose own line failed, its frame, and the lines that led to it."""
    site = case.site
    if site is None:
        return None
    if (found := running(case)) is not None:
        node, frame = found
        method = method_of(node._forward_cls, site.code.co_name)
        if method is not None and frame.code is site.code:
            return method, site, [*applied_marks(case, node._forward_cls, node), *asked_marks(case)]
    if (applied := called(case)) is not None:
        method = method_of(applied[0], "forward")
        outer = case.frames[-2] if len(case.frames) > 1 else None
        if method is not None and method.node is site.scope and outer is not None:
            return method, site, [outer.mark(say("{name} was applied here", name=applied[0].__name__))]
    return None


def _root(frame: Frame, call: ast.expr | None) -> ast.expr | None:
    """What is differentiated, as it is written."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute | ast.Name):
        return None
    if isinstance(call.func, ast.Attribute) and isinstance(frame.evaluated(call.func.value), Tensor):
        return call.func.value
    return call.args[0] if call.args else None


def _differentiable(case: Case, frame: Frame) -> bool:
    """Whether something that was at hand requires grad."""
    given = case.asked.inputs if case.asked is not None and case.asked.inputs is not None else []
    return any(isinstance(each, Tensor) and each.requires_grad for each in [*given, *frame.local.values()])


def _computing(frame: Frame, root: ast.expr | None) -> list[ast.stmt]:
    """The statements of the same block that compute the root, in their order."""
    statement = frame.statement
    around = frame.source.parent(statement) if statement is not None else None
    block = getattr(around, "body", [])
    if statement is None or root is None or statement not in block:
        return []
    wanted = {each.id for each in ast.walk(root) if isinstance(each, ast.Name)}
    found: list[ast.stmt] = []
    for each in reversed(block[: block.index(statement)]):
        if not isinstance(each, ast.Assign):
            continue
        names = {node.id for target in each.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        text = frame.source.text(each)
        if not names & wanted or "requires_grad" in text or "saved_tensors" in text or "detach()" in text:
            continue
        found.insert(0, each)
        wanted |= {node.id for node in ast.walk(each.value) if isinstance(node, ast.Name)}
    return found


def _edits(frame: Frame, computed: list[ast.stmt]) -> tuple[Edit, ...]:
    """The edit that puts the statements that compute the root, or the failing one, under enable_grad."""
    statement = frame.statement
    if statement is None:
        return ()
    first = computed[0] if computed else statement
    last = computed[-1] if computed else statement
    lines = frame.source.lines[first.lineno - 1 : last.end_lineno]
    indent = frame.source.indent(first.lineno)
    if frame.source.lines[first.lineno - 1].encode()[: first.col_offset].strip():
        return ()
    inner = "\n".join(f"    {line}" if line.strip() else line for line in lines)
    text = f"{indent}with torch.enable_grad():\n{inner}"
    return (Edit(frame.source.file, first.lineno, last.end_lineno or last.lineno, text),)
