"""PBA110: updates that are too small for the format of the parameters."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.values import Fix
from pullback.language import say
from pullback.words import dtype_name

# So many elements of each parameter are compared, of so many parameters, and so many steps in a row must be lost.
ELEMENTS, PARAMETERS, STEPS = 1024, 8, 5
LOST = 0.9


class UpdateRounded(Fault):
    """The optimizer's updates are smaller than the rounding of the parameters, so the parameters do not move.

    A bfloat16 number has 8 significant bits: next to 1.0 the closest are 0.0039 below and 0.0078 above. A step of 0.001
    is rounded away, each time anew, however many steps there are; float16 has 11 bits and the same trouble for smaller
    steps.

    Keep the parameters in float32 and compute in bfloat16 under ``torch.autocast``, or keep a float32 copy of the
    parameters for the optimizer. More steps do not help: each is lost by itself.
    """

    code = "PBA110"
    title = "The updates of low-precision parameters are lost in rounding: the parameters do not move."

    def __init__(self) -> None:
        self._before: list[tuple[Tensor, Tensor]] = []
        self._lost: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def before_step(self, audit: Audit, step: Step) -> None:
        self._before = []
        if not type(step.optimizer).__module__.startswith("torch.optim"):
            return
        for group in step.optimizer.param_groups:
            if not group.get("lr"):
                continue
            for each in group["params"]:
                if (
                    each.dtype not in (torch.bfloat16, torch.float16)
                    or each.grad is None
                    or not each.is_floating_point()
                ):
                    continue
                if len(self._before) < PARAMETERS:
                    self._before.append((each, self._sample(each).clone()))

    @staticmethod
    def _sample(tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(-1)[:ELEMENTS]

    def after_step(self, audit: Audit, step: Step) -> None:
        before, self._before = self._before, []
        if not before or step.spot is None:
            return
        asked = stayed = 0
        for parameter, old in before:
            if parameter.grad is None:
                continue
            moves = self._sample(parameter.grad) != 0
            asked += int(moves.sum())
            stayed += int((moves & (self._sample(parameter) == old)).sum())
        if not asked:
            return
        lost = self._lost.get(step.optimizer, 0) + 1 if stayed >= LOST * asked else 0
        self._lost[step.optimizer] = lost
        if lost == STEPS:
            first = before[0][0]
            audit.report(
                self.found(
                    say(
                        "In {steps} steps in a row, {share:.0%} of the looked at elements with a gradient stayed "
                        "exactly "
                        "as they were: the updates are smaller than half the distance to the next {dtype} number.",
                        steps=STEPS,
                        share=stayed / asked,
                        dtype=dtype_name(first.dtype),
                    ),
                    [step.spot.mark(say("the updates are rounded away here"))],
                    Fix(
                        say("Keep the parameters in float32, and compute in low precision under autocast."),
                        'net = net.float()\nwith torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = ...',
                    ),
                    tensors=[audit.subject(each, "parameter") for each, _ in before[:3]],
                    useless=[say("more steps: each of them is lost by itself")],
                )
            )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 4).bfloat16()
        torch.nn.init.constant_(net.weight, 2.0)
        torch.nn.init.constant_(net.bias, 2.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
        for _ in range(8):
            optimizer.zero_grad()
            net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 4).bfloat16()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(8):
            optimizer.zero_grad()
            net(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
