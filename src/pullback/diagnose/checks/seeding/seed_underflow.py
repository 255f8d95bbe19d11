"""PBA203: a seed that is zero in half precision."""

from __future__ import annotations

import torch

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.evidence.numbers.seed import HALF, given_seeds, root_node
from pullback.diagnose.values import Fix
from pullback.language import say
from pullback.words import dtype_name

CASTS = frozenset({"half", "bfloat16", "to", "type", "type_as"})


class SeedUnderflow(Fault):
    """The seed is below the smallest number of half precision, and therefore zero: so are all gradients.

    float16 knows nothing between 0 and 6e-8. A seed such as ``1 / N`` for a large N, or a small weight, is zero after
    the cast to the output's dtype, and no gradient at all comes through.

    Multiply the seed by a scale and divide the gradients by it: that is what ``torch.amp.GradScaler`` does; or compute
    in float32 or bfloat16. ``y.float().backward(seed)`` does not help: on the way back through that cast the cotangent
    is float16 again, and zero.
    """

    code = "PBA203"
    title = "The seed of a backward pass is zero in half precision."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is None or inside_functorch():
            return
        for root, seed in given_seeds(backward):
            if (
                root.dtype not in HALF
                or not seed.is_floating_point()
                or seed.layout is not torch.strided
                or not seed.numel()
            ):
                continue
            if bool(seed.detach().to(root.dtype).any().item()):
                continue
            value = audit.tape.value_of(seed)
            maker = value.maker if value is not None else None
            cast = maker is not None and maker.name in CASTS
            if not bool(seed.detach().any().item()) and not cast:
                continue  # zero on purpose, as it seems
            marks = [backward.spot.mark(say("the seed is passed here"))]
            if cast and maker is not None and maker.spot is not None:
                marks.append(maker.spot.mark(say("the seed was cast here")))
            node = root_node(backward)
            out = backward.spot.source.text(node) if node is not None else "y"
            audit.report(
                self.found(
                    say(
                        "All of the seed is zero in {dtype}, whose smallest number is {least:.3g}: every gradient of "
                        "this pass is zero.",
                        dtype=dtype_name(root.dtype),
                        least=torch.finfo(root.dtype).smallest_normal * torch.finfo(root.dtype).eps,
                    ),
                    marks,
                    Fix(
                        say("Multiply the seed by a scale, and divide the gradients by it after the pass."),
                        f"{out}.backward(seed * 2**16)    # then divide each .grad by 2**16",
                    ),
                    tensors=[audit.subject(seed, "seed", "the seed"), audit.subject(root, "root", out)],
                )
            )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(4, 2)
        score = layer(torch.randn(3, 4)).half()
        score.backward(torch.full((3, 2), 2e-9))

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(4, 2)
        score = layer(torch.randn(3, 4)).half()
        score.backward(torch.full((3, 2), 2e-9) * 2**16)
