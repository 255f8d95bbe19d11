"""A cell of a notebook that fails is explained, line by line of its cells."""

import importlib.util

import pytest

from tests.diagnose.commands import python, written

pytestmark = pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")

CELLS = """
    import sys
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.colors = "NoColor"

    def cell(text):
        sys.stderr.flush()
        print("---- cell", file=sys.stderr, flush=True)
        shell.run_cell(text)
        sys.stdout.flush()

    cell("import torch, pullback as pb\\nhooks = pb.install('trace')")
    cell("def double(w):\\n    return w * 2")
    cell("w = torch.ones(3, requires_grad=True)\\ny = double(w)\\ny.backward()")
    cell("{}['x']")
    cell("hooks.remove()\\ny.backward()")
    cell("print(pb.explain().diagnoses[0].code)")
"""


def test_a_failing_cell_is_explained(tmp_path):
    written(tmp_path, cells=CELLS)
    ended = python(tmp_path, "cells.py")
    assert ended.returncode == 0, ended.stderr
    _, _, _, failed, other, removed, last = ended.stderr.split("---- cell\n")
    assert failed.startswith("error[PB101]: ")
    assert "3 | y.backward()\n" in failed
    assert "2 |     return w * 2\n" in failed
    assert other == removed == last == ""
    assert ended.stdout.endswith("PB101\n")
    assert "/pullback/" not in ended.stdout
    assert ended.stdout.count("RuntimeError: grad can be implicitly created only for scalar outputs") == 2
