"""PB111: a seed on another device than its output."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.fixes import edits_of, made_by
from pullback.diagnose.evidence.seeds.roots import called_root, is_simple, pairs
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SeedDevice(Cause):
    """A seed is on the device of its output; torch does not move it.

    ``torch.ones(...)`` makes its tensor on the default device, which is the CPU. Write ``torch.ones_like(y)``, which
    takes shape, dtype and device from the output, or ``seed.to(y.device)``.
    """

    code = "PB111"
    title = "A seed is on another device than the output that it belongs to."
    says = (
        "invalid gradient at index",
        "expected all tensors to be on the same device",
        "is not on the expected device",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        for pair in pairs(case):
            if isinstance(pair.root, Tensor) and isinstance(pair.seed, Tensor) and pair.root.device != pair.seed.device:
                break
        else:
            return None
        name = called_root(case, pair)
        text = operand(case, pair.seed_written)
        ones = made_by(case, pair.seed_written) in ("ones", "ones_like", "new_ones") and is_simple(pair.written)
        new = f"torch.ones_like({case.text(pair.written)})" if ones else f'{text}.to("{pair.root.device}")'
        edits = edits_of(case, pair, new if text else "")
        marks = [case.mark(say("{name} is on {root}, its seed on {seed}", name=name, root=pair.root.device,
                               seed=pair.seed.device))]  # fmt: skip
        marks += made(case, pair.seed, pair.seed_written, say("the seed was made here"))
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        lost = pair.seed.device.type == "meta" and not ones
        return self.found(
            say(
                "{name} is on device {root}, but its seed is on {seed}.",
                name=name, root=pair.root.device, seed=pair.seed.device,
            ),
            marks,
            Fix(
                say("Make the seed like the output, or move it to its device."),
                new,
                () if lost else edits,
                "high" if edits and not lost else "medium",
            ),
            tensors=[case.subject(pair.root, "root", name), case.subject(pair.seed, "seed", say("the seed"))],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = w.exp()
        seed = torch.ones(3, device="meta")
        y.backward(seed)

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        y = w.exp()
        seed = torch.ones_like(y)
        y.backward(seed)
