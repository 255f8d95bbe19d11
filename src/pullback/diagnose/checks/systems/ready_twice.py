"""PB906: a parameter of a distributed model that was reduced twice in one backward pass."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.checkpoints import checkpoints, non_reentrant, reentrant
from pullback.diagnose.evidence.functions.checkpoints import marks_of as checkpoint_marks
from pullback.diagnose.evidence.functions.parallel import constructions, marks_of, with_option, wrapped
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ReadyTwice(Cause):
    """A parameter of a distributed model was reported ready twice in one iteration.

    ``DistributedDataParallel`` reduces the gradient of a parameter once, when it is complete. It comes twice where

    - a *reentrant* checkpoint runs a backward pass of its own: with ``find_unused_parameters=True``, or around layers
      that share parameters or are called twice. ``use_reentrant=False`` mends this;
    - a parameter is used outside of ``forward`` of the wrapped model (``net.module.head.weight`` in the loss);
    - ``forward`` is called several times before ``backward``, or the losses are differentiated one by one.

    ``_set_static_graph()`` (or ``static_graph=True``) helps where every iteration is alike.
    """

    code = "PB906"
    title = "A parameter of a distributed model was reported ready twice in one iteration."
    says = ("Expected to mark a variable ready only once",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        within = any(
            frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py")
            for frame, _, _ in frames_of(case.error.__traceback__)
        )
        model = wrapped(case)
        said = re.search(r"Parameter at index (\d+)(?: with name ([\w.]+))?", case.message)
        name = said[2] if said and said[2] else ""
        if said and not name and model is not None:
            trained = [key for key, each in model.module.named_parameters() if each.requires_grad]
            name = trained[int(said[1])] if int(said[1]) < len(trained) else ""
        calls = reentrant(checkpoints(case)) if within else []
        made = constructions(case)
        marks = [case.mark(say("the backward pass failed here"))]
        marks += checkpoint_marks(calls, say("this checkpoint runs a backward pass of its own"))
        marks += marks_of(made, say("made distributed here"))
        edits: tuple[Edit, ...] = non_reentrant(calls) if within else with_option(made[:1], "static_graph", "True")
        why = (
            say("A reentrant checkpoint runs a backward pass within the backward pass, and reports it once more.")
            if within
            else say("It is used outside of the forward of the wrapped model, or the model was called several times.")
        )
        return self.found(
            say("The gradient of {name} was complete twice. {why}", name=name or say("a parameter"), why=why),
            marks,
            Fix(
                say("Checkpoint with use_reentrant=False.")
                if within
                else say("Use parameters only within forward of the wrapped model, or say static_graph=True."),
                (calls or made)[0][0].code(*edits) if edits else "",
                edits,
                "high" if within and edits else "medium",
            ),
            useless=[say("find_unused_parameters=True: no parameter is unused here.")],
        )

    @staticmethod
    def bad():
        import tempfile

        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        from torch.utils.checkpoint import checkpoint

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.second(checkpoint(self.first, x, use_reentrant=True))

        net = DistributedDataParallel(Net(), find_unused_parameters=True)
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import tempfile

        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        from torch.utils.checkpoint import checkpoint

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

            def forward(self, x):
                return self.second(checkpoint(self.first, x, use_reentrant=False))

        net = DistributedDataParallel(Net())
        net(torch.randn(2, 4, requires_grad=True)).sum().backward()
        distributed.destroy_process_group()
