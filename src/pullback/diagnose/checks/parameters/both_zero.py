"""PBA151: factors that are all zero."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.evidence.training.loop import assignments, held
from pullback.diagnose.values import Diagnosis, Fix, Mark, Subject
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

STEPS = 3
MOST = 1 << 22


@dataclass
class _Zero:
    """A matrix of zeros that an optimizer trains.

    Attributes:
        tensor: The matrix.
        subject: The same, as it is shown.
        marks: Where it is made, if that was found.
        steps: In how many steps its gradient was zero too.
    """

    tensor: ref[Tensor]
    subject: Subject
    marks: list[Mark]
    steps: int = 0


class BothZero(Fault):
    """Two factors of a product were both initialised with zeros, so neither ever gets a gradient.

    In ``x @ A @ B`` the gradient of ``A`` is a multiple of ``B``, and that of ``B`` one of ``A``. If one of them is
    zero, only the other's gradient vanishes, and the first step ends that. If both are, all gradients are zero, in each
    step.

    Initialise one of the two at random, as LoRA does: ``A`` with small random numbers, ``B`` with zeros; the product is
    zero at the beginning all the same.
    """

    code = "PBA151"
    title = "Matrices are zero and get gradients of zero in each step: they are factors of each other."

    def __init__(self) -> None:
        self._zeros: WeakKeyDictionary[Optimizer, dict[int, _Zero]] = WeakKeyDictionary()

    def before_step(self, audit: Audit, step: Step) -> None:
        known = self._zeros.get(step.optimizer)
        if known is None:
            found = [each for each in step.parameters if _is_matrix(each) and not each.any()]
            known = self._zeros[step.optimizer] = {
                id(each): _Zero(ref(each), audit.subject(each, "factor"), _made(audit, each)) for each in found
            }
        for key, zero in list(known.items()):
            tensor = zero.tensor()
            if tensor is None or tensor.grad is None or tensor.grad.is_sparse or bool(tensor.grad.any()):
                del known[key]
            else:
                zero.steps += 1

    def at_end(self, audit: Audit) -> None:
        for known in self._zeros.values():
            stuck = [zero for zero in known.values() if zero.steps >= STEPS]
            if len(stuck) >= 2:
                audit.report(self._finding(stuck))

    def _finding(self, stuck: list[_Zero]) -> Diagnosis:
        names = [zero.subject.name for zero in stuck]
        short = names[0].rpartition(".")[2]
        return self.found(
            say(
                "{names}: all are zero, and so was the gradient of each in all of {count} steps. Where two of them are "
                "multiplied, the gradient of one is a multiple of the other.",
                names=", ".join(names[:4]), count=min(zero.steps for zero in stuck),
            ),
            [mark for zero in stuck[:2] for mark in zero.marks],
            Fix(
                say("Initialise one of the two at random; their product may still be zero."),
                f"torch.nn.init.kaiming_uniform_({'self.' if '.' in names[0] else ''}{short})",
            ),
            tensors=[zero.subject for zero in stuck[:4]],
            useless=[say("a larger learning rate: a gradient of zero stays zero")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Adapted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = torch.nn.Linear(4, 3).requires_grad_(False)
                self.down = torch.nn.Parameter(torch.zeros(2, 4))
                self.up = torch.nn.Parameter(torch.zeros(3, 2))

            def forward(self, x):
                return self.base(x) + x @ self.down.T @ self.up.T

        net = Adapted()
        optimizer = torch.optim.SGD([net.down, net.up], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        class Adapted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = torch.nn.Linear(4, 3).requires_grad_(False)
                self.down = torch.nn.Parameter(torch.randn(2, 4) / 2)
                self.up = torch.nn.Parameter(torch.zeros(3, 2))

            def forward(self, x):
                return self.base(x) + x @ self.down.T @ self.up.T

        net = Adapted()
        optimizer = torch.optim.SGD([net.down, net.up], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.grad is not None and not tensor.is_sparse and 0 < tensor.numel() <= MOST


def _made(audit: Audit, tensor: Tensor) -> list[Mark]:
    """The line of a constructor that makes a parameter."""
    for _, module in held(audit, nn.Module):
        for part in module.modules():
            name = next((key for key, each in part._parameters.items() if each is tensor), None)
            code = getattr(vars(type(part)).get("__init__"), "__code__", None)
            if name is None or code is None or not user_files(()).own_file(code.co_filename):
                continue
            source = source_of(code.co_filename)
            scope = source.function_at(code.co_firstlineno, "__init__")
            for line in assignments(source, scope, f"self.{name}"):
                what = say("{name} begins with zeros", name=name)
                return [Mark.at(Place(source.file, line.lineno, "__init__"), what, source.span(line))]
    return []
