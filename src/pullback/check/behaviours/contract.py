"""What torch asks of a custom Function: what it saves and where, what it returns, and what it computes for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.registries import behaviour
from pullback.check.subject import Problem, Subject
from pullback.check.trial import Trial, function_class, name_of, said


@behaviour("saved tensors")
def saved(subject: Subject) -> Iterator[Problem]:
    """Inputs and outputs are kept by save_for_backward, not as attributes of ctx."""
    trial = Trial.of(subject)
    ends = {edge: output for output in trial.outputs if (edge := output.grad_fn) is not None}
    starts = {given.untyped_storage().data_ptr() for given in trial.given if given.numel()}
    told = set()
    for node in trial.custom():
        for attribute, value in _attributes(node):
            kind = _role(node, value, ends, starts)
            if kind is None or (name_of(node), attribute) in told:
                continue
            told.add((name_of(node), attribute))
            what = "a cycle that keeps its memory until the garbage collector runs" if kind == "output" else "no check"
            yield Problem(
                f"{kind} saved on ctx",
                f"{name_of(node)} keeps an {kind} as ctx.{attribute}: {what}"
                + ("" if kind == "output" else " that it was not changed in place before backward, and no hooks"),
                f"ctx.save_for_backward({attribute}) in forward, ctx.saved_tensors in backward",
                harmless=kind == "input",
            )


@behaviour("returned gradients")
def returned(subject: Subject) -> Iterator[Problem]:
    """As many gradients as inputs, each for an input that needs one."""
    trial = Trial.of(subject)
    missing: dict[str, list[int]] = {}
    handles = []
    for node in trial.custom():

        def after(grads: tuple[Tensor | None, ...], _: Any, node: Any = node) -> None:
            gone = [i for i, (edge, _) in enumerate(node.next_functions) if edge is not None and grads[i] is None]
            if gone:
                missing.setdefault(name_of(node), gone)

        handles.append(node.register_hook(after))
    try:
        trial.pull(trial.seeds(subject))
    except RuntimeError as error:
        if "incorrect number of gradients" in str(error) or "invalid gradient" in str(error):
            yield Problem("wrong number of gradients", said(error), "return one gradient per argument of forward")
        return
    finally:
        for handle in handles:
            handle.remove()
    for name, gone in missing.items():
        yield Problem(
            "returns None for an input that needs a gradient",
            f"the backward of {name} returns None for argument {', '.join(map(str, gone))} of those that are tensors,"
            " which needs a gradient: torch takes it for 0",
            "return its gradient; None is right only where the output does not depend on it",
            harmless=True,
        )


@behaviour("needless gradients")
def needless(subject: Subject) -> Iterator[Problem]:
    """Where only one input needs a gradient, backward computes only one."""
    kind = function_class(subject)
    tensors = [i for i, each in enumerate(subject.inputs) if _differentiable(each)]
    if kind is None or len(tensors) < 2:
        return
    computed: set[int] = set()
    for chosen in tensors:
        returns = _returned_by(subject, kind, chosen)
        computed |= {i for i in tensors if i != chosen and i < len(returns) and isinstance(returns[i], Tensor)}
    if computed:
        yield Problem(
            "computes gradients for nothing",
            f"the backward of {kind.__name__} returns a gradient for argument {', '.join(map(str, sorted(computed)))}"
            " where that needs none",
            "if ctx.needs_input_grad[i]: ... around each of them, None otherwise",
            harmless=True,
        )


@behaviour("views of inputs")
def views(subject: Subject) -> Iterator[Problem]:
    """A custom Function that returns a view of its input."""
    trial = Trial.of(subject)
    kinds = {node: name_of(node) for node in trial.custom()}
    for output in trial.outputs:
        for name, given in zip(subject.wrt, trial.given, strict=True):
            shared = given.numel() and output.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
            if shared and output is not given and output.grad_fn in kinds:
                yield Problem(
                    "output is a view of an input",
                    f"{kinds[output.grad_fn]} returns a view of {name}: an in-place operation on the output is refused"
                    f" by autograd, and one on {name} changes the output",
                    "return a copy, or do the view outside of the Function",
                    harmless=True,
                )


def _attributes(node: Any) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(node).items():
        several = value if isinstance(value, tuple | list) else [value]
        yield from ((name, each) for each in several if isinstance(each, Tensor) and not name.startswith("_"))


def _role(node: Any, value: Tensor, ends: dict[Any, Tensor], starts: set[int]) -> str | None:
    """Whether a tensor on ctx is an output or an input of the Function."""
    output = ends.get(node)
    if value.grad_fn is node or (output is not None and output is value):
        return "output"
    if (
        output is not None
        and value.numel()
        and value.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    ):
        return "output"
    if not value.numel():
        return None
    return "input" if value.requires_grad or value.untyped_storage().data_ptr() in starts else None


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _returned_by(subject: Subject, kind: type[torch.autograd.Function], chosen: int) -> tuple[Any, ...]:
    """What backward itself returns if only one input needs a gradient; nothing if it fails."""
    seen: list[Any] = []

    def backward(ctx: Any, *grads: Any) -> Any:
        found = kind.backward(ctx, *grads)
        seen.append(found if isinstance(found, tuple) else (found,))
        return found

    spy: Any = type(kind.__name__, (kind,), {"backward": staticmethod(backward)})
    inputs = [
        each.detach().clone().requires_grad_(i == chosen) if _differentiable(each) else each
        for i, each in enumerate(subject.inputs)
    ]
    try:
        with torch.enable_grad():
            outputs = spy.apply(*inputs)
            every = outputs if isinstance(outputs, tuple) else (outputs,)
            live = [each for each in every if isinstance(each, Tensor) and each.requires_grad]
            torch.autograd.grad(live, inputs[chosen], [torch.ones_like(each) for each in live], allow_unused=True)
    except Exception:  # reported elsewhere
        return ()
    return seen[0] if seen else ()
