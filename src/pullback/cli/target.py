"""What a command line names: ``module.py:function`` or ``package.module:name``, and the inputs to call it with."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Target:
    """Something named on the command line, loaded: the module it stands in, its name and itself."""

    module: ModuleType
    name: str
    thing: Any

    def call(self, inputs: Sequence[Tensor]) -> tuple[Any, dict[str, Any]]:
        """The outputs for the inputs, and what the user calls the tensors and modules on the way.

        A class of modules is made without arguments; tensors are outputs as they are.
        """
        known = {name: value for name, value in vars(self.module).items() if isinstance(value, Tensor | nn.Module)}
        thing = self.thing
        if inspect.isclass(thing) and issubclass(thing, nn.Module):
            _check_made(thing, self.name)
            thing = thing()
        if isinstance(thing, nn.Module):
            known = {self.name.rpartition(".")[2]: thing, **known}
        elif callable(thing):
            inputs = [each.requires_grad_(each.is_floating_point() or each.is_complex()) for each in inputs]
        else:
            return thing, known
        _check_fits(thing, self.name, inputs)
        return thing(*inputs), {**_named(thing, inputs), **known}


def load(text: str) -> Target:
    """The target that a text names; the file's folder is put on the path, as ``python file.py`` does.

    Raises:
        click.BadParameter: There is no such file, module or name.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise click.BadParameter(f"{text!r} is not of the form module.py:function or package.module:function")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            known = [each for each in vars(module) if not each.startswith("_")]
            raise click.BadParameter(f"{where} has no {name!r}; it has {', '.join(known[:20]) or 'nothing'}")
        thing = getattr(thing, part)
    return Target(module, name, thing)


def parse_input(text: str) -> Tensor:
    """A tensor from its shape, such as ``2,3`` or ``8:int64``: standard normal numbers, or zeros of an integer dtype.

    Raises:
        click.BadParameter: It is no shape, or no dtype of torch.
    """
    shape, _, named = text.partition(":")
    try:
        sizes = [int(size) for size in shape.split(",") if size.strip()]
    except ValueError:
        sizes = [-1]
    dtype = getattr(torch, named or "float32", None)
    if min(sizes, default=0) < 0 or not isinstance(dtype, torch.dtype):
        raise click.BadParameter(f"{text!r} is not a shape such as 2,3 or 2,3:float64")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(sizes, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    return torch.zeros(sizes, dtype=dtype)


def read_inputs(path: Path) -> list[Tensor]:
    """The arrays of an ``.npz`` file, in its order.

    Raises:
        click.BadParameter: It is no such file.
    """
    if not zipfile.is_zipfile(path):
        raise click.BadParameter(f"{path} is not an .npz file of arrays")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [torch.from_numpy(arrays[name].copy()) for name in arrays.files]
    except (ValueError, TypeError, OSError, AttributeError) as error:
        raise click.BadParameter(f"{path} is not an .npz file of arrays: {error}") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise click.BadParameter(f"there is no file {path}")
    folder, name = path.resolve().parent, path.stem
    while (folder / "__init__.py").is_file():  # a part of a package is imported as one, for its relative imports
        folder, name = folder.parent, f"{folder.name}.{name}"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(name) if "." in name else _executed(name, path)


def _executed(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.setdefault(name, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if known is module:
            del sys.modules[name]
        raise
    return module


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise click.BadParameter(f"there is no module {name!r}; a file is named with its ending .py") from error


def _check_made(kind: type, name: str) -> None:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise click.UsageError(
            f"{name} cannot be made without arguments: {error}. Name a function that makes and calls it"
        ) from error


def _check_fits(function: Callable[..., Any], name: str, inputs: Sequence[Tensor]) -> None:
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        raise click.UsageError(
            f"{name}{signature} cannot be called with {len(inputs)} inputs: {error}. "
            "Give one --input SHAPE for each, such as --input 8,3"
        ) from error


def _named(function: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Any]:
    signature = _signature(function)
    return dict(signature.bind(*inputs).arguments) if signature else {}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):
        return None
