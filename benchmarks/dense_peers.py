"""Every way that PyTorch and its libraries offer to the derivatives of a dense problem.

A way is made first (extending a model, finding a module), which is not timed, and called then, which is.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, hessian, jacfwd, jacrev, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.dense_problems import Case, Function, Want, rows

Call = Callable[[], Any]
Make = Callable[[], Call]
CHUNK = 256
functional = torch.autograd.functional


def ready(call: Call) -> Make:
    """A way that needs no making."""
    return lambda: call


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def import_all() -> None:
    """Import the libraries that are installed, so that none is imported while another is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("torchjd.autojac", "torchjd.autogram", "backpack.extensions", "asdl"):
            if installed(module.split(".")[0]):
                importlib.import_module(module)


def identity(size: int, x: Tensor) -> Tensor:
    return torch.eye(size, dtype=x.dtype, device=x.device)


def leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def batched_rows(y: Tensor, inputs: list[Tensor], seeds: Tensor | None = None) -> tuple[Tensor, ...]:
    """All rows at once, as ``torch.autograd.grad`` batches them."""
    if seeds is None:
        seeds = identity(y.numel(), y).view(y.numel(), *y.shape)
    return torch.autograd.grad(y, inputs, seeds, is_grads_batched=True)


def mapped_rows(y: Tensor, inputs: list[Tensor], seeds: Tensor | None = None) -> tuple[Tensor, ...]:
    """All rows at once, as vmap batches ``torch.autograd.grad``."""
    if seeds is None:
        seeds = identity(y.numel(), y).view(y.numel(), *y.shape)
    found: tuple[Tensor, ...] = vmap(lambda seed: torch.autograd.grad(y, inputs, seed, retain_graph=True))(seeds)
    return found


def replicated(f: Function, x: Tensor, m: int) -> Tensor:
    """As many copies of the input as there are outputs, in one batch, and one reverse pass through them."""
    one = x[0] if len(x) == 1 else x
    copies = one.expand(m, *one.shape).clone().requires_grad_()
    y = f(copies).reshape(m, m)
    return torch.autograd.grad(y, copies, identity(m, x))[0]


def math_attention(call: Call) -> Call:
    """A call with attention that is no fused operation."""

    def inside() -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return call()

    return inside


def forward_passes(f: Function, x: Tensor) -> Tensor:
    """One forward pass for each input element, one after the other."""
    tangents = identity(x.numel(), x)
    return torch.stack([torch.func.jvp(f, (x,), (tangent.view_as(x),))[1] for tangent in tangents], -1)


def whole(case: Case) -> dict[str, Make]:
    """Every entry of one Jacobian."""
    f, x = case.f, case.x
    m = f(x).numel()
    ways = {
        "func.jacrev": lambda: jacrev(f)(x),
        f"func.jacrev, chunk_size={CHUNK}": lambda: jacrev(f, chunk_size=CHUNK)(x),
        "func.jacfwd": lambda: jacfwd(f)(x),
        "functional.jacobian": lambda: functional.jacobian(f, x),
        "functional.jacobian, vectorize": lambda: functional.jacobian(f, x, vectorize=True),
        "autograd.grad, is_grads_batched": lambda: batched_rows(f(at := leaf(x)), [at]),
        "vmap(autograd.grad)": lambda: mapped_rows(f(at := leaf(x)), [at]),
        "a loop over rows": lambda: rows(f(at := leaf(x)), [at]),
    }
    if m <= CHUNK:
        del ways[f"func.jacrev, chunk_size={CHUNK}"]
    if x.numel() <= 8:
        ways["a forward pass for each input"] = lambda: forward_passes(f, x)
    if case.model is not None:
        ways["the input replicated, one reverse pass"] = lambda: replicated(f, x, m)
    if any(name.startswith("qkv") for name in case.numbers):
        attention = {f"func.jacrev, chunk_size={CHUNK}", "func.jacrev", "func.jacfwd"} & set(ways)
        ways |= {f"{name}, math attention": math_attention(ways[name]) for name in sorted(attention)}
    return {name: ready(call) for name, call in ways.items()} | torchjd_rows(lambda: (f(at := leaf(x)), [at]))


def examples(case: Case) -> dict[str, Make]:
    """One small Jacobian for each example."""
    f, x = case.f, case.x

    def summed(x: Tensor) -> Tensor:
        return f(x).sum(0)

    def seeds(y: Tensor) -> Tensor:
        return identity(y.shape[1], y)[:, None].expand(-1, *y.shape)

    def loop() -> Tensor:
        y = summed(at := leaf(x))
        return torch.stack([torch.autograd.grad(y[j], at, retain_graph=True)[0] for j in range(len(y))], 1)

    ways: dict[str, Call] = {
        "vmap(jacrev)": lambda: vmap(jacrev(f))(x),
        "vmap(jacfwd)": lambda: vmap(jacfwd(f))(x),
        "func.jacrev of the sum": lambda: jacrev(summed)(x).transpose(0, 1),
        "functional.jacobian of the sum": lambda: functional.jacobian(summed, x).transpose(0, 1),
        "functional.jacobian of the sum, vectorize": lambda: functional.jacobian(summed, x, vectorize=True).transpose(
            0, 1
        ),
        "autograd.grad, is_grads_batched": lambda: batched_rows(y := f(at := leaf(x)), [at], seeds(y))[0].transpose(
            0, 1
        ),
        "a loop over the outputs": loop,
    }
    made = {name: ready(call) for name, call in ways.items()}
    if installed("torchjd"):

        def torchjd() -> Call:
            from torchjd.autojac import jac

            return lambda: jac(y := f(at := leaf(x)), at, jac_outputs=seeds(y))[0].transpose(0, 1)

        made["TorchJD jac, jac_outputs"] = torchjd
    return made


def parameters(case: Case) -> dict[str, Make]:
    """Every entry of a Jacobian by a model's parameters, in a block for each of them."""
    model, x = case.model, case.x
    assert model is not None
    named = case.parameters
    values, constants = list(named.values()), {name: each.detach() for name, each in named.items()}

    def at(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (x,))

    def of_one(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(model, parameters, (one[None],))[0]

    def positional(*each: Tensor) -> Tensor:
        return at(dict(zip(named, each, strict=True)))

    ways: dict[str, Call] = {
        "func.jacrev": lambda: jacrev(at)(constants),
        f"func.jacrev, chunk_size={CHUNK}": lambda: jacrev(at, chunk_size=CHUNK)(constants),
        "vmap(jacrev)": lambda: vmap(jacrev(of_one), (None, 0))(constants, x),
        "functional.jacobian": lambda: functional.jacobian(positional, tuple(constants.values())),
        "functional.jacobian, vectorize": lambda: functional.jacobian(
            positional, tuple(constants.values()), vectorize=True
        ),
        "autograd.grad, is_grads_batched": lambda: batched_rows(model(x), values),
        "vmap(autograd.grad)": lambda: mapped_rows(model(x), values),
        "a loop over rows": lambda: rows(model(x), values),
    }
    if model(x).numel() <= CHUNK:
        del ways[f"func.jacrev, chunk_size={CHUNK}"]
    if len(x) == 1:
        del ways["vmap(jacrev)"]
    made = {name: ready(call) for name, call in ways.items()} | torchjd_rows(lambda: (model(x), values))
    if len(x) > 1 and installed("backpack"):
        made["BackPACK BatchGrad, once for each output"] = lambda: backpack_rows(case)
    if len(x) > 1 and installed("asdl"):
        made["ASDL jacobian"] = lambda: asdl_jacobian(case)
        made["ASDL batch_gradient, once for each output"] = lambda: asdl_rows(case)
    return made


def torchjd_rows(outputs: Callable[[], tuple[Tensor, list[Tensor]]]) -> dict[str, Make]:
    """TorchJD's Jacobian of outputs by inputs, all rows at once."""

    def make() -> Call:
        from torchjd.autojac import jac

        return lambda: jac(*outputs())

    return {"TorchJD jac": make} if installed("torchjd") else {}


def backpack_rows(case: Case) -> Call:
    """BackPACK's gradients of each example, for one output after the other."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    model = extend(copy.deepcopy(case.model))
    values = list(model.parameters())

    def call() -> list[Tensor]:
        y = model(case.x)
        found = []
        for j in range(y.shape[1]):
            with backpack(BatchGrad(), retain_graph=True):
                torch.autograd.grad(y[:, j].sum(), values, retain_graph=True)
            found.append([each.grad_batch for each in values])
        return [torch.stack(each, 1) for each in zip(*found, strict=True)]

    return call


def asdl_jacobian(case: Case) -> Call:
    import asdl

    model = copy.deepcopy(case.model)
    return lambda: asdl.jacobian(model, case.x)


def asdl_rows(case: Case) -> Call:
    """ASDL's gradients of each example, for one output after the other."""
    from asdl.gradient import batch_gradient

    model = copy.deepcopy(case.model)
    assert model is not None
    outputs = model(case.x).shape[1]

    def gradient(j: int) -> Tensor:
        def closure() -> Tensor:
            model.zero_grad()
            y: Tensor = model(case.x)
            y[:, j].sum().backward()
            return y

        found: Tensor = batch_gradient(model, closure)
        return found

    return lambda: torch.stack([gradient(j) for j in range(outputs)], 1)


def gram(case: Case) -> dict[str, Make]:
    """J Jᵀ, J being by a model's parameters."""
    model, x = case.model, case.x
    assert model is not None
    values = list(case.parameters.values())
    constants = {name: each.detach() for name, each in case.parameters.items()}

    def of_one(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(model, parameters, (one[None],))[0]

    def blocks() -> list[Tensor]:
        return [each.flatten(2).flatten(0, 1) for each in vmap(jacrev(of_one), (None, 0))(constants, x).values()]

    def of_rows(found: tuple[Tensor, ...]) -> Tensor:
        J = torch.cat([each.flatten(1) for each in found], 1)
        return J @ J.T

    def contracted() -> Tensor:
        """The sum over parameters, as PyTorch's tutorial on neural tangent kernels has it."""
        J = [each.flatten(2) for each in vmap(jacrev(of_one), (None, 0))(constants, x).values()]
        return torch.stack([torch.einsum("Naf,Mbf->NaMb", each, each) for each in J]).sum(0)

    def products() -> Tensor:
        return sum(each @ each.T for each in blocks())  # type: ignore[return-value]

    made: dict[str, Make] = {
        "vmap(jacrev), then J Jᵀ": ready(lambda: (J := torch.cat(blocks(), 1)) @ J.T),
        "vmap(jacrev), then J Jᵀ for each parameter": ready(products),
        "PyTorch's tutorial: vmap(jacrev), einsum": ready(contracted),
        "autograd.grad, is_grads_batched, then J Jᵀ": ready(lambda: of_rows(batched_rows(model(x), values))),
    }
    if installed("torchjd"):
        made["TorchJD autogram, batch_dim=0"] = lambda: autogram(case, 0)
        made["TorchJD autogram, batch_dim=None"] = lambda: autogram(case, None)
        made["TorchJD jac, then J Jᵀ"] = lambda: torchjd_gram(case)
    if installed("asdl"):
        made["ASDL empirical_implicit_ntk"] = lambda: asdl_kernel(case, "empirical_implicit_ntk")
        made["ASDL empirical_direct_ntk"] = lambda: asdl_kernel(case, "empirical_direct_ntk")
    return made


def autogram(case: Case, batch_dim: int | None) -> Call:
    """TorchJD's engine, which hooks the modules of a model."""
    from torchjd.autogram import Engine

    model = copy.deepcopy(case.model)
    assert model is not None
    engine = Engine(model, batch_dim=batch_dim)
    return lambda: engine.compute_gramian(model(case.x).flatten() if batch_dim is None else model(case.x))


def torchjd_gram(case: Case) -> Call:
    from torchjd.autojac import jac

    def call() -> Tensor:
        J = torch.cat([each.flatten(1) for each in jac(case.f(case.x), list(case.parameters.values()))], 1)
        return J @ J.T

    return call


def asdl_kernel(case: Case, name: str) -> Call:
    """One of ASDL's kernels, as a matrix in the order of the outputs."""
    import asdl

    model, kernel = copy.deepcopy(case.model), getattr(asdl, name)
    return lambda: kernel(model, case.x).detach().permute(0, 2, 1, 3).flatten(2).flatten(0, 1)


def second(case: Case) -> dict[str, Make]:
    """Every second derivative."""
    f, x = case.f, case.x

    def gradient() -> tuple[Tensor, Tensor]:
        at = leaf(x)
        return torch.autograd.grad(f(at), at, create_graph=True)[0], at

    def by_rows(way: Callable[[Tensor, list[Tensor]], Any]) -> Any:
        g, at = gradient()
        return way(g, [at])

    def graph() -> Tensor:
        """One linearisation of the gradient, and all rows through it."""
        _, pull = vjp(torch.func.grad(f), x)
        (found,) = vmap(pull)(identity(x.numel(), x))
        return found

    ways: dict[str, Call] = {
        "func.hessian": lambda: hessian(f)(x),
        "jacrev(jacrev)": lambda: jacrev(jacrev(f))(x),
        "jacrev(grad)": lambda: jacrev(torch.func.grad(f))(x),
        "jacrev(grad), chunk_size=64": lambda: jacrev(torch.func.grad(f), chunk_size=64)(x),
        "vmap of the gradient's vjp": graph,
        "vmap(autograd.grad) of the gradient": lambda: by_rows(mapped_rows),
        "functional.hessian": lambda: functional.hessian(f, x),
        "functional.hessian, vectorize": lambda: functional.hessian(f, x, vectorize=True),
        "functional.hessian, vectorize, forward over reverse": lambda: functional.hessian(
            f, x, vectorize=True, outer_jacobian_strategy="forward-mode"
        ),
        "autograd.grad, is_grads_batched": lambda: by_rows(batched_rows),
        "a loop over rows": lambda: by_rows(rows),
    }
    return {name: ready(call) for name, call in ways.items()}


ALL: dict[Want, Callable[[Case], dict[str, Make]]] = {
    "whole": whole,
    "examples": examples,
    "parameters": parameters,
    "gram": gram,
    "hessian": second,
}
