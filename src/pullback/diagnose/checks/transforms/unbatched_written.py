"""PB813: under vmap a batched value is written into a tensor that is not batched."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import FUNC, Transform, removed, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say

MAKERS = frozenset({"zeros", "ones", "empty", "full"})


class UnbatchedWritten(Cause):
    """Under ``vmap`` an in-place operation put a value of the batch into a tensor that exists only once.

    The written tensor was captured from outside, or made within by ``torch.zeros(3)``, which knows of no batch. The
    value has one version for each sample, so that there is no room for it.

    * Made within: ``x.new_zeros(3)`` or ``torch.zeros_like(x)`` has the batch of ``x``; or build the result by
      ``torch.stack`` and ``torch.cat`` rather than by writing.
    * Captured, to add something up: return the increment, and sum it outside: ``total += vmap(f)(batch).sum(0)``.

    ``.clone()`` of the captured tensor does not help: a clone is not batched either.
    """

    code = "PB813"
    title = "A batched value was written in place into a tensor that is not batched, under vmap."
    says = ("vmap: inplace arithmetic(", "doesn't match the broadcast shape")

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = [each for each in transforms_in(case, *FUNC) if each.name == "vmap"]
        if not transforms or case.site is None or transforms[-1].caller is case.site:
            return None
        target = _target(case.site)
        name = case.site.source.text(target) if target is not None else say("a tensor")
        marks = [case.mark(say("{name} is written here", name=name))]
        maker = _made_within(case.site, target)
        if maker is not None:
            marks.append(_mark(case.site, maker, say("{name} is made here, without a batch", name=name)))
        if transforms[0].caller is not None:
            marks.append(transforms[0].caller.mark(say("vmap runs the function here")))
        fix = (
            _inside(case.site, transforms[-1], maker) if maker is not None else _outside(case.site, name, transforms[0])
        )
        return self.found(
            say(
                "{name} exists once, but what is written into it has one version for each sample: {function} runs "
                "under vmap.",
                name=name, function=title_of(transforms[-1].defined),
            ),
            marks,
            fix,
            useless=[say(".clone(): a clone of a tensor without a batch has none either.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def doubled(row):
            out = torch.zeros(2)
            out[0] = row.sum()
            return out

        torch.vmap(doubled)(torch.ones(4, 3))

    @staticmethod
    def good():
        import torch

        def doubled(row):
            out = row.new_zeros(2)
            out[0] = row.sum()
            return out

        torch.vmap(doubled)(torch.ones(4, 3))


def _target(site: Frame) -> ast.expr | None:
    """What is written: ``acc`` of ``acc.add_(x)``, of ``acc += x`` and of ``acc[0] = x``."""
    node, statement = site.node, site.statement
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        found: ast.expr | None = node.func.value
    elif isinstance(statement, ast.AugAssign):
        found = statement.target
    elif isinstance(statement, ast.Assign):
        found = statement.targets[0]
    else:
        return None
    while isinstance(found, ast.Subscript):
        found = found.value
    return found


def _made_within(site: Frame, target: ast.expr | None) -> ast.Call | None:
    """The call that made a written tensor within the function: ``torch.zeros(3)``."""
    if not isinstance(target, ast.Name) or isinstance(site.scope, ast.Module):
        return None
    for each in ast.walk(site.scope):
        if isinstance(each, ast.Assign) and any(getattr(name, "id", "") == target.id for name in each.targets):
            value = each.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in MAKERS:
                return value
    return None


def _mark(site: Frame, node: ast.expr, what: str) -> Mark:
    return Mark.at(site.place._replace(line=node.lineno), what, site.source.span(node))


def _inside(site: Frame, transform: Transform, maker: ast.Call) -> Fix:
    names = transform.defined.parameters if transform.defined is not None else []
    batched = [name for name in names if name != "self"]
    text = say("Make it from a batched tensor, so that it has the batch too.")
    if not batched or not isinstance(maker.func, ast.Attribute):
        return Fix(text)
    arguments = [site.source.text(each) for each in (*maker.args, *maker.keywords)]
    edit = site.source.replaced(maker, f"{batched[0]}.new_{maker.func.attr}({', '.join(arguments)})")
    sure = len(batched) == 1
    return Fix(text, (edit.text or "").strip(), (edit,), "high" if sure else "medium")


def _outside(site: Frame, name: str, transform: Transform) -> Fix:
    """The increment, computed for all samples and summed outside: the function's line goes."""
    text = say("Return the increment from the function, and add it up outside.")
    example = f"{name} += torch.vmap(f)(batch).sum(0)"
    node, statement, caller = site.node, site.statement, transform.caller
    call = caller.node if caller is not None else None
    if not isinstance(statement, ast.Expr) or statement.value is not node or not isinstance(node, ast.Call):
        return Fix(text, example)
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "add_" or len(node.args) != 1 or node.keywords:
        return Fix(text, example)
    given = call.args if isinstance(call, ast.Call) else []
    around = caller.statement if caller is not None else None
    plain = bool(given) and all(isinstance(each, ast.Name | ast.Attribute) for each in given)
    if not plain or not isinstance(around, ast.Assign | ast.Expr) or caller is None or transform.defined is None:
        return Fix(text, example)
    known = set(transform.defined.parameters)
    used = {each.id for each in ast.walk(node.args[0]) if isinstance(each, ast.Name)}
    if used - known - set(site.module):
        return Fix(text, example)
    head, increment = ", ".join(transform.defined.parameters), site.source.text(node.args[0])
    batch = ", ".join(caller.source.text(each) for each in given)
    line = f"{name}.add_(torch.vmap(lambda {head}: {increment})({batch}).sum(0))"
    edits = (removed(site.source, statement), caller.source.inserted_after(around, line))
    return Fix(text, line, edits, "medium")
