"""The demo runs as a user runs it: as a program, with its output piped and into a folder of its choice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits.py"


def _run(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, str(DIGITS), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The demo with a second of training: its output and its picture."""
    picture = tmp_path_factory.mktemp("digits") / "maps.png"
    done = _run("--seconds", "1", "--out", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, picture


def test_it_shows_every_step(digits):
    said, _ = digits
    for text in (
        "grad can be implicitly created only for scalar outputs",
        "ones",
        "one class",
        "weights by name",
        "J.T @ u",
        "(360, 10, 64)",
        "J.blocks()",
        "row by row",
        "most sensitive",
        "least sensitive",
    ):
        assert text in " ".join(said.split()), text


def test_the_network_has_learned(digits):
    said, _ = digits
    accuracy = float(re.search(r"([\d.]+) % of the 360 test images", said).group(1))
    assert accuracy > 80


def test_its_numbers_agree(digits):
    said, _ = digits
    differences = [float(number) for number in re.findall(r"\b\d\.\de[-+]\d\d\b|\b0\.0e\+00\b", said)]
    assert len(differences) >= 5
    assert max(differences) < 1e-3


def test_piped_output_is_plain_text_of_80_columns(digits):
    said, _ = digits
    assert "\x1b" not in said
    # All but the plan's own table, which is printed as J.plan() makes it.
    assert max(len(line) for line in said.splitlines() if line[:1] not in set("┏┃┡│├└")) <= 80


def test_the_picture_is_a_real_one(digits):
    said, picture = digits
    from PIL import Image

    assert picture.name in said.replace("\n", "")
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width >= 1000
        assert image.height >= 500
    assert 30_000 < picture.stat().st_size < 2_000_000


def test_help_names_the_options():
    done = _run("--help")
    assert done.returncode == 0
    for option in ("--seconds", "--out", "--seed"):
        assert option in done.stdout
