"""Compare the backward pass of a function in several precisions with that in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.state import Ambient
from pullback.errors import ArgumentError, GraphError, PullbackError, ValueMismatch
from pullback.executors.memory import default_limit
from pullback.precision.lost import Lost, figures, read
from pullback.precision.passes import Evaluated, seeds_of
from pullback.precision.places import Exact, Where, exact_cotangents, find_places, losses_at, matched
from pullback.precision.report import Gradient, Report, Run
from pullback.precision.scales import Scales, search
from pullback.precision.subject import REFERENCE, Subject, Wrt, subject_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NOWHERE: tuple[Where, ...] = ()
_CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError)  # What torch raises for a dtype that it has not.


@dataclass(frozen=True)
class _Reference:
    """The function in float64, and the gradients and cotangents there."""

    run: Evaluated
    seeds: list[Tensor]
    gradients: list[Tensor]
    cotangents: Exact | None


def precision(
    f: Callable[..., Any],
    *inputs: Any,
    seed: Any = "ones",
    dtypes: Sequence[torch.dtype] = DTYPES,
    wrt: Wrt = None,
) -> Report:
    """What a backward pass loses in each precision against float64: where, how much, and which loss scale loses least.

    The function and its backward ``uᵀJ`` run in each dtype and in float64, on copies of the inputs and of the
    parameters and buffers of its modules, with the same seed ``u`` and the same random numbers. Nothing that it is
    given changes. Tensors that it closes over without a module are left as they are: pass them as inputs.

    A loss scale ``s`` replaces ``u`` by ``s·u``, of any shape, and divides the gradients by it in float32 afterwards,
    as ``torch.amp.GradScaler`` does; powers of two are tried, and the errors are measured: some forty backward passes
    for each dtype.

    Args:
        f: A function or module; it may use ``torch.autocast`` inside.
        inputs: Its arguments.
        seed: As for :func:`pullback.backward`, in the structure of the outputs.
        dtypes: What to compare with float64.
        wrt: The index of an argument, ``"parameters"``, or names of parameters and inputs, or several. By default
            what requires grad, and if nothing does, the floating-point inputs.

    Returns:
        The report: for each dtype the error and digits of each gradient, the places where cotangents overflow,
        underflow or round away, and the loss scales. A dtype that an operation of f does not have is skipped, with
        the reason.

    Raises:
        ArgumentError: Something is complex, or there is nothing to differentiate by.
        ValueMismatch: A dtype or a name has no meaning here.
        SeedError: The seed does not fit the output.
        GraphError: f cannot be run in float64, or nothing that it returns carries a graph.

    Example:
        >>> import torch
        >>> report = precision(lambda x: (x * 2**-14).sum(), torch.full((3,), 2.0**-5), seed=2.0**-12,
        ...                    dtypes=[torch.float16])
        >>> report[torch.float16].gradients[0].lost.zeroed
        1.0
        >>> report[torch.float16].scales.low
        2
    """
    wanted = _checked(dtypes)
    subject = subject_of(f, inputs, wrt)
    ambient = Ambient.now(subject.devices)
    with subject.cast(REFERENCE, ambient) as cast:
        reference = _reference(functools.partial(Evaluated.of, cast), seed)
    return Report(tuple(_run(subject, dtype, ambient, reference) for dtype in wanted))


def _checked(dtypes: Any) -> tuple[torch.dtype, ...]:
    given = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ArgumentError(
            "dtypes= is no sequence of dtypes", got=repr(dtypes), fix="dtypes=(torch.float16, torch.bfloat16)"
        )
    wrong = [each for each in given if each not in DTYPES]
    if wrong or not given:
        raise ValueMismatch(
            "dtypes= names what is compared with float64",
            got=", ".join(map(str, wrong)) or "nothing",
            fix="of torch.float32, torch.bfloat16 and torch.float16, at least one",
        )
    return tuple(dict.fromkeys(given))


def _reference(evaluate: Callable[[], tuple[Evaluated, Any]], seed: Any) -> _Reference:
    try:
        run, returned = evaluate()
    except PullbackError:
        raise
    except _CANNOT as error:
        raise GraphError(
            "f cannot be run in float64, which the others are compared with",
            got=f"{type(error).__name__}: {_first_line(error)}",
            fix="pass the tensors that f closes over as inputs, so that they are cast too; and see that f runs at all",
        ) from error
    seeds = seeds_of(returned, seed)
    needed = sum(math.prod(facts.shape) * 8 for node in run.graph.nodes for facts in node.produces)
    device = run.outputs[0].device
    kept: Exact | None = None
    if needed <= default_limit(device):
        found, kept = exact_cotangents(run, seeds)
    else:
        found = run.gradients(seeds)
    gradients = [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(run.leaves.values(), found, strict=True)
    ]
    return _Reference(run, seeds, gradients, kept)


def _run(subject: Subject, dtype: torch.dtype, ambient: Ambient, reference: _Reference) -> Run:
    try:
        with subject.cast(dtype, ambient) as cast:
            run, _ = Evaluated.of(cast)
            return _compared(run, dtype, reference)
    except PullbackError:
        raise
    except _CANNOT as error:
        return Run(dtype, dtype, skipped=f"{type(error).__name__}: {_first_line(error)}")


def _compared(run: Evaluated, dtype: torch.dtype, reference: _Reference) -> Run:
    if [tuple(each.shape) for each in run.outputs] != [tuple(each.shape) for each in reference.run.outputs]:
        return Run(dtype, dtype, skipped="its outputs have other shapes than in float64")
    cotangents = _scaled(run, reference.seeds, 0)
    match = None if reference.cotangents is None else matched(run.graph, reference.run.graph)
    if match is None or reference.cotangents is None:
        replay = run.replayed(cotangents)
        told = tuple(f"{run.graph.labels[birth.node]}: {birth.text}" for birth in replay.births)
        found, places = run.gradients(cotangents), NOWHERE
    else:
        found, lost = losses_at(run, cotangents, match, reference.cotangents)
        places, told = find_places(run.graph, lost), ()
    return Run(
        dtype=dtype,
        lowest=run.lowest,
        value_error=_value_error(run.outputs, reference.run.outputs),
        gradients=_gradients(list(run.leaves), found, reference.gradients),
        seeds=_gradients(run.names, cotangents, reference.seeds),
        places=places,
        told=told,
        scales=_scales(run, reference),
        notes=_notes(run, reference, match is None),
    )


def _scaled(run: Evaluated, seeds: Sequence[Tensor], power: int) -> list[Tensor]:
    """The cotangents of a run for the seeds times 2^power; what its dtypes do not hold becomes infinite or zero."""
    return [
        (seed * 2.0**power if output.requires_grad else seed).to(output.dtype)
        for output, seed in zip(run.outputs, seeds, strict=True)
    ]


def _gradients(names: Sequence[str], found: Sequence[Tensor | None], exact: Sequence[Tensor]) -> tuple[Gradient, ...]:
    """Each tensor with what it lost."""
    lost = read([figures(one, meant) for one, meant in zip(found, exact, strict=True)])
    return tuple(
        Gradient(name, tuple(meant.shape), meant.dtype if one is None else one.dtype, each)
        for name, one, meant, each in zip(names, found, exact, lost, strict=True)
    )


def _scales(run: Evaluated, reference: _Reference) -> Scales:
    def lost_at(power: int) -> list[Lost]:
        found = run.gradients(_scaled(run, reference.seeds, power))
        unscaled = [None if one is None else one.to(torch.float32) * 2.0**-power for one in found]
        return read([figures(*pair) for pair in zip(unscaled, reference.gradients, strict=True)])

    return search(lost_at, run.lowest)


def _value_error(outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    pairs = [figures(*pair) for pair in zip(outputs, exact, strict=True) if pair[1].is_floating_point()]
    return max((each.error for each in read(pairs)), default=0.0)


def _notes(run: Evaluated, reference: _Reference, differs: bool) -> tuple[str, ...]:
    notes = []
    if _value_error(run.outputs, reference.run.outputs) == math.inf:
        notes.append("the forward pass itself overflows: no loss scale mends its values")
    if differs and reference.cotangents is None:
        notes.append("the cotangents in float64 would not fit into memory: places are told without them")
    elif differs:
        notes.append("the graph differs from that in float64: places are told without it")
    return tuple(notes)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
