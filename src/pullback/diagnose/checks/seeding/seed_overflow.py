"""PBA202: a seed that is infinite in the output's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.evidence.numbers.seed import given_seeds, root_node
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say
from pullback.words import dtype_name


class SeedOverflow(Fault):
    """The seed is not finite in the dtype of the output, so that every gradient is infinite or NaN.

    A seed is cast to the output's dtype before the pass begins. float16 ends at 65504: a loss scale of 100,000 is
    infinite there, and the whole pass computes with infinity.

    Use a smaller scale, or ``torch.amp.GradScaler``, which lowers the scale when gradients overflow; or keep in float32
    what is differentiated. ``y.float().backward(seed)`` does not help: on the way back through that cast the cotangent
    is float16 again. bfloat16 has the range of float32.
    """

    code = "PBA202"
    title = "The seed of a backward pass is infinite or NaN in the dtype of the output."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is None or inside_functorch():
            return
        for root, seed in given_seeds(backward):
            if not (seed.is_floating_point() or seed.is_complex()) or seed.layout is not torch.strided or seed.is_meta:
                continue
            cast = seed.detach().to(root.dtype)
            if not bool(torch.isfinite(cast).all().item()):
                audit.report(self._finding(audit, backward, root, seed))

    def _finding(self, audit: Audit, backward: Backward, root: Tensor, seed: Tensor) -> Diagnosis:
        assert backward.spot is not None
        own = bool(torch.isfinite(seed.detach()).all().item())
        most = torch.finfo(root.dtype).max
        if own:
            cause = say(
                "The seed reaches {largest:.6g}, and is cast to the output's {dtype}, which ends at {most:.6g}: it is "
                "infinite before the pass begins.",
                largest=seed.detach().abs().max().item(), dtype=dtype_name(root.dtype), most=most,
            )  # fmt: skip
        else:
            cause = say(
                "The seed is infinite or NaN already when it is passed. Its dtype is {dtype}, which ends at "
                "{most:.6g}: a scale above that is infinite.",
                dtype=dtype_name(seed.dtype), most=torch.finfo(seed.dtype).max,
            )  # fmt: skip
        value = audit.tape.value_of(seed)
        marks = [backward.spot.mark(say("the seed is passed here"))]
        if value is not None and value.maker is not None and value.maker.spot is not None:
            marks.append(value.maker.spot.mark(say("the seed was made here")))
        made = root_node(backward)
        out = backward.spot.source.text(made) if made is not None else "y"
        return self.found(
            cause,
            marks,
            Fix(
                say("Use a seed within the range, or compute what is differentiated in float32 from the start."),
                "scaler = torch.amp.GradScaler()    # finds a scale that fits",
            ),
            tensors=[audit.subject(seed, "seed", "the seed"), audit.subject(root, "root", out)],
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(4, 2)
        score = layer(torch.randn(3, 4)).to(torch.float16)
        scale = torch.full_like(score, 2.0**17, dtype=torch.float32)
        score.backward(scale)

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(4, 2)
        score = layer(torch.randn(3, 4)).to(torch.float16)
        scale = torch.full_like(score, 2.0**17, dtype=torch.float32)
        score.backward(scale / 2**10)
