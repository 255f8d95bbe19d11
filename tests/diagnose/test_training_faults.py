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


LOOP_START = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(0)
x, y = torch.randn(16, 4), torch.randn(16, 1)
"""

CUT = {
    ("PBA145", "a helper cuts the embedding"): """
def normalise(t):
    t = t.detach()
    return t / t.norm(dim=-1, keepdim=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(16, 4), nn.Linear(4, 1)

    def forward(self, i):
        return self.out(normalise(self.emb(i)))


def main():
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(net(torch.arange(16)), y).backward()
        opt.step()


main()
""",
    ("PBA145", "a method under no_grad"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.features(x))

    def features(self, x):
        with torch.no_grad():
            return self.body(x)


def train(net, opt):
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()


net = Net()
train(net, torch.optim.Adam(net.parameters()))
""",
    ("PBA145", "data in a layer"): """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * self.log_scale.data.exp()


net = nn.Sequential(nn.Linear(4, 8), Scale(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA145", "a way through numpy"): """
import numpy as np

body, head = nn.Linear(4, 8), nn.Linear(8, 1)
opt = torch.optim.SGD(list(body.parameters()) + list(head.parameters()), lr=0.1)


def normalise(h):
    a = h.detach().numpy()
    a = (a - a.mean(0)) / (a.std(0) + 1e-5)
    return torch.from_numpy(a)


for _ in range(3):
    opt.zero_grad()
    F.mse_loss(head(normalise(body(x))), y).backward()
    opt.step()
""",
    ("PBA145", "a decorated function"): """
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
opt = torch.optim.SGD(list(body.parameters()) + list(head.parameters()), lr=0.1)


@torch.no_grad()
def encode(x):
    return body(x).relu()


for _ in range(3):
    opt.zero_grad()
    F.mse_loss(head(encode(x)), y).backward()
    opt.step()
""",
    ("PBA145", "a block around a module"): """
class Enc(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 8)

    def forward(self, x):
        return torch.tanh(self.l(x))


body, head = Enc(), nn.Linear(8, 1)
opt = torch.optim.SGD([{"params": body.parameters()}, {"params": head.parameters(), "lr": 0.2}], lr=0.1)
for _ in range(3):
    opt.zero_grad()
    with torch.no_grad():
        h = body(x)
    F.mse_loss(head(h), y).backward()
    opt.step()
""",
    ("PBA139", "a list of parameters"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
        self.l = nn.Linear(4, 2)
        self.o = nn.Linear(2, 1)

    def forward(self, x):
        return self.o(self.l(x) * torch.tensor([self.a, self.b]))


net = Net()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA145", "a switch"): """
class Enc(nn.Module):
    def __init__(self, train_it):
        super().__init__()
        self.l, self.train_it = nn.Linear(4, 8), train_it

    def forward(self, x):
        with torch.set_grad_enabled(self.train_it):
            return self.l(x).tanh()


net = nn.Sequential(Enc(False), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA146", "an autoencoder with a penalty"): """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        q = torch.distributions.Normal(mu, (0.5 * logvar).exp())
        z = q.sample()
        kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1).mean()
        return self.dec(z), kl


net = VAE()
opt = torch.optim.Adam(net.parameters())
for _ in range(4):
    rec, kl = net(x)
    loss = F.mse_loss(rec, x) + 0.1 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ("PBA146", "a policy by its critic"): """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.log_std = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))

    def act(self, s):
        d = torch.distributions.Normal(self.mu(s), self.log_std.exp())
        return d.sample()


pi, critic = Policy(), nn.Linear(6, 1)
po, co = torch.optim.Adam(pi.parameters()), torch.optim.Adam(critic.parameters())
for _ in range(4):
    co.zero_grad()
    F.mse_loss(critic(torch.cat([x, torch.randn(16, 2)], 1)), y).backward()
    co.step()
    po.zero_grad()
    a = pi.act(x)
    (-critic(torch.cat([x, a], 1)).mean()).backward()
    po.step()
""",
    ("PBA146", "a discrete choice"): """
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])

    def forward(self, x):
        c = torch.distributions.Categorical(logits=self.logits(x)).sample()
        out = torch.stack([e(x) for e in self.experts], 1)
        return out[torch.arange(len(x)), c]


net = Gate()
opt = torch.optim.Adam(net.parameters())
for _ in range(4):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA147", "a head of another shape"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, 100)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x)))


def main():
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    net.fc = nn.Linear(8, 1)
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()


main()
""",
    ("PBA147", "in a class"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, 100)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x)))


class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.fc.parameters())

    def adapt(self, n):
        self.net.fc = nn.Linear(self.net.fc.in_features, n)

    def fit(self):
        for _ in range(3):
            self.opt.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            self.opt.step()


t = Trainer(Net())
t.adapt(1)
t.fit()
""",
    ("PBA147", "by setattr"): """
net = nn.Sequential()
net.body = nn.Linear(4, 8)
net.head = nn.Linear(8, 5)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
setattr(net, "head", nn.Linear(8, 1))
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA148", "requires_grad_"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 1)
        self.b = torch.zeros(1).requires_grad_()

    def forward(self, x):
        return self.l(x) + self.b


def main():
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()


main()
""",
    ("PBA149", "a choice that fits none"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.encoder(x).tanh())


def main():
    net = Net()
    opt = torch.optim.AdamW(
        [
            {"params": [p for n, p in net.named_parameters() if n.startswith("backbone")], "lr": 1e-4},
            {"params": net.head.parameters(), "lr": 1e-3},
        ]
    )
    for _ in range(3):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()


main()
""",
    ("PBA149", "one generator for two groups"): """
net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
params = filter(lambda p: p.requires_grad, net.parameters())
opt = torch.optim.Adam([{"params": params}, {"params": params, "lr": 0.1}])
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    ("PBA115", "the same graph"): """
net = nn.Linear(4, 1)
opt = torch.optim.LBFGS(net.parameters(), max_iter=3)
for _ in range(2):
    loss = F.mse_loss(net(x), y)

    def closure():
        opt.zero_grad()
        loss.backward(retain_graph=True)
        return loss

    opt.step(closure)
""",
    ("PBA115", "no pass"): """
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())


def closure():
    return F.mse_loss(net(x), y)


for _ in range(3):
    opt.step(closure)
F.mse_loss(net(x), y).backward()
""",
    ("PBA116", "two optimizers"): """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
a = torch.optim.Adam(net.parameters())
b = torch.optim.SGD(net[2].parameters(), lr=0.1)


def train():
    for _ in range(3):
        a.zero_grad()
        b.zero_grad()
        F.mse_loss(net(x), y).backward()
        a.step()
        b.step()


train()
""",
    ("PBA117", "in a function"): """
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())


def update():
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)


for _ in range(5):
    update()
""",
    ("PBA118", "in a class"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.d, self.o = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x):
        return self.o(self.d(torch.relu(self.l(x))))


class Trainer:
    def __init__(self):
        self.model = Net()
        self.opt = torch.optim.Adam(self.model.parameters())

    def epoch(self):
        for a, b in zip(x.split(4), y.split(4)):
            self.opt.zero_grad()
            F.mse_loss(self.model(a), b).backward()
            self.opt.step()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            return F.mse_loss(self.model(x), y).item()

    def fit(self):
        self.model.train()
        for _ in range(3):
            self.epoch()
            self.validate()


Trainer().fit()
""",
    ("PBA119", "after an evaluation"): """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.o = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.o(F.dropout(torch.relu(self.l(x)), p=0.3))


net = Net()
opt = torch.optim.Adam(net.parameters())
for _ in range(2):
    net.train()
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
    net.eval()
    with torch.no_grad():
        v = F.mse_loss(net(x), y).item()
""",
    ("PBA120", "no brackets"): """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step
""",
    ("PBA120", "detach"): """
cell, out = nn.RNNCell(4, 4), nn.Linear(4, 1)
opt = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
h = torch.zeros(16, 4)
for _ in range(3):
    h = cell(x, h)
    h.detach()
    loss = F.mse_loss(out(h), y)
    opt.zero_grad()
    loss.backward(retain_graph=True)
""",
    ("PBA120", "no with"): """
net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()


def evaluate():
    torch.no_grad()
    return F.mse_loss(net(x), y).item()


evaluate()
""",
    ("PBA121", "in a function"): """
net = nn.Linear(4, 1)


def update(net):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()


for _ in range(6):
    update(net)
""",
    ("PBA145", "the generator's own step is cut"): """
g, d = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(), nn.Linear(4, 1))
go, do = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for _ in range(4):
    fake = g(torch.randn(16, 4))
    do.zero_grad()
    (F.softplus(-d(x)) + F.softplus(d(fake.detach()))).mean().backward()
    do.step()
    go.zero_grad()
    against = F.softplus(-d(fake.detach())).mean()
    against.backward()
    go.step()
""",
    ("PBA139", "losses in a list"): """
heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
body = nn.Linear(4, 4)
opt = torch.optim.Adam([*body.parameters(), *heads.parameters()])
for _ in range(4):
    h = body(x)
    losses = [head(h).pow(2).mean() for head in heads]
    parts = torch.tensor(losses)
    total = parts.sum() + h.abs().mean()
    opt.zero_grad()
    total.backward()
    opt.step()
""",
    ("PBA122", "a value that is clipped first"): """
net = nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters())


def turn():
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    loss.backward()
    opt.step()


for _ in range(4):
    turn()
""",
}


@pytest.mark.parametrize(("code", "what"), CUT)
def test_a_silent_fault_of_training_is_found(code, what):
    report = told(LOOP_START + CUT[code, what], "audit")
    assert report["error"] is None
    assert not report["trouble"]
    assert set(codes(report)) == {code}


MEANT = {
    "two phases": """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
head = torch.optim.Adam(net[2].parameters())
whole = torch.optim.Adam(net.parameters())
for n in range(8):
    opt = head if n < 4 else whole
    opt.zero_grad()
    with torch.set_grad_enabled(n >= 4):
        h = net[:2](x)
    F.mse_loss(net[2](h), y).backward()
    opt.step()
""",
    "a warm-up longer than what is heard": """
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for n in range(60):
    opt.zero_grad()
    if n < 50:
        with torch.no_grad():
            h = body(x)
    else:
        h = body(x)
    F.mse_loss(head(h), y).backward()
    opt.step()
""",
    "ppo": """
pi, v = nn.Linear(4, 2), nn.Linear(4, 1)
log_std = nn.Parameter(torch.zeros(2))
opt = torch.optim.Adam([*pi.parameters(), *v.parameters(), log_std])
for _ in range(3):
    d = torch.distributions.Normal(pi(x), log_std.exp())
    a = d.sample()
    old = d.log_prob(a).sum(-1).detach()
    ret = -(a**2).sum(-1)
    for _ in range(2):
        d = torch.distributions.Normal(pi(x), log_std.exp())
        ratio = (d.log_prob(a).sum(-1) - old).exp()
        adv = (ret - v(x).squeeze(1)).detach()
        loss = -(ratio * adv).mean() + F.mse_loss(v(x).squeeze(1), ret)
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
    "an actor by its critic": """
actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
ao, co = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for _ in range(4):
    a = torch.distributions.Normal(actor(x), 0.1).sample()
    co.zero_grad()
    F.mse_loss(critic(torch.cat([x, a], 1)), -(a**2).sum(1, keepdim=True)).backward()
    co.step()
    ao.zero_grad()
    (-critic(torch.cat([x, actor(x)], 1)).mean()).backward()
    ao.step()
""",
    "scheduled sampling": """
emb, cell, out = nn.Embedding(5, 4), nn.GRUCell(4, 4), nn.Linear(4, 5)
opt = torch.optim.Adam([*emb.parameters(), *cell.parameters(), *out.parameters()])
t = torch.randint(5, (3, 8))
for _ in range(3):
    h, w, loss = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long), 0.0
    for step in range(3):
        h = cell(emb(w), h)
        logits = out(h)
        loss = loss + F.cross_entropy(logits, t[step])
        w = torch.distributions.Categorical(logits=logits).sample()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "fed back numbers": """
cell, out = nn.GRUCell(1, 4), nn.Linear(4, 2)
opt = torch.optim.Adam([*cell.parameters(), *out.parameters()])
for _ in range(3):
    h, v, loss = torch.zeros(16, 4), torch.zeros(16, 1), 0.0
    for step in range(3):
        h = cell(v, h)
        m, s = out(h).chunk(2, 1)
        loss = loss + F.gaussian_nll_loss(m, y, s.exp())
        v = torch.distributions.Normal(m, s.exp()).sample()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a momentum encoder": """
import copy

q = nn.Linear(4, 8)
k = copy.deepcopy(q)
for p in k.parameters():
    p.requires_grad_(False)
opt = torch.optim.SGD(q.parameters(), lr=0.1)
for _ in range(4):
    with torch.no_grad():
        for a, b in zip(k.parameters(), q.parameters()):
            a.mul_(0.9).add_(b, alpha=0.1)
        t = k(x)
    opt.zero_grad()
    (-(q(x) * t).sum(1).mean()).backward()
    opt.step()
""",
    "batch norm is frozen later": """
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for e in range(4):
    net.train()
    if e > 1:
        net[1].eval()
    for _ in range(2):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        net(x)
""",
    "one optimizer after another": """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
a = torch.optim.Adam(net.parameters())
for _ in range(4):
    a.zero_grad()
    F.mse_loss(net(x), y).backward()
    a.step()
b = torch.optim.LBFGS(net.parameters(), max_iter=4)


def closure():
    b.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    return loss


for _ in range(2):
    b.step(closure)
""",
    "an empty group with nothing left over": """
net = nn.Linear(4, 1, bias=False)
decay = [p for p in net.parameters() if p.dim() > 1]
rest = [p for p in net.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}])
for _ in range(3):
    opt.zero_grad()
    F.mse_loss(net(x), y).backward()
    opt.step()
""",
    "an input as an attribute": """
class P(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = torch.linspace(0, 1, 8).unsqueeze(1).requires_grad_()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(self):
        u = self.net(self.t)
        du = torch.autograd.grad(u.sum(), self.t, create_graph=True)[0]
        return (du + u).square().mean()


m = P()
opt = torch.optim.Adam(m.parameters())
for _ in range(3):
    opt.zero_grad()
    m.loss().backward()
    opt.step()
""",
    "logged parameters without use": """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.s = nn.Linear(4, 1), nn.Linear(4, 1), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.a(x)


m = M()
opt = torch.optim.Adam(m.parameters())
log = []
for _ in range(4):
    opt.zero_grad()
    loss = F.mse_loss(m(x), y)
    loss.backward()
    norms = {n: p.norm().item() for n, p in m.named_parameters()}
    log.append(m.s.item())
    print("s", m.s.item(), f"{m.b.weight.mean().item():.2f}")
    opt.step()
""",
    "an optimizer for each task": """
for task in range(4):
    net = nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters())
    for _ in range(1):
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
""",
    "dropout on purpose": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 1)
        self.d = nn.Dropout(0.5)

    def forward(self, x):
        return self.l(F.dropout(self.d(x), 0.5, training=True))


net = Net().eval()
with torch.no_grad():
    s = torch.stack([net(x) for _ in range(4)]).std()
""",
    "samples without a graph for the judge": """
import copy

g, d = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))
go, do = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for _ in range(4):
    with torch.no_grad():
        fake = g(torch.randn(16, 4))
    do.zero_grad()
    (F.softplus(-d(x)) + F.softplus(d(fake))).mean().backward()
    do.step()
    go.zero_grad()
    F.softplus(-d(g(torch.randn(16, 4)))).mean().backward()
    go.step()
""",
    "a codebook": """
enc, dec, code = nn.Linear(4, 4), nn.Linear(4, 4), nn.Embedding(6, 4)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters(), *code.parameters()])
for _ in range(4):
    z = enc(x)
    i = torch.cdist(z, code.weight).argmin(1)
    q = code(i)
    loss = (
        F.mse_loss(q, z.detach())
        + 0.25 * F.mse_loss(z, q.detach())
        + F.mse_loss(dec(z + (q - z).detach()), x)
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
}


@pytest.mark.parametrize("what", MEANT)
def test_what_is_meant_is_not_a_fault_of_training(what):
    report = told(LOOP_START + MEANT[what], "audit")
    assert report["error"] is None
    assert not report["trouble"]
    assert codes(report) == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a helper cuts the embedding", "t = t.detach()"),
        ("a method under no_grad", "with torch.no_grad():"),
        ("data in a layer", "return x * self.log_scale.data.exp()"),
        ("a way through numpy", "a = h.detach().numpy()"),
        ("a decorated function", "@torch.no_grad()"),
        ("a block around a module", "with torch.no_grad():"),
        ("the generator's own step is cut", "against = F.softplus(-d(fake.detach())).mean()"),
    ],
)
def test_the_line_that_cuts_comes_first(what, line):
    (finding,) = told(LOOP_START + CUT["PBA145", what], "audit")["findings"]
    assert finding["lines"][0]["text"] == line


FAULTS = {
    "outputs that a hook keeps": (
        "PBA161",
        """
seen = {}
net[0].register_forward_hook(lambda module, given, out: seen.setdefault("first", []).append(out))  # culprit
for _ in range(20):
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    optimizer.step()
""",
    ),
    "an average that is only named": (
        "PBA120",
        """
average = copy.deepcopy(net)
for _ in range(4):
    optimizer.zero_grad()
    F.mse_loss(net(x), y).backward()
    optimizer.step()
    for mine, theirs in zip(average.parameters(), net.parameters()):
        mine = 0.9 * mine + 0.1 * theirs  # culprit
""",
    ),
    "a target that is trained": (
        "PBA133",
        """
mine = copy.deepcopy(net)
target = copy.deepcopy(mine)
wrong = torch.optim.SGD(target.parameters(), lr=0.01)
for _ in range(4):
    with torch.no_grad():
        goal = target(x)
    wrong.zero_grad()
    F.mse_loss(mine(x), goal).backward()
    wrong.step()  # culprit
""",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_line(name):
    code, program = FAULTS[name]
    program = START + program
    line = next(number for number, text in enumerate(program.splitlines(), 1) if "# culprit" in text)
    report = told(program, "audit")
    assert not report["trouble"]
    assert [(each["code"], each["lines"][0]["line"]) for each in report["findings"]] == [(code, line)]


def test_averages_that_are_written_and_parts_that_stay_are_right():
    program = (
        START
        + """
average, judge = copy.deepcopy(net), nn.Linear(1, 1).eval()
for _ in range(6):
    optimizer.zero_grad()
    judge(net(x)).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), net.parameters()):
            mine.mul_(0.9).add_(theirs, alpha=0.1)
"""
    )
    assert codes(told(program, "audit")) == []
