"""Losses that teach something else, custom Functions and functional calls that are silently wrong."""

import pytest

from tests.diagnose.harness import codes, told

FAULTS = {
    "padding that only a mask names": (
        "PBA308",
        """
        import torch
        torch.manual_seed(0)
        embed, out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)
        tokens = torch.randint(4, 20, (6, 9))
        for row, length in enumerate((9, 4, 7, 6, 3, 8)):
            tokens[row, length:] = 1
        seen = (tokens[:, :-1] == 1).unsqueeze(-1)
        logits = out(embed(tokens[:, :-1]).masked_fill(seen, 0.0))
        torch.nn.CrossEntropyLoss()(logits.reshape(-1, 20), tokens[:, 1:].reshape(-1)).backward()  # culprit
        """,
    ),
    "a softmax that is a module of the net": (
        "PBA302",
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.softmax = torch.nn.Linear(3, 4), torch.nn.Softmax(dim=1)

            def forward(self, x):
                return self.softmax(self.layer(x))  # culprit

        torch.nn.CrossEntropyLoss()(Net()(torch.randn(6, 3)), torch.randint(0, 4, (6,))).backward()
        """,
    ),
    "a softmax over the time": (
        "PBA304",
        """
        import torch
        net = torch.nn.Linear(4, 5)
        scores = torch.nn.functional.log_softmax(net(torch.randn(3, 6, 4)), dim=1)  # culprit
        torch.nn.NLLLoss()(scores.reshape(-1, 5), torch.randint(0, 5, (18,))).backward()
        """,
    ),
    "pixels flattened before their classes": (
        "PBA306",
        """
        import torch
        scores = torch.nn.Conv2d(1, 5, 1)(torch.randn(2, 1, 4, 4))
        flat = scores.view(-1, 5)  # culprit
        torch.nn.functional.cross_entropy(flat, torch.randint(0, 5, (2, 4, 4)).view(-1)).backward()
        """,
    ),
    "labels padded with a label": (
        "PBA308",
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence
        torch.manual_seed(0)
        embed, out = torch.nn.Embedding(20, 8, padding_idx=0), torch.nn.Linear(8, 3)
        sizes = (3, 9, 5, 4)
        words = pad_sequence([torch.randint(1, 20, (size,)) for size in sizes], batch_first=True)
        tags = pad_sequence([torch.randint(0, 3, (size,)) for size in sizes], batch_first=True)  # culprit
        torch.nn.CrossEntropyLoss()(out(embed(words)).view(-1, 3), tags.view(-1)).backward()
        """,
    ),
    "targets in another order": (
        "PBA309",
        """
        import torch
        net = torch.nn.LSTM(3, 1)
        x, y = torch.randn(7, 4, 3), torch.randn(4, 7)
        out, _ = net(x)
        torch.nn.functional.mse_loss(out.view(-1), y.view(-1)).backward()  # culprit
        """,
    ),
    "a penalty of numbers": (
        "PBA352",
        """
        import torch

        def penalty(net):
            total = 0.0
            for p in net.parameters():
                total += p.abs().sum().item()  # culprit
            return total

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean() + 0.01 * penalty(net)
        loss.backward()
        """,
    ),
    "a penalty of copies": (
        "PBA139",
        """
        import torch
        net = torch.nn.Linear(3, 1)
        penalty = torch.tensor([p.norm() for p in net.parameters()]).sum()  # culprit
        (net(torch.randn(4, 3)).square().mean() + 0.1 * penalty).backward()
        """,
    ),
    "attention over the queries": (
        "PBA311",
        """
        import torch
        from torch.nn import functional as F
        q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
        weights = F.softmax(q @ k.mT, 2)  # culprit
        (F.dropout(weights, 0.1) @ v).square().mean().backward()
        """,
    ),
    "images and targets without a channel": (
        "PBA301",
        """
        import torch
        net = torch.nn.Conv2d(1, 1, 3, padding=1)
        out = net(torch.randn(4, 1, 6, 6))
        target = torch.randn(4, 6, 6)
        loss = (out - target).abs().mean()  # culprit
        loss.backward()
        """,
    ),
    "an accuracy": (
        "PBA301",
        """
        import torch
        net = torch.nn.Linear(3, 5)
        y = torch.randint(0, 5, (8,))
        out = net(torch.randn(8, 3))
        torch.nn.functional.cross_entropy(out, y).backward()
        pred = out.argmax(dim=1, keepdim=True)
        correct = (pred == y).sum()  # culprit
        """,
    ),
    "sigmoid in the net": (
        "PBA302",
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 1)

            def forward(self, x):
                return torch.sigmoid(self.layer(x)).squeeze(1)  # culprit

        criterion = torch.nn.BCEWithLogitsLoss()
        criterion(Net()(torch.randn(8, 3)), torch.ones(8)).backward()
        """,
    ),
    "a penalty in a function": (
        "PBA518",
        """
        import torch

        def penalty(net, x):
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)  # culprit
            return slope.square().sum(1).mean()

        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        x = torch.randn(5, 3)
        loss = net(x).mean() + 10.0 * penalty(net, x)
        loss.backward()
        """,
    ),
    "a slice of the targets, in a function": (
        "PBA301",
        """
        import torch

        def rmse(a, b):
            return torch.sqrt(torch.mean((a - b) ** 2) + 1e-8)  # culprit

        net = torch.nn.Linear(5, 1)
        x, y = torch.randn(32, 5), torch.randn(32)
        for i in range(0, 32, 16):
            rmse(net(x[i : i + 16]), y[i : i + 16]).backward()
        """,
    ),
    "advantages of another shape": (
        "PBA301",
        """
        import torch
        policy, value = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
        state, returns = torch.randn(10, 4), torch.randn(10, 1)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        advantage = (returns - value(state)).detach()
        loss = -(choice.log_prob(action) * advantage).mean()  # culprit
        loss.backward()
        """,
    ),
    "probabilities with a small number": (
        "PBA302",
        """
        import torch
        import torch.nn.functional as F
        net = torch.nn.Linear(8, 4)
        p = F.softmax(net(torch.randn(6, 8)), dim=-1).view(-1, 4)
        F.cross_entropy(p + 1e-8, torch.randint(0, 4, (6,))).backward()  # culprit
        """,
    ),
    "sigmoid before cross_entropy": (
        "PBA302",
        """
        import torch
        net = torch.nn.Linear(8, 4)
        scores = torch.sigmoid(net(torch.randn(6, 8)))
        torch.nn.CrossEntropyLoss()(scores, torch.randint(0, 4, (6,))).backward()  # culprit
        """,
    ),
    "a divergence of probabilities": (
        "PBA303",
        """
        import torch
        import torch.nn.functional as F
        student, teacher = torch.nn.Linear(8, 5), torch.nn.Linear(8, 5)
        x = torch.randn(7, 8)
        with torch.no_grad():
            want = F.softmax(teacher(x), dim=1)
        loss = F.kl_div(F.softmax(student(x), dim=1), want, reduction="batchmean")  # culprit
        loss.backward()
        """,
    ),
    "labels first": (
        "PBA305",
        """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(6, 1), torch.nn.Sigmoid())
        label = torch.tensor([[0.0], [1.0], [1.0]])
        criterion = torch.nn.BCELoss()
        criterion(label, net(torch.randn(3, 6))).backward()  # culprit
        """,
    ),
    "classes by a view, in a module": (
        "PBA306",
        """
        import torch

        class Tagger(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.out = torch.nn.Linear(8, 20)

            def forward(self, x):
                return self.out(x).view(4, 20, 7)  # culprit

        net = Tagger()
        loss = torch.nn.functional.cross_entropy(net(torch.randn(4, 7, 8)), torch.randint(0, 20, (4, 7)))
        loss.backward()
        """,
    ),
    "a target of the net itself": (
        "PBA307",
        """
        import torch
        import torch.nn.functional as F
        q = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        s, a, r, following = torch.randn(6, 4), torch.randint(0, 2, (6,)), torch.randn(6), torch.randn(6, 4)
        chosen = q(s).gather(1, a[:, None]).squeeze(1)
        goal = r + 0.99 * q(following).max(dim=1).values  # culprit
        (chosen - goal).pow(2).mean().backward()
        """,
    ),
    "a hook that returns nothing": (
        "PBA509",
        """
        import torch

        class Scaled(torch.nn.Linear):
            def soften(self, grad):
                grad = grad.clamp(-0.1, 0.1)  # culprit

        layer = Scaled(3, 3)
        layer.weight.register_hook(layer.soften)
        layer(torch.randn(2, 3)).pow(2).mean().backward()
        """,
    ),
    "a checkpoint without the random state": (
        "PBA507",
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        x = torch.randn(4, 8, requires_grad=True)
        y = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # culprit
        y.sum().backward()
        """,
    ),
}

RIGHT = {
    "labels padded with what is ignored": """
        import torch
        from torch.nn.utils.rnn import pad_sequence
        embed, out = torch.nn.Embedding(20, 8, padding_idx=0), torch.nn.Linear(8, 3)
        sizes = (3, 9, 5, 4)
        words = pad_sequence([torch.randint(1, 20, (size,)) for size in sizes], batch_first=True)
        tags = pad_sequence([torch.randint(0, 3, (s,)) for s in sizes], batch_first=True, padding_value=-100)
        torch.nn.CrossEntropyLoss()(out(embed(words)).view(-1, 3), tags.view(-1)).backward()
        """,
    "numbers that weigh and balance terms": """
        import torch
        net = torch.nn.Linear(3, 1)
        first, second = net(torch.randn(4, 3)).square().mean(), net(torch.randn(4, 3)).abs().mean()
        weight = first.item() / (second.item() + 1e-4)
        level = 0.1 * first.item()
        loss = (first + weight * second - level).abs() + level
        loss.backward()
        """,
    "copies of losses that are printed": """
        import torch
        net = torch.nn.Linear(3, 1)
        losses = [net(torch.randn(4, 3)).square().mean() for _ in range(3)]
        print(torch.tensor(losses).mean())
        sum(losses).backward()
        """,
    "experts that choose their tokens": """
        import torch
        tokens = torch.randn(2, 6, 4)
        scores = torch.nn.Linear(4, 3)(tokens)
        dispatch, combine = scores.softmax(dim=1), scores.softmax(dim=2)
        (combine @ torch.tanh(dispatch.mT @ tokens)).square().mean().backward()
        """,
    "centres, bins and frequencies, as many as samples": """
        import torch
        net = torch.nn.Linear(3, 1)
        centres, bins = torch.nn.Parameter(torch.randn(8)), torch.linspace(0, 1, 8)
        x = net(torch.randn(8, 3))
        bumps = torch.exp(-((x - centres) ** 2))
        counts = torch.exp(-(((torch.sigmoid(x) - bins) / 0.1) ** 2)).mean(0)
        waves = (x * torch.exp(torch.arange(8.0) * -0.5)).sin()
        (bumps.mean() + counts.pow(2).sum() + waves.mean()).backward()
        """,
    "divergences of logarithms": """
        import torch
        import torch.nn.functional as F
        student, teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        x = torch.randn(5, 4)
        known, want = F.log_softmax(student(x), -1), F.softmax(teacher(x), -1).detach()
        F.kl_div(known, want, reduction="batchmean").backward()
        other = F.log_softmax(teacher(x), 1).detach()
        F.kl_div(F.log_softmax(student(x), 1), other, log_target=True, reduction="sum").backward()
        F.kl_div(other, F.softmax(student(x), 1), reduction="batchmean").backward()
        """,
    "classes moved, and flattened": """
        import torch
        import torch.nn.functional as F
        net = torch.nn.Linear(8, 5)
        scores, labels = net(torch.randn(4, 7, 8)), torch.randint(0, 5, (4, 7))
        F.cross_entropy(scores.transpose(1, 2), labels).backward(retain_graph=True)
        F.cross_entropy(scores.reshape(-1, 5), labels.view(-1)).backward(retain_graph=True)
        F.cross_entropy(net(torch.randn(4, 30, 8)).transpose(1, 2).view(4, 5, 6, 5), torch.randint(0, 5, (4, 6, 5)))
        """,
    "log-probabilities of each sample and weights of each": """
        import torch
        policy = torch.nn.Linear(4, 2)
        choice = torch.distributions.Categorical(logits=policy(torch.randn(6, 4)))
        action = choice.sample()
        weight = torch.sigmoid(torch.nn.Linear(4, 1)(torch.randn(6, 4))).squeeze(1)
        (-choice.log_prob(action) * weight).mean().backward()
        """,
    "hooks that look": """
        import torch
        norms = []

        def watch(grad):
            size = grad.norm()
            norms.append(size.item())

        def soften(grad):
            grad = grad.clamp(-1, 1)
            return grad

        w = torch.nn.Parameter(torch.randn(3))
        w.register_hook(watch)
        w.register_hook(soften)
        w.pow(2).sum().backward()
        """,
    "pairwise distances and kernels": """
        import torch
        net = torch.nn.Linear(3, 4)
        z = net(torch.randn(6, 3))
        square = z.pow(2).sum(1, keepdim=True) + z.pow(2).sum(1) - 2 * z @ z.T
        pairs = z[:, 0].unsqueeze(1) - z[:, 0]
        (square.mean() + pairs.abs().mean()).backward()
        """,
    "masks of equal labels": """
        import torch
        net = torch.nn.Linear(3, 4)
        y = torch.randint(0, 2, (6,))
        same = y.view(-1, 1) == y
        z = torch.nn.functional.normalize(net(torch.randn(6, 3)), dim=1)
        (-(z @ z.T).log_softmax(1)[same].mean()).backward()
        """,
    "focal loss": """
        import torch
        net = torch.nn.Linear(3, 4)
        ce = torch.nn.functional.cross_entropy(net(torch.randn(6, 3)), torch.randint(0, 4, (6,)), reduction="none")
        ((1 - torch.exp(-ce)) ** 2 * ce).mean().backward()
        """,
    "steps along a gradient": """
        import torch
        net = torch.nn.Linear(3, 1)
        x = torch.randn(4, 3, requires_grad=True)
        (g,) = torch.autograd.grad(net(x).pow(2).sum(), x)
        net((x + 0.1 * g.sign()).detach()).pow(2).mean().backward()
        """,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_line(name):
    code, program = FAULTS[name]
    report = told(program, "audit")
    found = [each for each in report["findings"] if each["code"] == code]
    assert found, codes(report)
    line = next(number for number, text in enumerate(program.splitlines(), 1) if "# culprit" in text)
    assert line in [mark["line"] for mark in found[0]["lines"]]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_no_finding(name):
    report = told(RIGHT[name], "audit")
    assert report["error"] is None
    assert codes(report) == []
