"""What a diagnosis consists of, as plain values: no tensor, frame or exception is held by any of these."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pullback.errors import ValueMismatch
from pullback.graph.values import Place
from pullback.language import say
from pullback.words import dtype_name

Confidence = Literal["high", "medium", "low"]
ORDER: dict[str, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the user's program, and what happened there.

    Attributes:
        place: File, line and function.
        what: What happened there, in the reader's language: ``created here``.
        span: The columns of the sub-expression within the line as it is written, in characters from 0; None for all.
        text: The line as it is written, with its indentation.
    """

    place: Place
    what: str
    span: tuple[int, int] | None = None
    text: str = ""

    @classmethod
    def at(cls, place: Place, what: str, span: tuple[int, int] | None = None) -> Mark:
        """A mark at a place, with the line read from its file."""
        return cls(place, what, span, linecache.getline(place.file, place.line).rstrip("\n"))

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "file": self.place.file,
            "line": self.place.line,
            "function": self.place.function,
            "columns": list(self.span) if self.span else None,
            "text": self.text.strip(),
            "what": self.what,
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor of the user's program, without the tensor.

    Attributes:
        name: What the user calls it, or what it is: ``loss``, ``net.0.weight``, ``the seed``.
        role: Its part in this: ``root``, ``seed``, ``written``.
        shape: Its shape.
        dtype: Its dtype, such as ``float32``.
        device: Its device.
        grad_fn: The name of the operation that made it, such as ``MulBackward0``, or None.
        requires_grad: Whether it requires grad.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    grad_fn: str | None
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor, name: str, role: str = "") -> Subject:
        """What there is to say of a tensor."""
        with torch._C.DisableTorchFunction():
            try:
                node = tensor.grad_fn
            except RuntimeError:
                node = None
            nested = tensor.is_nested
            shape = () if nested else tuple(int(size) for size in tensor.shape)
            device, needs = str(tensor.device), tensor.requires_grad
            grad_fn = node.name() if node is not None else None
            return cls(name, role, shape, dtype_name(tensor.dtype), device, grad_fn, needs)

    def __str__(self) -> str:
        made = f" grad_fn={self.grad_fn}" if self.grad_fn else (" leaf" if self.requires_grad else "")
        needs = "" if self.grad_fn else f" requires_grad={self.requires_grad}"
        return f"{self.name}: {self.shape} {self.dtype} {self.device}{made}{needs}"

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "name": self.name,
            "role": self.role,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
            "grad_fn": self.grad_fn,
            "requires_grad": self.requires_grad,
        }


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of a file to be replaced.

    Attributes:
        file: The file.
        first: The first line that goes, from 1.
        last: The last line that goes; ``first - 1`` to insert before ``first``.
        text: What stands there instead, without a final newline; None to leave the lines out.
    """

    file: str
    first: int
    last: int
    text: str | None

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {"file": self.file, "first": self.first, "last": self.last, "text": self.text}


@dataclass(frozen=True, slots=True)
class Fix:
    """What to write instead.

    Attributes:
        text: One sentence, in the reader's language.
        code: The code made for this program: the changed lines as they should read. Empty if there is none.
        edits: The same as edits that can be applied; empty where the program cannot be mended by replacing lines.
        confidence: How sure it is that the program runs and means the same after it.
    """

    text: str
    code: str = ""
    edits: tuple[Edit, ...] = ()
    confidence: Confidence = "medium"

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "text": self.text,
            "code": self.code,
            "edits": [edit.told() for edit in self.edits],
            "confidence": self.confidence,
        }


@dataclass(frozen=True)
class Diagnosis:
    """One cause, found in one program.

    Attributes:
        code: The code of the cause: ``PB201``.
        title: One sentence: what happened. It does not say what to do.
        cause: Why, in plain words, with the names, shapes and numbers of this program.
        marks: The lines of the program: the failing one first, then the others in the order in which they ran.
        tensors: The tensors that it is about.
        fix: What to write instead.
        confidence: How sure the cause is.
        useless: Popular cures that do not help here, each with why: ``retain_graph=True: ...``.
        notes: What else is worth knowing.
        apart: What would tell this cause from the others that come into question.
        wants: What a run with ``--trace`` (or ``--audit``) would tell beside, as a question; empty if nothing.
        rank: The rank of the process in a distributed run.
        process: The name of the process, if it was one that the program started.
    """

    code: str
    title: str
    cause: str
    marks: tuple[Mark, ...]
    fix: Fix
    tensors: tuple[Subject, ...] = ()
    confidence: Confidence = "high"
    useless: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    apart: str = ""
    wants: str = ""
    rank: int | None = None
    process: str = ""

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "code": self.code,
            "title": self.title,
            "cause": self.cause,
            "fix": self.fix.told(),
            "lines": [mark.told() for mark in self.marks],
            "tensors": [tensor.told() for tensor in self.tensors],
            "confidence": self.confidence,
            "does_not_help": list(self.useless),
            "notes": list(self.notes),
            "apart": self.apart,
            "wants": self.wants,
            "rank": self.rank,
            "process": self.process or None,
        }


@dataclass(frozen=True)
class Report:
    """All that was found in one program.

    Attributes:
        diagnoses: What made it fail; the likeliest cause first, and alone where it is certain.
        findings: The silent faults that an audit found.
        torch: The version of torch.
        level: The level at which the program ran.
        trouble: What went wrong in looking; the program does not notice.
    """

    diagnoses: tuple[Diagnosis, ...] = ()
    findings: tuple[Diagnosis, ...] = ()
    torch: str = field(default_factory=lambda: str(torch.__version__))
    level: str = "default"
    trouble: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.diagnoses or self.findings)

    def __str__(self) -> str:
        from pullback.diagnose.reports.text import plain  # noqa: PLC0415 - a value knows how it is shown, not more

        return plain(self) or say("no cause that is known here fits this error")

    __repr__ = __str__

    def of_process(self, rank: int | None, name: str = "") -> Report:
        """The same, said of one process of a distributed run, or of one that the program started."""
        mine, also = (
            tuple(
                replace(each, rank=each.rank if rank is None else rank, process=each.process or name) for each in group
            )
            for group in (self.diagnoses, self.findings)
        )
        return replace(self, diagnoses=mine, findings=also)

    def told(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "pullback": 1,
            "torch": self.torch,
            "level": self.level,
            "diagnoses": [each.told() for each in self.diagnoses],
            "findings": [each.told() for each in self.findings],
            "trouble": list(self.trouble),
        }


def applied(edits: Iterable[Edit], file: str) -> str:
    """The text of a file after the edits that are of it.

    Raises:
        ValueMismatch: Two edits overlap.
    """
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    below = len(lines) + 1
    for edit in sorted((each for each in edits if each.file == file), key=lambda each: (-each.first, -each.last)):
        if edit.last >= below:
            raise ValueMismatch("Two edits of a file overlap.", got=repr(edit), fix="apply one of them")
        lines[edit.first - 1 : edit.last] = [] if edit.text is None else edit.text.split("\n")
        below = edit.first
    return "\n".join(lines) + "\n"
