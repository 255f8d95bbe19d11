"""What gradcheck compared when it failed: the two Jacobians, the inputs, and the Functions behind the output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.transforms import Defined, defined, tensors_of
from pullback.diagnose.values import Mark
from pullback.graph.frames import variables
from pullback.language import say

FILE = "torch/autograd/gradcheck.py"
# So many nodes behind the outputs are looked at.
NODES = 2000


@dataclass(frozen=True)
class Comparison:
    """One failed comparison of Jacobians.

    Attributes:
        function: The function that was checked.
        inputs: Its inputs.
        output: The number of the output.
        input: The number of the input, among those that are differentiated by.
        analytical: The Jacobian by the backward, one row for each element of the input; None if it is not known whole.
        numerical: The same by differences.
        second: Whether ``gradgradcheck`` compared second derivatives.
        forward: Whether forward mode was checked.
        functions: The classes of the user's ``autograd.Function`` that took part.
    """

    function: Any
    inputs: list[Tensor]
    output: int
    input: int
    analytical: Tensor | None
    numerical: Tensor | None
    second: bool
    forward: bool
    functions: list[type]

    @property
    def defined(self) -> Defined | None:
        """The function as it is written."""
        return defined(self.function)

    @property
    def wrong(self) -> list[tuple[int, int, complex, complex]]:
        """The entries that differ: element of the input, element of the output, by the backward, by differences."""
        if self.analytical is None or self.numerical is None or self.analytical.shape != self.numerical.shape:
            return []
        with torch._C.DisableTorchFunction(), torch.no_grad():
            one = self.analytical.detach().to(torch.complex128)
            two = self.numerical.detach().to(torch.complex128)
            apart = ~torch.isclose(one, two, rtol=1e-3, atol=1e-5)
            return [(row, column, one[row, column].item(), two[row, column].item())
                    for row, column in apart.nonzero().tolist()]  # fmt: skip

    @property
    def differing(self) -> Tensor | None:
        """The input that this is about."""
        differentiable = [each for each in self.inputs if each.requires_grad]
        return differentiable[self.input] if self.input < len(differentiable) else None


def comparison_in(case: Case) -> Comparison | None:
    """What gradcheck compared last, if the program failed in it."""
    frames = [(frame.f_code.co_name, frame) for frame, _, _ in frames_of(case.error.__traceback__)
              if frame.f_code.co_filename.replace("\\", "/").endswith(FILE)]  # fmt: skip
    if not frames:
        return None
    local: dict[str, Any] = {}
    names = [name for name, _ in frames]
    outer = next((variables(frame) for name, frame in frames if name in {"gradgradcheck", "gradcheck"}), {})
    for _, frame in frames:
        local.update(variables(frame))
    found = re.search(r"output (\d+) with respect to input (\d+)", case.message)
    output, number = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    analytical, numerical = local.get("a"), local.get("n")
    if not isinstance(analytical, Tensor) or not isinstance(numerical, Tensor) or analytical.dim() != 2:
        analytical, numerical = _read(case.message)
    outputs = tensors_of(local.get("outputs") or local.get("func_out"))
    function = outer.get("func")
    return Comparison(
        function,
        tensors_of(outer.get("inputs")) or tensors_of(local.get("tupled_inputs")),
        output,
        number,
        analytical,
        numerical,
        "gradgradcheck" in names,
        case.says("forward mode"),
        _functions(function, outputs),
    )


def entries(comparison: Comparison, most: int = 3) -> str:
    """The entries that differ, for a reader: ``[0, 0]: 1.5 by the backward, 3 by differences (0.5 times)``."""
    told = []
    for row, column, one, two in comparison.wrong[:most]:
        ratio = f", {_ratio(one, two):.3g}x" if two and one else ""
        told.append(f"[{row}, {column}]: {_number(one)} / {_number(two)}{ratio}")
    rest = len(comparison.wrong) - most
    return "; ".join(told) + (f"; +{rest}" if rest > 0 else "")


def _ratio(one: complex, two: complex) -> float:
    """How many times as large one is, with the sign if both are real."""
    both = one.imag == 0 and two.imag == 0
    return one.real / two.real if both and two.real else abs(one) / abs(two)


def _number(value: complex) -> str:
    return f"{value.real:.4g}" if value.imag == 0 else f"{value:.4g}"


def _read(message: str) -> tuple[Tensor | None, Tensor | None]:
    """The two matrices as torch printed them, where none was left out."""
    found = []
    for word in ("numerical", "analytical"):
        texts = re.findall(word + r":\s*tensor\((\[\[.*?\]\])", message, re.DOTALL | re.IGNORECASE)
        text = texts[-1] if texts else ""
        if not text or "..." in text:
            return None, None
        clean = re.sub(r"\binf\b", "1e999", re.sub(r"\bnan\b", "(1e999-1e999)", text))
        try:
            rows = _evaluated(clean)
        except (ValueError, SyntaxError, TypeError):
            return None, None
        found.append(torch.tensor(rows, dtype=torch.complex128))
    return found[1], found[0]


def _evaluated(text: str) -> list[list[complex]]:
    tree = ast.parse(" ".join(text.split()), mode="eval").body
    if not isinstance(tree, ast.List):
        raise ValueError(text)
    return [[_value(each) for each in row.elts] for row in tree.elts if isinstance(row, ast.List)]


def _value(node: ast.expr) -> complex:
    if isinstance(node, ast.Constant):
        return complex(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left - right
    raise ValueError(node)


def _functions(function: Any, outputs: list[Tensor]) -> list[type]:
    """The user's Functions: those among the nodes behind the outputs, and those that the function names."""
    found: dict[type, None] = {}
    stack = [node for each in outputs if (node := each.grad_fn) is not None]
    seen = set(stack)
    while stack and len(seen) < NODES:
        node = stack.pop()
        kind = getattr(node, "_forward_cls", None)
        if isinstance(kind, type):
            found[kind] = None
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    for kind in functions_named(function):
        found.setdefault(kind)
    return [kind for kind in found if method_of(kind, "backward") or method_of(kind, "vjp")]


def functions_named(function: Any) -> Iterator[type]:
    """The ``autograd.Function`` classes that a function is, or names."""
    owner = getattr(function, "__self__", None)
    if isinstance(function, BuiltinMethodType) or isinstance(owner, type):
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            yield owner
        return
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return
    closed = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    for thing in (*(function.__globals__.get(name) for name in function.__code__.co_names), *closed):
        if isinstance(thing, type) and issubclass(thing, torch.autograd.Function):
            yield thing


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def method_of(kind: type, name: str) -> Defined | None:
    """A method of a user's Function, as it is written; a decorator around it is looked through."""
    for owner in kind.__mro__:
        if name in vars(owner):
            found = getattr(vars(owner)[name], "__func__", vars(owner)[name])
            found = getattr(found, "__wrapped__", found)
            for _ in range(3):  # once_differentiable wraps without saying what
                if isinstance(found, FunctionType) and defined(found) is None and found.__closure__:
                    inner = [each.cell_contents for each in found.__closure__ if _filled(each)]
                    found = next((each for each in inner if isinstance(each, FunctionType)), found)
            if isinstance(found, FunctionType):
                return defined(found)
    return None


def once_differentiable(kind: type) -> bool:
    """Whether its backward is said to be differentiable no further."""
    method = next((vars(owner)["backward"] for owner in kind.__mro__ if "backward" in vars(owner)), None)
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return code is not None and code.co_filename.replace("\\", "/").endswith("torch/autograd/function.py")


def input_marks(case: Case, tensors: Sequence[Tensor]) -> list[Mark]:
    """The lines that made some inputs, as far as they have names."""
    marks: list[Mark] = []
    for each in tensors:
        name = case.name_of(each)
        node = ast.parse(name, mode="eval").body if name.replace(".", "_").isidentifier() else None
        marks += made(case, each, node, say("{name} was made here", name=name))
    return marks
