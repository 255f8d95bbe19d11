"""PB907: a distributed model without a parameter that requires grad."""

from __future__ import annotations

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.hooks import calls_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.frames import variables
from pullback.graph.values import Place
from pullback.language import say


class NothingToTrain(Cause):
    """A model without a single parameter that requires grad was made distributed.

    ``DistributedDataParallel`` averages gradients; a frozen model has none. Use a frozen model (a teacher, a fixed
    encoder) as it is, without wrapping. If it is to be trained, unfreeze it before wrapping: what is unfrozen later is
    not reduced.
    """

    code = "PB907"
    title = "A model without any parameter that requires grad was made distributed."
    says = ("DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        module = None
        for frame, _, _ in frames_of(case.error.__traceback__):
            given = variables(frame).get("module") if frame.f_code.co_name == "__init__" else None
            module = given if isinstance(given, nn.Module) else module
        count = len(list(module.parameters())) if module is not None else 0
        marks = [case.mark(say("made distributed here"))]
        freezing = [
            (source, call)
            for source, call in calls_of(case, {"requires_grad_"})
            if call.args and getattr(call.args[0], "value", None) is False
        ]
        marks += [
            Mark.at(Place(source.file, call.lineno, ""), say("frozen here"), source.span(call))
            for source, call in freezing[:3]
        ]
        edits: tuple[Edit, ...] = ()
        if case.call is not None and case.call.args and case.site is not None:
            edits = (case.site.source.replaced(case.call, case.text(case.call.args[0])),)
        cause = (
            say("All parameters of this {kind} ({count}) are frozen.", count=count, kind=type(module).__name__)
            if count
            else say("This {kind} has no parameters.", kind=type(module).__name__)
        )
        return self.found(
            say("{cause} There are no gradients to reduce.", cause=cause),
            marks,
            Fix(
                say("Use it without DistributedDataParallel, or unfreeze it before wrapping."),
                case.site.source.code(*edits) if case.site else "",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import tempfile

        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        teacher = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        for parameter in teacher.parameters():
            parameter.requires_grad = False
        model = DistributedDataParallel(teacher)
        student, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        (student(x) - model(x)).pow(2).mean().backward()
        distributed.destroy_process_group()

    @staticmethod
    def good():
        import tempfile

        import torch
        from torch import distributed

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        teacher = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        for parameter in teacher.parameters():
            parameter.requires_grad = False
        model = teacher
        student, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        (student(x) - model(x)).pow(2).mean().backward()
        distributed.destroy_process_group()
