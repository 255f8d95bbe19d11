"""PB818: functional_call was given names that the module does not have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import without_keyword
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say


class ParameterNames(Cause):
    """``torch.func.functional_call`` was given parameters under names that the module does not have, or not all.

    The names are those of ``net.named_parameters()`` and ``net.named_buffers()``: a path with dots, ``0.weight``,
    ``encoder.bias``. With ``strict=True`` every name has to be there and none may be missing.

    Start from ``dict(net.named_parameters())`` and replace what is meant: ``{**params, "weight": w}``. Names that begin
    with ``module.`` come from a ``DataParallel`` or DDP wrapper, names with ``_orig_mod.`` from ``torch.compile``:
    take them off. ``strict=False`` only hides the mistake: a misspelt name is then ignored, and its gradient is zero.
    """

    code = "PB818"
    title = "functional_call was given names of parameters that the module does not have."
    says = ("Error(s) in reparametrizing", "has no attribute `", "Expected all elements of parameter_and_buffer_dicts",
            "Expected parameter_and_buffer_dicts to be")  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("_functorch/functional_call.py", "functional_call")
        if local is None or case.site is None or not isinstance(local.get("module"), nn.Module):
            return None
        module = local["module"]
        given = list(dict.fromkeys(_names(local)))
        known = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        if not given:
            return self._no_dict(case)
        unknown = [name for name in given if name not in known]
        meant = {name: close for name in unknown if (close := _close(name, known, given)) is not None}
        missing = [name for name in known if name not in given and name not in meant.values()]
        edits, confidence = _edits(case, meant, unknown, missing)
        told = ", ".join(f"'{name}'" + (f" → '{meant[name]}'" if name in meant else "") for name in unknown)
        return self.found(
            say(
                "The module {module} has {known}. Unknown: {unknown}. Missing: {missing}.",
                module=type(module).__name__,
                known=_listed(known), unknown=told or say("none"), missing=_listed(missing),
            ),
            [case.mark(say("functional_call is called here"))],
            Fix(
                say("Use the names of dict(net.named_parameters()), and replace only what is meant.")
                if unknown
                else say("Give the missing ones too, or leave strict=True out: the module then uses its own."),
                "\n".join(each.text.strip() for each in edits if each.text) or _renamed(meant),
                edits,
                confidence,
            ),
            useless=[say("strict=False: a misspelt name is then ignored silently.")] if unknown else [],
            title="" if unknown else say("functional_call was told strict=True, and some parameters are missing."),
        )  # fmt: skip

    def _no_dict(self, case: Case) -> Diagnosis:
        argument = case.argument("parameter_and_buffer_dicts", 1)
        edits: tuple[Edit, ...] = ()
        inner = argument
        if (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Name)
            and inner.func.id in {"list", "tuple"}
            and inner.args
        ):
            inner = inner.args[0]
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "parameters":
            assert case.site is not None
            assert argument is not None
            text = f"dict({case.text(inner.func.value)}.named_parameters())"
            edits = (case.site.source.replaced(argument, text),)
        return self.found(
            say(
                "The parameters are given without their names; functional_call needs a dict by name, or several dicts."
            ),
            [case.mark(say("functional_call is called here"))],
            Fix(
                say("Pass a dict: dict(net.named_parameters())."),
                f"dict({case.text(case.argument('module', 0)) or 'net'}.named_parameters())",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        new = {"0.weigth": torch.zeros(2, 3), "0.bias": torch.zeros(2)}
        torch.func.functional_call(net, new, torch.ones(1, 3), strict=True)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        new = {"0.weight": torch.zeros(2, 3), "0.bias": torch.zeros(2)}
        torch.func.functional_call(net, new, torch.ones(1, 3), strict=True)


def _names(local: Mapping[str, Any]) -> Iterator[str]:
    for key in ("parameter_and_buffer_dicts", "parameters_and_buffers"):
        value = local.get(key)
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, dict):
                yield from (name for name in each if isinstance(name, str))


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:6])
    return (shown + ", ..." if len(names) > 6 else shown) or say("none")


def _close(name: str, known: list[str], given: list[str]) -> str | None:
    """The name of the module's that is meant: without the prefix of a wrapper, or the one that is spelt most alike."""
    free = [each for each in known if each not in given]
    for prefix in ("module.", "_orig_mod.", "model."):
        if name.removeprefix(prefix) in free:
            return name.removeprefix(prefix)
    found = difflib.get_close_matches(name, free, 2, 0.6)
    ratios = [difflib.SequenceMatcher(None, name, each).ratio() for each in found]
    return found[0] if found and (len(found) == 1 or ratios[0] > ratios[1] + 0.05) else None


def _edits(
    case: Case, meant: dict[str, str], unknown: list[str], missing: list[str]
) -> tuple[tuple[Edit, ...], Confidence]:
    """Rename where the names are written; what is missing beside them keeps the module's own values."""
    site = case.site
    assert site is not None
    if set(unknown) - set(meant):
        return (), "medium"
    edits = []
    for wrong, right in meant.items():
        places = [each for each in ast.walk(site.source.tree) if isinstance(each, ast.Constant) and each.value == wrong]
        if len(places) != 1:
            return (), "medium"
        quote = site.source.text(places[0])[:1]
        edits.append((places[0], f"{quote}{right}{quote}"))
    strict = case.argument("strict")
    call = case.call
    if missing and strict is not None and call is not None:
        return _loosened(site, call, edits)
    by_line = {node.lineno for node, _ in edits}
    if len(by_line) != len(edits):
        return (), "medium"
    return tuple(site.source.replaced(node, text) for node, text in edits), "high" if edits else "medium"


def _loosened(
    site: Frame, call: ast.Call, edits: list[tuple[ast.Constant, str]]
) -> tuple[tuple[Edit, ...], Confidence]:
    """The call without ``strict=True``, with the names mended: those that are not given keep the module's values."""
    edit = without_keyword(site, call, "strict")[0]
    outside = []
    for node, text in edits:
        if any(each is call for each in site.source.around(node)):
            old = site.source.text(node)
            edit = Edit(edit.file, edit.first, edit.last, (edit.text or "").replace(old, text))
        else:
            outside.append(site.source.replaced(node, text))
    return (edit, *outside), "medium"


def _renamed(meant: Mapping[str, str]) -> str:
    """The line that takes a prefix off all names, if it is one that a wrapper put there."""
    prefixes = {name.removesuffix(close) for name, close in meant.items() if name.endswith(close)}
    if len(prefixes) != 1 or not prefixes <= {"module.", "_orig_mod."}:
        return ""
    return f'{{name.removeprefix("{prefixes.pop()}"): value for name, value in params.items()}}'
