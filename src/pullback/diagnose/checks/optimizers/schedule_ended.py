"""PB632: a schedule of a fixed length was stepped beyond its end."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.hooks import calls_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class ScheduleEnded(Cause):
    """A learning rate schedule of a fixed length was stepped more often than it has steps.

    ``OneCycleLR`` plans a curve of ``total_steps`` (or ``epochs * steps_per_epoch``) values, and has none after
    the last. Count how often ``scheduler.step()`` really runs: once for each batch if it stands in the inner
    loop. ``len(loader)`` is the number of batches; with gradient accumulation it is divided by the number of
    micro-batches. A resumed run needs the ``state_dict`` of the scheduler, or the whole length.
    """

    code = "PB632"
    title = "A learning rate schedule was stepped beyond its end."
    says = ("The specified number of total steps is",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"Tried to step (\d+) times.*total steps is (\d+)", case.message)
        if said is None or case.site is None:
            return None
        marks = [case.mark(say("stepped beyond the end here"))]
        made = calls_of(case, {"OneCycleLR"})
        marks += [
            Mark.at(Place(source.file, call.lineno, ""), say("the length is set here"), source.span(call))
            for source, call in made[:3]
        ]
        return self.found(
            say("The schedule has {total} steps, and this is step {step}.", total=said[2], step=said[1]),
            marks,
            Fix(
                say(
                    "Make it as long as the number of times that step() runs: epochs times batches, "
                    "if it runs for each batch."
                ),
                "OneCycleLR(optimizer, max_lr, total_steps=epochs * len(loader))",
            ),
            useless=[say("catching the error: the learning rate then stays where the schedule ended.")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(3, 2)).mean().backward()
            optimizer.step()
            scheduler.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(3, 2)).mean().backward()
            optimizer.step()
            scheduler.step()
