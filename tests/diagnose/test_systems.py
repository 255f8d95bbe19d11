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


def test_what_leaves_autocast_in_a_method_is_converted(tmp_path):
    report = told(
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
            def forward(self, x):
                with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                    h, kept = self.body(x), x
                return self.head(h)

        Net()(torch.ones(2, 3)).sum().backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB915"
    assert [each["line"] for each in diagnosis["lines"]] == [11, 9, 10]


def test_other_lower_precision_is_not_said_to_come_from_autocast():
    report = told(
        """
        import torch

        x = torch.ones(2, 3).bfloat16()
        with torch.autocast("cpu"):
            y = x + 1
        torch.nn.Linear(3, 1)(x)
        """
    )
    assert "PB915" not in [each["code"] for each in report["diagnoses"]]


def test_exchanged_arguments_of_a_sequential_checkpoint():
    report = told(
        """
        import torch
        from torch.utils.checkpoint import checkpoint_sequential as split

        layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
        def run(x):
            return split(layers, x, 2, use_reentrant=False)
        run(torch.ones(2, 3, requires_grad=True)).sum().backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB904"
    assert "split(layers, 2, x, use_reentrant=False)" in diagnosis["fix"]["code"]


def test_what_splits_a_compiled_function_is_marked():
    report = told(
        """
        import torch

        class Net(torch.nn.Module):
            def forward(self, x):
                y = (x * 2).sum()
                if y.item() > 1:
                    y = y * 2
                return y

        net = torch.compile(Net(), backend="eager", fullgraph=True)
        net(torch.ones(3, requires_grad=True)).backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB923"
    assert {7, 11} <= {each["line"] for each in diagnosis["lines"]}


def test_an_optimizer_without_its_state():
    report = told(
        """
        import torch

        class Steps(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        self.state[p]["count"] += 1

        w = torch.ones(2, requires_grad=True)
        w.sum().backward()
        Steps([w]).step()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB642"
    assert 'self.state[p].setdefault("count", 0)' in diagnosis["fix"]["code"]


def test_gradients_that_cannot_be_clipped_are_named():
    report = told(
        """
        import torch

        net = torch.nn.Linear(2, 1)
        scale = torch.nn.Parameter(torch.zeros(1))

        def learn():
            loss = net(torch.ones(1, 2)).sum() + scale.sqrt().sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*net.parameters(), scale], 1.0, error_if_nonfinite=True)

        learn()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB643"
    assert "scale (0 NaN, 1 inf)" in diagnosis["cause"]
    assert "net.weight" not in diagnosis["cause"]
    assert 8 in [each["line"] for each in diagnosis["lines"]]


def test_groups_for_lbfgs_are_joined():
    report = told(
        """
        import torch

        a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        groups = [{"params": a.parameters()}, {"params": b.parameters(), "lr": 0.1}]
        torch.optim.LBFGS(groups)
        """
    )
    assert [each["code"] for each in report["diagnoses"]] == ["PB644"]


@pytest.mark.parametrize("level", ["default", "trace"])
def test_a_weight_that_is_computed_in_a_hook_keeps_its_gradient(level):
    report = told(
        """
        import torch

        class Normed:
            def __call__(self, module, inputs):
                module.weight = module.weight / module.weight.norm()

        layer = torch.nn.Linear(3, 3)
        layer.register_forward_pre_hook(Normed())
        layer(torch.ones(1, 3)).sum().backward()
        """,
        level,
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB626"
    assert diagnosis["fix"]["confidence"] != "high"
    assert not diagnosis["fix"]["edits"]
