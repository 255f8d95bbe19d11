"""PyTorch's module database: modules, and the arguments to call them with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .operators import MODE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db

# A few samples, and more of a module whose peculiarity shows in some of them only.
FEW, MORE = 3, 120
# A Jacobian of a module has at most so many rows and entries; a module without any so small has its smallest.
LARGEST_OUTPUT = 400
LARGEST_MATRIX = 100_000


@dataclass(frozen=True)
class Case:
    """One way to make and to call a module.

    Attributes:
        name: The module, its mode and the sample's number.
        module: The module, initialised.
        args: What it is called with.
        kwargs: What it is called with by name.
        size: How many parameters and differentiable inputs together, and how many outputs, it has.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: tuple[int, int]

    def fresh(self) -> nn.Module:
        """The same module with the same buffers, never called."""
        return copy.deepcopy(self.module)


def names() -> list[str]:
    """The modules that exist in float64, each in the modes in which it differs."""
    found = []
    for info in module_db:
        if torch.float64 in info.dtypes:
            found += [f"{info.name}.train", f"{info.name}.eval"] if info.train_and_eval_differ else [info.name]
    return found


def cases(name: str, *, more: bool = False) -> Iterator[Case]:
    """The samples of a module: all that are small, or a few from all over the list."""
    training = name.endswith(".train")
    info = next(info for info in module_db if info.name == name.removesuffix(".train").removesuffix(".eval"))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
        found = [_case(name, index, info, given, training) for index, given in enumerate(inputs)]
    small = [case for case in found if case.size[0] * case.size[1] <= LARGEST_MATRIX and case.size[1] <= LARGEST_OUTPUT]
    small = small or [min(found, key=lambda case: case.size[0] * case.size[1])]
    step = 1 if MODE == "full" else max(len(small) // (MORE if more else FEW), 1)
    yield from small[::step]


def _case(name: str, index: int, info: Any, given: Any, training: bool) -> Case:
    """A sample as it is called, in double precision; lazy modules are called once, to make their parameters."""
    torch.manual_seed(index)
    constructor, forward = given.constructor_input, given.forward_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).double().train(training)
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad), (forward.args, forward.kwargs)
    )
    once = module if any(map(nn.parameter.is_lazy, module.parameters())) else copy.deepcopy(module)
    with torch.no_grad():
        outputs = once(*args, **kwargs)
    inputs = [*differentiable((args, kwargs)), *module.parameters()]
    n, m = (sum(leaf.numel() for leaf in leaves) for leaves in (inputs, tensors(outputs)))
    return Case(f"{name}[{index}]", module, args, kwargs, (n, m))


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a structure."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def differentiable(tree: Any) -> list[Tensor]:
    """The tensors of a structure that require grad."""
    return [leaf for leaf in tensors(tree) if leaf.requires_grad]
