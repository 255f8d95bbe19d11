"""PB908: static_graph=True, and the graph changed."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.parallel import constructions, marks_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class GraphChanged(Cause):
    """A distributed model with static_graph=True used other parameters than in its first iteration.

    ``static_graph=True`` promises that every iteration uses the same parameters in the same way. A branch that depends
    on the data, on the step or on ``training`` (stochastic depth, a warm-up phase, alternating losses) breaks it. Use
    ``find_unused_parameters=True`` instead.
    """

    code = "PB908"
    title = "A distributed model with static_graph=True used other parameters than in its first iteration."
    says = ("Your training graph has changed in this iteration",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        calls = constructions(case)
        marks = [case.mark(say("this iteration uses other parameters than the first"))]
        marks += marks_of(calls, say("made distributed here"))
        edits: tuple[Edit, ...] = ()
        for source, call in calls:
            words = {word.arg: word for word in call.keywords}
            if "static_graph" in words and "find_unused_parameters" not in words and len(calls) == 1:
                edits = Rewrite(source).replace(words["static_graph"], "find_unused_parameters=True").edits()
        return self.found(
            say("The model promised that all iterations use the same parameters, and this one does not."),
            marks,
            Fix(
                say("Say find_unused_parameters=True instead of static_graph=True."),
                calls[0][0].code(*edits).strip() if edits else "find_unused_parameters=True",
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

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.step = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1), 0

            def forward(self, x):
                self.step += 1
                return self.a(x) if self.step < 2 else self.b(x)

        net = DistributedDataParallel(Net(), static_graph=True)
        for _ in range(3):
            net(torch.randn(2, 4)).sum().backward()

    @staticmethod
    def good():
        import tempfile

        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.a(x) + self.b(x)

        net = DistributedDataParallel(Net(), static_graph=True)
        net(torch.randn(2, 4)).sum().backward()
        distributed.destroy_process_group()
