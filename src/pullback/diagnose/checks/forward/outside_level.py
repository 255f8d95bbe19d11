"""PB831: a dual tensor outside a level of forward mode."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class OutsideLevel(Cause):
    """``make_dual`` was called where no level of forward mode is open.

    Forward mode carries a tangent along with each tensor, and only within ``with fwAD.dual_level():``. All of it has to
    stand in the block: ``make_dual``, the computation, and ``unpack_dual``. When the block ends, the tangents are gone,
    and ``unpack_dual`` outside it gives ``tangent=None`` without an error.

    ``torch.func.jvp(f, (x,), (v,))`` opens the level by itself and is the shorter way.
    """

    code = "PB831"
    title = "A dual tensor was made outside a level of forward mode."
    says = (
        "no level exists, make sure to enter_dual_level",
        "Trying to make a dual",
        "Dual level must be a positive number",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        edits = _in_level(case.site)
        return self.found(
            say("{expression} needs an open level, and there is none: no dual_level() block is around this line.",
                expression=case.site.text),
            [case.mark(say("outside every dual_level()"))],
            Fix(
                say("Put this line, and all that computes with it, into a dual_level() block."),
                case.site.source.code(*edits) or "with torch.autograd.forward_ad.dual_level():\n    ...",
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch
        from torch.autograd import forward_ad

        x = forward_ad.make_dual(torch.zeros(2), torch.ones(2))
        y = x.exp()
        print(forward_ad.unpack_dual(y).tangent)

    @staticmethod
    def good():
        import torch
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.zeros(2), torch.ones(2))
            y = x.exp()
            print(forward_ad.unpack_dual(y).tangent)


def _in_level(site: Frame) -> tuple[Edit, ...]:
    """The statement and those behind it that use its names, in a block."""
    node, statement, source = site.node, site.statement, site.source
    if not isinstance(node, ast.Call) or statement is None:
        return ()
    if isinstance(node.func, ast.Attribute) and node.func.attr == "make_dual":
        level = f"{source.text(node.func.value)}.dual_level()"
    elif "torch" in site.module:
        level = "torch.autograd.forward_ad.dual_level()"
    else:
        return ()
    parent = source.parent(statement)
    blocks = (getattr(parent, name, []) or [] for name in ("body", "orelse", "finalbody"))
    body = next((block for block in blocks if statement in block), [statement])
    if moved := _into_next(site, statement, body):
        return moved
    used: set[str] = set()
    last = statement
    for each in body[body.index(statement) :]:
        read = {name.id for name in ast.walk(each) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}
        if each is statement or read & used:
            last = each
            used |= {
                name.id for name in ast.walk(each) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
    first, end = statement.lineno, last.end_lineno or last.lineno
    indent = source.indent(first)
    if source.lines[first - 1].encode()[: statement.col_offset].strip():
        return ()
    lines = [f"    {line}" if line.strip() else line for line in source.lines[first - 1 : end]]
    return (Edit(source.file, first, end, "\n".join([f"{indent}with {level}:", *lines])),)


def _into_next(site: Frame, statement: ast.stmt, body: list[ast.stmt]) -> tuple[Edit, ...]:
    """The statement at the start of the block that opens a level further down: levels cannot be nested."""
    source = site.source
    for each in body[body.index(statement) + 1 :]:
        opens = isinstance(each, ast.With) and any("dual_level" in source.text(one.context_expr) for one in each.items)
        if not opens or not isinstance(each, ast.With) or each.body[0].lineno == each.lineno:
            continue
        gone = Edit(source.file, statement.lineno, statement.end_lineno or statement.lineno, None)
        return (gone, source.inserted_before(each.body[0], source.text(statement)))
    return ()
