"""PB905: parameters of a distributed model that got no gradient."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.parallel import constructions, made_in, marks_of, with_option, wrapped
from pullback.diagnose.values import Diagnosis, Fix, Subject
from pullback.language import say


class UnusedParameters(Cause):
    """Parameters of a distributed model got no gradient, so the reduction of the iteration before never finished.

    ``DistributedDataParallel`` waits in every backward pass for a gradient of every parameter, to average it over all
    processes. A layer that ``forward`` does not use, an output that the loss does not use, or a branch taken on one
    process only leaves it waiting; the error comes in the next iteration.

    Leave the unused layers out (or freeze them with ``requires_grad_(False)`` *before* wrapping), or pass
    ``find_unused_parameters=True``, which walks the graph in every iteration. Calling ``forward`` twice before
    ``backward``, or freezing after wrapping, has the same effect.
    """

    code = "PB905"
    title = "Parameters of a distributed model got no gradient in the iteration before."
    says = ("Expected to have finished reduction in the prior iteration",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        model = wrapped(case)
        unused = []
        if model is not None:
            said = re.search(r"did not receive grad[^:]*: ([\d ]+)", case.message)
            places = {int(each) for each in said[1].split()} if said else set()
            listed = list(model.module.named_parameters())
            trained = [each for each in listed if each[1].requires_grad]
            unused = [each for place, each in enumerate(trained) if place in places]
            unused = unused or [each for each in trained if each[1].grad is None]
            unused = unused or [each for each in listed if not each[1].requires_grad and each[1].grad is None]
        calls = constructions(case)
        names = ", ".join(name for name, _ in unused[:8]) or say("some of its parameters")
        marks = [case.mark(say("the next iteration begins here"))]
        marks += marks_of(calls, say("made distributed here, without find_unused_parameters"))
        if model is not None:
            marks += made_in(model.module, [name for name, _ in unused[:8]])[:4]
        edits = with_option(calls, "find_unused_parameters", "True") if len(calls) == 1 else ()
        return self.found(
            say(
                "In the iteration before, no gradient arrived for {names}: forward did not use them, or the loss did "
                "not use what was computed with them. The reduction still waits for these.",
                names=names,
            ),
            marks,
            Fix(
                say("Leave out what is not used, or let DistributedDataParallel look for it."),
                calls[0][0].code(*edits) if edits else "find_unused_parameters=True",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[Subject.of(parameter, name, "unused") for name, parameter in unused[:8]],
            useless=[say("retain_graph=True: the reduction waits for gradients that never come.")],
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
                self.trunk = torch.nn.Linear(4, 4)
                self.main, self.extra = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

            def forward(self, x):
                hidden = self.trunk(x).relu()
                return self.main(hidden), self.extra(hidden)

        net = DistributedDataParallel(Net())
        for _ in range(3):
            main, extra = net(torch.randn(2, 4))
            main.mean().backward()

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
                self.trunk = torch.nn.Linear(4, 4)
                self.main, self.extra = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

            def forward(self, x):
                hidden = self.trunk(x).relu()
                return self.main(hidden), self.extra(hidden)

        net = DistributedDataParallel(Net())
        main, extra = net(torch.randn(2, 4))
        (main.mean() + extra.mean()).backward()
        distributed.destroy_process_group()
