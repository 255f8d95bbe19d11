"""PB203: recording was turned off with torch.set_grad_enabled(False) and left off."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, root_name, useless
from pullback.diagnose.evidence.cuts.found import Cut, Found
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.cuts.switches import leaking, switches_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class GradModeOff(RootWithoutGraph):
    """Recording was turned off with ``torch.set_grad_enabled(False)`` and was still off in the forward pass.

    Called as a plain function, ``torch.set_grad_enabled(False)`` holds until the next such call, in this
    thread, and also after the function that called it has returned. An evaluation that turns recording off and
    does not turn it on again leaves the training after it without a graph.

    Use it as a block, ``with torch.no_grad():``, which ends by itself, also when an exception leaves it.
    Turning it on again just before ``backward()`` is too late: the forward pass has to be recorded.
    """

    code = "PB203"
    title = "Recording was off (torch.set_grad_enabled(False)) in the forward pass, so the root has no graph."
    kinds = ("set_grad",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = found_in(case)
        mine = [cut for cut in found.cuts if cut.kind in self.kinds]
        if mine and mine[0].region is None:
            return self._elsewhere(case, found, mine[0])
        if mine:
            return super().diagnose(case)
        if not found.off or found.root is None or any(cut.region is not None for cut in found.cuts):
            return None
        return self._left_off(case, found)

    def _elsewhere(self, case: Case, found: Found, cut: Cut) -> Diagnosis:
        """Recording was off, and nothing around the line did that: another task or generator, say."""
        root = root_name(case, found)
        blocks = leaking(case)
        left = say("recording is off from here, also while others run in between")
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += [block.mark(left) for block in blocks[:3]]
        marks.append(cut.mark(self.what(cut)))
        return self.found(
            self.cause(case, cut, root),
            marks,
            Fix(
                say("Leave the block that turns recording off before each await and yield.")
                if blocks
                else say("Find what turned recording off and did not turn it on again; use `with torch.no_grad():`."),
                "with torch.no_grad():\n    value = ...\nawait ...    # or yield value" if blocks else "",
            ),
            tensors=[case.subject(case.asked.tensors[0], "root", root)] if case.asked and case.asked.tensors else (),
            useless=useless(root),
            title=say("Recording was off in the forward pass, so the root has no graph."),
        )

    def _left_off(self, case: Case, found: Found) -> Diagnosis:
        """Recording is still off, and where that was done has to be searched for."""
        root = root_name(case, found)
        switches = switches_of(case)
        marks = [case.mark(say("{name} has no graph here", name=root))]
        marks += [switch.mark(say("recording is turned off here")) for switch in switches[:3]]
        edits = (
            (switches[0].source.replaced(switches[0].node, "torch.set_grad_enabled(True)"),)
            if len(switches) == 1
            else ()
        )
        return self.found(
            say("Recording is off when backward is called: {root} was computed without a graph.", root=root),
            marks,
            Fix(
                say(
                    "Turn recording on again after the part that needs no gradient, or use `with "
                    "torch.no_grad():` there."
                ),
                "torch.set_grad_enabled(True)",
                edits,
                "medium",
            ),
            tensors=[case.subject(case.asked.tensors[0], "root", root)] if case.asked and case.asked.tensors else (),
            confidence="high" if found.answer is not False and len(switches) == 1 and not found.cuts else "medium",
            useless=useless(root),
        )

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "Recording was off when {text} (line {line}) ran, so its result does not require grad, and neither "
            "does {root}.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this ran without being recorded")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        edits: tuple[Edit, ...] = ()
        region = cut.region[1] if cut.region is not None else None
        if isinstance(region, ast.With | ast.AsyncWith) and cut.region is not None:
            edits = (cut.region[2].source.replaced(region.items[0].context_expr, "torch.enable_grad()"),)
        elif region is not None:
            first = min((each for each in cuts if each.source is cut.source), key=lambda each: each.node.lineno)
            if first.statement is not None:
                edits = (first.source.inserted_before(first.statement, "torch.set_grad_enabled(True)"),)
        return fix_of(
            cut,
            say("Turn recording on again before the forward pass, or use `with torch.no_grad():` for the part before."),
            edits,
            "high" if edits else "medium",
            "" if edits else "torch.set_grad_enabled(True)",
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 2)
        torch.set_grad_enabled(False)
        print(net(torch.randn(3, 4)).mean())
        loss = net(torch.randn(3, 4)).square().mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 2)
        torch.set_grad_enabled(False)
        print(net(torch.randn(3, 4)).mean())
        torch.set_grad_enabled(True)
        loss = net(torch.randn(3, 4)).square().mean()
        loss.backward()
