"""Requirements: what a function must be for what is asked of its Jacobian."""

from __future__ import annotations

from pullback.autodiff.linearize import Linearization
from pullback.errors import GraphError, ValueMismatch
from pullback.jacobian.verify import Verifier


def check_all_complex(lin: Linearization) -> None:
    """Refuse real inputs and outputs, of which nothing can be a complex derivative.

    Raises:
        ValueMismatch: One is real.
    """
    for leaf in lin.inputs.leaves + lin.outputs.leaves:
        if not leaf.dtype.is_complex:
            raise ValueMismatch(
                "holomorphic=True needs complex inputs and outputs",
                got=f"{leaf.name} of {leaf.dtype}",
                fix="leave holomorphic=True out, or convert with .to(torch.complex128)",
            )


def check_all_live(lin: Linearization) -> None:
    """Refuse outputs and inputs between which nothing can flow.

    Raises:
        GraphError: An output carries no graph, or an input is not reached.
    """
    if not lin.live_outputs or len(lin.live_outputs) < len(lin.outputs.leaves):
        dead = [leaf for i, leaf in enumerate(lin.outputs.leaves) if i not in lin.live_outputs]
        raise GraphError(
            f"{dead[0].name} does not depend on the inputs by any differentiable path",
            got=f"{dead[0].dtype} of shape {tuple(dead[0].shape)}, without a graph",
            fix="strict=False gives zeros; look for .detach(), no_grad, argmax or a cast to integers",
        )
    for index, leaf in enumerate(lin.inputs.leaves):
        if index not in lin.live_inputs:
            raise GraphError(
                f"the outputs do not depend on {leaf.name}",
                got=f"{leaf.name} {tuple(leaf.shape)}, which the graph does not reach",
                fix="strict=False gives zeros; look for .detach() or an argument that is not used",
            )


def check_cauchy_riemann(verifier: Verifier) -> None:
    """Refuse a function that is not holomorphic: seeding with i·u has to give i times the answer.

    Raises:
        ValueMismatch: It does not.
    """
    lin = verifier.linearization
    if not verifier.active or not lin.live_outputs or not lin.live_inputs:
        return
    seed, gradient = verifier.probe
    turned = verifier.plain(tuple(part * 1j for part in seed))
    expected = [part * 1j for part in gradient]
    wrong = verifier.disagreement(turned, lambda: [part.abs() for part in gradient], expected)
    if wrong is not None:
        raise ValueMismatch(
            "the function is not holomorphic: it violates the Cauchy–Riemann equations",
            got=str(wrong),
            fix="leave holomorphic=True out: J.matrix() then has torch's convention for complex functions",
        )
