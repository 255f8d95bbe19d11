"""PB741: an error inside a hook."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME
from pullback.diagnose.evidence.functions.classes import asked_marks, running
from pullback.diagnose.evidence.functions.formulas import key_fix
from pullback.diagnose.evidence.functions.hooks import hook_frame, registered
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

KINDS = frozenset(
    {
        "register_hook",
        "register_prehook",
        "register_post_accumulate_grad_hook",
        "register_multi_grad_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_backward_hook",
    }
)


class HookRaised(Cause):
    """A hook raised an error while the backward pass ran.

    The error is one of the code in the hook itself; ``.backward()`` only set it going. A hook is called with the
    gradient (a tensor, or tuples of tensors and None for modules), in the order in which the engine gets there, and
    once for every backward pass. The pass ends there: gradients that were added to ``.grad`` before stay.
    """

    code = "PB741"
    title = "A hook raised an error while the backward pass ran."

    def diagnose(self, case: Case) -> Diagnosis | None:
        frame = hook_frame(case)
        if frame is None or running(case) is not None or case.site is None or case.says(*SECOND_TIME, *MODIFIED):
            return None
        scope = frame.scope
        mine = [
            each
            for each in registered(case, KINDS)
            if each.hook is not None
            and each.hook.source.file == frame.file
            and _same(each.hook.node, scope, frame.line)
        ]
        if not mine:
            return None
        marks = [case.mark(say("this failed, in a hook"))]
        if frame.place != case.site.place:
            marks.append(frame.mark(say("called from the hook")))
        marks += [each.mark(say("the hook is registered here")) for each in mine[:2]] + asked_marks(case)
        return self.found(
            say(
                "The hook {name} was running when this failed: {error}: {message}",
                name=mine[0].name,
                error=type(case.error).__name__,
                message=case.message.partition("\n")[0],
            ),
            marks,
            key_fix(case) or Fix(say("Mend the marked line of the hook."), "", (), "low"),
            confidence="medium",
            apart=say("The error is one of the code in the hook; what it should be, the message says."),
        )

    @staticmethod
    def bad():
        import torch

        def check(grad):
            if grad.norm() > limits["norm"]:
                print("large")

        limits: dict[str, float] = {}
        x = torch.randn(4, requires_grad=True)
        y = x.sin()
        y.register_hook(check)
        y.sum().backward()

    @staticmethod
    def good():
        import torch

        def check(grad):
            if grad.norm() > limits["norm"]:
                print("large")

        limits = {"norm": 10.0}
        x = torch.randn(4, requires_grad=True)
        y = x.sin()
        y.register_hook(check)
        y.sum().backward()


def _same(hook: object, scope: object, line: int) -> bool:
    return hook is scope or (
        type(hook).__name__ == "Lambda" and getattr(hook, "lineno", 0) <= line <= (getattr(hook, "end_lineno", 0) or 0)
    )
