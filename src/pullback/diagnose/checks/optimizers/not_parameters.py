"""PB624: something else than tensors in an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import ADD, INIT, parameters_written
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NotParameters(Cause):
    """An optimizer takes a list of tensors, or a list of dicts with ``"params"``.

    Not the module (``net``), but ``net.parameters()``; not the method (``net.parameters``), but its call; a single
    tensor as ``[w]``; several modules as ``[*a.parameters(), *b.parameters()]``; no set, which has no order; one
    group as ``[{"params": ...}]``. ``state_dict()`` has detached tensors, which never get a gradient.
    """

    code = "PB624"
    title = "An optimizer was given something else than a list of tensors."
    says = (
        "optimizer can only optimize tensors", "params argument given to the optimizer", "object is not iterable",
        "optimizer parameters need to be organized in ordered collections", "param_group must be a dict", "'params'",
    )  # fmt: skip
    raises = (TypeError, KeyError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame(*INIT)
        if case.site is None or (local is None and case.library_frame(*ADD) is None):
            return None
        given = (local or {}).get("params")
        node = parameters_written(case)
        text = case.text(node) or "params"
        kind = type(given).__name__
        if isinstance(given, nn.Module):
            kind = f"nn.Module ({kind})"
        new = self._new(operand(case, node), given)
        edits: tuple[Edit, ...] = (case.site.source.replaced(node, new),) if new and node is not None else ()
        marks = [case.mark(say("{name} is given to the optimizer", name=text))]
        marks += made(case, None, node, say("{name} was made here", name=text))
        return self.found(
            say("{name} is of type {kind}, and what is in it are not parameters: an optimizer takes "
                "a list of tensors, or of "
                "dicts with such lists.", name=text, kind=kind),
            marks,
            Fix(
                say("Give it the parameters."),
                case.site.source.code(*edits) or "torch.optim.SGD(net.parameters(), lr=0.1)",
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def _new(text: str, given: Any) -> str:
        if isinstance(given, nn.Module):
            return f"{text}.parameters()"
        if isinstance(given, Tensor):
            return f"[{text}]"
        if isinstance(given, dict):
            if "params" in given:
                return f"[{text}]"
            return f"{text[: -len('.state_dict()')]}.parameters()" if text.endswith(".state_dict()") else ""
        if callable(given) and getattr(given, "__name__", "") == "parameters":
            return f"{text}()"
        if isinstance(given, set | frozenset):
            return f"list({text})"
        if isinstance(given, list | tuple) and given:
            if all(isinstance(each, nn.Module) for each in given):
                return f"[p for module in {text} for p in module.parameters()]"
            if all(isinstance(each, Iterator | list | tuple) for each in given):
                return f"[p for group in {text} for p in group]"
            if any(each is None for each in given) and all(each is None or isinstance(each, Tensor) for each in given):
                return f"[p for p in {text} if p is not None]"
        return ""

    @staticmethod
    def bad():
        import torch

        encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam([encoder, head])
        assert optimizer

    @staticmethod
    def good():
        import torch

        encoder, head = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
        assert optimizer
