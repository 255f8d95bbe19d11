"""Where the path to the root was cut: the same causes in other shapes, in functions, classes, loops and closures."""

import textwrap
import warnings

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

HEAD = """import warnings; warnings.simplefilter("ignore")
import torch
from torch import nn
import torch.nn.functional as F
"""

# Each: the code, a text of the culprit's line, the program. "!" marks those whose edits make it run.
PROGRAMS = {
    "no_grad in a method": ("PB201!", "feat = self.body(x)", """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(3, 4), nn.ReLU()
            def forward(self, x):
                with torch.no_grad():
                    feat = self.body(x)
                return self.head(feat)
        net = Net()
        def train(x):
            out = net(x)
            loss = F.mse_loss(out, torch.zeros(2, 4))
            loss.backward()
        train(torch.randn(2, 3))
    """),
    "no_grad around the whole step": ("PB201", "with torch.no_grad():", """
        net = nn.Linear(3, 1)
        def step(x):
            loss = net(x).mean()
            loss.backward()
        with torch.no_grad():
            step(torch.randn(2, 3))
    """),
    "validation step of a trainer": ("PB202!", "@torch.no_grad()", """
        class Trainer:
            def __init__(self):
                self.net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
            @torch.no_grad()
            def evaluate(self, batch):
                pred = self.net(batch)
                return (pred ** 2).mean()
            def fit(self):
                for _ in range(2):
                    loss = self.evaluate(torch.randn(2, 3))
                    loss.backward()
        Trainer().fit()
    """),
    "decorator without brackets on a generator": ("PB202", "@torch.no_grad", """
        net = nn.Linear(3, 1)
        @torch.no_grad()
        def batches():
            for _ in range(2):
                yield net(torch.randn(2, 3))
        for out in batches():
            out.sum().backward()
    """),
    "set_grad_enabled left off by a function": ("PB203", "torch.set_grad_enabled(False)", """
        net = nn.Linear(3, 1)
        def validate():
            torch.set_grad_enabled(False)
            return net(torch.randn(2, 3)).mean()
        print(validate())
        loss = net(torch.randn(2, 3)).mean()
        loss.backward()
    """),
    "set_grad_enabled by a phase": ("PB203!", "with torch.set_grad_enabled(train)", """
        net = nn.Linear(3, 1)
        train = False
        with torch.set_grad_enabled(train):
            loss = net(torch.randn(2, 3)).mean()
        loss.backward()
    """),
    "set_grad_enabled on again only before backward": ("PB203!", "torch.set_grad_enabled(False)", """
        net = nn.Linear(3, 1)
        def step(x):
            torch.set_grad_enabled(False)
            loss = net(x).mean()
            torch.set_grad_enabled(True)
            loss.backward()
        step(torch.randn(2, 3))
    """),
    "inference_mode decorator": ("PB204!", "@torch.inference_mode()", """
        net = nn.Linear(3, 1)
        @torch.inference_mode()
        def predict(x):
            return net(x)
        loss = predict(torch.randn(2, 3)).square().mean()
        loss.backward()
    """),
    "detach ten calls deep": ("PB205!", "return h.detach()", "".join([
        "\n        net = nn.Linear(3, 3)\n        def f0(x):\n            h = net(x)\n            return h.detach()\n",
        *(f"        def f{n}(x):\n            y = f{n - 1}(x)\n            return y + {n}\n" for n in range(1, 10)),
        "        out = f9(torch.randn(2, 3))\n        loss = out.sum()\n        loss.backward()\n"])),
    "detach in a loop of layers": ("PB205!", "x = layer(x).detach()", """
        class Stack(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x).detach()
                return x
        model = Stack()
        loss = model(torch.randn(2, 3)).sum()
        loss.backward()
    """),
    "detach_ in place": ("PB205", "h.detach_()", """
        w = torch.randn(3, requires_grad=True)
        h = w * 2
        h.detach_()
        loss = h.sum()
        loss.backward()
    """),
    "detach in a child of a Sequential": ("PB205!", "return F.relu(x.detach())", """
        class Act(nn.Module):
            def forward(self, x):
                return F.relu(x.detach())
        net = nn.Sequential(nn.Linear(3, 3), Act())
        out = net(torch.randn(2, 3))
        (out - 1).abs().mean().backward()
    """),
    "detach of what a dict holds": ("PB205!", '"loss": loss.detach()', """
        net = nn.Linear(3, 1)
        def step(x):
            loss = net(x).mean()
            return {"loss": loss.detach(), "n": 1}
        outputs = step(torch.randn(2, 3))
        outputs["loss"].backward()
    """),
    "the loss is an argument": ("PB205", "hidden = net(x).detach()", """
        net = nn.Linear(3, 1)
        def compute(x):
            hidden = net(x).detach()
            return hidden.mean()
        def update(loss, scale=1.0):
            (loss * scale).backward()
        value = compute(torch.randn(2, 3))
        update(value, scale=2.0)
    """),
    "data in a property-like attribute": ("PB206!", "self.state = h.data", """
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(3, 3)
                self.state = None
            def forward(self, x):
                h = self.lin(x)
                self.state = h.data
                return self.state * 2
        cell = Cell()
        cell(torch.randn(2, 3)).sum().backward()
    """),
    "torch.tensor of appended losses": ("PB207!", "total = torch.tensor(losses)", """
        net = nn.Linear(3, 1)
        def run():
            losses = []
            for _ in range(3):
                losses.append(net(torch.randn(2, 3)).mean())
            total = torch.tensor(losses)
            return total.mean()
        run().backward()
    """),
    "torch.tensor of a tensor": ("PB207!", "loss = torch.tensor(loss)", """
        net = nn.Linear(3, 1)
        loss = net(torch.randn(2, 3)).mean()
        loss = torch.tensor(loss)
        loss.backward()
    """),
    "Tensor of a list written out": ("PB207", "torch.FloatTensor([a, b])", """
        net = nn.Linear(3, 1)
        a, b = net(torch.randn(2, 3)).mean(), net(torch.randn(2, 3)).sum()
        torch.FloatTensor([a, b]).sum().backward()
    """),
    "float() and wrapped again": ("PB208!", "value = float(out.mean())", """
        net = nn.Linear(3, 1)
        out = net(torch.randn(2, 3))
        value = float(out.mean())
        loss = torch.tensor(value)
        loss.backward()
    """),
    "running total of items": ("PB208!", "running += loss.item()", """
        net = nn.Linear(3, 1)
        def epoch():
            running = 0.0
            for _ in range(3):
                loss = net(torch.randn(2, 3)).pow(2).mean()
                running += loss.item()
            return running / 3
        epoch().backward()
    """),
    "a method of math": ("PB208!", "math.exp(out)", """
        import math
        w = torch.tensor(0.5, requires_grad=True)
        out = w * 2
        loss = math.exp(out)
        loss.backward()
    """),
    "a mean of numpy": ("PB209", "out.detach().numpy()", """
        import numpy as np
        net = nn.Linear(3, 1)
        out = net(torch.randn(2, 3))
        loss = np.mean(out.detach().numpy() ** 2)
        loss.backward()
    """),
    "numpy inside a module": ("PB209", "y = x.detach().cpu().numpy()", """
        import numpy as np
        class Filter(nn.Module):
            def forward(self, x):
                y = x.detach().cpu().numpy()
                y = np.sort(y, axis=1)
                return torch.from_numpy(y)
        net = nn.Sequential(nn.Linear(3, 3), Filter(), nn.Linear(3, 3).requires_grad_(False))
        net(torch.randn(2, 3)).sum().backward()
    """),
    "frozen in a method": ("PB210", "p.requires_grad = False", """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)
            def freeze(self):
                for p in self.parameters():
                    p.requires_grad = False
            def forward(self, x):
                return self.b(F.relu(self.a(x)))
        net = Net()
        net.freeze()
        out = net(torch.randn(2, 3))
        loss = F.mse_loss(out, torch.zeros(2, 1))
        loss.backward()
    """),
    "frozen parameters by hand": ("PB210", "self.w = nn.Parameter(torch.ones(3), requires_grad=False)", """
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(3), requires_grad=False)
            def forward(self, x):
                return x * self.w
        scale = Scale()
        scale(torch.randn(2, 3)).sum().backward()
    """),
    "plain inputs": ("PB211!", "x = torch.randn(3)", """
        def f(x):
            return (x ** 2).sum()
        x = torch.randn(3)
        (g,) = torch.autograd.grad(f(x), x)
    """),
    "integer cast in a function": ("PB212!", "return (x * 255).to(torch.uint8)", """
        net = nn.Linear(3, 3)
        def quantize(x):
            return (x * 255).to(torch.uint8)
        out = quantize(torch.sigmoid(net(torch.randn(2, 3))))
        (out.float() / 255).mean().backward()
    """),
    "indices of topk": ("PB213", "_, idx = torch.topk(scores, 2)", """
        net = nn.Linear(4, 5)
        scores = net(torch.randn(2, 4))
        _, idx = torch.topk(scores, 2)
        idx.float().mean().backward()
    """),
    "indices of max": ("PB213", "scores.max(dim=1)[1]", """
        net = nn.Linear(4, 5)
        def predict(x):
            scores = net(x)
            return scores.max(dim=1)[1]
        loss = (predict(torch.randn(2, 4)).float() - 1).pow(2).mean()
        loss.backward()
    """),
    "accuracy as a loss": ("PB214", "(p > 0.5).float()", """
        net = nn.Linear(4, 1)
        p = torch.sigmoid(net(torch.randn(6, 4)))
        hard = (p > 0.5).float()
        loss = 1 - hard.mean()
        loss.backward()
    """),
    "eq as a method": ("PB214", "logits.round().eq(target)", """
        net = nn.Linear(4, 1)
        target = torch.ones(6, 1)
        logits = net(torch.randn(6, 4))
        loss = logits.round().eq(target).float().mean()
        loss.backward()
    """),
    "write into a list made integer": ("PB215", "out[i] = (w * i).sum()", """
        w = torch.randn(3, requires_grad=True)
        out = torch.tensor([0, 0, 0])
        for i in range(3):
            out[i] = (w * i).sum()
        loss = out.float().mean()
        loss.backward()
    """),
    "rebinding two parameters in a function": ("PB216!", "w = w - lr * w.grad", """
        def fit(steps, lr=0.1):
            w = torch.randn(3, requires_grad=True)
            b = torch.zeros(1, requires_grad=True)
            x = torch.randn(8, 3)
            for _ in range(steps):
                loss = (x @ w + b).pow(2).mean()
                loss.backward()
                with torch.no_grad():
                    w = w - lr * w.grad
                    b = b - lr * b.grad
        fit(2)
    """),
    "sample of a policy": ("PB217!", "z = dist.sample()", """
        from torch.distributions import Normal
        class VAE(nn.Module):
            def __init__(self):
                super().__init__()
                self.enc = nn.Linear(4, 4)
            def forward(self, x):
                mu, log = self.enc(x).chunk(2, dim=1)
                dist = Normal(mu, log.exp())
                z = dist.sample()
                return z
        vae = VAE()
        loss = vae(torch.randn(3, 4)).pow(2).mean()
        loss.backward()
    """),
    "sample of a categorical": ("PB217", "action = dist.sample()", """
        from torch.distributions import Categorical
        net = nn.Linear(4, 3)
        dist = Categorical(logits=net(torch.randn(5, 4)))
        action = dist.sample()
        loss = action.float().mean()
        loss.backward()
    """),
    "bessel in a module": ("PB218!", "torch.special.modified_bessel_k0(self.a * x)", """
        class Kernel(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Parameter(torch.tensor(1.5))
            def forward(self, x):
                return torch.special.modified_bessel_k0(self.a * x)
        kernel = Kernel()
        kernel(torch.rand(4) + 0.5).sum().backward()
    """),
    "a dict for a Function": ("PB219", "Mix.apply(params)", """
        class Mix(torch.autograd.Function):
            @staticmethod
            def forward(ctx, params):
                return params["a"] * params["b"]
            @staticmethod
            def backward(ctx, grad):
                return None
        params = {"a": torch.randn(3, requires_grad=True), "b": torch.randn(3, requires_grad=True)}
        y = Mix.apply(params)
        y.sum().backward()
    """),
    "gradient penalty without create_graph": ("PB221!", "torch.autograd.grad(", """
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        def derivative(y, x):
            return torch.autograd.grad(
                y, x,
                grad_outputs=torch.ones_like(y),
                retain_graph=True,
            )[0]
        x = torch.randn(5, 2, requires_grad=True)
        u = net(x)
        du = derivative(u, x)
        ddu = derivative(du, x)
    """),
    "the grad of a first backward": ("PB221!", "loss.backward()", """
        x = torch.randn(3, requires_grad=True)
        loss = (x ** 3).sum()
        loss.backward()
        penalty = x.grad.pow(2).sum()
        penalty.backward()
    """),
    "Hessian of a linear layer": ("PB222", "create_graph=True)", """
        net = nn.Linear(3, 1).requires_grad_(False)
        x = torch.randn(4, 3, requires_grad=True)
        y = net(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.sum().backward()
    """),
    "second of several roots": ("PB205!", "b = net(x).mean().detach()", """
        net = nn.Linear(3, 1)
        x = torch.randn(2, 3)
        a = net(x).mean()
        b = net(x).mean().detach()
        torch.autograd.backward([a, b])
    """),
    "through an AMP scaler and a wrapper": ("PB205!", "pred = net(x).detach()", """
        net = nn.Linear(3, 1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        x = torch.randn(2, 3)
        pred = net(x).detach()
        loss = F.mse_loss(pred, torch.zeros(2, 1))
        scaler.scale(loss).backward()
    """),
    "targets are detached rightly, the output is not": ("PB205!", "out = out.detach()", """
        net, teacher = nn.Linear(3, 1), nn.Linear(3, 1)
        x = torch.randn(2, 3)
        with torch.no_grad():
            target = teacher(x)
        out = net(x)
        log = out.mean().item()
        out = out.detach()
        loss = (out - target).pow(2).mean()
        loss.backward()
    """),
}  # fmt: skip


def _source(body):
    return HEAD + textwrap.dedent(body).lstrip("\n")


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_and_its_line_are_found(name, level):
    code, culprit, body = PROGRAMS[name]
    report = told(_source(body), level)
    assert not report["trouble"]
    assert report["diagnoses"], report["error"]
    first = report["diagnoses"][0]
    assert first["code"] == code.rstrip("!"), [(each["code"], each["cause"]) for each in report["diagnoses"]]
    assert any(culprit in line["text"] for line in first["lines"]), first["lines"]
    if level == "trace":
        assert first["confidence"] == "high"


@pytest.mark.parametrize("name", [name for name, (code, *_) in PROGRAMS.items() if code.endswith("!")])
def test_the_edits_mend_the_program(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(_source(PROGRAMS[name][2]))
    fix = told(file)["diagnoses"][0]["fix"]
    assert fix["edits"], fix
    mended = applied([Edit(**each) for each in fix["edits"]], str(file))
    report = told(mended)
    assert report["error"] is None, (report["error"], mended)


def test_a_right_program_is_not_blamed():
    report = told(_source("""
        net = nn.Linear(3, 1)
        with torch.no_grad():
            baseline = net(torch.randn(2, 3)).mean()
        loss = (net(torch.randn(2, 3)).mean() - baseline.detach()) ** 2
        print(loss.item(), loss.detach().numpy())
        loss.backward()
    """), "audit")  # fmt: skip
    assert codes(report) == []


def test_other_errors_are_left_to_others():
    with warnings.catch_warnings():
        report = told(_source("loss = (torch.ones(2),)\nloss.backward()"))
    assert not [code for code in codes(report) if code.startswith(("PB20", "PB21", "PB22"))]


FURTHER = {
    "a yield in a block": ("PB201", "with torch.no_grad():", """
        encoder, head = nn.Linear(4, 3), nn.Linear(3, 2)
        def encoded(batches):
            with torch.no_grad():
                for x in batches:
                    yield encoder(x), 1
        for code, _ in encoded([torch.randn(2, 4)]):
            loss = head(code).mean()
            loss.backward()
    """),
    "an update by a method under no_grad": ("PB216", "delta = (delta + ", """
        net = nn.Linear(4, 2).requires_grad_(False)
        delta = torch.zeros(3, 4, requires_grad=True)
        for _ in range(2):
            loss = net(torch.randn(3, 4) + delta).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                delta = (delta + 0.1 * delta.grad.sign()).clamp(-1, 1)
    """),
    "rounded, then cast": ("PB212", ".to(torch.int8)", """
        w = torch.randn(5, requires_grad=True)
        def quantised(w, step):
            return torch.clamp(torch.round(w / step), -7, 7).to(torch.int8).float()
        loss = quantised(w, 0.1).pow(2).mean()
        loss.backward()
    """),
    "detached at the end of each turn": ("PB205", "state = state.detach()", """
        cell = nn.GRUCell(3, 3)
        def refined(x):
            state = torch.zeros_like(x)
            for _ in range(2):
                state = cell(x, state)
                state = state.detach()
            return state
        loss = refined(torch.randn(2, 3)).mean()
        loss.backward()
    """),
    "a criterion that is made and called at once": ("PB207", "parts = torch.tensor(", """
        class Dice(nn.Module):
            def forward(self, p, t):
                parts = torch.tensor([(p[:, c] * t[:, c]).sum() for c in range(2)])
                return 1 - parts.mean()
        net = nn.Linear(3, 2)
        loss = Dice()(net(torch.randn(4, 3)).softmax(1), torch.ones(4, 2))
        loss.backward()
    """),
    "values of a sparse matrix": ("PB208", "w.tolist()", """
        weights = torch.zeros(3, requires_grad=True)
        places = torch.tensor([[0, 1, 2], [1, 2, 0]])
        def matrix(w):
            return torch.sparse_coo_tensor(places, w.tolist(), (3, 3))
        loss = torch.sparse.mm(matrix(weights.sigmoid()), torch.rand(3, 2)).sum()
        loss.backward()
    """),
}  # fmt: skip


@pytest.mark.parametrize("name", FURTHER)
def test_further_cuts_are_found_and_mended(name, tmp_path):
    code, line, body = FURTHER[name]
    file = tmp_path / "program.py"
    file.write_text(_source(body))
    found = told(file)["diagnoses"][0]
    assert found["code"] == code
    assert any(line in each["text"] for each in found["lines"])
    mended = told(applied([Edit(**each) for each in found["fix"]["edits"]], str(file)))
    assert mended["error"] is None


def test_rounding_has_a_gradient_after_the_fix():
    (found, *_) = told(_source(FURTHER["rounded, then cast"][2]))["diagnoses"]
    assert "(w / step) + (" in found["fix"]["code"]


def test_a_block_of_another_task_is_marked():
    program = """
        import asyncio
        import torch
        net = torch.nn.Linear(3, 1)
        async def validate():
            with torch.no_grad():
                for _ in range(3):
                    await asyncio.sleep(0.01)
                    net(torch.randn(2, 3))
        async def train():
            for _ in range(2):
                await asyncio.sleep(0.005)
                loss = net(torch.randn(4, 3)).mean()
                loss.backward()
        async def main():
            await asyncio.gather(validate(), train())
        asyncio.run(main())
    """
    (found,) = told(program, "trace")["diagnoses"]
    assert found["code"] == "PB203"
    assert "set_grad_enabled" not in found["title"]
    assert any("with torch.no_grad()" in each["text"] for each in found["lines"])


def test_a_long_expression_is_shortened():
    parts = " + ".join(f"net(torch.randn(2, 3)).mean() * {number}" for number in range(8))
    program = f"""
        net = nn.Linear(3, 1)
        loss = torch.tensor([{parts}]).sum()
        loss.backward()
    """
    (found,) = told(_source(program))["diagnoses"]
    assert " ... " in found["cause"]
    assert len(found["cause"]) < 400
