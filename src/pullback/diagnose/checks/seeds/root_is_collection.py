"""PB112: a tuple, a list or a dict is no loss."""

from __future__ import annotations

import ast
from typing import Any

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import Definition, definitions, function_of, made, operand
from pullback.diagnose.evidence.seeds.objects import backward_of, chosen, losses_in, tensors_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say


class RootIsCollection(Cause):
    """Several values came back together, and ``backward`` was called on the tuple, list or dict of them.

    ``nn.LSTM`` and ``nn.GRU`` return ``(output, state)``, ``nn.MultiheadAttention`` returns ``(output, weights)``,
    detection models return a dict of losses while they train, and a trailing comma (``loss = criterion(y, t),``) makes
    a tuple too.

    Take out what you want: ``output, state = lstm(x)``, then compute the loss from ``output``. Of several losses make
    one: ``sum(losses.values()).backward()``.
    """

    code = "PB112"
    title = "backward() was called on a collection of values, not on a tensor."
    says = (
        "object has no attribute 'backward'",
        *(f"'{kind}' object has no attribute 'backward'" for kind in ("tuple", "list", "dict")),
    )
    raises = (AttributeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = backward_of(case)
        if found is None or case.site is None:
            return None
        thing, node = found
        if type(thing) not in (tuple, list, dict) and not (isinstance(thing, tuple) and hasattr(thing, "_fields")):
            return None
        kind, text = type(thing).__name__, operand(case, node)
        code, edits, sure = self._fix(case, thing, node)
        marks = [case.mark(say("{name} is of type {kind} here", name=text, kind=kind))]
        marks += made(case, None, node, say("the {kind} came from here", kind=kind))
        parts = [f"{text}{access}" for access, _ in tensors_in(thing)[:4]]
        return self.found(
            say("{name} is of type {kind} (items: {count}); only a tensor has backward().", name=text, kind=kind,
                count=len(thing)),
            marks,
            Fix(say("Take the loss out of it, or compute the loss from what is in it."), code, edits, sure),
            tensors=[case.subject(part, "part", f"{text}{access}") for access, part in tensors_in(thing)[:4]],
            notes=[say("These require grad: {names}.", names=", ".join(parts))] if parts else [],
        )  # fmt: skip

    def _fix(self, case: Case, thing: Any, node: ast.expr | None) -> tuple[str, tuple[Edit, ...], Confidence]:
        assert case.site is not None
        source, text = case.site.source, operand(case, node)
        losses = losses_in(thing)
        one = chosen(losses)
        if node is None:
            return "", (), "low"
        trailing = self._trailing_comma(case, node)
        if trailing is not None:
            return trailing.text or "", (trailing,), "high"
        if one is not None:
            return f"{text}{one[0]}.backward()", (source.replaced(node, f"{text}{one[0]}"),), "high"
        if losses and len(losses) == len(thing):
            total = f"sum({text}.values())" if isinstance(thing, dict) else f"sum({text})"
            return f"{total}.backward()", (source.replaced(node, total),), "high"
        return self._first(case, thing, node)

    @staticmethod
    def _trailing_comma(case: Case, node: ast.expr) -> Edit | None:
        for each in definitions(case, node):
            value = each.value
            if isinstance(value, ast.Tuple) and len(value.elts) == 1:
                return each.scene.source.replaced(value, each.scene.source.text(value.elts[0]))
        return None

    @staticmethod
    def _first(case: Case, thing: Any, node: ast.expr) -> tuple[str, tuple[Edit, ...], Confidence]:
        """Unpacks what a module of torch returned: the first is its output."""
        assert case.site is not None
        made_here: list[Definition] = definitions(case, node)
        text = operand(case, node)
        last = made_here[-1] if made_here else None
        value = last.value if last else None
        module = last.scene.evaluated(value.func) if last and isinstance(value, ast.Call) else None
        access = "[0]" if isinstance(thing, tuple | list) and thing and tensors_in(thing[:1]) else ""
        if not access:
            return f"loss = criterion({text}[...], target); loss.backward()", (), "low"
        first = case.site.source.replaced(node, f"{text}{access}.sum()")
        if isinstance(module, nn.Module) and function_of(module) is None and last and len(made_here) == 1:
            targets = getattr(last.statement, "targets", [])
            if len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == text:
                unpacked = last.scene.source.replaced(targets[0], f"{text}, {', '.join('_' * (len(thing) - 1))}")
                second = case.site.source.replaced(node, f"{text}.sum()")
                code = f"{(unpacked.text or '').strip()}\nloss = {text}.sum()    # or your own loss\nloss.backward()"
                return code, (unpacked, second), "medium"
        return f"loss = {text}{access}.sum()    # or your own loss\nloss.backward()", (first,), "low"

    @staticmethod
    def bad():
        import torch

        rnn = torch.nn.GRU(2, 3)
        net = torch.nn.Linear(3, 1)
        output, state = rnn(torch.randn(5, 1, 2))
        losses = {"last": net(output[-1]).square().mean(), "state": state.square().mean()}
        losses.backward()

    @staticmethod
    def good():
        import torch

        rnn = torch.nn.GRU(2, 3)
        net = torch.nn.Linear(3, 1)
        output, state = rnn(torch.randn(5, 1, 2))
        losses = {"last": net(output[-1]).square().mean(), "state": state.square().mean()}
        sum(losses.values()).backward()
