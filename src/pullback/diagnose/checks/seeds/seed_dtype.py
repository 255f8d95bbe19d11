"""PB110: a real seed for a complex output, or a complex one for a real output."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.evidence.seeds.fixes import edits_of, made_by
from pullback.diagnose.evidence.seeds.roots import called_root, is_simple, pairs
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say
from pullback.words import dtype_name


class SeedDtype(Cause):
    """The seed of a complex output is complex, that of a real output is real.

    A seed weights the directions in which an output can change: a complex output has two for each element. Torch
    converts between float32 and float64 by itself, but not between real and complex.

    Write ``torch.ones_like(y)``, or ``seed.to(y.dtype)``; a complex seed for a real output is usually a mistake of
    the output: was it made real too early (``y.real``, ``y.abs()``)?
    """

    code = "PB110"
    title = "Of an output and its seed one is complex and the other is real."
    says = ("for complex tensors, both grad_output and output", "the size of tensor a", "boolean value of tensor")

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.library_frame("torch/autograd/__init__.py", "_make_grads") is None:
            return None
        for pair in pairs(case):
            if not isinstance(pair.root, Tensor) or not isinstance(pair.seed, Tensor):
                continue
            if pair.root.shape != pair.seed.shape:
                return None
            if pair.root.is_complex() != pair.seed.is_complex():
                break
        else:
            return None
        name, text = called_root(case, pair), operand(case, pair.seed_written)
        complex_root = pair.root.is_complex()
        if complex_root and is_simple(pair.written) and made_by(case, pair.seed_written) in ("ones", "ones_like"):
            new = f"torch.ones_like({case.text(pair.written)})"
        elif complex_root:
            new = f"{text}.to({pair.root.dtype})"
        else:
            new = f"{text}.real"
        edits = edits_of(case, pair, new if text else "")
        sure = "high" if edits and complex_root else "medium"
        marks = [case.mark(say("{name} is {root}, its seed {seed}", name=name, root=dtype_name(pair.root.dtype),
                               seed=dtype_name(pair.seed.dtype)))]  # fmt: skip
        marks += made(case, pair.seed, pair.seed_written, say("the seed was made here"))
        marks += made(case, pair.root, pair.written, say("{name} was made here", name=name))
        return self.found(
            say(
                "{name} has dtype {root}, its seed {seed}: real and complex are not converted into each other.",
                name=name, root=dtype_name(pair.root.dtype), seed=dtype_name(pair.seed.dtype),
            ),
            marks,
            Fix(say("Give the seed the dtype of the output."), new, edits, "high" if sure == "high" else "medium"),
            tensors=[case.subject(pair.root, "root", name), case.subject(pair.seed, "seed", say("the seed"))],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.randn(8, requires_grad=True)
        spectrum = torch.fft.rfft(x)
        weights = torch.linspace(0, 1, 5)
        spectrum.backward(weights)

    @staticmethod
    def good():
        import torch

        x = torch.randn(8, requires_grad=True)
        spectrum = torch.fft.rfft(x)
        weights = torch.linspace(0, 1, 5)
        spectrum.backward(weights.to(spectrum.dtype))
