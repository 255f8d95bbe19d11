"""Complex functions: torch's convention, documented in ``Jacobian.matrix``, held against torch and differences."""

import pytest
import torch

import pullback as pb
from pullback.errors import StrategyError, ValueMismatch

A = torch.randn(2, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
Z = torch.randn(3, dtype=torch.complex128, generator=torch.Generator().manual_seed(2))
EPS = 1e-6


def general(z):
    return (A @ z) ** 2 + z.conj()[:2]


def holomorphic(z):
    return (A @ z) ** 2


def rows_of_torch(f, z):
    z = z.clone().requires_grad_()
    y = f(z)
    one = torch.ones((), dtype=y.dtype)
    return torch.stack([torch.autograd.grad(each, z, one, retain_graph=True)[0] for each in y])


@pytest.mark.parametrize("strategy", ["rows", "columns"])
@pytest.mark.parametrize("f", [general, holomorphic, lambda z: z.abs(), lambda z: torch.view_as_real(z)[:, 1]])
def test_row_i_is_what_torch_backward_gives(f, strategy):
    J = pb.jacobian(f, Z, strategy=strategy)
    expected = rows_of_torch(f, Z)
    torch.testing.assert_close(J.matrix(), expected)
    torch.testing.assert_close(J.rows(0), expected[0])
    torch.testing.assert_close(J.columns(1), expected[:, 1])


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_real_inputs_and_complex_outputs(strategy):
    x = torch.randn(3, dtype=torch.float64)
    J = pb.jacobian(lambda x: torch.exp(1j * x), x, strategy=strategy)
    assert J.matrix().dtype == torch.float64
    torch.testing.assert_close(J.matrix(), (-x.sin()).diag())
    torch.testing.assert_close(J @ torch.ones(3), 1j * torch.exp(1j * x))


def test_products_are_real_linear_and_adjoint():
    J = pb.jacobian(general, Z)
    v, u = torch.randn(3, dtype=torch.complex128), torch.randn(2, dtype=torch.complex128)
    difference = (general(Z + EPS * v) - general(Z - EPS * v)) / (2 * EPS)
    torch.testing.assert_close(J @ v, difference, rtol=1e-6, atol=1e-8)
    left = torch.vdot(u, J @ v).real
    right = torch.vdot(J.T @ u, v).real
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("strategy", ["rows", "columns"])
def test_holomorphic_gives_the_complex_derivative(strategy):
    J = pb.jacobian(holomorphic, Z, holomorphic=True, strategy=strategy)
    expected = 2 * (A @ Z)[:, None] * A
    v, u = torch.randn(3, dtype=torch.complex128), torch.randn(2, dtype=torch.complex128)
    torch.testing.assert_close(J.matrix(), expected)
    torch.testing.assert_close(J.rows([1, 0]), expected.flip(0))
    torch.testing.assert_close(J.columns([2]), expected[:, 2:])
    torch.testing.assert_close(J @ v, expected @ v)
    torch.testing.assert_close(J.T @ u, expected.mH @ u)
    torch.testing.assert_close(J.gram(), expected @ expected.mH)
    torch.testing.assert_close(J.norm(), torch.linalg.matrix_norm(expected, 2))
    torch.testing.assert_close(torch.from_numpy(J.to_scipy() @ v.numpy()), expected @ v)


def test_holomorphic_checks_the_cauchy_riemann_equations():
    with pytest.raises(ValueMismatch) as caught:
        pb.jacobian(general, Z, holomorphic=True).matrix()
    assert "Cauchy" in caught.value.what
    with pytest.raises(ValueMismatch, match="needs complex inputs and outputs"):
        pb.jacobian(torch.sin, torch.ones(3), holomorphic=True)


@pytest.mark.parametrize(
    "ask", [lambda J: J.gram(), lambda J: J.norm(), lambda J: J.singular_values(), lambda J: J.to_scipy()]
)
def test_what_needs_a_complex_matrix_says_so(ask):
    with pytest.raises(StrategyError) as caught:
        ask(pb.jacobian(general, Z))
    assert "holomorphic=True" in caught.value.fix


def test_jv_without_any_forward_pass():
    """A Function without jvp whose backward cannot be differentiated: Jv comes from the rows."""

    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z * (1 + 2j)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * (1 - 2j)

    J = pb.jacobian(Rotate.apply, Z)
    v = torch.randn(3, dtype=torch.complex128)
    with pytest.warns(pb.errors.PullbackWarning, match="reverse-over-reverse"):
        pushed = J @ v
    torch.testing.assert_close(pushed, v * (1 + 2j))
    assert any("no forward pass works" in note for note in J.plan().notes)
