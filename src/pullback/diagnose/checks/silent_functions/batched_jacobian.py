"""PBA514: the Jacobian of a batch."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.numbers.functional import Functional, Jacobian, Lost
from pullback.diagnose.evidence.numbers.functional_check import FunctionalFault
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

SAMPLES = 4
MOST = 1 << 24


class BatchedJacobian(FunctionalFault):
    """The Jacobian of a function of a batch is also taken across samples, where it is zero.

    ``torch.autograd.functional.jacobian(net, x)`` for x of shape (N, n) and outputs (N, m) has shape (N, m, N, n): each
    output of each sample by each input of each sample. For a net that treats samples one by one, all but the N blocks
    on the diagonal is zero: N times the memory and N times the passes.

    For one Jacobian for each sample: ``torch.func.vmap(torch.func.jacrev(f))(x)``, of shape (N, m, n); f takes one
    sample.
    """

    code = "PBA514"
    title = "The Jacobian of a batch was taken across samples too: all but the diagonal blocks is zero."

    def join(self, audit: Audit, heard: Functional) -> None:
        def told(seen: Jacobian) -> None:
            for output, row in zip(seen.outputs, seen.blocks, strict=False):
                for given, block in zip(seen.inputs, row, strict=False):
                    if _is_diagonal(output, given, block):
                        audit.report(self._finding(seen, output, given, block))

        heard.jacobians.append(told)

    def tell(self, audit: Audit, seen: Lost) -> Diagnosis | None:
        return None

    def _finding(self, seen: Jacobian, output: Tensor, given: Tensor, block: Tensor) -> Diagnosis:
        count = len(given)
        return self.found(
            say(
                "The function maps {given} to {output}, and its Jacobian has shape {block}. Outside of its {count} "
                "diagonal blocks it is zero: no sample depends on another.",
                given=tuple(given.shape), output=tuple(output.shape), block=tuple(block.shape), count=count,
            ),
            [seen.asked.mark(say("the Jacobian is taken here"))],
            Fix(
                say("Take one Jacobian for each sample."),
                _by_sample(seen.asked, tuple(given.shape), tuple(output.shape)),
            ),
            confidence="medium",
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        jacobian = torch.autograd.functional.jacobian(net, torch.randn(8, 3))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        whole = torch.autograd.functional.jacobian(net, torch.randn(3))
        jacobian = torch.func.vmap(torch.func.jacrev(net))(torch.randn(8, 3))


def _by_sample(asked: Frame, given: tuple[int, ...], output: tuple[int, ...]) -> str:
    """The call that takes one Jacobian for each sample, with the names of the call that took all."""
    call, source = asked.node, asked.source
    names = [source.text(each) for each in call.args[:2]] if isinstance(call, ast.Call) else []
    of, at = names if len(names) == 2 else ("f", "x")
    shape = (given[0], *output[1:], *given[1:])
    return f"torch.func.vmap(torch.func.jacrev({of}))({at})    # {say('of shape {shape}', shape=shape)}"


def _is_diagonal(output: Tensor, given: Tensor, block: Tensor) -> bool:
    if output.dim() < 2 or given.dim() < 2 or len(output) != len(given) or len(given) < SAMPLES:
        return False
    if block.numel() > MOST or block.shape != output.shape + given.shape:
        return False
    count = len(given)
    across = block.detach().reshape(count, -1, count, given[0].numel()).ne(0).any(3).any(1)
    own = across.diagonal()
    return bool(own.all().item()) and int(across.sum().item()) == count
