"""What single tensors, parameters and optimizers refuse: the cause, the culprit's line, and a fix that runs."""

import textwrap

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told
from tests.diagnose.test_seeds import judged

PROGRAMS = {
    "integers in a function": (
        "PB501",
        """
        import torch

        def prepare(values):
            x = torch.tensor(values)  # <-
            x.requires_grad = True
            return x

        prepare([1, 2])
        """,
    ),
    "integers handed over": (
        "PB501",
        """
        import torch

        def train(x):
            x.requires_grad_(True)

        data = torch.arange(3)  # <-
        train(data)
        """,
    ),
    "a parameter of integers": (
        "PB502",
        """
        import torch
        from torch import nn

        class Table(nn.Module):
            def __init__(self, rows):
                super().__init__()
                self.rows = nn.Parameter(torch.tensor(rows))  # <-

        Table([[1, 2], [3, 4]])
        """,
    ),
    "freezing an output": (
        "PB503",
        """
        import torch

        def features(net, x):
            h = net(x)  # <-
            h.requires_grad = False
            return h

        features(torch.nn.Linear(3, 2), torch.rand(1, 3))
        """,
    ),
    "a cache from inference mode": (
        "PB504",
        """
        import torch

        class Cache:
            @torch.inference_mode()  # <-
            def __init__(self):
                self.total = torch.zeros(3)

            def add(self, x):
                self.total += x

        Cache().add(torch.ones(3))
        """,
    ),
    "features from inference mode": (
        "PB506",
        """
        import torch

        class Probe(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)

            @torch.inference_mode()  # <-
            def encode(self, x):
                return self.body(x).relu()

            def forward(self, x):
                return self.head(self.encode(x))

        Probe()(torch.randn(2, 4)).sum().backward()
        """,
    ),
    "trained in inference mode": (
        "PB508",
        """
        import torch

        net = torch.nn.Linear(3, 1)
        losses = [net(torch.randn(2, 3)).mean() for _ in range(2)]
        with torch.inference_mode():  # <-
            losses[0].backward()
        net.weight.grad.mul_(0.5)
        """,
    ),
    "numpy in a metric": (
        "PB509",
        """
        import torch

        def accuracy(out, target):
            return (out.numpy() > 0).mean()  # <-

        accuracy(torch.nn.Linear(3, 1)(torch.rand(2, 3)), None)
        """,
    ),
    "a list of losses to numpy": (
        "PB510",
        """
        import numpy as np
        import torch

        w = torch.ones(2, requires_grad=True)
        losses = [w.sum(), w.prod()]
        print(np.mean(np.array(losses)))  # <-
        """,
    ),
    "numpy in a loss": (
        "PB510",
        """
        import numpy as np
        import torch

        class Loss(torch.nn.Module):
            def forward(self, out):
                return np.exp(out).mean()  # <-

        Loss()(torch.nn.Linear(3, 1)(torch.rand(2, 3))).backward()
        """,
    ),
    "the gradient of a slice": (
        "PB512",
        """
        import torch

        def restore(params, flat):
            for p in params:
                p.grad = flat[: p.numel()]  # <-

        restore([torch.nn.Parameter(torch.zeros(2, 2))], torch.ones(9))
        """,
    ),
    "a copy of a module with its last output": (
        "PB516",
        """
        import copy

        import torch

        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = torch.nn.Linear(3, 3)
                self.history = None

            def forward(self, x):
                out = self.lin(x)
                self.history = out  # <-
                return out

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = Encoder()

            def forward(self, x):
                return self.encoder(x).sum()

        model = Model()
        model(torch.rand(2, 3)).backward()
        average = copy.deepcopy(model)
        """,
    ),
    "a running sum of integers": (
        "PB518",
        """
        import torch

        def total(values):
            out = torch.zeros(2, dtype=torch.long)  # <-
            for each in values:
                out.add_(each)
            return out

        total([torch.rand(2), torch.rand(2)])
        """,
    ),
    "a mode without parentheses in a function": (
        "PB519",
        """
        import torch

        def evaluate(net, x):
            with torch.inference_mode:  # <-
                return net(x)

        evaluate(torch.nn.Linear(3, 1), torch.rand(1, 3))
        """,
    ),
    "a scaled weight": (
        "PB620",
        """
        import torch

        def weights(n):
            w = torch.nn.Parameter(torch.randn(n, n)) * 0.1  # <-
            return w

        ws = [weights(2), weights(3)]
        optimizer = torch.optim.Adam(ws)
        """,
    ),
    "a moved weight of a class": (
        "PB620",
        """
        import torch

        class Model:
            def __init__(self, device):
                self.w = torch.zeros(3, requires_grad=True).to(device, torch.float64)  # <-
                self.optimizer = torch.optim.SGD([self.w], lr=0.1)

        Model("cpu")
        """,
    ),
    "a frozen backbone": (
        "PB621",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
                for p in self.parameters():
                    p.requires_grad = False  # <-

        model = Model()
        optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()))
        """,
    ),
    "counted parameters": (
        "PB622",
        """
        import torch

        def optimizer_of(params):
            return torch.optim.Adam(params)

        net = torch.nn.Linear(3, 1)
        params = net.parameters()  # <-
        print(sum(p.numel() for p in params))
        optimizer_of(params)
        """,
    ),
    "layers in a list": (
        "PB623",
        """
        import torch
        from torch import nn

        class Stack(nn.Module):
            def __init__(self, depth):
                super().__init__()
                layers = []
                for _ in range(depth):
                    layers.append(nn.Linear(2, 2))
                self.layers = layers  # <-

        stack = Stack(2)
        optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
        """,
    ),
    "the module itself": (
        "PB624",
        """
        import torch

        net = torch.nn.Linear(3, 1)  # <-
        optimizer = torch.optim.SGD(net, lr=0.1)
        """,
    ),
    "a sparse table in a model": (
        "PB625",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Embedding(9, 2, sparse=True)  # <-
                self.head = torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.head(self.table(x))

        def train(model, optimizer):
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()

        model = Model()
        train(model, torch.optim.Adam(model.parameters()))
        """,
    ),
    "weights from an array": (
        "PB626",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self, start):
                super().__init__()
                self.lin = torch.nn.Linear(2, 2)
                self.lin.weight = torch.tensor(start)  # <-

        Model([[1.0, 0.0], [0.0, 1.0]])
        """,
    ),
    "a forgotten super": (
        "PB630",
        """
        import torch

        class Model(torch.nn.Module):
            def __init__(self, width):
                \"\"\"Makes it.\"\"\"
                self.width = width
                self.lin = torch.nn.Linear(width, 1)  # <-

        Model(3)
        """,
    ),
    "LBFGS": (
        "PB628",
        """
        import torch

        def fit(net, x):
            optimizer = torch.optim.LBFGS(net.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()  # <-

        fit(torch.nn.Linear(2, 1), torch.rand(3, 2))
        """,
    ),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_and_its_line(name, level, tmp_path):
    code, program = PROGRAMS[name]
    judged(program, code, level, tmp_path)


DETACHED_INSIDE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(1, 1)

        def forward(self, t):
            t = t.detach()
            return self.body(t).tanh()

    net = Net()
    t = torch.linspace(0, 1, 4).unsqueeze(1).requires_grad_()
    u = net(t)
    torch.autograd.grad(u.sum(), t, create_graph=True)
"""
A_COPY_WAS_TRAINED = """
    import copy
    import torch
    net = torch.nn.Linear(3, 1)
    learner = copy.deepcopy(net)
    loss = learner(torch.randn(4, 3)).pow(2).mean()
    grads = torch.autograd.grad(loss, list(net.parameters()))
"""
NORMALISED_INPUT = """
    import torch
    net = torch.nn.Linear(3, 2)
    def saliency(image):
        image.requires_grad_()
        image = (image - 0.5) / 0.5
        net(image).sum().backward()
        return image.grad.abs()
    saliency(torch.rand(4, 3))
"""
CLEARED_BY_THE_CALLER = """
    import torch
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    def size(parameters):
        return sum(p.grad.norm() for p in parameters)
    for _ in range(2):
        loss = net(torch.rand(2, 3)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(size(net.parameters()))
"""
STACKED_GRADIENTS = """
    import torch
    server = torch.nn.Linear(3, 2)
    clients = [torch.nn.Linear(3, 2) for _ in range(2)]
    for client in clients:
        client(torch.rand(4, 3)).mean().backward()
    for p, *others in zip(server.parameters(), *(client.parameters() for client in clients)):
        p.grad = torch.stack([other.grad for other in others])
"""
LIST_OF_LOSSES = """
    import numpy as np
    import torch
    net = torch.nn.Linear(3, 1)
    history = [net(torch.rand(4, 3)).mean() for _ in range(3)]
    print(np.convolve(np.asarray(history), np.ones(2)))
"""
UNPACKED_INPUT = """
    import torch
    net = torch.nn.Linear(2, 1)
    def sample(n):
        return torch.rand(n, 1), torch.rand(n, 1, requires_grad=True)
    def slope(y, x):
        return torch.autograd.grad(y.sum(), x)[0]
    x, t = sample(5)
    u = net(torch.cat([x, t], 1)).tanh()
    slope(u, x)
"""
# With the level, the code, the culprit, and what the code of the fix has in it.
FURTHER = {
    "detached inside": (DETACHED_INSIDE, "trace", "PB605", "t = t.detach()", ""),
    "a copy was trained": (A_COPY_WAS_TRAINED, "default", "PB601", "copy.deepcopy(", "learner.parameters()"),
    "normalised input": (NORMALISED_INPUT, "default", "PB610", "image = (image", "image.retain_grad()"),
    "cleared by the caller": (
        CLEARED_BY_THE_CALLER,
        "default",
        "PB613",
        "optimizer.zero_grad()",
        "optimizer.zero_grad",
    ),
    "stacked gradients": (STACKED_GRADIENTS, "default", "PB512", "p.grad = torch.stack(", ".mean(0)"),
    "list of losses": (LIST_OF_LOSSES, "default", "PB510", "np.asarray(history)", "each.detach() for each in history"),
    "unpacked input": (UNPACKED_INPUT, "default", "PB607", "x, t = sample(5)", "x.requires_grad_()"),
}


@pytest.mark.parametrize(("program", "level", "code", "line", "cure"), FURTHER.values(), ids=FURTHER)
def test_the_fix_is_right_for_the_program(program, level, code, line, cure, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    report = told(file, level)
    assert codes(report) == [code]
    (found,) = report["diagnoses"]
    assert any(line in each["text"] for each in found["lines"])
    assert cure in found["fix"]["code"]
    edits = [Edit(**each) for each in found["fix"]["edits"]]
    if edits:
        assert told(applied(edits, str(file)))["error"] is None
    else:
        assert found["fix"]["confidence"] != "high"


def test_zeros_are_not_advised_where_the_input_may_have_been_cut_off():
    (found,) = told(DETACHED_INSIDE)["diagnoses"]
    assert not found["fix"]["edits"]
