"""Diagnoses as text, in the manner of compilers: the line, the expression underlined, the cause and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pullback.diagnose.reports.cells import cells, expanded, padded, window, wrapped
from pullback.diagnose.values import Confidence, Diagnosis, Mark, Report, Subject
from pullback.language import say

WIDTH = 100
# A piece of a line with the name of its style; a line is some of them.
Piece = tuple[str, str]
Line = list[Piece]


def plain(report: Report, width: int = WIDTH) -> str:
    """A report as plain text, without a final line end; empty if there is nothing to say."""
    return joined(report_lines(report, width))


def joined(lines: Sequence[Line]) -> str:
    """Lines without their styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def report_lines(report: Report, width: int = WIDTH) -> list[Line]:
    """A report, line by line: what made the program fail, then what an audit found."""
    lines: list[Line] = []
    if len(report.diagnoses) > 1:
        lines.append([(say("one of these causes:"), "bold")])
    for diagnosis in report.diagnoses:
        lines += [[]] * bool(lines)
        lines += diagnosis_lines(diagnosis, report.level, width)
    for finding in report.findings:
        lines += [[]] * bool(lines)
        lines += diagnosis_lines(finding, report.level, width, kind="warning")
    for trouble in report.trouble:
        lines += _labelled(say("trouble"), trouble, "warning", 0, width)
    return lines


def diagnosis_lines(diagnosis: Diagnosis, level: str, width: int, kind: str = "error") -> list[Line]:
    """One diagnosis, line by line.

    Args:
        diagnosis: What was found.
        level: The level at which the program ran.
        width: How wide the text may be.
        kind: ``error`` or ``warning``.
    """
    word = say("error") if kind == "error" else say("warning")
    lines: list[Line] = [[(f"{word}[{diagnosis.code}]", kind), (f"{_process(diagnosis)}: {diagnosis.title}", "bold")]]
    marks = [mark for mark in diagnosis.marks if mark.place.file]
    gutter = max((len(str(mark.place.line)) for mark in marks), default=1)
    lines += _snippets(marks, gutter, width, kind)
    lines += _table(diagnosis.tensors, gutter, width)
    lines += _labelled(_with_confidence(say("cause"), diagnosis.confidence), diagnosis.cause, "label", gutter, width)
    lines += _fix(diagnosis, gutter, width)
    for each in diagnosis.useless:
        lines += _labelled(say("does not help"), each, "label", gutter, width)
    for each in diagnosis.notes:
        lines += _labelled(say("note"), each, "label", gutter, width)
    if diagnosis.apart:
        lines += _labelled(say("what would tell it apart"), diagnosis.apart, "label", gutter, width)
    if diagnosis.wants:
        lines += _labelled(say("still open"), _asked(diagnosis.wants, level), "label", gutter, width)
    lines += _labelled(say("page"), f"pullback explain {diagnosis.code}", "label", gutter, width)
    return lines


def _process(diagnosis: Diagnosis) -> str:
    if diagnosis.rank is None:
        return say(" (process {name})", name=diagnosis.process) if diagnosis.process else ""
    if not diagnosis.process:
        return say(" (rank {rank})", rank=diagnosis.rank)
    return say(" (rank {rank}, process {name})", rank=diagnosis.rank, name=diagnosis.process)


def _asked(question: str, level: str) -> str:
    option = "--trace" if level == "default" else "--audit"
    return say("{question} `pullback run {option}` answers this.", question=question, option=option)


def _with_confidence(label: str, confidence: Confidence) -> str:
    return label if confidence == "high" else f"{label} ({_confidence(confidence)})"


def _confidence(confidence: Confidence) -> str:
    words = {
        "high": say("high confidence"),
        "medium": say("medium confidence"),
        "low": say("low confidence"),
    }
    return words[confidence]


def _snippets(marks: Sequence[Mark], gutter: int, width: int, kind: str) -> Iterator[Line]:
    pad = " " * gutter
    before: Mark | None = None
    for mark in marks:
        place = mark.place
        if before is None or (place.file, place.function) != (before.place.file, before.place.function):
            inside = "" if place.function in {"", "<module>"} else say(" in {function}", function=place.function)
            yield [(f"{pad}{'-->' if before is None else ':::'} ", "gutter"), (f"{place}{inside}", "")]
        again = before is not None and place[:2] == before.place[:2] and _fits(mark, gutter, width)
        if not again:
            yield [(f"{pad} |", "gutter")]
        first = before is None
        yield from _snippet(mark, gutter, width, "^" if first else "-", kind if first else "secondary", again=again)
        before = mark
    if marks:
        yield [(f"{pad} |", "gutter")]


def _fits(mark: Mark, gutter: int, width: int) -> bool:
    """Whether the line is shown as it is: if so, it need not be shown twice."""
    return bool(mark.text.strip()) and cells(expanded(mark.text, None)[0]) <= width - gutter - 3


def _snippet(mark: Mark, gutter: int, width: int, sign: str, style: str, *, again: bool) -> Iterator[Line]:
    pad = " " * gutter
    text, span = expanded(mark.text, mark.span)
    if not text.strip():
        yield [(f"{mark.place.line:>{gutter}} | ", "gutter"), (say("(the source is not at hand)"), "dim")]
        yield [(f"{pad} | ", "gutter"), (mark.what, style)]
        return
    indent = len(text) - len(text.lstrip())
    text, (start, end) = window(text, span or (indent, len(text)), max(width - gutter - 3, 20))
    if not again:
        yield [(f"{mark.place.line:>{gutter}} | ", "gutter"), (text, "code")]
    under = " " * cells(text[:start]) + sign * max(cells(text[start:end]), 1)
    room = width - gutter - 3 - cells(under) - 1
    if cells(mark.what) <= room:
        yield [(f"{pad} | ", "gutter"), (f"{under} {mark.what}".rstrip(), style)]
        return
    yield [(f"{pad} | ", "gutter"), (under, style)]
    column = min(cells(text[:start]), max(width - gutter - 43, 0))
    for line in wrapped(mark.what, max(width - gutter - 3 - column, 20)):
        yield [(f"{pad} | ", "gutter"), (" " * column + line, style)]


def _table(tensors: Sequence[Subject], gutter: int, width: int) -> Iterator[Line]:
    if not tensors:
        return
    heads = [say("tensor"), say("shape"), "dtype", "device", "grad_fn", "requires_grad"]
    rows = [
        [each.name, str(each.shape), each.dtype, each.device, each.grad_fn or "-", str(each.requires_grad)]
        for each in tensors
    ]
    widths = [max(map(cells, column)) for column in zip(heads, *rows, strict=True)]
    widths[0] = min(widths[0], max(width - gutter - 3 - sum(widths[1:]) - 2 * len(widths[1:]), 12))
    for row in rows:
        row[0], _ = window(row[0], (0, 0), widths[0])
    pad = " " * (gutter + 3)
    for number, row in enumerate([heads, *rows]):
        line = "  ".join(padded(entry, size) for entry, size in zip(row, widths, strict=True)).rstrip()
        yield [(pad + line, "dim" if number == 0 else "")]


def _labelled(label: str, text: str, style: str, gutter: int, width: int) -> Iterator[Line]:
    """``= label: text``, wrapped, its later lines indented."""
    pad = " " * (gutter + 1)
    first, *rest = wrapped(f"{label}: {text}", max(width - gutter - 5, 30))
    # the label as it was wrapped may end on a later line, if it is longer than a line
    shown = label if first.startswith(f"{label}:") else first
    yield [(f"{pad}= ", "gutter"), (shown, style), (first.removeprefix(shown), "")]
    for line in rest:
        yield [(f"{pad}  {line}", "")]


def _fix(diagnosis: Diagnosis, gutter: int, width: int) -> Iterator[Line]:
    fix = diagnosis.fix
    if not fix.text and not fix.code:
        return
    yield from _labelled(f"{say('fix')} ({_confidence(fix.confidence)})", fix.text, "good", gutter, width)
    for line in fix.code.splitlines():
        yield [(" " * (gutter + 5), ""), (expanded(line, None)[0], "fix")]
