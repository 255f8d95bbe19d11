"""Programs on a CUDA device: watched as others are, with the same result; their faults are explained."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

TRAINING = """
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(5):
    x = torch.randn(8, 4, device="cuda")
    loss = (net(x).squeeze(1) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([p.sum().item() for p in net.parameters()])
"""
SEED_ELSEWHERE = """
import torch

x = torch.randn(3, device="cuda", requires_grad=True)
y = x * 2
y.backward(torch.ones(3))
"""
WRITTEN = """
import torch

x = torch.randn(4, device="cuda", requires_grad=True)
h = x.exp()
h[0] = 0.0
h.sum().backward()
"""


def run(tmp_path, source, *options):
    """What a program printed, and what was said of it."""
    file, answer = tmp_path / "program.py", tmp_path / "answer.json"
    file.write_text(source)
    command = [sys.executable, "-m", "pullback", "run", *options, "--json", str(answer), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    return done.stdout, json.loads(answer.read_text())


@pytest.mark.parametrize("level", ["--trace", "--audit", "--strict"])
def test_a_right_program_computes_the_same_and_nothing_is_said(tmp_path, level):
    plain, _ = run(tmp_path, TRAINING)
    watched, report = run(tmp_path, TRAINING, level)
    assert watched == plain
    assert not report["diagnoses"]
    assert not report["findings"]
    assert not report["trouble"]


def test_a_seed_on_another_device(tmp_path):
    _, report = run(tmp_path, SEED_ELSEWHERE)
    assert report["diagnoses"][0]["code"] == "PB111"


def test_a_result_that_was_written_to(tmp_path):
    _, report = run(tmp_path, WRITTEN, "--trace")
    assert report["diagnoses"][0]["code"] == "PB401"
    assert 6 in {mark["line"] for mark in report["diagnoses"][0]["lines"]}
