"""PB742: an unpack hook that returns no tensor."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of, function_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class UnpackKind(Cause):
    """The unpack hook of saved tensors returned something that is not a tensor.

    ``saved_tensors_hooks(pack, unpack)``: ``pack`` may turn a saved tensor into anything, a NumPy array, the name of a
    file, a tuple; ``unpack`` is given that in the backward pass and has to return a tensor with the same content:
    ``torch.from_numpy(array)``, ``torch.load(name)``. A function without ``return`` returns ``None``.
    """

    code = "PB742"
    title = "The unpack hook of saved tensors returned something that is not a tensor."
    says = ("unpack_hook expected to be a Tensor",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"got result of type (\S+)", case.message)
        got = said[1] if said else "?"
        calls = [
            (source, call)
            for source, call in calls_of(case, {"saved_tensors_hooks", "register_hooks"})
            if _unpack(call)
        ]
        marks = [case.mark(say("a saved tensor is asked for here"))]
        edits: tuple[Edit, ...] = ()
        for source, call in calls[:3]:
            marks.append(Mark.at(Place(source.file, call.lineno, ""), say("the hooks are set here"), source.span(call)))
            unpack = _unpack(call)
            method, name = function_of(source, unpack) if unpack is not None else (None, "")
            if method is None:
                continue
            for value in method.returns:
                marks.append(method.mark(value, say("a {kind} is returned here", kind=got)))
            if not method.returns:
                marks.append(method.mark(method.node, say("{name} returns nothing", name=name)))
            if got == "numpy.ndarray" and len(method.returns) == 1 and len(calls) == 1 and method.own:
                value = method.returns[0]
                edits = Rewrite(source).replace(value, f"torch.from_numpy({method.text(value)})").edits()
        return self.found(
            say(
                "A saved tensor was packed into something else, and what unpack made of it is of "
                "type {kind}. Backward needs "
                "the tensor back.",
                kind=got,
            ),
            marks,
            Fix(
                say("Let unpack return a tensor: the inverse of what pack does."),
                calls[0][0].code(*edits) if edits else "torch.from_numpy(array)",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if len(calls) <= 1 else "medium",
            apart="" if len(calls) <= 1 else say("Which pair of hooks it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import torch

        def pack(tensor):
            return tensor.detach().numpy()

        def unpack(array):
            return array

        w = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = w.exp().sum()
        loss.backward()

    @staticmethod
    def good():
        import torch

        def pack(tensor):
            return tensor.detach().numpy()

        def unpack(array):
            return torch.from_numpy(array)

        w = torch.randn(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = w.exp().sum()
        loss.backward()


def _unpack(call: ast.Call) -> ast.expr | None:
    named = next((each.value for each in call.keywords if each.arg == "unpack_hook"), None)
    return named or (call.args[1] if len(call.args) > 1 else None)
