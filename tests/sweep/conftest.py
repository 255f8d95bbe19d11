"""PyTorch's databases take ten seconds to import: with ``-m "not sweep"`` they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

IMPORT_A_DATABASE = {"test_operators.py", "test_modules.py", "test_forced.py", "test_forced_modules.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name in IMPORT_A_DATABASE and config.option.markexpr == "not sweep":
        return True
    return None
