"""PB733: a hook that returns something other than a tensor."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.hooks.changed_gradient import marked
from pullback.diagnose.evidence.functions.hooks import Registered, registered
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ReturnedKind(Cause):
    """A hook returned something that cannot take the place of a gradient.

    A hook of a tensor returns ``None``, which leaves the gradient as it is, or a tensor that replaces it. Numbers,
    arrays and tuples are errors: ``lambda g: g.norm().item()`` returns a number, ``return (g,)`` a tuple. A hook of a
    node (``grad_fn.register_hook``) is the other way round: it returns ``None`` or a tuple of gradients.

    To collect something, append it and return nothing: ``lambda g: norms.append(g.norm().item())``.
    """

    code = "PB733"
    title = "A hook returned something that cannot take the place of a gradient."
    says = ("but hook returned '",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"expected (\w+), but hook returned '([^']+)'", case.message)
        if said is None:
            return None
        wants, got = said[1], said[2]
        found = registered(case, {"register_hook", "register_prehook"})
        found = [each for each in found if _is_node(each) == (wants == "tuple")] or found
        found = [each for each in found if each.hook is None or each.hook.returns]
        fitting = [each for each in found if _fits(each, got)]
        hooks = fitting or found
        marks = [case.mark(say("the backward pass failed here"))]
        marks += marked(hooks, say("a {kind} is returned here", kind=got))
        edits = _edits(hooks, wants, got)
        expected = say("a tuple of gradients") if wants == "tuple" else say("a tensor")
        return self.found(
            say(
                "A hook returned an object of type {got}; {expected} or None was expected.", got=got, expected=expected
            ),
            marks,
            Fix(
                say("Return {expected}, or nothing to leave the gradient as it is.", expected=expected),
                hooks[0].source.code(*edits) if edits else "return None",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if len(hooks) == 1 else "medium",
            apart="" if len(hooks) == 1 else say("Which hook it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        out = torch.tanh(net(torch.randn(2, 3)))
        out.register_hook(lambda grad: float(grad.norm()))
        out.sum().backward()

    @staticmethod
    def good():
        import torch

        norms = []
        net = torch.nn.Linear(3, 1)
        out = torch.tanh(net(torch.randn(2, 3)))
        out.register_hook(lambda grad: norms.append(float(grad.norm())))
        out.sum().backward()


WORDS = {
    "float": (".item()", "float("),
    "int": ("len(", "int(", ".item()"),
    "numpy.ndarray": (".numpy()", "np."),
    "list": ("[", ".tolist()"),
    "str": ('"', "'"),
    "dict": ("{",),
    "bool": ("==", ">", "<", " is "),
}


def _is_node(each: Registered) -> bool:
    return "grad_fn" in each.owner or "next_functions" in each.owner


def _fits(each: Registered, got: str) -> bool:
    if each.hook is None:
        return False
    for value in each.hook.returns:
        if isinstance(value, ast.Constant) and type(value.value).__name__ == got:
            return True
        if got == "tuple" and isinstance(value, ast.Tuple):
            return True
        if any(word in each.hook.text(value) for word in WORDS.get(got, ())):
            return True
    return False


def _edits(hooks: list[Registered], wants: str, got: str) -> tuple[Edit, ...]:
    hook = hooks[0].hook if len(hooks) == 1 else None
    if hook is None or not hook.own or len(hook.returns) != 1:
        return ()
    value = hook.returns[0]
    if got == "tuple" and isinstance(value, ast.Tuple) and len(value.elts) == 1:
        return hook.rewrite().replace(value, hook.text(value.elts[0])).edits()
    statement = hook.source.statement(value)
    if wants == "Variable" and got in ("float", "int", "str", "bool", "dict") and isinstance(statement, ast.Return):
        return hook.rewrite().replace(value, "None").edits()
    return ()
