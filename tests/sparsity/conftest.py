"""PyTorch's databases take ten seconds to import: with ``-m "not sweep"`` they are not."""

from __future__ import annotations

from ..sweep.conftest import pytest_ignore_collect

__all__ = ["pytest_ignore_collect"]
