"""Errors of transforms, forward mode, gradcheck and of Pullback itself: the cause, the line and the fix."""

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import codes, told

PROGRAMS = {
    "scalar": ("PB801", 7, """
        import torch

        class Trainer:
            def __init__(self):
                self.scale = torch.ones(3)
            def loss(self, w):
                return self.scale * w
            def step(self):
                return torch.func.grad(self.loss)(torch.ones(3))

        Trainer().step()
    """),
    "branch": ("PB811", 3, """
        import torch
        def f(x, t):
            if x.max() > t:
                y = x - t
            else:
                y = x * 2
            return y.sum()
        g = torch.vmap(f, in_dims=(0, None))
        g(torch.randn(5, 2), 0.3)
    """),
    "random": ("PB812", 3, """
        import torch
        def f(x):
            return x + torch.rand(2)
        noisy = torch.vmap(f)
        noisy(torch.ones(3, 2))
    """),
    "unbatched": ("PB813", 3, """
        import torch
        def powers(x):
            out = torch.zeros(4)
            for i in range(4):
                out[i] = x ** i
            return out
        torch.vmap(powers)(torch.arange(3.0))
    """),
    "anomaly": ("PB851", 5, """
        import torch
        class Distance(torch.nn.Module):
            def forward(self, a, b):
                squares = ((a - b) ** 2).sum(-1)
                return torch.sqrt(squares)
        a = torch.ones(3, 2, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            Distance()(a, torch.ones(3, 2)).mean().backward()
    """),
}  # fmt: skip


def program(name):
    """A program without the line break in front, so that its lines count from 1."""
    import textwrap

    return textwrap.dedent(PROGRAMS[name][2]).lstrip("\n")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_and_the_line_are_found(name):
    code, line, _ = PROGRAMS[name]
    report = told("import warnings; warnings.simplefilter('ignore'); " + program(name))
    assert codes(report) == [code], report["error"]
    assert line in [each["line"] for each in report["diagnoses"][0]["lines"]]


@pytest.mark.parametrize("name", ["branch", "random", "unbatched"])
def test_the_edits_mend_the_program(name, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program(name))
    edits = told(file)["diagnoses"][0]["fix"]["edits"]
    file.write_text(applied([Edit(**each) for each in edits], str(file)))
    assert told(file)["error"] is None


@pytest.mark.parametrize(
    "call", ["pb.backward(y, torch.ones(4))", "pb.grad(y.detach(), x)", "pb.check(3, torch.ones(3))"]
)
def test_errors_of_pullback_are_diagnosed(call):
    report = told(f"import torch\nimport pullback as pb\nx = torch.ones(3, requires_grad=True)\ny = x * 2\n{call}\n")
    assert codes(report) == ["PB001"]
    found = report["diagnoses"][0]
    assert found["lines"][0]["line"] == 5
    assert found["fix"]["text"]


def test_a_value_that_is_only_logged_is_returned_instead():
    report = told(
        """
        import torch

        seen = []
        def loss(w, x):
            l = (w * x).sum()
            seen.append(l.item())
            return l

        torch.vmap(torch.func.grad(loss), (None, 0))(torch.ones(3), torch.ones(4, 3))
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB811"
    assert not diagnosis["fix"]["edits"]
    assert "has_aux" in diagnosis["fix"]["text"]


@pytest.mark.parametrize("call", ["loss.backward()", "x.requires_grad_()"])
def test_vmap_is_not_said_to_differentiate(call):
    report = told(
        f"""
        import torch

        net = torch.nn.Linear(3, 1)
        def f(x):
            loss = net(x).sum()
            {call}
            return loss

        torch.vmap(f)(torch.ones(4, 3))
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] in ("PB804", "PB805")
    assert "differentiate" not in diagnosis["cause"]
    assert "torch.func.grad" in diagnosis["fix"]["text"]


def test_missing_parameters_are_not_called_unknown():
    report = told(
        """
        import torch

        net = torch.nn.Linear(3, 1)
        torch.func.functional_call(net, {"weight": torch.ones(1, 3)}, torch.ones(3), strict=True)
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB818"
    assert "missing" in diagnosis["title"]


def test_what_a_function_given_to_pullback_returns_is_marked():
    report = told(
        """
        import torch
        import pullback as pb

        def energy(x):
            return float((x**2).sum())

        pb.jacobian(energy, torch.ones(3))
        """
    )
    assert codes(report) == ["PB001"]
    assert [each["line"] for each in report["diagnoses"][0]["lines"]] == [8, 6]


def test_where_the_graph_ends_is_marked():
    report = told(
        """
        import torch
        import pullback as pb

        net = torch.nn.Linear(2, 1)

        def predict(x):
            with torch.no_grad():
                return net(x)

        pb.backward(predict(torch.ones(3, 2)).mean())
        """
    )
    assert codes(report) == ["PB001"]
    assert {8, 9} <= {each["line"] for each in report["diagnoses"][0]["lines"]}


@pytest.mark.parametrize(("code", "made"), [("PB844", ", requires_grad=True"), ("PB846", ", dtype=torch.double")])
def test_the_input_of_gradcheck_is_marked(code, made):
    report = told(
        f"""
        import torch

        def check(f):
            x = torch.linspace(0.5, 1.5, 4{made})
            return torch.autograd.gradcheck(f, (x,))

        check(lambda t: t.exp() * t)
        """
    )
    assert codes(report) == [code]
    assert 5 in [each["line"] for each in report["diagnoses"][0]["lines"]]


@pytest.mark.parametrize("used", ["table(tokens).sum(0)", "weights[tokens].sum(0)"])
def test_indices_are_not_to_be_made_real(used):
    report = told(
        f"""
        import torch

        table, weights = torch.nn.Embedding(9, 2), torch.ones(9, 2)

        def f(tokens):
            return {used}

        torch.func.jacrev(f)(torch.tensor([1, 2]))
        """
    )
    assert codes(report) == ["PB803"]
    fix = report["diagnoses"][0]["fix"]
    assert not fix["edits"]
    assert ".float()" not in fix["code"]


def test_unlike_models_are_told_apart():
    report = told(
        """
        import torch

        def build(size):
            return torch.nn.Sequential(torch.nn.Linear(2, size), torch.nn.Tanh())

        ensemble = [build(size) for size in (4, 4, 8)]
        torch.func.stack_module_state(ensemble)
        """
    )
    assert codes(report) == ["PB838"]
    assert "ensemble[2]" in report["diagnoses"][0]["cause"]
    assert 7 in [each["line"] for each in report["diagnoses"][0]["lines"]]


def test_batch_normalization_is_named_under_grad_too():
    report = told("""
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        def loss(parameters, x):
            return torch.func.functional_call(net, parameters, (x,)).sum()
        torch.func.grad(loss)(dict(net.named_parameters()), torch.randn(8, 3))
    """)
    (found,) = report["diagnoses"]
    assert found["code"] == "PB829"
    assert found["fix"]["code"] == "torch.func.replace_all_batch_norm_modules_(net)"
