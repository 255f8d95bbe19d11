"""Every example of the article that the project grew from, in its order and with its names; beside each, Pullback's.

What the article prints is asserted as it prints it. Two of its claims do not hold, and that is asserted too: the
custom loss prints ``tensor([2., 2.])``, and ``fast_jacobian`` raises.
"""

from __future__ import annotations

import pytest
import torch

import pullback as pb
from pullback.errors import GraphError, SeedError


def leaf(*values, **kwargs):
    return torch.tensor(*values, requires_grad=True, **kwargs)


# ------------------------------------------------------------------------------------ from the error to what it means


def test_the_famous_error():
    x = leaf([1.0, 2.0])
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        (x * 2).backward()
    with pytest.raises(SeedError, match="needs a seed: one weight for each element") as error:
        pb.backward(x * 2)
    for word in ('"ones"', '"mean"', "pb.seed.onehot(index)", "y.sum().backward()", "(2,)"):
        assert word in error.value.fix


def test_a_scalar_output():
    x = leaf(2.0)
    y = x**2 + 3 * x
    y.backward()
    assert str(x.grad) == "tensor(7.)"

    x = leaf(2.0)
    pb.backward(x**2 + 3 * x)
    assert str(x.grad) == "tensor(7.)"


def test_an_output_of_several_elements():
    x = leaf([1.0, 2.0])
    y = x * 2
    y.backward(torch.tensor([1.0, 1.0]))
    assert str(x.grad) == "tensor([2., 2.])"

    x = leaf([1.0, 2.0])
    pb.backward(x * 2, "ones")
    assert str(x.grad) == "tensor([2., 2.])"


# -------------------------------------------------------------------------------------------- how grad_tensors is used


def test_the_basic_pattern():
    torch.manual_seed(0)
    model, data = torch.nn.Linear(4, 2), torch.randn(3, 4)
    output = model(data)
    assert output.shape == (3, 2)
    output.backward(torch.ones_like(output))

    found = pb.grad(model(data), dict(model.named_parameters()), "ones")
    assert torch.equal(found["weight"], model.weight.grad)
    assert torch.equal(found["bias"], model.bias.grad)


def test_weights_for_the_elements():
    x = leaf([1.0, 2.0])
    y = x**2
    grad_weights = torch.tensor([0.1, 0.9])
    y.backward(grad_weights)
    assert str(x.grad) == "tensor([0.2000, 3.6000])"

    x = leaf([1.0, 2.0])
    pb.backward(x**2, grad_weights)
    assert str(x.grad) == "tensor([0.2000, 3.6000])"


def test_scenario_1_a_function_with_vector_values():
    x = leaf([1.0, 2.0])
    y = torch.stack([x[0] ** 2, x[1] ** 3])
    assert str(y.detach()) == "tensor([1., 8.])"
    y.backward(torch.tensor([1.0, 1.0]))
    assert str(x.grad) == "tensor([ 2., 12.])"

    assert str(pb.grad(torch.stack([x[0] ** 2, x[1] ** 3]), x, "ones")) == "tensor([ 2., 12.])"


def test_scenario_2_a_matrix_product():
    A = leaf([[1.0, 2.0], [3.0, 4.0]])
    B = torch.mm(A, A.t())
    B.backward(torch.ones_like(B))
    assert A.grad.tolist() == [[8.0, 12.0], [8.0, 12.0]]

    assert torch.equal(pb.grad(torch.mm(A, A.t()), A, "ones"), A.grad)


def test_scenario_3_a_loss_of_ones_own():
    def custom_loss(output, target):
        diff = output - target
        weights = torch.tensor([1.0, 0.5])
        return (diff**2) * weights

    output, target = leaf([2.0, 3.0]), torch.tensor([1.0, 1.0])
    custom_loss(output, target).sum().backward()
    # The article shows tensor([2.0000, 2.0000]): the values are right, the print is not.
    assert str(output.grad) == "tensor([2., 2.])"

    assert str(pb.grad(custom_loss(output, target), output, "ones")) == "tensor([2., 2.])"


# ---------------------------------------------------------------------------------------------------------- Jacobians


def func(x):
    return torch.stack([x[0] ** 2, x[1] ** 3])


def compute_jacobian(f, x):
    x = x.clone().requires_grad_(True)
    y = f(x)
    jacobian = torch.zeros(y.shape[0], x.shape[0])
    for i in range(y.shape[0]):
        if x.grad is not None:
            x.grad.zero_()
        grad_output = torch.zeros_like(y)
        grad_output[i] = 1.0
        y.backward(grad_output, retain_graph=True)
        jacobian[i] = x.grad
    return jacobian


def slow_jacobian(f, x):
    jac = torch.zeros(x.shape[0], x.shape[0])
    for i in range(x.shape[0]):
        x_grad = torch.zeros_like(x)
        x_grad[i] = 1.0
        y = f(x)
        y.backward(x_grad, retain_graph=True)
        jac[i] = x.grad
        x.grad.zero_()
    return jac


def fast_jacobian(f, x):
    x = x.clone().requires_grad_(True)
    y = f(x)
    jac = torch.autograd.grad(y, x, torch.eye(y.shape[0]), create_graph=True)
    return jac[0]


WANTED = "tensor([[ 4.,  0.],\n        [ 0., 27.]])"


def test_the_jacobian_row_by_row():
    x = torch.tensor([2.0, 3.0])
    assert str(compute_jacobian(func, x)) == WANTED

    assert str(pb.jacobian(func, x).dense()) == WANTED


def test_the_slow_jacobian_works_for_square_ones_only():
    x = leaf([2.0, 3.0])
    assert str(slow_jacobian(func, x)) == WANTED
    with pytest.raises(RuntimeError, match="does not require grad"):
        slow_jacobian(func, torch.tensor([2.0, 3.0]))

    def tall(x):
        return torch.stack([x[0], x[1], x[0] * x[1]])

    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        slow_jacobian(tall, x)

    assert pb.jacobian(tall, x).dense().tolist() == [[1.0, 0.0], [0.0, 1.0], [3.0, 2.0]]
    assert x.grad.tolist() == [0.0, 0.0]


def test_the_fast_jacobian_raises():
    x = torch.tensor([2.0, 3.0])
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        fast_jacobian(func, x)

    assert str(pb.jacobian(func, x).dense()) == WANTED
    x = x.requires_grad_()
    with pytest.raises(SeedError, match="2 seeds stacked here") as error:
        pb.grad(func(x), x, torch.eye(2))
    assert "pb.jacobian(f, x).dense()" in error.value.fix
    assert str(pb.jacobian_of(func(x), x).dense()) == WANTED


def test_what_the_fast_jacobian_asks_for_is_differentiable():
    x = leaf([2.0, 3.0])
    J = pb.jacobian(func, x, create_graph=True).dense()
    assert str(J.detach()) == WANTED
    assert J.requires_grad
    # d(2 x0)/dx0 = 2 and d(3 x1²)/dx1 = 6 x1
    assert torch.autograd.grad(J.sum(), x)[0].tolist() == [2.0, 18.0]


# ----------------------------------------------------------------------------------------------------------- pitfalls


def test_pitfall_1_the_shape():
    x = leaf([1.0, 2.0])
    y = x * 2
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.tensor([1.0]))
    with pytest.raises(SeedError) as error:
        pb.backward(y, torch.tensor([1.0]))
    assert error.value.got == "seed (1,), output (2,)"
    assert error.value.fix == "seed.expand(2), if every element is to have that weight"
    assert x.grad is None


def test_pitfall_2_retain_graph():
    x = leaf([1.0, 2.0])
    y = x**2
    y.backward(torch.tensor([1.0, 0.0]), retain_graph=True)
    assert str(x.grad) == "tensor([2., 0.])"
    x.grad.zero_()
    y.backward(torch.tensor([0.0, 1.0]))
    assert str(x.grad) == "tensor([0., 4.])"

    y = x**2
    assert str(pb.grad(y, x, pb.seed.onehot(0), retain_graph=True)) == "tensor([2., 0.])"
    assert str(pb.grad(y, x, pb.seed.onehot(1))) == "tensor([0., 4.])"
    with pytest.raises(GraphError, match="freed by an earlier backward pass"):
        pb.grad(y, x, pb.seed.onehot(0))


def test_debugging_by_the_grad_fn():
    x = leaf(3.0)
    y = x**2
    assert str(y.grad_fn).startswith("<PowBackward0 object at")

    with pytest.raises(SeedError, match=r"the output of shape \(\) \(PowBackward0\)"):
        pb.backward(y, torch.ones(3))


def test_memory_without_gradients():
    x = leaf([1.0, 2.0])
    with torch.no_grad():
        y = x**2
    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        y.backward(torch.ones(2))
    with pytest.raises(GraphError, match=r"carries no graph") as error:
        pb.backward(y, "ones")
    assert "torch.no_grad()" in error.value.fix


def test_memory_without_retaining_the_graph():
    x = leaf([1.0, 2.0])
    y = x**2
    y.backward(torch.tensor([1.0, 1.0]), retain_graph=False)
    assert x.grad.tolist() == [2.0, 4.0]

    pb.backward(x**2, "ones", retain_graph=False)
    assert x.grad.tolist() == [4.0, 8.0]


def test_mixed_precision():
    x = leaf([1.0, 2.0], dtype=torch.float16)
    y = x**2
    y.backward(torch.tensor([1.0, 1.0], dtype=torch.float16))
    assert str(x.grad) == "tensor([2., 4.], dtype=torch.float16)"

    # The article: the dtypes must match. A seed that float16 holds may come in any; one that it does not is refused.
    assert torch.equal(pb.grad(x**2, x, torch.tensor([1.0, 1.0])), x.grad)
    with pytest.raises(SeedError, match=r"overflows in torch\.float16"):
        pb.grad(x**2, x, torch.tensor([1e5, 1.0]))


# --------------------------------------------------------------------------------------------------- the bilinear layer


class BilinearLayer(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out_features, in_features, in_features))

    def forward(self, x):
        return torch.einsum("bi,oij,bj->bo", x, self.weight, x)


def test_the_bilinear_layer():
    layer = BilinearLayer(3, 2)
    x = torch.randn(4, 3, requires_grad=True)
    y = layer(x)
    y.backward(torch.ones_like(y))
    assert x.grad.shape == torch.Size([4, 3])
    assert layer.weight.grad.shape == torch.Size([2, 3, 3])

    found = pb.grad(layer(x), {"x": x, "weight": layer.weight}, "ones")
    assert torch.equal(found["x"], x.grad)
    assert torch.equal(found["weight"], layer.weight.grad)


def test_the_bilinear_layers_jacobians_are_the_closed_form():
    layer, x = BilinearLayer(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    weight = layer.weight.detach()

    # dy_bo/dx_bk = Σ_j (W_okj + W_ojk) x_bj, and nothing between different examples
    per_example = torch.einsum("okj,bj->bok", weight + weight.mT, x)
    blocks = pb.jacobian(layer, x).blocks()
    assert blocks.shape == (4, 2, 3)
    torch.testing.assert_close(blocks, per_example)
    dense = pb.jacobian(layer, x).dense()
    torch.testing.assert_close(dense, torch.einsum("bok,bc->bock", per_example, torch.eye(4, dtype=torch.float64)))

    # dy_bo/dW_pij = δ_op x_bi x_bj
    by_weight = pb.jacobian(layer, x, wrt="parameters").dense()["weight"]
    assert by_weight.shape == (4, 2, 2, 3, 3)
    closed = torch.einsum("op,bi,bj->bopij", torch.eye(2, dtype=torch.float64), x, x)
    torch.testing.assert_close(by_weight, closed)

    seed = torch.randn(4, 2, dtype=torch.float64)
    x = x.requires_grad_()
    torch.testing.assert_close(pb.grad(layer(x), x, seed), torch.einsum("bo,bok->bk", seed, per_example))
