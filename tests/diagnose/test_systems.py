"""Checkpoints, distributed models, gradient scaling and torch.compile."""

import pytest

from tests.diagnose.harness import told

CHECKPOINT = """
import torch
from torch.utils.checkpoint import checkpoint as again

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.layer = 0, torch.nn.Linear(3, 3)

    def forward(self, x):
        self.count += 1
        return self.layer(x[: 4 - self.count]).tanh()

block = Block()
for _ in range(1):
    x = torch.randn(4, 3, requires_grad=True)
    loss = again(block, x, use_reentrant={reentrant}).sum()
    {end}
"""


@pytest.mark.parametrize("level", ["default", "trace"])
def test_a_checkpointed_module_that_counts(level):
    report = told(CHECKPOINT.format(reentrant=False, end="loss.backward()"), level)
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB902"
    assert {10, 11, 17, 18} <= {each["line"] for each in diagnosis["lines"]}


def test_a_reentrant_checkpoint_under_another_name():
    report = told(CHECKPOINT.format(reentrant=True, end="torch.autograd.grad(loss, x)"))
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB901"
    assert 17 in {each["line"] for each in diagnosis["lines"]}
    assert "use_reentrant=False" in diagnosis["fix"]["code"]


def test_the_unused_parameters_are_named():
    report = told(
        """
        import tempfile, torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel as Parallel

        place = "file://" + tempfile.mkdtemp() + "/store"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.spare = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

            def forward(self, x):
                return self.used(x)

        def wrapped():
            return Parallel(Net())

        net = wrapped()
        for _ in range(2):
            net(torch.randn(2, 3)).sum().backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB905"
    assert "spare.weight, spare.bias" in diagnosis["cause"]
    assert any("Parallel(Net())" in each["text"] for each in diagnosis["lines"])


def test_inputs_in_half_are_not_taken_for_the_model():
    report = told(
        """
        import torch

        net = torch.nn.Linear(3, 1)
        net = net.to(torch.float16)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        batch = torch.randn(2, 3)
        batch = batch.half()
        scaler.scale(net(batch).float().sum()).backward()
        scaler.unscale_(optimizer)
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB912"
    assert [each["line"] for each in diagnosis["lines"]] == [11, 5]
