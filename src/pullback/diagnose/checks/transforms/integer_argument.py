"""PB803: a transform differentiates by an argument that has no derivative."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import (
    NAMES,
    Transform,
    only_call,
    set_keyword,
    title_of,
    transforms_in,
    wrapped_text,
)
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say

INDEXING = frozenset({
    "embedding", "embedding_bag", "gather", "index_select", "take", "take_along_dim", "one_hot", "nll_loss",
    "cross_entropy", "scatter", "index_add", "bincount",
})  # fmt: skip
FILES = tuple(file for file in NAMES if "gradcheck" not in file and "call" not in file)


class IntegerArgument(Cause):
    """A transform differentiates by an argument that holds integers, or that is no tensor.

    ``grad``, ``jacrev`` and ``jacfwd`` differentiate by the first argument (``argnums=0``), ``vjp`` and ``jvp`` by all.
    Only floating point and complex tensors have a derivative; indices, labels, masks and Python numbers have none.

    Name the argument that is meant, ``grad(f, argnums=1)``, or close over the others:
    ``vjp(lambda x: f(index, x), x)``. A ``state_dict()`` holds integer buffers such as ``num_batches_tracked``: pass
    ``dict(net.named_parameters())`` to be differentiated and the buffers as another argument. A tensor that was meant
    to be real but was written ``torch.tensor([1, 2])`` needs ``torch.tensor([1.0, 2.0])``.
    """

    code = "PB803"
    title = "A transform was asked to differentiate by an argument that is not a floating point tensor."
    says = (
        "only Tensors of floating point",
        "Thing passed to transform API must be Tensor",
        "Expected primal to be floating point or complex",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, *FILES)
        if not transforms or case.site is None or transforms[-1].caller is not case.site:
            return None
        outer = next(each for each in transforms if each.caller is case.site)
        arguments = _arguments(transforms)
        wrong = [(number, path, leaf) for number, path, leaf in _leaves(arguments) if not _real(leaf)]
        wrong = [each for each in wrong if _asked(transforms, each[0])]
        if not wrong:
            return None
        number, path, leaf = wrong[0]
        what = str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, Tensor) else type(leaf).__name__
        name = _name(outer, number) + path
        text, edits, confidence = _mended(case, outer, arguments, number, leaf)
        marks = [case.mark(say("differentiated by {name}, which is {kind}", name=name, kind=what))]
        if outer.defined is not None:
            marks += outer.defined.marks(say("of this function"))
        return self.found(
            say(
                "{function} is to be differentiated by {name}, which holds {kind}. Only floating point and complex "
                "tensors have a derivative.",
                function=title_of(outer.defined), name=name, kind=what,
            ),
            marks,
            Fix(text, "\n".join(each.text.strip() for each in edits if each.text), edits, confidence),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def picked(labels, scores):
            return -scores.log_softmax(-1).gather(-1, labels).mean()

        torch.func.grad(picked)(torch.tensor([[0], [2]]), torch.randn(2, 3))

    @staticmethod
    def good():
        import torch

        def picked(labels, scores):
            return -scores.log_softmax(-1).gather(-1, labels).mean()

        torch.func.grad(picked, argnums=1)(torch.tensor([[0], [2]]), torch.randn(2, 3))


def _arguments(transforms: list[Transform]) -> list[Any]:
    for each in transforms:
        for key in ("args", "primals", "inputs"):
            value = each.local.get(key)
            if value is not None:
                return list(value) if isinstance(value, list | tuple) else [value]
    return []


def _leaves(arguments: list[Any]) -> list[tuple[int, str, Any]]:
    found = []
    for number, argument in enumerate(arguments):
        for path, leaf in pytree.tree_flatten_with_path(argument)[0]:
            found.append((number, pytree.keystr(path), leaf))
    return found


def _real(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor):
        return False
    with torch._C.DisableTorchFunction():
        return leaf.is_floating_point() or leaf.is_complex()


def _asked(transforms: list[Transform], number: int) -> bool:
    """Whether the transform differentiates by this argument."""
    chosen = next((each.local["argnums"] for each in transforms if each.local.get("argnums") is not None), None)
    if chosen is None:
        return True
    return number in (chosen if isinstance(chosen, tuple) else (chosen,))


def _name(transform: Transform, number: int) -> str:
    names = transform.defined.parameters if transform.defined is not None else []
    return names[number] if number < len(names) else f"args[{number}]"


def _mended(
    case: Case, outer: Transform, arguments: list[Any], number: int, leaf: Any
) -> tuple[str, tuple[Edit, ...], Confidence]:
    site = case.site
    assert site is not None
    call = case.call
    given = call.args[number] if call is not None and number < len(call.args) else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "state_dict":
        edit = site.source.replaced(given, f"dict({site.source.text(given.func.value)}.named_parameters())")
        return say("Pass the parameters alone: a state_dict holds the integer buffers too."), (edit,), "high"
    others = [index for index, each in enumerate(arguments) if isinstance(each, Tensor) and _real(each)]
    if others and number not in others:
        text = str(others[0]) if len(others) == 1 else str(tuple(others))
        made = only_call(site, ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian"))
        edits = set_keyword(site, made, "argnums", text, 1) if made is not None else ()
        chosen: Confidence = "high" if len(others) == 1 and edits else "medium"
        return say("Name the argument to differentiate by: argnums={argnums}.", argnums=text), edits, chosen
    if isinstance(leaf, Tensor) and (selected := _selected(case, outer, number)):
        text = say(
            "Indices have no derivative. Differentiate by what they select: by the weights, or by the vectors that "
            "{line} gives.", line=selected,
        )  # fmt: skip
        return text, (), "medium"
    if given is not None and isinstance(leaf, Tensor) and isinstance(arguments[number], Tensor):
        edit = site.source.replaced(given, f"{wrapped_text(site.source.text(given), given)}.float()")
        return say("Pass a floating point tensor."), (edit,), "medium"
    return (
        say("Pass what is to be differentiated as a floating point tensor, and the rest as other arguments."),
        (),
        "medium",
    )


def _selected(case: Case, outer: Transform, number: int) -> str:
    """How a function uses its argument as indices: ``emb(tokens)``, ``table[tokens]``; empty if it does not."""
    where = outer.defined
    if where is None or case.site is None or number >= len(where.parameters):
        return ""
    name = where.parameters[number]
    for node in ast.walk(where.scope):
        if isinstance(node, ast.Subscript):
            inside = any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.slice))
        elif isinstance(node, ast.Call):
            inside = any(isinstance(each, ast.Name) and each.id == name for each in node.args)
            inside = inside and _selects(case, node)
        else:
            continue
        if inside:
            return where.text(node)
    return ""


def _selects(case: Case, call: ast.Call) -> bool:
    func = call.func
    last = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    thing = case.site.evaluated(func) if case.site is not None else None
    return last in INDEXING or isinstance(thing, nn.Embedding | nn.EmbeddingBag)
