"""PB744: saved-tensor hooks where they are forbidden."""

from __future__ import annotations

import ast

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

HOOKS = torch.autograd.graph.saved_tensors_hooks
ENTER = HOOKS.__enter__.__code__


class HooksDisabled(Cause):
    """Hooks of saved tensors were set where they are forbidden.

    ``saved_tensors_hooks``, ``save_on_cpu`` and ``checkpoint(..., use_reentrant=False)`` all set such hooks. A region
    can forbid them with ``torch.autograd.graph.disable_saved_tensors_hooks(message)``, and then torch raises with that
    message, whatever it says. The transforms of ``torch.func`` (``grad``, ``vjp``, ``jacrev``, ``hessian``) are such
    regions.

    Move the one out of the other. Under ``torch.func`` leave offloading and checkpoints out, or use
    ``torch.autograd.grad`` instead.
    """

    code = "PB744"
    title = "Hooks of saved tensors were set where they are forbidden."

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        frames = [(frame.f_code, frame) for frame, _, _ in frames_of(case.error.__traceback__)]
        if not frames or site is None or not isinstance(case.error, RuntimeError):
            return None
        last = frames[-1][0]
        file = last.co_filename.replace("\\", "/")
        forbidding = last.co_name == "disable_saved_tensors_hooks" and file.endswith("torch/autograd/graph.py")
        if last is not ENTER and not forbidding:
            return None
        if "torch.compile" in case.message:
            return None
        marks = [
            case.mark(say("hooks of saved tensors are set here") if not forbidding else say("hooks are forbidden here"))
        ]
        names = ("disable_saved_tensors_hooks",) if not forbidding else ("saved_tensors_hooks", "save_on_cpu")
        for frame in reversed(case.frames):
            around = frame.node if frame.node is not None else frame.statement
            for each in frame.source.around(around) if around is not None else ():
                for item in each.items if isinstance(each, ast.With) else ():
                    if any(name in frame.source.text(item.context_expr) for name in names):
                        place = Place(frame.file, item.context_expr.lineno, frame.place.function)
                        what = say("inside this block")
                        marks.append(Mark.at(place, what, frame.source.span(item.context_expr)))
        transform = "torch.func" in case.message
        if transform and len(case.frames) > 1:
            outer = next((each for each in reversed(case.frames[:-1])), None)
            if outer is not None:
                marks.append(outer.mark(say("under this transform of torch.func")))
        return self.found(
            say(
                "Hooks of saved tensors (offloading, a checkpoint) and a region that forbids them meet here; the text "
                "of the error is that of the region."
            ),
            marks,
            Fix(
                say("Leave them out under torch.func, or differentiate with torch.autograd.grad.")
                if transform
                else say("Move the block with the hooks out of the region that forbids them."),
                "",
                (),
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        def loss(x):
            with torch.autograd.graph.save_on_cpu():
                return (x**3).sum()

        torch.func.grad(loss)(torch.randn(4))

    @staticmethod
    def good():
        import torch

        x = torch.randn(4, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            loss = (x**3).sum()
        torch.autograd.grad(loss, x)
