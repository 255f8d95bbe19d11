"""What a check found: an object that prints, and is true if nothing is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pullback.errors import VerificationError


@dataclass(frozen=True)
class Entry:
    """One entry of the Jacobian where two ways disagree.

    Attributes:
        output_index: The element of the output.
        input_index: The element of the input.
        ours: The derivative by the mode that is wrong.
        numeric: The derivative by differences.
    """

    output_index: tuple[int, ...]
    input_index: tuple[int, ...]
    ours: complex
    numeric: complex

    @property
    def ratio(self) -> complex:
        """Ours as a multiple of the numeric one."""
        return self.ours / self.numeric if self.numeric else complex(math.inf if self.ours else math.nan)

    def __str__(self) -> str:
        numbers = [f"{_number(self.ours):>13}", f"{_number(self.numeric):>13}", f"{_number(self.ratio):>10}"]
        return f"    {_index(self.output_index):>12} {_index(self.input_index):>12} " + " ".join(numbers)


@dataclass(frozen=True)
class Finding:
    """Something that a check found.

    Attributes:
        name: A short name, such as ``missing factor 2``; that of the cause where one was recognised.
        text: What was seen, in a sentence.
        fix: What to write instead.
        harmless: Whether the function is right after all.
        input: The input it is about, if it is about one.
        output: The output it is about, if it is about one.
        entries: The worst entries of the Jacobian.
    """

    name: str
    text: str
    fix: str
    harmless: bool = False
    input: str = ""
    output: str = ""
    entries: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        mark = "note" if self.harmless else "WRONG"
        where = f" ({self.output} by {self.input})" if self.input and self.output else ""
        lines = [f"{mark}: {self.name}{where}", f"  {self.text}"]
        if self.entries and not self.harmless:
            lines.append(f"    {'output at':>12} {'input at':>12} {'ours':>13} {'numeric':>13} {'ratio':>10}")
            lines += map(str, self.entries)
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """What :func:`pullback.check` returns; it is true if nothing is wrong.

    Attributes:
        title: What was checked.
        compared: What was compared with what, line by line.
        findings: What was found; those that are harmless are worth a word.
        ratios: For each input and output that disagree, and for each mode, the difference in multiples of what is
            allowed.
    """

    title: str
    compared: tuple[str, ...]
    findings: tuple[Finding, ...]
    ratios: dict[str, float]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that are not harmless."""
        return tuple(finding for finding in self.findings if not finding.harmless)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        verdict = "right" if self.passed else f"{len(self.failures)} wrong"
        return "\n".join(
            [f"{self.title}: {verdict}", *(f"  {line}" for line in self.compared), *map(str, self.findings)]
        )

    __repr__ = __str__

    def raise_if_failed(self) -> None:
        """Raise where something is wrong.

        Raises:
            VerificationError: Something is.
        """
        if not self.passed:
            first = self.failures[0]
            raise VerificationError(f"{self.title} has wrong derivatives", got=str(self), fix=first.fix or first.text)

    def told(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "title": self.title,
            "passed": self.passed,
            "compared": list(self.compared),
            "ratios": {name: ratio if math.isfinite(ratio) else str(ratio) for name, ratio in self.ratios.items()},
            "findings": [
                {
                    "name": each.name,
                    "text": each.text,
                    "fix": each.fix,
                    "harmless": each.harmless,
                    "input": each.input,
                    "output": each.output,
                    "entries": [
                        {
                            "output": list(entry.output_index),
                            "input": list(entry.input_index),
                            "ours": _number(entry.ours),
                            "numeric": _number(entry.numeric),
                        }
                        for entry in each.entries
                    ],
                }
                for each in self.findings
            ],
        }


def _number(value: complex) -> str:
    if isinstance(value, complex) and value.imag:
        return f"{value.real:.5g}{value.imag:+.5g}j"
    return f"{value.real:.6g}"


def _index(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"
