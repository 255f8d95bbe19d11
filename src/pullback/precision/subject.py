"""A function on copies of its inputs, parameters and buffers in some dtype: what it is given stays as it is."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from pullback.api.problem import argument_names
from pullback.autodiff.closures import held_by
from pullback.autodiff.state import Ambient, fresh_modules
from pullback.errors import ArgumentError, ValueMismatch

Wrt = int | str | tuple[int, ...] | tuple[str, ...] | None
REFERENCE = torch.float64
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_CASTS = {Tensor.half, Tensor.bfloat16, Tensor.float}


class Raised(TorchFunctionMode):
    """Inside, casts that a function writes itself go to float64: ``x.half()``, ``x.to(torch.float32)``."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _CASTS:
            return args[0].double()
        args = tuple(REFERENCE if isinstance(each, torch.dtype) and each in _NARROW else each for each in args)
        kwargs = kwargs or {}
        if kwargs.get("dtype") in _NARROW:
            kwargs = {**kwargs, "dtype": REFERENCE}
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Subject:
    """A function with its inputs, and what it is differentiated by.

    Attributes:
        f: What the user gave.
        inputs: Its arguments.
        arguments: What it calls them.
        modules: The modules that it holds, outermost ones only, each with its name; a module itself has none.
        chosen: The names of what it is differentiated by.
    """

    f: Callable[..., Any]
    inputs: tuple[Any, ...]
    arguments: tuple[str, ...]
    modules: Mapping[str, nn.Module]
    chosen: tuple[str, ...]

    @property
    def devices(self) -> set[torch.device]:
        """Where its tensors are."""
        tensors, parameters = _named(self.arguments, self.inputs, self.modules)
        return {tensor.device for tensor in (*tensors.values(), *parameters.values())}

    @contextlib.contextmanager
    def cast(self, dtype: torch.dtype, ambient: Ambient) -> Iterator[Cast]:
        """The function in a dtype, to be called inside; its modules hold copies until the end.

        Random numbers and autocast are as in ``ambient``, and at the end as they were.
        """
        copies = _Copies(dtype)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(ambient.again())
            stack.enter_context(fresh_modules(self.f))
            for module in {id(part): part for each in self.modules.values() for part in each.modules()}.values():
                stack.enter_context(copies.swapped(module))
            inputs = pytree.tree_map_only(Tensor, copies.of_input, self.inputs)
            tensors, parameters = _named(self.arguments, inputs, self.modules)
            every = {**tensors, **parameters}
            for name, tensor in every.items():
                tensor.requires_grad_(name in self.chosen)
            if dtype is REFERENCE:
                stack.enter_context(Raised())
            yield Cast(self.f, inputs, {name: every[name] for name in self.chosen}, tensors, self.modules)


@dataclass(frozen=True)
class Cast:
    """A function ready to be called in a dtype.

    Attributes:
        f: The function.
        inputs: Copies of its arguments.
        leaves: What it is differentiated by, by name.
        tensors: The tensors among its arguments, by name.
        modules: Its modules, which hold the copies now.
    """

    f: Callable[..., Any]
    inputs: tuple[Any, ...]
    leaves: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    modules: Mapping[str, nn.Module]


@dataclass
class _Copies:
    """Copies of tensors in a dtype; one tensor has one copy."""

    dtype: torch.dtype
    made: dict[int, Tensor] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)  # an identity stands for its tensor while that lives

    def of(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self.made:
            self.kept.append(tensor)
            dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
            copy = tensor.detach().to(dtype, copy=True)
            self.made[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if _is_parameter(tensor) else copy
        return self.made[id(tensor)]

    def of_input(self, tensor: Tensor) -> Tensor:
        copy = self.of(tensor)
        return copy.detach() if _is_parameter(tensor) else copy

    @contextlib.contextmanager
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """Inside, a module holds copies. Its buffers and attributes are put back by who made them fresh."""
        before = dict(module._parameters)
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = self.of(tensor)  # type: ignore[assignment]
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) or (
                isinstance(value, list | tuple) and value and all(isinstance(each, Tensor) for each in value)
            ):
                vars(module)[name] = pytree.tree_map_only(Tensor, self.of, value)  # an LSTM's flat weights
        try:
            yield
        finally:
            module._parameters.clear()
            module._parameters.update(before)


def subject_of(f: Any, inputs: tuple[Any, ...], wrt: Wrt) -> Subject:
    """What ``pb.precision`` looks at.

    Raises:
        ArgumentError: f is no function, something is complex, or there is nothing to differentiate by.
        ValueMismatch: ``wrt`` names nothing.
    """
    if not callable(f):
        raise ArgumentError("f is not a function", got=type(f).__name__, fix="pb.precision(model, x)")
    modules = _outermost(f)
    arguments = argument_names(f, len(inputs))
    tensors, parameters = _named(arguments, inputs, modules)
    for name, tensor in {**tensors, **parameters}.items():
        if tensor.is_complex():
            raise ArgumentError(
                f"{name} is complex, and half precision has no complex numbers to compare",
                got=f"{tensor.dtype}",
                fix="torch.view_as_real(x) as the input, and torch.view_as_complex inside f",
            )
    chosen = _chosen(arguments, inputs, modules, wrt)
    if not chosen:
        raise ArgumentError(
            "there is no floating-point tensor to differentiate by",
            got=", ".join(f"{name} of {each.dtype}" for name, each in tensors.items()) or "no tensor",
            fix="pass floating-point tensors as inputs, or a module with parameters",
        )
    return Subject(f, inputs, tuple(arguments), modules, chosen)


def _outermost(f: Any) -> dict[str, nn.Module]:
    """The modules that a function holds and that are in no other, by name; a single one needs none."""
    held = list({id(module): module for module in held_by(f).modules}.values())
    inner = {id(part) for module in held for part in module.modules() if part is not module}
    outer = [module for module in held if id(module) not in inner]
    if len(outer) == 1:
        return {"": outer[0]}
    return {f"{type(module).__name__}_{number}": module for number, module in enumerate(outer, start=1)}


def _named(
    arguments: Sequence[str], inputs: Sequence[Any], modules: Mapping[str, nn.Module]
) -> tuple[dict[str, Tensor], dict[str, nn.Parameter]]:
    """The tensors among the inputs, and the parameters, by names that no two of them share."""
    parameters = {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, module in modules.items()
        for name, parameter in module.named_parameters()
    }
    tensors = {}
    for argument, value in zip(arguments, inputs, strict=True):
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, Tensor):
                name = argument + pytree.keystr(path)
                tensors[f"input {name}" if name in parameters else name] = leaf
    return tensors, parameters


def _chosen(
    arguments: Sequence[str], inputs: Sequence[Any], modules: Mapping[str, nn.Module], wrt: Wrt
) -> tuple[str, ...]:
    """The names of what is differentiated by."""
    tensors, parameters = _named(arguments, inputs, modules)
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if wrt is None:
        wanted = [name for name, each in {**floating, **parameters}.items() if each.requires_grad]
        return tuple(wanted or floating)
    if isinstance(wrt, str) and wrt == "parameters":
        return tuple(name for name, each in parameters.items() if each.requires_grad)
    chosen: list[str] = []
    for one in wrt if isinstance(wrt, tuple) else (wrt,):
        if isinstance(one, str):
            chosen.append(_known(one, {**floating, **parameters}))
        else:
            named, _ = _named(
                arguments, [v if n == _index(one, len(inputs)) else None for n, v in enumerate(inputs)], {}
            )
            chosen += [name for name, each in named.items() if each.is_floating_point()]
    return tuple(chosen)


def _known(name: str, known: Mapping[str, Tensor]) -> str:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise ValueMismatch(
            "wrt names no input and no parameter",
            got=repr(name),
            fix=f"wrt={close[0]!r}" if close else f"wrt='parameters', or some of: {', '.join(list(known)[:8])}",
        )
    return name


def _index(index: Any, count: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise ArgumentError(
            "wrt is an argument's index, or names of parameters and inputs",
            got=f"wrt={index!r}",
            fix='wrt=0, wrt="parameters", or wrt=("layer.weight",)',
        )
    if not -count <= index < count:
        raise ValueMismatch(
            "wrt counts beyond the arguments", got=f"wrt={index} for {count} of them", fix="wrt=0 is the first"
        )
    return index % count


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)
