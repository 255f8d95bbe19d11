"""Inference tensors: which of the program's tensors are some, and which block made them so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.absent.parameters import sources_of
from pullback.diagnose.evidence.absent.values import strictly
from pullback.diagnose.evidence.definitions import Scene, definitions, followed
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

MODE = "inference_mode"


@dataclass(frozen=True)
class Block:
    """A ``with torch.inference_mode():`` or its decorator."""

    source: Source
    mode: ast.expr

    def mark(self, what: str) -> Mark:
        """The line of it."""
        return Mark.at(Place(self.source.file, self.mode.lineno, ""), what, self.source.span(self.mode))

    def edit(self) -> tuple[Edit, ...]:
        """The same with ``no_grad``."""
        named = self.mode.func if isinstance(self.mode, ast.Call) else self.mode
        text = self.source.text(self.mode)
        if self.source.text(named) != f"torch.{MODE}" or not self.source.text(named).endswith(MODE):
            return ()
        return (self.source.replaced(self.mode, text.replace(MODE, "no_grad", 1)),)


def mode_of(node: ast.AST) -> ast.expr | None:
    """The expression ``torch.inference_mode(...)`` if it turns the mode on."""
    named = node.func if isinstance(node, ast.Call) else node
    name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
    if name != MODE or not isinstance(node, ast.expr):
        return None
    off = (
        isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value is False
    )
    return None if off else node


def around(source: Source, node: ast.AST) -> Block | None:
    """The block or decorator of inference mode around a node."""
    for each in source.around(node):
        modes: list[ast.expr] = []
        if isinstance(each, ast.With | ast.AsyncWith):
            modes = [item.context_expr for item in each.items]
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            modes = each.decorator_list
        for mode in modes:
            if (found := mode_of(mode)) is not None:
                return Block(source, found)
    return None


def block_of(case: Case, node: ast.expr | None, tensor: Tensor | None = None) -> Block | None:
    """The block that made a tensor an inference tensor."""
    value = case.tape.value_of(tensor) if case.tape is not None and tensor is not None else None
    if value is not None and value.maker is not None and value.maker.spot is not None:
        spot = value.maker.spot
        where = spot.node or spot.statement
        if where is not None and (found := around(spot.source, where)) is not None:
            return found
    for step in definitions(case, node):
        if (found := around(step.scene.source, step.statement)) is not None:
            return found
    blocks = [block for source in sources_of(case) for block in blocks_in(source)]
    return blocks[0] if len(blocks) == 1 else None


def blocks_in(source: Source) -> Iterator[Block]:
    """All blocks and decorators of inference mode in a source."""
    for node in ast.walk(source.tree):
        modes: list[ast.expr] = []
        if isinstance(node, ast.With | ast.AsyncWith):
            modes = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            modes = node.decorator_list
        yield from (Block(source, found) for mode in modes if (found := mode_of(mode)) is not None)


def inference_operands(case: Case) -> list[tuple[ast.expr, Tensor]]:
    """The inference tensors that the failing expression names, the outermost first."""
    site = case.site
    node = (site.statement if site and site.node is None else site.node) if site else None
    if site is None or node is None:
        return []
    found: dict[int, tuple[ast.expr, Tensor]] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript):
            thing = strictly(site, each)
            if issubclass(type(thing), Tensor) and thing.is_inference():
                found.setdefault(id(thing), (each, thing))
    return list(found.values())


def is_gradient(case: Case, node: ast.expr) -> bool:
    """Whether an expression is a ``.grad``, by itself or through its name."""
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        return True
    if case.site is None:
        return False
    steps = followed(case, Scene.of(case.site, len(case.frames) - 1), node)
    return any(isinstance(step.value, ast.Attribute) and step.value.attr == "grad" for step in steps)


def inference_gradients(case: Case) -> list[tuple[str, Tensor]]:
    """The leaves whose gradients are inference tensors, by name."""
    found = []
    for tensor in _leaves(case):
        with torch._C.DisableTorchFunction():
            grad = tensor.grad if tensor.is_leaf else None
        if grad is not None and grad.is_inference():
            found.append((case.name_of(tensor, "a leaf"), tensor))
    return found


def _leaves(case: Case) -> Iterator[Tensor]:
    seen: set[int] = set()
    for _, module in case.holds(nn.Module):
        yield from (p for p in module.parameters() if id(p) not in seen and not seen.add(id(p)))  # type: ignore[func-returns-value]
    for _, optimizer in case.holds(Optimizer):
        for group in optimizer.param_groups:
            yield from (p for p in group["params"] if id(p) not in seen)
    yield from (tensor for _, tensor in case.holds(Tensor))


def inference_modules(case: Case) -> list[tuple[str, nn.Module]]:
    """The modules that have inference tensors for parameters: those that were built in inference mode."""
    return [
        (name, module)
        for name, module in case.holds(nn.Module)
        if any(parameter.is_inference() for parameter in module.parameters())
    ]


def fix_of(case: Case, block: Block | None, otherwise: str, edits: tuple[Edit, ...] = ()) -> Fix:
    """``no_grad`` instead of ``inference_mode``; or what else there is."""
    changed = block.edit() if block is not None else ()
    if changed and case.site is not None:
        return Fix(
            say("Use torch.no_grad() there: what is made in it may be used in training."),
            case.site.source.code(*changed),
            changed,
            "high",
        )
    return Fix(say("Take a normal copy first."), otherwise, edits, "high" if edits else "medium")
