"""PB730: a hook on a tensor that does not require grad."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.frames import variables
from pullback.graph.values import Place
from pullback.language import say

MAKERS = frozenset(
    {
        "randn",
        "rand",
        "zeros",
        "ones",
        "full",
        "empty",
        "tensor",
        "arange",
        "linspace",
        "eye",
        "randint",
        "from_numpy",
        "as_tensor",
        "zeros_like",
        "ones_like",
        "randn_like",
        "rand_like",
        "full_like",
        "normal",
        "Tensor",
    }
)


class NoGradTensor(Cause):
    """A hook was registered on a tensor that does not require grad.

    A hook is called when a gradient arrives at the tensor. A tensor that does not require grad never gets one. Either
    it is an input that is to require grad (``torch.randn(3, requires_grad=True)``, ``x.requires_grad_()`` before it
    is used), or it was made without the graph: under ``torch.no_grad()``, after ``.detach()``, from frozen
    parameters.

    Register the hook on the tensor that is used in the pass, before it: a later one hears nothing of it.
    """

    code = "PB730"
    title = "A hook was registered on a tensor that does not require grad."
    says = ("cannot register a hook on a tensor that doesn't require grad",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        tensor = _tensor(case)
        call, site = case.call, case.site
        if tensor is None or call is None or site is None or not isinstance(call.func, ast.Attribute):
            return None
        owner = call.func.value
        name = case.text(owner)
        made = _made(case, owner)
        factory = made is not None and _is_maker(made.value)
        marks = [case.mark(say("no gradient will ever arrive at {name}", name=name))]
        if made is not None:
            place = Place(site.file, made.lineno, site.place.function)
            marks.append(Mark.at(place, say("{name} is made here", name=name), site.source.span(made)))
        statement = site.statement
        edits: tuple[Edit, ...] = ()
        if isinstance(tensor, nn.Parameter):
            return self._frozen(case, tensor, name, marks)
        floating = tensor.is_floating_point() or tensor.is_complex()
        if isinstance(owner, ast.Name) and floating:
            rewrite = Rewrite(site.source)
            if factory and made is not None:
                edits = rewrite.after(made, f"{name}.requires_grad_()").edits()
            elif statement is not None:
                edits = rewrite.before(statement, f"{name}.requires_grad_()").edits()
        return self.found(
            say("{name} does not require grad and no graph leads to it, so a hook on it could never run.", name=name),
            marks,
            Fix(
                say("Make it require grad when it is made, before it is used.")
                if factory
                else say(
                    "Let {name} come from something that requires grad, or make it require grad itself.", name=name
                ),
                site.source.code(*edits) or f"{name}.requires_grad_()",
                edits if factory else (),
                "high" if factory and edits else "medium",
            ),
            tensors=[case.subject(tensor, "hooked", name)],
        )

    def _frozen(self, case: Case, tensor: nn.Parameter, name: str, marks: list[Mark]) -> Diagnosis:
        """Of a parameter that was frozen, perhaps on purpose."""
        site = case.site
        statement = site.statement if site is not None else None
        edits: tuple[Edit, ...] = ()
        if site is not None and isinstance(statement, ast.Expr) and statement.value is case.call:
            edits = (site.source.wrapped(statement, f"if {name}.requires_grad:"),)
        return self.found(
            say("{name} is a frozen parameter (requires_grad=False): a hook on it could never run.", name=name),
            marks,
            Fix(
                say("Register the hook only where requires_grad is True, or unfreeze the parameter."),
                site.source.code(*edits) if site is not None else "",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "hooked", name)],
        )

    @staticmethod
    def bad():
        import torch

        gradients: list[torch.Tensor] = []
        image = torch.rand(2, 8)
        net = torch.nn.Linear(8, 1)
        image.register_hook(gradients.append)
        net(image).sum().backward()

    @staticmethod
    def good():
        import torch

        gradients: list[torch.Tensor] = []
        image = torch.rand(2, 8, requires_grad=True)
        net = torch.nn.Linear(8, 1)
        image.register_hook(gradients.append)
        net(image).sum().backward()


def _tensor(case: Case) -> Tensor | None:
    for frame, _, _ in frames_of(case.error.__traceback__):
        if frame.f_code.co_name in ("register_hook", "register_post_accumulate_grad_hook"):
            found = variables(frame).get("self")
            if isinstance(found, Tensor):
                return found
    return None


def _made(case: Case, owner: ast.expr) -> ast.Assign | None:
    """The last plain assignment of a name before the failing line, in the same function."""
    site = case.site
    if site is None or not isinstance(owner, ast.Name):
        return None
    found = None
    for node in ast.walk(site.scope):
        before = isinstance(node, ast.Assign) and node.lineno <= site.line and site.source.scope(node) is site.scope
        if before and isinstance(node, ast.Assign) and owner.id in map(site.source.text, node.targets):
            found = node if found is None or node.lineno >= found.lineno else found
    return found


def _is_maker(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return name in MAKERS
