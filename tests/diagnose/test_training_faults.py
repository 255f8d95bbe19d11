"""Right programs of the kinds that look like faulty ones: an audit finds nothing in them."""

import pytest

from tests.diagnose.harness import codes, told

START = """
import copy
import torch
from torch import nn
F = nn.functional
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(16, 4), torch.randn(16, 1)
"""

RIGHT = {
    "gan": """
judge = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
second = torch.optim.Adam(judge.parameters())
for _ in range(6):
    second.zero_grad()
    (F.softplus(-judge(y)) + F.softplus(judge(net(x).detach()))).mean().backward()
    second.step()
    optimizer.zero_grad()
    F.softplus(-judge(net(x))).mean().backward()
    optimizer.step()
""",
    "accumulation": """
for _ in range(3):
    for part, target in zip(x.chunk(4), y.chunk(4)):
        (F.mse_loss(net(part), target) / 4).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
""",
    "several losses, two passes": """
for _ in range(4):
    optimizer.zero_grad()
    h = net[:2](x)
    (net[2](h) - y).square().mean().backward(retain_graph=True)
    h.abs().mean().backward()
    optimizer.step()
""",
    "frozen backbone and unused head": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = net, nn.Linear(1, 1), nn.Linear(1, 1)
    def forward(self, x):
        return self.a(self.body(x))
model = Two()
net.requires_grad_(False)
head = torch.optim.Adam(model.parameters())
for _ in range(5):
    head.zero_grad()
    (model(x) - y).square().mean().backward()
    head.step()
""",
    "lbfgs": """
solver = torch.optim.LBFGS(net.parameters(), max_iter=4)
def closure():
    solver.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss
for _ in range(3):
    solver.step(closure)
""",
    "average copy": """
average = copy.deepcopy(net).requires_grad_(False)
for _ in range(4):
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), net.parameters()):
            a.lerp_(p, 0.1)
average.eval()
with torch.no_grad():
    outputs = [average(x) for _ in range(6)]
""",
    "maml": """
for _ in range(3):
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    fast = {n: p - 0.1 * g for (n, p), g in zip(net.named_parameters(), grads)}
    (torch.func.functional_call(net, fast, (x,)) - y).square().mean().backward()
    optimizer.step()
""",
    "policy gradient": """
logs, total = [], 0.0
for _ in range(3):
    logs = []
    for _ in range(6):
        d = torch.distributions.Normal(net(x[:1]), 1.0)
        a = d.sample()
        logs.append(d.log_prob(a).sum() * float(a))
    optimizer.zero_grad()
    torch.stack(logs).mean().neg().backward()
    optimizer.step()
""",
    "scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale((net(x) - y).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "adversarial example": """
net.requires_grad_(False)
attack = x.clone()
for _ in range(4):
    attack = attack.detach().requires_grad_()
    (net(attack) - y).square().mean().backward()
    attack = attack + 0.1 * attack.grad.sign()
""",
    "by hand": """
w = torch.zeros(4, 1, requires_grad=True)
for _ in range(4):
    (x @ w - y).square().mean().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad.zero_()
""",
    "saliency": """
net.eval()
for _ in range(5):
    image = torch.randn(1, 4, requires_grad=True)
    net(image).sum().backward()
    print(image.grad.abs().max())
""",
    "through time": """
cell = nn.RNNCell(4, 4)
step = torch.optim.Adam(cell.parameters())
h = torch.zeros(16, 4)
for _ in range(5):
    total = 0.0
    h = h.detach()
    for _ in range(4):
        h = cell(x, h)
        total += h.square().mean()
    step.zero_grad()
    total.backward()
    step.step()
""",
    "split by hand": """
middle = net[:2](x).detach().requires_grad_()
(net[2](middle) - y).square().mean().backward()
front = net[:2](x)
front.backward(middle.grad)
optimizer.step()
""",
    "penalty and tied weights": """
first, last = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
last.weight = first.weight
model = nn.Sequential(first, last)
step = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(5, (6,))
for _ in range(4):
    step.zero_grad()
    loss = F.cross_entropy(model(words), words) + 1e-3 * sum(p.square().sum() for p in model.parameters())
    loss.backward()
    step.step()
""",
    "zero then skip": """
for number in range(4):
    optimizer.zero_grad()
    (net(x) - y).square().mean().backward()
    if number == 2:
        optimizer.zero_grad()
    optimizer.step()
""",
    "module zero_grad and averages": """
history = []
for _ in range(8):
    loss = (net(x) - y).square().mean()
    net.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.detach())
mean = sum(history) / len(history)
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_no_findings(name):
    report = told(START + RIGHT[name], "audit")
    assert report["error"] is None
    assert not report["trouble"]
    assert codes(report) == []


WRONG = {
    "PBA101": """
class Trainer:
    def __init__(self):
        self.net, self.optimizer = net, optimizer
    def update(self):
        loss = (self.net(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()
    def fit(self):
        for _ in range(4):
            self.update()
Trainer().fit()
""",
    "PBA102": """
def update():
    loss = (net(x) - y).square().mean()
    loss.backward()
    net.zero_grad()
    optimizer.step()
for _ in range(3):
    update()
""",
    "PBA104": """
def train():
    total = torch.zeros(())
    for row in x.split(4):
        total += net(row).square().mean()
        total.backward(retain_graph=True)
train()
""",
    "PBA106": """
def loss_of():
    values = [float(net(row).square().mean().detach()) for row in x]
    return torch.stack([net(row).sum() for row in x.split(8)]).detach().mean().requires_grad_()
for _ in range(2):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
""",
    "PBA161": """
class Log:
    def __init__(self):
        self.losses = []
    def add(self, loss):
        self.losses.append(loss)
log = Log()
def train():
    for _ in range(9):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        log.add(loss)
train()
""",
    "PBA164": """
def evaluate():
    net.eval()
    right = 0
    for row in x:
        output = net(row)
        right += int(output > 0)
    return right
evaluate()
""",
}


@pytest.mark.parametrize("code", WRONG)
def test_a_fault_is_found_in_classes_and_functions(code):
    report = told(START + WRONG[code], "audit")
    assert report["error"] is None
    assert not report["trouble"]
    assert codes(report) == [code]
