"""``pb.check``: whether the derivatives of a function are right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.api.problem import Wrt
from pullback.autodiff.state import Ambient
from pullback.check.arguments import choose
from pullback.check.blocks import explain, explain_forward
from pullback.check.function import BackwardRaises, Call, Chosen, Function, as_double, as_it_is, gradient_of, told
from pullback.check.own_dtype import compare_dtypes
from pullback.check.projections import FORWARD, REVERSE, Examined, Projector, examine
from pullback.check.registries import BEHAVIOURS
from pullback.check.report import Finding, Report
from pullback.check.subject import Subject
from pullback.check.tolerances import Tolerance
from pullback.errors import ArgumentError, ValueMismatch
from pullback.words import dtype_name


def check(
    f: Any,
    *inputs: Any,
    wrt: Wrt | None = None,
    order: int = 1,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    behaviours: bool = True,
) -> Report:
    """Check the derivatives of f at these inputs.

    ``⟨u, Jv⟩`` for random seeds u and directions v is computed in three ways: by reverse mode, by forward mode, and by
    differences that are extrapolated and know their error. That takes a few passes, whatever the size; only where
    two ways disagree is J looked at entry by entry, and the cause looked for. Everything is done in float64, on
    copies; then the gradient in the inputs' own dtype is held against that. No input, ``.grad``, buffer or
    generator is changed.

    Args:
        f: A function of tensors, an ``nn.Module``, or a subclass of ``torch.autograd.Function``. It returns tensors
            in any structure that torch's pytree knows.
        *inputs: Its arguments.
        wrt: What to differentiate by, as for :func:`pullback.jacobian`; None: the inputs that require grad (if none
            does, all of floating point), and the parameters of a module.
        order: 2 checks the second derivatives too: those of ``uᵀJ`` by the inputs and by u.
        seed: Of the random directions.
        atol: Allow each entry of J to be off by so much, besides what rounding explains.
        rtol: Allow this relative error instead of ``ε^(2/3)``, 4e-11 in float64.
        behaviours: Look for problems besides wrong numbers too: inputs that are modified, results that change from
            call to call, and so on.

    Returns:
        A report that prints, and is true if nothing is wrong.

    Raises:
        ArgumentError: f is no function, or there is nothing to differentiate or to differentiate by.
        ValueMismatch: ``wrt``, ``order`` or a tolerance has no meaning here.

    >>> import torch, pullback as pb
    >>> bool(pb.check(torch.sin, torch.linspace(0, 1, 5)))
    True
    """
    if order not in {1, 2}:
        raise ValueMismatch("there is no such order", got=f"order={order!r}", fix="order=1 or order=2")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not value >= 0:
            raise ValueMismatch(f"{name} is no tolerance", got=f"{name}={value!r}", fix=f"{name}=1e-6")
    chosen = choose(f, inputs, wrt)
    ambient = Ambient.now(_devices(f, inputs))
    generator = torch.Generator().manual_seed(seed)
    with ambient.again(), torch.inference_mode(False):
        own, exact, refused = _functions(f, inputs, chosen, ambient)
        gathered = _Gathered(generator, atol, rtol)
        try:
            gathered.first_order(exact, refused)
            if own is not None:
                line, findings = compare_dtypes(own, exact, generator)
                gathered.lines.append(line)
                gathered.findings += findings if not gathered.failed else []
            if order == 2 and not gathered.failed:
                gathered.second_order(exact)
        except BackwardRaises as error:
            fix = "mend the backward: call .backward() on an output of f to see where it stops"
            gathered.findings.append(Finding("the backward raises", _first_line(error), fix))
    if behaviours:
        gathered.look(_subject(f, inputs, chosen, ambient, seed))
    return Report(_title(f), tuple(gathered.lines), tuple(gathered.findings), gathered.ratios)


class _Gathered:
    """What the parts of a check have said so far."""

    def __init__(self, generator: torch.Generator, atol: float | None, rtol: float | None) -> None:
        self.generator, self.atol, self.rtol = generator, atol, rtol
        self.lines: list[str] = []
        self.findings: list[Finding] = []
        self.ratios: dict[str, float] = {}

    @property
    def failed(self) -> bool:
        """Whether something is wrong already."""
        return any(not finding.harmless for finding in self.findings)

    def first_order(self, function: Function, refused: str) -> None:
        """Compare J with differences."""
        dtypes = ", ".join(sorted({dtype_name(each.dtype) for each in function.points}))
        names = f"{_listed(function.output_names)} by {_listed(function.names)}"
        self.lines.append(f"{names}, in {dtypes}" + (f", since f refuses float64: {refused}" if refused else ""))
        self._examine(function, "")
        if function.constants:
            names = _listed(function.constants)
            text = f"{names} carries no graph, where other outputs do; it is taken to be a constant"
            fix = "nothing if that is meant, as with ctx.mark_non_differentiable; else look for .detach() and no_grad"
            self.findings.append(Finding("output without a graph", text, fix, harmless=True, output=names))

    def second_order(self, function: Function) -> None:
        """Compare the derivative of ``uᵀJ`` with differences."""
        u = torch.randn(function.y.shape, generator=self.generator, dtype=torch.float64).to(function.y.device)
        try:
            gradient = gradient_of(function, u)
            projector = self._projector(gradient)
        except RuntimeError as error:
            self.lines.append(f"second order: not differentiable twice: {_first_line(error)}")
            return
        self._examine(gradient, "second order: ", projector)

    def _projector(self, function: Function) -> Projector:
        return Projector(function, Tolerance.of(function.roundoff, self.atol, self.rtol), self.generator)

    def _examine(self, function: Function, prefix: str, projector: Projector | None = None) -> None:
        projector = projector or self._projector(function)
        try:
            examined = examine(projector)
        except RuntimeError as error:
            if not prefix:
                raise
            self.lines.append(f"{prefix}not differentiable twice: {_first_line(error)}")
            return
        self.lines += _told(examined, prefix)
        for mode in (REVERSE, FORWARD):
            self.ratios[prefix + mode] = examined.worst(mode)
        modes = {comparison.mode for comparison in examined.failed}
        if REVERSE in modes:
            findings, ratios = explain(projector)
            self.findings += findings
            self.ratios |= {prefix + pair: ratio for pair, ratio in ratios.items()}
        if FORWARD in modes:
            self.findings += explain_forward(projector, {(each.output, each.input) for each in self.findings})
        self.findings += _unverified(examined, prefix)

    def look(self, subject: Subject) -> None:
        """Let the behaviours look at the function."""
        for look in BEHAVIOURS.all().values():
            try:
                problems = list(look(subject))
            except Exception:
                if self.failed:
                    continue  # it met what is told already: a backward that raises cannot be looked at further
                raise
            self.findings += (Finding(each.name, each.text, each.fix, each.harmless) for each in problems)


def _functions(
    f: Any, inputs: tuple[Any, ...], chosen: Chosen, ambient: Ambient
) -> tuple[Function | None, Function, str]:
    """The function in its own dtype (None where that is double precision) and in float64, or why not there."""

    def make(call: Call) -> Function:
        return Function(call, call.points, chosen.names)

    own = Call(f, inputs, chosen, as_it_is, ambient)
    if all(point.dtype in {torch.float64, torch.complex128} for point in own.points):
        with told("at the inputs that pb.check was given"):
            return None, make(own), ""
    try:
        exact = make(Call(f, inputs, chosen, as_double, ambient))
    except ArgumentError:
        raise
    except Exception as error:  # a function may refuse a dtype with any error
        with told("at the inputs that pb.check was given"):
            return None, make(own), _first_line(error)
    ambient.rewind()
    function = make(own)
    # Other dtypes draw other random numbers, and then nothing can be compared.
    return None if _has_drawn(ambient) else function, exact, ""


def _has_drawn(ambient: Ambient) -> bool:
    """Whether random numbers were drawn since then."""
    now = Ambient.now(device for device, _ in ambient.generators)
    then = dict(ambient.generators)
    return any(not torch.equal(state, then[device]) for device, state in now.generators)


def _subject(f: Any, inputs: tuple[Any, ...], chosen: Chosen, ambient: Ambient, seed: int) -> Subject:
    call = Call(f, inputs, chosen, as_it_is, ambient)

    def forward(*points: Tensor) -> tuple[Tensor, ...]:
        with ambient.again(), torch.inference_mode(False):
            leaves = pytree.tree_leaves(call([point.clone() if point.is_leaf else point for point in points]))
        return tuple(
            leaf for leaf in leaves if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        )

    points = dict(zip(chosen.names, call.points, strict=True))
    with ambient.again(), torch.inference_mode(False):
        function = Function(call, call.points, chosen.names)
    generator = torch.Generator().manual_seed(seed)
    return Subject(f, inputs, points, forward, function.output_names, generator, seed)


def _told(examined: Examined, prefix: str) -> list[str]:
    if not examined.comparisons:
        return [f"{prefix}nothing to compare: there are no entries"]
    lines = [f"{prefix}{_against(examined, REVERSE)}; {way}" for way in examined.ways[-1:]]
    if examined.no_forward:
        lines.append(f"{prefix}no forward mode: {examined.no_forward[:100]}")
    else:
        lines.append(f"{prefix}{_against(examined, FORWARD)}")
    return lines


def _against(examined: Examined, mode: str) -> str:
    count = sum(comparison.mode == mode for comparison in examined.comparisons)
    return f"{mode} against differences: {examined.worst(mode):.2g} of what is allowed, {count} projections"


def _unverified(examined: Examined, prefix: str) -> Iterable[Finding]:
    share = max((comparison.settled for comparison in examined.comparisons), default=1.0)
    if share < 1:
        yield Finding(
            "not verified everywhere",
            f"{prefix}differences settle at {share:.0%} of the outputs' entries; at the others f has a jump, kinks or "
            "noise near these inputs",
            "",
            harmless=True,
        )
    kinks = max((comparison.kinks for comparison in examined.comparisons), default=0.0)
    if kinks:
        yield Finding(
            "kink",
            f"{prefix}{kinks:.0%} of the outputs' entries are at a kink: there the gradient is held to be between the "
            "slopes of both sides",
            "",
            harmless=True,
        )
    for name, count in examined.not_finite.items():
        yield Finding(
            "gradient not finite",
            f"{prefix}the gradient by {name} is inf or NaN at {count} entries",
            "keep the inputs away from where f has no derivative",
            harmless=True,
            input=name,
        )


def _devices(f: Any, inputs: tuple[Any, ...]) -> set[torch.device]:
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if isinstance(f, torch.nn.Module):
        tensors += list(f.parameters())
    return {tensor.device for tensor in tensors}


def _title(f: Any) -> str:
    name = getattr(f, "__qualname__", None) or type(f).__qualname__
    function = getattr(f, "__self__", None)
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        name = f"{function.__qualname__}.apply"  # whose own name is that of the base class
    return f"check of {name.replace('<locals>.', '')}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120]
