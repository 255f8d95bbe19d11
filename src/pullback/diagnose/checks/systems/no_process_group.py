"""PB910: a distributed model without a process group."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoProcessGroup(Cause):
    """A distributed operation was called before the processes had been brought together.

    ``DistributedDataParallel`` and the functions of ``torch.distributed`` need ``init_process_group`` first, in
    every process, before the model is wrapped. Under ``torchrun`` rank and size come from the environment; a
    single process is started with ``rank=0, world_size=1`` and an address:

        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)

    A script that also runs alone can leave the wrapper out unless ``torch.distributed.is_initialized()``.
    """

    code = "PB910"
    title = "A distributed operation was called without a process group."
    says = ("Default process group has not been initialized",)
    raises = (
        ValueError,
        RuntimeError,
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        return self.found(
            say("No process group exists yet when {what} runs.", what=case.site.text),
            [case.mark(say("the process group is needed here"))],
            Fix(
                say("Call init_process_group before, once in each process; start the program with torchrun."),
                'torch.distributed.init_process_group("gloo")    # under torchrun; "nccl" for GPUs',
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        torch.nn.parallel.DistributedDataParallel(net)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        if torch.distributed.is_initialized():
            net = torch.nn.parallel.DistributedDataParallel(net)
        net(torch.randn(3, 2)).sum().backward()
