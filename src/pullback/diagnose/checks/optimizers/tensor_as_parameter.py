"""PB626: a computed tensor assigned to a parameter."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.freed.find import reached
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class TensorAsParameter(Cause):
    """The attribute of a module that is a parameter takes a ``Parameter`` only, not a tensor.

    ``net.weight = net.weight * 0.5`` would replace the leaf that is trained by the result of an operation. Change the
    values in place instead: ``with torch.no_grad(): net.weight.mul_(0.5)``, or ``net.weight.copy_(values)``. The
    optimizer and shared weights then still have the same tensor.

    ``net.weight = nn.Parameter(values)`` makes a new parameter, which an optimizer that exists already does not know.
    For a weight that is computed in each forward pass use ``torch.nn.utils.parametrize``, or ``torch.func``'s
    ``functional_call``.
    """

    code = "PB626"
    title = "A tensor was assigned to an attribute that is a parameter."
    says = ("cannot assign",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None or not case.says("as parameter", "object to parameter"):
            return None
        local = case.library_frame("nn/modules/module.py", "__setattr__") or {}
        value, owner, name = local.get("value"), local.get("self"), str(local.get("name", ""))
        if not isinstance(value, Tensor) or owner is None:
            return None
        old = owner._parameters.get(name)
        own = _of_itself(value, old)
        computed = value.requires_grad and _in_forward(case)
        statement = case.site.statement
        edits: tuple[Edit, ...] = ()
        target = "net.weight"
        if computed:
            target = case.text(statement.targets[0]) if isinstance(statement, ast.Assign) else name
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, text = case.text(statement.targets[0]), case.text(statement.value)
            if old is not None and old.shape == value.shape:
                edits = (self._in_place(case, statement, target),)
            else:
                edits = (case.site.source.replaced(statement.value, f"torch.nn.Parameter({text})"),)
        elif isinstance(statement, ast.AugAssign):
            edits = (case.site.source.wrapped(statement, "with torch.no_grad():"),)
        return self.found(
            say(
                "{name} is a parameter of the {kind}; what is assigned is a tensor of shape {shape}{made}.",
                name=target, kind=type(owner).__name__, shape=tuple(value.shape),
                made=f" ({value.grad_fn.name()})" if value.grad_fn is not None else "",
            ),
            [case.mark(say("a tensor is assigned to the parameter {name}", name=target))],
            Fix(
                say("Keep what is trained as a parameter of another name, and compute the weight from it in each "
                    "forward pass: torch.nn.utils.parametrize does that, and the gradient goes through."),
                f"torch.nn.utils.parametrize.register_parametrization(module, {name!r}, Computed())"
                "    # a Module whose forward(weight) returns the computed weight",
            )
            if computed
            else Fix(
                say("Change the values of the parameter in place, under no_grad."),
                case.site.source.code(*edits) or f"with torch.no_grad():\n    {target}.copy_(values)",
                edits, "high" if edits and (own or not value.requires_grad) else "medium",
            ),
            tensors=[case.subject(value, "value", say("the value"))],
            useless=[say("del net.weight before: the weight is then no parameter any more, and is not trained")],
        )  # fmt: skip

    @staticmethod
    def _in_place(case: Case, statement: ast.Assign, target: str) -> Edit:
        assert case.site is not None
        source, value = case.site.source, statement.value
        indent = source.indent(statement.lineno)
        line = f"{target}.copy_({source.text(value)})"
        names = {ast.Mult: "mul_", ast.Add: "add_", ast.Sub: "sub_", ast.Div: "div_"}
        if isinstance(value, ast.BinOp) and source.text(value.left) == target and type(value.op) in names:
            line = f"{target}.{names[type(value.op)]}({source.text(value.right)})"
        text = f"{indent}with torch.no_grad():\n{indent}    {line}"
        return Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, text)

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 3, bias=False)
        layer.weight = torch.eye(3)

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(3))


def _of_itself(value: Tensor, old: Tensor | None) -> bool:
    """Whether a tensor has a graph whose only leaf is the parameter that it is to replace: a new value of it."""
    leaves = [each.variable for each in reached([value.grad_fn]) if hasattr(each, "variable")]
    return bool(leaves) and all(each is old for each in leaves)


def _in_forward(case: Case) -> bool:
    """Whether it happened in a forward pass: the value is meant to be differentiated through."""
    files = (frame.f_code for frame, _, _ in frames_of(case.error.__traceback__))
    return any(
        each.co_name == "_call_impl" and each.co_filename.replace("\\", "/").endswith("nn/modules/module.py")
        for each in files
    )
