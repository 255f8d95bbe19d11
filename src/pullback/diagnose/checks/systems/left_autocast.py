"""PB915: what autocast made was used outside of it."""

from __future__ import annotations

import ast

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.functions.classes import running
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.language import say
from pullback.words import dtype_name


class LeftAutocast(Cause):
    """A result of a lower precision left an autocast block and met parameters of float32 outside.

    Under autocast matrix products and convolutions give bfloat16 or float16, though the parameters stay
    float32. Within the block the next layer converts its inputs; outside nothing does. Put all layers of the
    forward pass and the loss into the block, or convert what leaves it: ``h.float()``. ``model.half()`` is no
    cure: the parameters lose their precision.
    """

    code = "PB915"
    title = "A tensor that autocast had made in lower precision was used outside of autocast."
    says = ("must have the same dtype", "to have the same dtype", "should be the same")
    raises = (RuntimeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site, call = case.site, case.call
        if site is None or call is None or running(case) is not None:
            return None
        for node in [*call.args, *(each.value for each in call.keywords)]:
            value = site.evaluated(node)
            made = _made(site, node) if isinstance(node, ast.Name) else None
            if not isinstance(value, torch.Tensor) or value.dtype not in LOW or made is None:
                continue
            block, statement = made
            edits = (site.source.replaced(node, f"{case.text(node)}.float()"),)
            place = site.place._replace(line=statement.lineno)
            first = site.place._replace(line=block.lineno)
            return self.found(
                say(
                    "{name} is {dtype}, because it was computed under autocast; {text} runs outside, "
                    "where float32 is wanted.",
                    name=case.text(node),
                    dtype=dtype_name(value.dtype),
                    text=site.text,
                ),
                [
                    case.mark(say("used here, outside of autocast")),
                    Mark.at(first, say("the autocast block begins here")),
                    Mark.at(place, say("{name} is computed here", name=case.text(node)), site.source.span(statement)),
                ],
                Fix(
                    say("Convert it when it leaves autocast, or move this line into the block."),
                    site.source.code(*edits),
                    edits,
                    "high",
                ),
                tensors=[case.subject(value, "operand", case.text(node))],
            )
        return None

    @staticmethod
    def bad():
        import torch

        encoder, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = encoder(torch.randn(2, 3))
        head(hidden).sum().backward()

    @staticmethod
    def good():
        import torch

        encoder, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = encoder(torch.randn(2, 3))
        head(hidden.float()).sum().backward()


LOW = frozenset({torch.float16, torch.bfloat16})


def _made(site: Frame, name: ast.Name) -> tuple[ast.With, ast.stmt] | None:
    """The autocast block in the same function that assigned a name, unless the failing line is in one; and where."""
    source = site.source
    if site.node is not None and any(_is_autocast(site, each) for each in source.around(site.node)):
        return None
    found = None
    for block in ast.walk(site.scope):
        if not isinstance(block, ast.With) or not _is_autocast(site, block) or block.lineno > site.line:
            continue
        for each in ast.walk(block):
            targets = each.targets if isinstance(each, ast.Assign) else []
            named = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            if isinstance(each, ast.Assign) and name.id in [node.id for node in named]:
                found = block, each
    return found


def _is_autocast(site: Frame, node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("autocast" in site.source.text(each.context_expr) for each in node.items)
