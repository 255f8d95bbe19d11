"""A progress bar that appears only when the work takes a while and somebody can see it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PATIENCE = 1.0


class Progress:
    """Shows how many passes are done, from one second on, on a terminal.

    Args:
        total: The number of passes.
        label: What is being built.
        show: True forces the bar, False forbids it, None shows it on a terminal only.
    """

    def __init__(self, total: int, label: str, show: bool | None) -> None:
        self.total = total
        self.label = label
        self.show = sys.stderr.isatty() if show is None else show
        self._began = time.perf_counter()
        self._patience = 0.0 if show else PATIENCE
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int) -> None:
        """Say how many passes are done."""
        if not self.show:
            return
        if self._bar is None and done < self.total and time.perf_counter() - self._began >= self._patience:
            self._open()
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def _open(self) -> None:
        from rich.console import Console  # noqa: PLC0415  heavy, and most builds are too short to need it
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.progress import Progress as Bar  # noqa: PLC0415

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(self.label, total=self.total)
        self._bar.start()
