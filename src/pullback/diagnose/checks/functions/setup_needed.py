"""PB715: torch.func needs forward and setup_context apart."""

from __future__ import annotations

import ast
import textwrap

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import Method, called, method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SetupNeeded(Cause):
    """A Function whose forward takes a context was used under torch.func.

    ``torch.func.grad``, ``vmap``, ``jacrev`` and the others run ``forward`` on wrapped tensors, apart from the context.
    So it has to be split: ``forward(x)`` without ``ctx``, and ``setup_context(ctx, inputs, output)`` for all that is
    kept. What ``backward`` needs of the intermediate results has to be an output of ``forward`` then (marked with
    ``ctx.mark_non_differentiable``), or computed again.

    Under ``vmap`` also set ``generate_vmap_rule = True``, if all methods consist of torch's operations.
    """

    code = "PB715"
    title = "A custom Function without setup_context was used under torch.func."
    says = ("it must override the setup_context staticmethod",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = called(case)
        forward = method_of(found[0], "forward") if found else None
        if found is None or forward is None:
            return None
        kind = found[0]
        marks = [
            case.mark(say("{name} is applied under a transform of torch.func", name=kind.__name__)),
            forward.mark(forward.node, say("forward takes a context here, and there is no setup_context")),
        ]
        new, sure = _split(forward)
        edits: tuple[Edit, ...] = ()
        if new and sure and forward.own:
            edits = forward.rewrite().replace(forward.node, new).edits()
        return self.found(
            say(
                "{kind}.forward computes and fills the context at once. The transforms of torch.func need the two "
                "apart: forward({names}) and setup_context(ctx, inputs, output).",
                kind=kind.__name__,
                names=", ".join(forward.names[1:]),
            ),
            marks,
            Fix(
                say("Take the context out of forward, and fill it in setup_context."),
                textwrap.dedent(forward.source.indent(forward.node.lineno) + new) if new else "",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Exp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                result = torch.exp(x * scale)
                ctx.save_for_backward(result)
                ctx.scale = scale
                return result

            @staticmethod
            def backward(ctx, grad):
                (result,) = ctx.saved_tensors
                return grad * result * ctx.scale, None

        def loss(x):
            return Exp.apply(x, 2.0).sum()

        torch.func.grad(loss)(torch.randn(3))
        x = torch.randn(3, requires_grad=True)
        loss(x).backward()

    @staticmethod
    def good():
        import torch

        class Exp(torch.autograd.Function):
            @staticmethod
            def forward(x, scale):
                return torch.exp(x * scale)

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(output)
                ctx.scale = inputs[1]

            @staticmethod
            def backward(ctx, grad):
                (result,) = ctx.saved_tensors
                return grad * result * ctx.scale, None

        def loss(x):
            return Exp.apply(x, 2.0).sum()

        torch.func.grad(loss)(torch.randn(3))
        x = torch.randn(3, requires_grad=True)
        loss(x).backward()


def _split(forward: Method) -> tuple[str, bool]:
    """The text of the two methods, and whether it means the same."""
    if isinstance(forward.node, ast.Lambda) or len(forward.names) < 2:
        return "", False
    context, inputs = forward.names[0], forward.names[1:]
    kept = [each for each in forward.body if _names(each) & {context}]
    rest = [each for each in forward.body if each not in kept]
    simple = all(isinstance(each, ast.Expr | ast.Assign) for each in kept) and rest and isinstance(rest[-1], ast.Return)
    if not simple or not isinstance(rest[-1], ast.Return) or rest[-1].value is None:
        return "", False
    if any(isinstance(each, ast.Return) and each is not rest[-1] for each in forward.inner):
        return "", False
    made = {name for each in rest for name in _stored(each)}
    result = rest[-1].value
    outputs = [
        each.id for each in (result.elts if isinstance(result, ast.Tuple) else [result]) if isinstance(each, ast.Name)
    ]
    used = {name for each in kept for name in _names(each)}
    sure = not (used & made - set(outputs)) and not any(name in made for name in used & set(inputs))
    indent = forward.source.indent(forward.node.lineno)
    body = indent + "    "
    lines = [f"{indent}@staticmethod", f"{indent}def forward({_parameters(forward)}):"]
    lines += [body + forward.text(each) for each in rest]
    lines += ["", f"{indent}@staticmethod", f"{indent}def setup_context({context}, inputs, output):"]
    if used & set(inputs):
        lines.append(f"{body}{inputs[0]}, = inputs" if len(inputs) == 1 else f"{body}{', '.join(inputs)} = inputs")
    if used & set(outputs):
        left = ", ".join(outputs)
        lines.append(f"{body}{left} = output")
    lines += [body + forward.text(each) for each in kept] or [f"{body}pass"]
    return "\n".join(lines).removeprefix(indent), sure


def _parameters(forward: Method) -> str:
    arguments = forward.node.args
    text = ast.unparse(
        ast.arguments(
            posonlyargs=arguments.posonlyargs,
            args=list(arguments.args),
            vararg=arguments.vararg,
            kwonlyargs=arguments.kwonlyargs,
            kw_defaults=arguments.kw_defaults,
            kwarg=arguments.kwarg,
            defaults=arguments.defaults,
        )
    )
    return text.partition(",")[2].strip()


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _stored(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
