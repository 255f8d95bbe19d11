"""Custom Functions and hooks: the cause, the line of it, and edits after which the program runs."""

import pytest

from pullback.diagnose.values import Edit, applied
from tests.diagnose.harness import told

FUNCTION = """
import torch
from torch.autograd import Function

class Scale(Function):
    @staticmethod
    def forward(ctx, x, k):
        {forward}

    @staticmethod
    def backward(ctx, g):
        {backward}

def loss(x):
    return Scale.apply(x, 3.0).sum()

x = torch.ones(4, requires_grad=True)
loss(x).backward()
assert x.grad.eq(3).all()
"""

FUNCTIONS = [
    ("PB701", "ctx.k = k; return x * k", "return g * ctx.k, g.sum()"),
    ("PB703", "ctx.k = k; return x * k", "return g * ctx.k"),
    ("PB704", "ctx.k = k; return x * k", "return (g * ctx.k).numpy(), None"),
    ("PB707", "ctx.save_for_backward(x, k); return x * k", "x, k = ctx.saved_tensors; return g * k, None"),
    ("PB717", "return x * k", "return g * ctx.k, None"),
    ("PB717", "ctx.factor = k; return x * k", "return g * ctx.facto, None"),
]

HOOK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def edit(self, g):
        {hook}

    def forward(self, x):
        out = self.layer(x)
        out.register_hook(self.edit)
        return out

net = Net()
net(torch.ones(1, 3)).sum().backward()
assert net.layer.bias.grad is not None
"""

HOOKS = [
    ("PB731", "return g.mean()"),
    ("PB732", "return g.double() * 2"),
    ("PB733", "return float(g.norm())"),
    ("PB734", "g *= 2; return g"),
]


def mended(report, file, folder):
    """The program after the edits of its diagnosis, run."""
    edits = [Edit(**{**each, "file": str(file)}) for each in report["diagnoses"][0]["fix"]["edits"]]
    assert edits
    new = folder / "mended.py"
    new.write_text(applied(edits, str(file)))
    return told(new)


@pytest.mark.parametrize("level", ["default", "trace"])
@pytest.mark.parametrize(("code", "forward", "backward"), FUNCTIONS)
def test_a_function_is_mended(code, forward, backward, level, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(FUNCTION.format(forward=forward, backward=backward))
    report = told(file, level)
    assert [each["code"] for each in report["diagnoses"]] == [code]
    assert any(each["line"] in (8, 12) for each in report["diagnoses"][0]["lines"])
    assert mended(report, file, tmp_path)["error"] is None


@pytest.mark.parametrize(("code", "hook"), HOOKS)
def test_a_hook_is_mended(code, hook, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(HOOK.format(hook=hook))
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == [code]
    assert {10, 14} <= {each["line"] for each in report["diagnoses"][0]["lines"]}
    assert mended(report, file, tmp_path)["error"] is None


def test_the_gradient_is_counted_among_the_tensors():
    report = told(
        """
        import torch

        class Mix(torch.autograd.Function):
            @staticmethod
            def forward(ctx, mode, fixed, w):
                ctx.save_for_backward(fixed, w)
                return fixed @ w

            @staticmethod
            def backward(ctx, g):
                fixed, w = ctx.saved_tensors
                return None, None, g.t() @ fixed

        w = torch.randn(3, 2, requires_grad=True)
        Mix.apply("plain", torch.randn(4, 3), w).sum().backward()
        """
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB702"
    assert "for w" in diagnosis["cause"]
    assert "fixed.t() @ g" in diagnosis["fix"]["code"] or "fixed.T @ g" in diagnosis["fix"]["code"]


def test_an_error_of_another_kind_in_backward_is_not_certain():
    report = told(FUNCTION.format(forward="ctx.k = k; return x * k", backward="return g @ g.T.nothing"))
    assert [(each["code"], each["confidence"]) for each in report["diagnoses"]] == [("PB720", "medium")]


ADJOINT = """
import torch

net = torch.nn.Linear(3, 3)

class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x)
        with torch.no_grad():
            return net(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        h = net(x)
        y = h * 1.0
        return torch.autograd.grad(y, (x, *net.parameters()), g)

x = torch.ones(2, 3, requires_grad=True)
Adjoint.apply(x, *net.parameters()).sum().backward()
assert net.bias.grad.eq(2).all()
"""


@pytest.mark.parametrize("level", ["default", "trace"])
def test_grad_mode_is_off_in_a_backward(level, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(ADJOINT)
    report = told(file, level)
    assert [each["code"] for each in report["diagnoses"]] == ["PB723"]
    assert {18, 19} <= {each["line"] for each in report["diagnoses"][0]["lines"]}
    assert mended(report, file, tmp_path)["error"] is None


def test_a_list_of_outputs_is_no_tuple(tmp_path):
    file = tmp_path / "program.py"
    text = FUNCTION.format(forward="ctx.k = k; return [x * k]", backward="return g * ctx.k, None")
    file.write_text(text.replace(".apply(x, 3.0)", ".apply(x, 3.0)[0]"))
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == ["PB724"]
    assert mended(report, file, tmp_path)["error"] is None


def test_a_misspelt_backward_is_seen(tmp_path):
    file = tmp_path / "program.py"
    text = FUNCTION.format(forward="ctx.k = k; return x * k", backward="return g * ctx.k, None")
    file.write_text(text.replace("def backward", "def backwards"))
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == ["PB713"]
    assert mended(report, file, tmp_path)["error"] is None


def test_a_frozen_parameter_stays_frozen(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import torch\nnet = torch.nn.Linear(2, 1)\nnet.weight.requires_grad_(False)\n"
        "for p in net.parameters():\n    p.register_hook(lambda g: g * 2)\nnet(torch.ones(1, 2)).sum().backward()\n"
        "assert net.bias.grad.item() == 2 and net.weight.grad is None\n"
    )
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == ["PB730"]
    assert mended(report, file, tmp_path)["error"] is None


def test_a_hook_goes_to_the_parameter_behind_a_parametrization(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import torch\nnet = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 1))\n"
        "seen = []\nnet.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))\n"
        "net(torch.ones(1, 2)).sum().backward()\nassert len(seen) == 1\n"
    )
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == ["PB735"]
    assert mended(report, file, tmp_path)["error"] is None


ONCE = """
import torch
from torch.autograd.function import once_differentiable

class Soft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp().log1p()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sigmoid()

w = torch.randn(3, 2, requires_grad=True)
loss = Soft.apply(torch.ones(4, 3) @ w).pow(2).mean()
(g,) = torch.autograd.grad(loss, w, create_graph=True)
dot = (g * torch.randn_like(w)).sum()
torch.autograd.grad(dot, w)
"""


@pytest.mark.parametrize("level", ["default", "trace"])
def test_a_gradient_cut_by_once_differentiable_is_not_called_unused(level, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(ONCE)
    report = told(file, level)
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB320"
    assert 12 in [each["line"] for each in diagnosis["lines"]]
    assert mended(report, file, tmp_path)["error"] is None


@pytest.mark.parametrize("product", ["g @ w.T", "w @ g"])
def test_the_sides_of_a_product_are_turned(product, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        f"""
import torch

class Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return {product}, g.T @ x

x, w = torch.randn(8, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
Dense.apply(x, w).sum().backward()
"""
    )
    report = told(file)
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB720"
    assert "g @ w" in diagnosis["fix"]["code"]
    assert diagnosis["fix"]["confidence"] == "high"
    assert mended(report, file, tmp_path)["error"] is None


def test_a_key_that_is_missing_in_a_hook(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        HOOK.format(hook="self.seen['out'].append(g.mean())").replace(
            "        self.layer", "        self.seen = {}\n        self.layer"
        )
    )
    report = told(file)
    assert [each["code"] for each in report["diagnoses"]] == ["PB741"]
    assert "setdefault('out', [])" in report["diagnoses"][0]["fix"]["code"]
    assert mended(report, file, tmp_path)["error"] is None


def test_a_key_that_is_missing_in_a_backward():
    report = told(
        FUNCTION.format(forward="ctx.kept = {'scale': k}; return x * k", backward="return g * ctx.kept['scal'], None")
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB720"
    assert "ctx.kept['scale']" in diagnosis["fix"]["code"]


@pytest.mark.parametrize("level", ["default", "trace"])
def test_the_saved_output_of_a_function_has_its_name(level):
    report = told(
        """
        import torch

        class Bend(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                bent = torch.tanh(x)
                ctx.save_for_backward(bent)
                return bent

            @staticmethod
            def backward(ctx, g):
                (bent,) = ctx.saved_tensors
                return g * (1 - bent**2)

        def block(x):
            h = Bend.apply(x * 2)
            h += x
            return h

        block(torch.ones(3, requires_grad=True)).sum().backward()
        """,
        level,
    )
    (diagnosis,) = report["diagnoses"]
    assert diagnosis["code"] == "PB401"
    assert "tensors[0]" not in str(diagnosis)
    assert "Bend kept" in diagnosis["cause"]


WRITES = {
    "method": ("h.data.mul_(5)", "h = h.mul(5)"),
    "operator": ("h.data *= 5", "h = h.clone()\nh *= 5"),
    "items": ("h.data[0] = 5", "h = h.clone()\nh[0] = 5"),
    "after the last use": ("loss.backward(); h.data.mul_(5); loss = x.sum()", None),
    "of what nobody keeps": ("k = h + 1; k.data.mul_(5)", None),
    "its own clone": ("h.data.clone().mul_(5)", None),
}


@pytest.mark.parametrize("how", WRITES)
def test_writes_through_data_are_found_where_the_backward_needs_what_was_there(how):
    written, code = WRITES[how]
    report = told(
        "import torch\nx = torch.tensor([2.0], requires_grad=True)\nh = x * 1\nloss = (h ** 2).sum()\n"
        f"{written}\nloss.backward()\n",
        "audit",
    )
    assert not report["trouble"]
    found = [(each["code"], each["lines"][0]["line"], each["fix"]["code"]) for each in report["findings"]]
    assert [each for each in found if each[0] == "PBA519"] == ([("PBA519", 5, code)] if code else [])
