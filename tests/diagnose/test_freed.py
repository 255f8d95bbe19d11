"""Graphs that were freed: each way to meet one is told apart, with its lines and an edit that mends it."""

import textwrap

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

STATE_IN_A_HELPER = """
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            self.out = nn.Linear(4, 1)

        def forward(self, x, state=None):
            y, state = self.rnn(x, state)
            return self.out(y), state

    def learn(net, optimizer, x, state):
        value, state = net(x, state)
        loss = value.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return state

    def main():
        net = Reader()
        optimizer = torch.optim.Adam(net.parameters())
        state = None
        for _ in range(3):
            state = learn(net, optimizer, torch.randn(2, 5, 3), state)

    main()
"""
EVERY_THIRD_TURN = """
    import torch
    cell = torch.nn.GRUCell(3, 4)
    memory = torch.zeros(1, 4)
    loss = 0
    for turn in range(7):
        memory = cell(torch.randn(1, 3), memory)
        loss = loss + memory.pow(2).mean()
        if turn % 3 == 2:
            loss.backward()
            loss = 0
"""
GENERATOR = """
    import torch
    from torch import nn

    def fit():
        maker = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        judge = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        by_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
        for _ in range(2):
            image = maker(torch.randn(4, 2))
            verdict = judge(image).mean()
            by_judge.zero_grad()
            verdict.backward()
            by_judge.step()
            other = -judge(image).mean()
            other.backward()

    fit()
"""
TWO_LOSSES = """
    import torch
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def losses():
        hidden = body(torch.randn(2, 3)).exp()
        return head(hidden).mean(), hidden.square().mean()

    for _ in range(2):
        first, second = losses()
        first.backward()
        second.backward()
"""
KEPT = """
    import torch

    class Trainer:
        def __init__(self):
            self.cell = torch.nn.GRUCell(3, 4)
            self.hidden = None

        def step(self, x):
            if self.hidden is None:
                self.hidden = torch.zeros(2, 4)
            self.hidden = self.cell(x, self.hidden)
            return self.hidden.pow(2).mean()

        def train(self):
            for _ in range(3):
                loss = self.step(torch.randn(2, 3))
                loss.backward()

    Trainer().train()
"""
MADE_IN_INIT = """
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 3))
            self.place = torch.sin(self.weight).sum(0)

        def forward(self, x):
            return (x @ self.weight + self.place).tanh()

    net = Encoder()
    for _ in range(2):
        net(torch.randn(2, 3)).sum().backward()
"""
ROWS = """
    import torch
    x = torch.randn(3, requires_grad=True)
    y = (x ** 2).sin()
    rows = [torch.autograd.grad(y[i], x)[0] for i in range(1)]
    for i in range(1, 3):
        rows.append(torch.autograd.grad(y[i], x)[0])
"""
LOSSES_IN_A_LIST = """
    import torch
    net = torch.nn.Linear(2, 1)
    losses = []
    for _ in range(3):
        losses.append(net(torch.randn(4, 2)).tanh().mean())
        sum(losses).backward()
"""
SAME_ROOT_IN_A_LOOP = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    loss = net(torch.randn(2, 3)).sum()
    for _ in range(3):
        loss.backward()
"""
PROGRAMS = {
    "state in a helper": (STATE_IN_A_HELPER, "PB302", "state = learn("),
    "every third turn": (EVERY_THIRD_TURN, "PB302", "memory = cell("),
    "generator": (GENERATOR, "PB303", "image = maker("),
    "two losses": (TWO_LOSSES, "PB303", "first.backward()"),
    "made in init": (MADE_IN_INIT, "PB304", "self.place ="),
    "kept": (KEPT, "PB305", "self.hidden = self.cell("),
    "losses in a list": (LOSSES_IN_A_LIST, "PB306", "losses.append("),
    "same root in a loop": (SAME_ROOT_IN_A_LOOP, "PB301", "loss.backward()"),
}


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize(("program", "code", "line"), PROGRAMS.values(), ids=PROGRAMS)
def test_each_way_is_told_apart(program, code, line, level):
    report = told(program, level)
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert found["confidence"] == "high"
    assert any(line in each["text"] for each in found["lines"])


@pytest.mark.parametrize(
    "program", [STATE_IN_A_HELPER, EVERY_THIRD_TURN, GENERATOR, TWO_LOSSES, MADE_IN_INIT, KEPT], ids=range(6)
)
def test_the_edits_mend_it(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    (found,) = told(file)["diagnoses"]
    assert found["fix"]["confidence"] == "high"
    edits = [Edit(**each) for each in found["fix"]["edits"]]
    mended = told(applied(edits, str(file)))
    assert mended["error"] is None


def test_rows_of_a_jacobian_need_the_graph_again():
    report = told(ROWS)
    assert report["diagnoses"][0]["code"] in {"PB307", "PB303"}


CACHED_BY_A_CONDITION = """
    import torch
    from torch import nn

    class Shape(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = nn.Parameter(torch.eye(3))
            self._matrix = None

        @property
        def matrix(self):
            if self._matrix is None:
                self._matrix = self.raw @ self.raw.t()
            return self._matrix

        def forward(self, x):
            return (x @ self.matrix).pow(2).mean()

    shape = Shape()
    for _ in range(2):
        shape(torch.randn(4, 3)).backward()
"""
FUNCTION_UNDER_A_CACHE = """
    from functools import lru_cache
    import torch
    scale = torch.zeros(3, requires_grad=True)

    @lru_cache(maxsize=None)
    def table(length):
        return torch.sin(torch.arange(float(length))[:, None] * scale.exp())

    for _ in range(2):
        (torch.randn(4, 3) * table(4)).sum().backward()
"""
BEFORE_A_CLOSURE = """
    import torch
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    guess = net(x)

    def closure():
        optimizer.zero_grad()
        loss = (guess - x ** 2).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
"""
KEPT_IN_A_STORE = """
    import torch

    class Store:
        def __init__(self):
            self.items = []

        def put(self, *item):
            self.items.append(item)

    encoder, head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    store = Store()
    for _ in range(3):
        code = torch.tanh(encoder(torch.randn(2)))
        store.put(code, torch.rand(1))
        codes = torch.stack([each for each, _ in store.items])
        head(codes).mean().backward()
"""
CONSTANT_TARGET = """
    import torch
    from torch import nn

    class Style(nn.Module):
        def __init__(self, wanted):
            super().__init__()
            self.wanted = wanted @ wanted.t()

        def forward(self, x):
            return (x @ x.t() - self.wanted).pow(2).mean()

    net = nn.Linear(4, 4)
    style = Style(net(torch.randn(3, 4)))
    image = torch.randn(3, 4, requires_grad=True)
    for _ in range(2):
        style(net(image)).backward()
"""
LOSS_OF_EACH_OUTPUT = """
    import torch
    from torch import nn

    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.heads = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

        def forward(self, x):
            shared = self.stem(x)
            return [head(shared) for head in self.heads]

    outputs = Scales()(torch.randn(4, 3))
    for output in outputs:
        loss = (output - 1).abs().mean()
        loss.backward()
"""
FIRST_LOSS_IN_A_FUNCTION = """
    import torch
    from torch import nn
    maker = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4))
    judge = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def train_judge(real, image):
        loss = judge(image).mean() - judge(real).mean()
        loss.backward()

    def train_maker(image):
        loss = -judge(image).mean()
        loss.backward()

    image = maker(torch.randn(5, 2))
    train_judge(torch.randn(5, 4), image)
    train_maker(image)
"""
# With the code, the culprit, and whether the edits mend the program.
MORE = {
    "cached by a condition": (CACHED_BY_A_CONDITION, "PB304", "self._matrix = self.raw @"),
    "function under a cache": (FUNCTION_UNDER_A_CACHE, "PB304", "return torch.sin("),
    "before a closure": (BEFORE_A_CLOSURE, "PB304", "guess = net(x)"),
    "kept in a store": (KEPT_IN_A_STORE, "PB304", "store.put(code, "),
    "constant target": (CONSTANT_TARGET, "PB304", "self.wanted = wanted"),
    "loss of each output": (LOSS_OF_EACH_OUTPUT, "PB303", "loss.backward()"),
    "first loss in a function": (FIRST_LOSS_IN_A_FUNCTION, "PB303", "loss = judge(image).mean() - "),
}


@pytest.mark.parametrize(("program", "code", "line"), MORE.values(), ids=MORE)
def test_what_is_kept_elsewhere_is_found_and_mended(program, code, line, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    report = told(file)
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert any(line in each["text"] for each in found["lines"])
    assert not any(each["text"].endswith(("= None", "= []")) for each in found["lines"])
    mended = told(applied([Edit(**each) for each in found["fix"]["edits"]], str(file)))
    assert mended["error"] is None


def test_a_cached_result_is_certain_once_its_line_is_known():
    (found,) = told(FUNCTION_UNDER_A_CACHE, "trace")["diagnoses"]
    assert (found["code"], found["confidence"]) == ("PB304", "high")


@pytest.mark.parametrize("level", ["default", "trace"])
def test_a_pass_inside_a_hook_frees_its_graph(level, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        textwrap.dedent(
            """
            import torch

            class Fixed(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(3, 3)

                def forward(self, x):
                    z = torch.tanh(self.layer(x))
                    start = z.detach().requires_grad_()
                    again = torch.tanh(self.layer(start) + x)

                    def solve(g):
                        total = g
                        for _ in range(3):
                            total = torch.autograd.grad(again, start, total)[0] + g
                        return total

                    z.register_hook(solve)
                    return z

            Fixed()(torch.ones(2, 3)).sum().backward()
            """
        )
    )
    report = told(file, level)
    assert codes(report) == ["PB307"]
    (found,) = report["diagnoses"]
    assert "retain_graph=True" in found["fix"]["code"]
    assert any("again, start, total" in each["text"] for each in found["lines"])


@pytest.mark.parametrize("level", ["default", "trace"])
def test_a_derivative_of_something_linear(level):
    report = told(
        """
        import torch

        model = torch.nn.Linear(1, 1)

        def slope(y, x):
            return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

        x = torch.linspace(0, 1, 4)[:, None]
        noise = torch.randn_like(x)
        x.requires_grad = True
        first = slope(model(x), x)
        second = slope(first, x)
        """,
        level,
    )
    (found,) = report["diagnoses"]
    assert found["code"] == "PB601"
    assert found["confidence"] == ("high" if level == "trace" else "medium")
    assert "linear in x" in found["cause"]
    assert 13 in [each["line"] for each in found["lines"]]


def test_a_tensor_like_another_is_not_computed_from_it():
    report = told(
        """
        import torch

        w, x = torch.ones(3, requires_grad=True), torch.ones(3)
        noise = torch.randn_like(x)
        x.requires_grad_()
        loss = (w * noise * torch.ones_like(x)).sum()
        torch.autograd.grad(loss, [w, x])
        """,
        "trace",
    )
    assert codes(report) == ["PB601"]


@pytest.mark.parametrize("level", ["default", "trace"])
def test_values_that_are_detached_in_each_turn(level):
    report = told(
        """
        import torch

        net = torch.nn.Linear(2, 1)

        def adapt(x):
            fast = [p.detach() for p in net.parameters()]
            for _ in range(2):
                fast = [p.requires_grad_() for p in fast]
                loss = (x @ fast[0].T + fast[1]).pow(2).mean()
                g = torch.autograd.grad(loss, fast)
                fast = [(p - 0.1 * d).detach() for p, d in zip(fast, g)]
            return fast

        weight, bias = adapt(torch.ones(3, 2))
        outer = (torch.ones(3, 2) @ weight.T + bias).pow(2).mean()
        outer.backward()
        """,
        level,
    )
    first = report["diagnoses"][0]
    assert first["code"] == "PB205"
    assert {7, 12} <= {each["line"] for each in first["lines"]}
    assert first["fix"]["confidence"] != "high"


EPISODES = """
    import torch
    net = torch.nn.Linear(4, 2)
    scores, rewards = [], []
    for episode in range(2):
        for step in range(3):
            draw = torch.distributions.Categorical(logits=net(torch.randn(4)))
            action = draw.sample()
            scores.append(draw.log_prob(action))
            rewards.append(float(action))
        loss = -(torch.stack(scores) * torch.tensor(rewards)).sum()
        loss.backward()
"""
POLICY = """
    import torch
    class Policy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scores, self.rewards = torch.nn.Linear(4, 2), [], []
    policy = Policy()
    def act(state):
        draw = torch.distributions.Categorical(logits=policy.layer(state))
        action = draw.sample()
        policy.scores.append(draw.log_prob(action))
        policy.rewards.append(float(action))
    def learn():
        losses = [-score * reward for score, reward in zip(policy.scores, policy.rewards)]
        loss = torch.stack(losses).sum()
        loss.backward()
    for episode in range(2):
        for step in range(3):
            act(torch.randn(4))
        learn()
"""
CLOSURE = """
    import torch
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    out = net(torch.randn(5, 4))
    def closure():
        optimizer.zero_grad()
        loss = out.exp().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""
PROTOTYPES = """
    import torch
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("centers", torch.zeros(3, 4))
            self.layer = torch.nn.Linear(4, 4)
        def forward(self, x):
            z = self.layer(x).tanh()
            self.centers[1] = 0.9 * self.centers[1] + 0.1 * z.mean(0)
            return torch.cdist(z, self.centers)
    head = Head()
    for _ in range(3):
        head(torch.randn(5, 4)).mean().backward()
"""
TWO_OPTIMIZERS = """
    import torch
    actor, critic = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)
    one, two = (torch.optim.SGD(each.parameters(), 0.1) for each in (actor, critic))
    s = torch.randn(6, 3)
    gain = torch.randn(6) - critic(s).squeeze(-1)
    policy = -(actor(s).log_softmax(-1)[:, 0] * gain).mean()
    value = gain.pow(2).mean()
    one.zero_grad()
    policy.backward()
    one.step()
    two.zero_grad()
    value.backward()
    two.step()
"""


@pytest.mark.parametrize(
    ("program", "code", "cure"),
    [
        (EPISODES, "PB306", "scores, rewards = [], []"),
        (POLICY, "PB306", "policy.scores.clear()\npolicy.rewards.clear()"),
        (CLOSURE, "PB304", "out = net(torch.randn(5, 4))"),
        (PROTOTYPES, "PB305", "head.centers = head.centers.detach()"),
        (TWO_OPTIMIZERS, "PB303", "policy = -(actor(s).log_softmax(-1)[:, 0] * gain.detach()).mean()"),
    ],
)
def test_the_cure_is_that_of_the_kind_of_program(program, code, cure, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    (found,) = told(file)["diagnoses"]
    assert (found["code"], found["fix"]["code"]) == (code, cure)
    assert told(applied([Edit(**each) for each in found["fix"]["edits"]], str(file)))["error"] is None
