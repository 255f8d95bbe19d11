"""PB811: values decide what runs under vmap."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import FUNC, stripped, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DataDependent(Cause):
    """Under ``vmap`` a value of one sample was read by Python: ``.item()``, ``if``, a boolean mask, ``nonzero``.

    ``vmap`` runs the function once for all samples together. A tensor in it stands for the whole batch, so that it has
    no one value that Python could branch on, print, or take as a size, and no result whose shape depends on values.

    * ``a if x.sum() > 0 else b`` becomes ``torch.where(x.sum() > 0, a, b)``: both sides are computed for all samples.
    * ``x[x > 0].sum()`` becomes ``torch.where(x > 0, x, 0).sum()``.
    * ``x * float(scale)`` becomes ``x * scale``; ``x[int(i)]`` becomes ``x[i]`` or ``x.gather``.
    * ``.numpy()`` and ``.tolist()`` belong outside.

    A side that is not finite (``log`` of a negative number) makes NaN gradients through ``torch.where``: make its
    argument harmless first. If the decision cannot be written so, loop over the samples.
    """

    code = "PB811"
    title = "A value was read by Python inside a function under vmap."
    says = (
        "vmap over calling .item()",
        "data-dependent control flow",
        "can support dynamic shape",
        "can output dynamic shape",
        "Cannot access data pointer of Tensor that doesn't have storage",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = [each for each in transforms_in(case, *FUNC) if each.name == "vmap"]
        if not transforms or case.site is None:
            return None
        outer = transforms[0]
        marks = [case.mark(say("a value is read here"))]
        if outer.caller is not None and outer.caller is not case.site:
            marks.append(outer.caller.mark(say("vmap runs the function here, for all samples at once")))
        logged = _logged(case.site)
        edits = () if logged else _mended(case.site)
        return self.found(
            say(
                "{expression} needs the value of one sample, but {function} runs once for the whole batch under vmap.",
                expression=case.site.text, function=title_of(transforms[-1].defined),
            ),
            marks,
            Fix(
                say("Return the value beside the result (has_aux=True for grad), and log it outside of vmap.")
                if logged
                else say(
                    "Decide with torch.where, and keep numbers as tensors: no .item(), float(), if or boolean mask."
                ),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
            useless=[say("randomness= or chunk_size=: the function still sees batches.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def clipped(v):
            if v.norm() > 1:
                return v / v.norm()
            return v

        torch.vmap(clipped)(torch.randn(4, 3))

    @staticmethod
    def good():
        import torch

        def clipped(v):
            return torch.where(v.norm() > 1, v / v.norm(), v)

        torch.vmap(clipped)(torch.randn(4, 3))


def _logged(site: Frame) -> bool:
    """Whether the value is only printed, or kept in something outside."""
    node, statement = site.node, site.statement
    if node is None or not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    func = statement.value.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return statement.value is not node and name in LOGGING


LOGGING = frozenset({"print", "append", "log", "info", "debug", "warning", "write", "add_scalar", "update"})


def _mended(site: Frame) -> tuple[Edit, ...]:
    node = site.node
    if node is None or "torch" not in site.module:
        return ()
    source = site.source
    for each in source.around(node):
        if isinstance(each, ast.IfExp) and _within(site, node, each.test):
            text = f"torch.where({_condition(site, each.test)}, {source.text(each.body)}, {source.text(each.orelse)})"
            return (source.replaced(each, text),)
        if isinstance(each, ast.If) and _within(site, node, each.test):
            return _statement(site, each)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare):
        return _masked(site, node)
    inner = stripped(node)
    return (source.replaced(node, source.text(inner)),) if inner is not node else ()


def _within(site: Frame, node: ast.AST, test: ast.expr) -> bool:
    return any(each is test for each in site.source.around(node))


def _condition(site: Frame, test: ast.expr) -> str:
    """A test without what leads out of torch: ``x.sum().item() > 0`` is ``x.sum() > 0``."""
    source = site.source
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        whole, left = source.text(test), stripped(test.left)
        rest = whole[len(source.text(test.left)) :]
        return f"{source.text(left)}{rest}"
    inner = stripped(test)
    return source.text(inner)


def _statement(site: Frame, test: ast.If) -> tuple[Edit, ...]:
    """``if c: return a`` with ``else: return b`` or ``return b`` behind it, as one ``return torch.where(c, a, b)``."""
    source = site.source
    parent = source.parent(test)
    body = getattr(parent, "body", [])
    after = body[body.index(test) + 1 :] if test in body else []
    other = test.orelse or after[:1]
    if len(test.body) != 1 or len(other) != 1:
        return ()
    yes, no = test.body[0], other[0]
    if isinstance(yes, ast.Return) and isinstance(no, ast.Return) and yes.value is not None and no.value is not None:
        head, values = "return ", (yes.value, no.value)
    elif (
        _same_target(source.text, yes, no)
        and isinstance(yes, ast.Assign)
        and isinstance(no, ast.Assign)
        and test.orelse
    ):
        head, values = f"{source.text(yes.targets[0])} = ", (yes.value, no.value)
    else:
        return ()
    chosen = ", ".join(map(source.text, values))
    text = f"{source.indent(test.lineno)}{head}torch.where({_condition(site, test.test)}, {chosen})"
    return (Edit(source.file, test.lineno, max(no.end_lineno or 0, test.end_lineno or 0), text),)


def _same_target(text: object, yes: ast.stmt, no: ast.stmt) -> bool:
    both = isinstance(yes, ast.Assign) and isinstance(no, ast.Assign) and len(yes.targets) == len(no.targets) == 1
    return both and ast.dump(yes.targets[0]) == ast.dump(no.targets[0])  # type: ignore[attr-defined]


def _masked(site: Frame, node: ast.Subscript) -> tuple[Edit, ...]:
    """``x[x > 0].sum()`` as ``torch.where(x > 0, x, 0).sum()``: other reductions count the elements."""
    source = site.source
    call = source.parent(source.parent(node) or node)
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "sum"
        or call.args
    ):
        return ()
    return (source.replaced(node, f"torch.where({source.text(node.slice)}, {source.text(node.value)}, 0)"),)
