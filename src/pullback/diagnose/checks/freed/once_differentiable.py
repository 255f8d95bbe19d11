"""PB320: a second derivative of a Function whose backward is marked once_differentiable."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import Node

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inputs import unused_input
from pullback.diagnose.evidence.freed.find import asking_frame, earlier_passes, reached, root_nodes
from pullback.diagnose.evidence.freed.names import held_in
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

# The node that stands for the gradients of a marked backward.
ERROR = "torch::autograd::Error"
# What autograd cannot follow.
OUTSIDE = ("detach(", ".data", "numpy", "no_grad", ".item(")


class OnceDifferentiable(Cause):
    """A second derivative was asked of a custom Function whose `backward` is marked `@once_differentiable`.

    The mark says that `backward` computes with something that autograd cannot follow (NumPy, a kernel, in-place work),
    so that its result has no derivative. It is checked only when someone differentiates a gradient: a gradient penalty,
    a Hessian, `create_graph=True`.

    If `backward` is written with torch's own differentiable operations on saved tensors, take the decorator off.
    Otherwise write the gradient as a second Function with a backward of its own. Taking the mark off a backward that
    autograd cannot follow makes second derivatives silently wrong; verify with `torch.autograd.gradgradcheck`.
    """

    code = "PB320"
    title = "A Function whose backward is marked @once_differentiable was differentiated a second time."
    says = ("marked with @once_differentiable", "not have been used in the graph")

    def diagnose(self, case: Case) -> Diagnosis | None:
        asking = asking_frame(case)
        marks = [asking.mark(say("the second derivative is asked for here")) if asking else case.mark("")]
        before = [each for each in earlier_passes(case)[1] if each.create_graph and each.spot is not None]
        graph = reached(root_nodes(case))
        unused = unused_input(case)
        if not case.says(*self.says[:1]) and (unused is None or not any(each.name() == ERROR for each in graph)):
            return None
        behind = _between(case, unused.tensor) if unused is not None else []
        kinds = behind or _functions(graph)
        edits: tuple[Edit, ...] = ()
        name, plain = say("the Function"), False
        for kind in kinds[:1]:
            name = kind.__name__
            source, node, decorator = _decorated(kind)
            if node is not None and decorator is not None:
                marks.append(
                    Mark.at(Place(source.file, decorator.lineno, node.name), say("marked here"), source.span(decorator))
                )
                edits = (Edit(source.file, decorator.lineno, decorator.lineno, None),)
                plain = not any(each in source.text(node) for each in OUTSIDE)
        if before and before[-1].spot is not None:
            marks.append(before[-1].spot.mark(say("this pass recorded the gradient as something to differentiate")))
        return self.found(
            say(
                "The backward of {name} is declared to have no derivative, and its result was differentiated.",
                name=name,
            ),
            marks,
            Fix(
                say(
                    "If that backward uses torch's operations only, take the decorator off; "
                    "else write its derivative too."
                ),
                "",
                edits,
                "high" if plain and (unused is None or behind) else "medium",
            ),
            confidence="high" if unused is None or behind else "medium",
            apart=""
            if unused is None or behind
            else say(
                "Whether {name} takes part in that Function, or in nothing at all.",
                name=case.name_of(unused.tensor) or case.text(unused.written) or say("the input"),
            ),
        )

    @staticmethod
    def bad():
        import torch
        from torch.autograd.function import once_differentiable

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            @once_differentiable
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

        x = torch.randn(4, requires_grad=True)
        (slope,) = torch.autograd.grad(Cube.apply(x).sin().sum(), x, create_graph=True)
        slope.square().sum().backward()

    @staticmethod
    def good():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

        x = torch.randn(4, requires_grad=True)
        (slope,) = torch.autograd.grad(Cube.apply(x).sin().sum(), x, create_graph=True)
        slope.square().sum().backward()


def _between(case: Case, tensor: Tensor) -> list[type]:
    """The marked Functions between a value that a variable still holds and the input, nearest to the value first."""
    for each in held_in(case.frames):
        node = each.tensor.grad_fn if each.tensor.requires_grad else None
        graph = reached([node])
        if node is None or not any(getattr(step, "variable", None) is tensor for step in graph):
            continue
        marked: list[Any] = [step for step in graph if _is_marked(step) and _leads(step, tensor)]
        found = [step._forward_cls for step in marked]
        if found:
            return list(dict.fromkeys(found))
    return []


def _is_marked(node: Any) -> bool:
    kind = getattr(node, "_forward_cls", None)
    return kind is not None and _decorated(kind)[2] is not None


def _leads(node: Node, tensor: Tensor) -> bool:
    return any(getattr(step, "variable", None) is tensor for step in reached([node]))


def _functions(graph: dict[Node, None]) -> list[type]:
    """The user's Functions in a graph whose backward is marked."""
    found: dict[type, None] = {}
    for node in graph:
        kind = getattr(node, "_forward_cls", None)
        if kind is not None and _decorated(kind)[2] is not None:
            found[kind] = None
    if found:
        return list(found)
    # the recorded gradient has lost its Function: look at all
    return [kind for kind in Function.__subclasses__() if _decorated(kind)[2] is not None]


def _decorated(kind: type) -> tuple[Source, ast.FunctionDef | None, ast.expr | None]:
    """The backward of a Function in the user's source, and the decorator that marks it."""
    backward = getattr(kind, "backward", None)
    code = getattr(getattr(backward, "__wrapped__", backward), "__code__", None)
    if code is None or not user_files(()).own_file(code.co_filename):
        return Source("", ""), None, None
    source = source_of(code.co_filename)
    node = source.function_at(code.co_firstlineno, code.co_name)
    if not isinstance(node, ast.FunctionDef):
        return source, None, None
    marks = [each for each in node.decorator_list if "once_differentiable" in source.text(each)]
    return source, node, marks[0] if marks else None
