"""PB735: a post-accumulate hook on a tensor that is no leaf."""

from __future__ import annotations

import ast

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.functions.hooks import function_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class AfterAccumulation(Cause):
    """A post-accumulate hook was registered on a tensor that was computed.

    ``register_post_accumulate_grad_hook`` is called with the tensor after its ``.grad`` was added to. Only leaves
    have a gradient accumulated: parameters, and tensors that were made with ``requires_grad=True``. For an
    intermediate result use ``register_hook``, which is called with the gradient; to keep that gradient,
    ``retain_grad()``.
    """

    code = "PB735"
    title = "A post-accumulate hook was registered on a tensor that is not a leaf."
    says = ("post accumulate grad hooks cannot be registered on non-leaf tensors",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        call, site = case.call, case.site
        if call is None or site is None or not isinstance(call.func, ast.Attribute):
            return None
        name = case.text(call.func.value)
        tensor = site.evaluated(call.func.value)
        made = case.line_of(getattr(tensor, "grad_fn", None))
        marks = [case.mark(say("{name} is not a leaf", name=name))]
        if made is not None:
            marks.append(case.mark_at(made, say("{name} is computed here", name=name)))
        elif (written := _made(case, name)) is not None:
            place = site.place._replace(line=written.lineno)
            marks.append(case.mark_at(place, say("{name} is computed here", name=name)))
        edits: tuple[Edit, ...] = ()
        hook = function_of(site.source, call.args[0])[0] if call.args else None
        unused = (
            hook is not None
            and hook.names
            and not any(isinstance(each, ast.Name) and each.id == hook.names[0] for each in hook.inner)
        )
        text = site.source.text(call)
        new = text.replace("register_post_accumulate_grad_hook", "register_hook", 1)
        parametrized = _parametrized(site, call.func.value)
        if parametrized:
            new = text.replace(name, parametrized, 1)
        edits = (site.source.replaced(call, new),)
        tensors = [case.subject(tensor, "hooked", name)] if hasattr(tensor, "grad_fn") else []
        return self.found(
            say(
                "{name} was computed, so no gradient is accumulated in it: there is no moment after that, and such a "
                "hook exists for leaves only.",
                name=name,
            ),
            marks,
            Fix(
                say("The parametrized weight is computed anew each time; register it on the parameter behind it.")
                if parametrized
                else say("Use register_hook, whose hook is given the gradient rather than the tensor."),
                new,
                edits,
                "high" if unused or parametrized else "medium",
            ),
            tensors=tensors,
            useless=[say("detach(): then no gradient arrives at all.")],
        )

    @staticmethod
    def bad():
        import torch

        seen = []
        net = torch.nn.Linear(4, 2)
        hidden = torch.relu(net(torch.randn(3, 4)))
        hidden.register_post_accumulate_grad_hook(lambda tensor: seen.append(1))
        hidden.sum().backward()

    @staticmethod
    def good():
        import torch

        seen = []
        net = torch.nn.Linear(4, 2)
        hidden = torch.relu(net(torch.randn(3, 4)))
        hidden.register_hook(lambda grad: seen.append(1))
        hidden.sum().backward()


def _made(case: Case, name: str) -> ast.Assign | None:
    site = case.site
    if site is None:
        return None
    found = None
    for node in ast.walk(site.scope):
        before = isinstance(node, ast.Assign) and node.lineno < site.line and site.source.scope(node) is site.scope
        if before and isinstance(node, ast.Assign) and name in map(site.source.text, node.targets):
            found = node if found is None or node.lineno > found.lineno else found
    return found


def _parametrized(site: Frame, node: ast.expr) -> str:
    """The parameter behind a weight that ``torch.nn.utils.parametrize`` computes, as it would be written."""
    if not isinstance(node, ast.Attribute):
        return ""
    owner = site.evaluated(node.value)
    lists = owner._modules.get("parametrizations") if isinstance(owner, nn.Module) else None
    if lists is None or node.attr not in lists._modules:
        return ""
    return f"{site.source.text(node.value)}.parametrizations.{node.attr}.original"
