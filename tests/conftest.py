"""What every test shares: where it runs, in which dtype, and a random state of its own.

PULLBACK_TEST_DEVICE   cpu (default), cuda, cuda:1, ...
PULLBACK_TEST_DTYPE    float64 (default), float32, ...
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = os.environ.get("PULLBACK_TEST_DEVICE", "cpu")
DTYPE = os.environ.get("PULLBACK_TEST_DTYPE", "float64")


def pytest_configure(config: pytest.Config) -> None:
    """One thread for each worker, which are the parallelism; and a terminal as wide as what is asserted."""
    os.environ["COLUMNS"] = "100"
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)


def pytest_report_header() -> str:
    return f"pullback: device {DEVICE}, dtype {DTYPE}, torch {torch.__version__}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``gpu`` where there is no CUDA device, and say so."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is False here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same torch random numbers for a test, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def device() -> torch.device:
    """The device under test."""
    return torch.device(DEVICE)


@pytest.fixture
def dtype() -> torch.dtype:
    """The floating dtype under test."""
    return getattr(torch, DTYPE)
