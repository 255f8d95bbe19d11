"""Rules of reductions, gathers, products, convolutions and windows, against Jacobians computed row by row.

A pattern must hold every entry that is nonzero anywhere; where a case says so, no other.
"""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F  # noqa: N812

from pullback.autodiff.program import Recorder, as_views
from pullback.sparsity.detect import Trust, Walk, varying_storages
from pullback.sparsity.factor import factors
from pullback.sparsity.sets import Root, Sets, Term, entries, union

DOUBLE = torch.float64


def recorded(f, x, side="reverse", seed=None):
    """The program of one pass through f at x."""
    recorder = Recorder(side)
    program = recorder.program
    leaf = x.detach().clone().requires_grad_(side == "reverse")
    program.points = (recorder.view(leaf),)
    if side == "forward":
        seed = torch.ones_like(x)
        program.seeds = (recorder.view(seed),)
        program.captured.clear()
        with forward_ad.dual_level(), recorder:
            answer = forward_ad.unpack_dual(f(forward_ad.make_dual(leaf, seed))).tangent
    else:
        seed = torch.ones_like(f(x)) if seed is None else seed
        program.seeds = (recorder.view(seed),)
        program.captured.clear()
        with recorder:
            (answer,) = torch.autograd.grad(f(leaf), leaf, seed, allow_unused=True)
    program.answers = as_views(recorder, [answer])
    program.sizes_of_answers = (x.numel(),)
    return program, answer


def trusting(program, *, local=False):
    return Trust(local, varying_storages(program, lambda _, tensor: not tensor.requires_grad))


def walked(f, x, side="reverse", *, local=False):
    """The pattern ``(outputs, inputs)`` and the walk."""
    program, _ = recorded(f, x, side)
    walk = Walk(program, trusting(program, local=local))
    walk.run()
    answer = program.answers[0]
    found = (walk.memory.read(answer) if answer is not None else None) or Sets(tuple(x.shape), ())
    pattern = found.matrix().toarray()
    if not found.terms:
        pattern = np.zeros((found.numel, walk.root.size), dtype=bool)
    return (pattern.T if side == "reverse" else pattern), walk


def nonzeros(f, x):
    jacobian = torch.autograd.functional.jacobian(f, x)
    return (jacobian.reshape(-1, x.numel()) != 0).numpy()


def points(shape, count=3):
    return [torch.randn(shape, dtype=DOUBLE) for _ in range(count)]


def check(f, shape, side="reverse", *, exact=True, guarded=False):
    places = points(shape)
    everywhere = np.logical_or.reduce([nonzeros(f, x) for x in places])
    for x in places[:2]:
        pattern, walk = walked(f, x, side)
        true = nonzeros(f, x) if guarded else everywhere
        assert not walk.unknown
        assert not (true & ~pattern).any()
        if exact:
            assert not (pattern & ~true).any()
    check_local(f, places[0], side)


def check_local(f, x, side):
    """At one point all numbers may be relied on."""
    pattern, _ = walked(f, x, side, local=True)
    assert not (nonzeros(f, x) & ~pattern).any()


def parameter(*shape):
    return torch.randn(shape, dtype=DOUBLE, requires_grad=True)


def weights(*shape):
    """Numbers that are constants, without zeros."""
    return torch.randn(shape, dtype=DOUBLE)


def some_zeros(*shape):
    count = torch.Size(shape).numel()
    return weights(*shape) * (torch.arange(count) % 7 < 3).reshape(shape)


REDUCTIONS = {
    "sum": (lambda x: (x**2).sum(), (3, 4)),
    "sum of one dimension": (lambda x: (x**2).sum(1), (3, 4, 2)),
    "sum of two, kept": (lambda x: (x**2).sum((0, 2), keepdim=True) * x, (3, 4, 2)),
    "mean": (lambda x: x.sin().mean(), (3, 4)),
    "mean of one dimension": (lambda x: x.sin().mean(0) * x, (3, 4)),
    "sum of one element": (lambda x: x.sin().sum(-1), (4, 1)),
    "nansum": (lambda x: (x**2).nansum(0), (3, 4)),
    "variance": (lambda x: x.var(1), (3, 4)),
    "deviation": (lambda x: x.std((0, 1)), (3, 4)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (3, 4)),
    "three-norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=0), (3, 4)),
    "logsumexp": (lambda x: x.logsumexp(0), (3, 4)),
    "product": (lambda x: x.prod(1), (3, 4)),
    "trace": (lambda x: (x**2).trace(), (3, 4)),
    "broadcast": (lambda x: x * x[:1] * x[:, :1], (3, 4)),
    "centred": (lambda x: x - x.mean(1, keepdim=True), (3, 4)),
    "amax": (lambda x: x.amax(1), (3, 4)),
    "max": (lambda x: x.max(1).values, (3, 4)),
    "max of all": (lambda x: x.max(), (3, 4)),
    "sort": (lambda x: x.sort(1).values, (6, 3)),
    "topk": (lambda x: x.topk(2, 0).values, (3, 4)),
    "softmax": (lambda x: x.softmax(1), (3, 4)),
}
SCANS = {
    "cumsum": (lambda x: x.sin().cumsum(1), (3, 4)),
    "cumsum of the first": (lambda x: x.sin().cumsum(0), (3, 4)),
    "cumprod": (lambda x: x.cumprod(1), (3, 4)),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (3, 4)),
    "cumulative trapezoid": (lambda x: torch.cumulative_trapezoid(x**2), (5,)),
}
ZEROS34 = torch.zeros(3, 4, dtype=DOUBLE)
ROWS = torch.tensor([2, 0, 2, 1])
MASK = torch.tensor([[True, False, True, False], [False, False, False, True], [True, True, False, False]])
PICKS = torch.tensor([[0, 3], [1, 1], [2, 0]])
SCATTERS = {
    "index": (lambda x: x[ROWS] ** 2, (3, 4)),
    "index of two": (lambda x: x[ROWS, torch.tensor([0, 1, 2, 3])] ** 2, (3, 4)),
    "index with a slice between": (lambda x: x[ROWS, :, torch.tensor([0, 1, 1, 0])] ** 2, (3, 4, 2)),
    "index of the last": (lambda x: x[..., ROWS].sin(), (2, 3)),
    "mask": (lambda x: x[MASK] ** 2, (3, 4)),
    "masked_select": (lambda x: x.masked_select(MASK) ** 2, (3, 4)),
    "gather": (lambda x: x.gather(1, PICKS) ** 2, (3, 4)),
    "take": (lambda x: x.take(torch.tensor([5, 5, 0])) ** 2, (3, 4)),
    "index_select": (lambda x: x.index_select(1, ROWS) ** 2, (2, 3)),
    "embedding": (lambda x: F.embedding(torch.tensor([[0, 2], [2, 1]]), x) ** 2, (4, 3)),
    "embedding with padding": (lambda x: F.embedding(torch.tensor([[0, 2], [2, 1]]), x, padding_idx=2) ** 2, (4, 3)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, PICKS, 1) ** 2, (3, 4)),
    "unfold": (lambda x: x.unfold(1, 3, 2).sin(), (2, 9)),
    "index_put": (lambda x: torch.zeros(4, 4, dtype=DOUBLE).index_put((ROWS[:3] + 1,), x**2), (3, 4)),
    "index_put, added": (lambda x: x.index_put((ROWS,), x[:1] ** 2, accumulate=True), (3, 4)),
    "scatter": (lambda x: x.scatter(1, PICKS[:, :1], x[:, 2:3] ** 2), (3, 4)),
    "scatter of a number": (lambda x: x.sin().scatter(1, PICKS[:, :1], 2.0), (3, 4)),
    "scatter_add": (lambda x: ZEROS34.scatter_add(1, PICKS, x[:, :2].sin()), (3, 4)),
    "scatter_reduce": (lambda x: x.scatter_reduce(1, PICKS, x[:, 2:].sin(), "sum"), (3, 4)),
    "index_add": (lambda x: x.index_add(0, ROWS, x[:1].sin().expand(4, 4), alpha=2), (3, 4)),
    "index_copy": (lambda x: x.index_copy(0, ROWS[:2], x[1:].sin()), (3, 4)),
    "index_fill": (lambda x: x.sin().index_fill(0, ROWS[:2], 0.0), (3, 4)),
    "index_fill by a tensor": (lambda x: x.sin().index_fill(0, ROWS[:2], x[1, 1]), (3, 4)),
    "put": (lambda x: x.put(torch.tensor([3, 1]), x[0, :2].sin()), (3, 4)),
    "masked_scatter": (lambda x: x.masked_scatter(MASK, x.sin().reshape(-1)), (3, 4)),
    "masked_fill by a tensor": (lambda x: x.masked_fill(MASK, x[0, 0] ** 2), (3, 4)),
    "index assigned": (lambda x: _assigned(x), (3, 4)),
    "sampled rows": (lambda x: x[x.detach().abs().argmax(0)].sin(), (4, 3)),
    "sampled elements": (lambda x: x.gather(1, x.detach().argsort(1)).sin(), (9, 3)),
    "nearest rows": (lambda x: x.index_select(0, x.detach()[:, 0].argsort()).sin(), (3, 2)),
    "sampled embedding": (lambda x: F.embedding(x.detach()[:, 0].argsort(), x).sin(), (3, 2)),
    "sampled sums": (
        lambda x: torch.zeros(3, 2, dtype=DOUBLE).index_add(0, x.detach()[:, 0].argsort(), x.sin()),
        (3, 2),
    ),
    "positive elements": (lambda x: x.new_zeros(3, 4).masked_scatter(x > 0, x.sin()), (3, 4)),
}
# Where the chosen elements, or a case of the derivative, depend on x: three points have not seen all of them.
SAMPLED = {
    "cumprod", "max", "max of all", "amax", "sort", "topk", "sampled rows", "sampled elements", "nearest rows",
    "sampled embedding",
    "sampled sums", "positive elements",
}  # fmt: skip


def _assigned(x):
    y = x.clone()
    y[1:, ROWS[:1]] = x[:2, :1] ** 2
    y[0] = 3.0
    return y


A, B3, V = parameter(4, 5), parameter(2, 4, 5), parameter(4)
SPARSE, SPARSE3 = some_zeros(4, 5), some_zeros(2, 4, 5)
CONTRACTIONS = {
    "mm": (lambda x: x @ A, (3, 4)),
    "mm from the left": (lambda x: A.T @ x, (4, 3)),
    "mm of two": (lambda x: x @ x.T.sin(), (3, 4)),
    "linear": (lambda x: F.linear(x, A.T, V.sum()[None].expand(5)), (2, 3, 4)),
    "linear in the matrix": (lambda x: F.linear(A.T.detach(), x, V[:3]), (3, 4)),
    "bias": (lambda x: F.linear(A.T.detach(), A.T.detach()[:, :4], x), (5,)),
    "bmm": (lambda x: x @ B3, (2, 3, 4)),
    "bmm from the left": (lambda x: B3.mT @ x, (2, 4, 3)),
    "broadcast batch": (lambda x: x @ B3, (3, 4)),
    "mv": (lambda x: x @ V, (3, 4)),
    "mv in the vector": (lambda x: A.T @ x, (4,)),
    "dot": (lambda x: x @ V, (4,)),
    "outer": (lambda x: torch.outer(x, V), (3,)),
    "addmm": (lambda x: torch.addmm(x, x, A[:, :4], beta=2, alpha=3), (4, 4)),
    "addbmm": (lambda x: torch.addbmm(A[:3], x, B3), (2, 3, 4)),
    "baddbmm": (lambda x: torch.baddbmm(A[:3], x, B3), (2, 3, 4)),
    "addr": (lambda x: torch.addr(A, x, x[:1].expand(5)), (4,)),
    "einsum": (lambda x: torch.einsum("bij,bkj->ik", x, B3.mT[:, :, :4]), (2, 3, 4)),
    "bilinear": (lambda x: F.bilinear(x, x.sin(), parameter(2, 4, 4), None), (3, 4)),
    "constant zeros": (lambda x: x @ SPARSE, (3, 4)),
    "constant zeros from the left": (lambda x: SPARSE.T @ x, (4, 3)),
    "constant zeros in a batch": (lambda x: x @ SPARSE3, (2, 3, 4)),
    "constant zeros, vector": (lambda x: SPARSE.T @ x, (4,)),
    "cross": (lambda x: torch.linalg.cross(x, parameter(2, 3)), (2, 3)),
    "two layers": (lambda x: torch.tanh(x @ A) @ A.T, (3, 4)),
    "distances": (lambda x: torch.cdist(x, parameter(5, 4)), (3, 4)),
    "distances to": (lambda x: torch.cdist(parameter(5, 4), x), (3, 4)),
}
LAPLACE = torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]], dtype=DOUBLE)
MIXED = weights(4, 2, 3, 3) * (torch.arange(72).reshape(4, 2, 3, 3) % 3 == 0)
CONVOLUTIONS = {
    "1d": (lambda x: F.conv1d(x, parameter(3, 2, 3)), (2, 2, 7)),
    "2d": (lambda x: F.conv2d(x, parameter(3, 2, 3, 3), parameter(3), padding=1), (2, 2, 4, 5)),
    "stride": (lambda x: F.conv2d(x, parameter(3, 2, 3, 2), stride=(2, 3), padding=1), (1, 2, 6, 7)),
    "dilation": (lambda x: F.conv2d(x, parameter(2, 1, 2, 3), dilation=(3, 2)), (1, 1, 6, 7)),
    "groups": (lambda x: F.conv2d(x, parameter(6, 2, 3, 3), groups=2, padding=1), (1, 4, 4, 3)),
    "depthwise": (lambda x: F.conv1d(x, parameter(4, 1, 3), groups=4, padding=2), (2, 4, 5)),
    "depthwise of constants": (lambda x: F.conv1d(x, weights(4, 1, 3), groups=4), (2, 4, 5)),
    "3d": (lambda x: F.conv3d(x, parameter(2, 1, 2, 2, 3), padding=(0, 1, 1)), (1, 1, 3, 3, 4)),
    "transposed": (
        lambda x: F.conv_transpose2d(x, parameter(2, 3, 3, 3), stride=2, padding=1, output_padding=1),
        (1, 2, 3, 2),
    ),
    "transposed in groups": (lambda x: F.conv_transpose1d(x, parameter(4, 3, 3), groups=2, dilation=2), (1, 4, 4)),
    "kernel": (lambda x: F.conv2d(parameter(2, 2, 5, 4), x, padding=2, stride=2), (3, 2, 3, 3)),
    "kernel without padding": (lambda x: F.conv2d(parameter(2, 2, 5, 4), x), (3, 2, 3, 3)),
    "kernel in groups": (lambda x: F.conv1d(parameter(2, 4, 5), x, padding=1, groups=2), (6, 2, 3)),
    "transposed kernel": (
        lambda x: F.conv_transpose1d(parameter(2, 4, 5), x, padding=1, stride=2, groups=2),
        (4, 3, 3),
    ),
    "bias": (lambda x: F.conv1d(parameter(2, 2, 5), parameter(3, 2, 2), x), (3,)),
    "constant stencil": (lambda x: F.conv2d(x, LAPLACE, padding=1), (2, 1, 5, 4)),
    "constant kernel with zeros": (lambda x: F.conv2d(x, MIXED, padding=1), (1, 2, 5, 4)),
    "constant kernel in groups": (lambda x: F.conv2d(x, MIXED, padding=1, groups=2), (1, 4, 4, 4)),
    "constant kernel, transposed": (lambda x: F.conv_transpose2d(x, MIXED, stride=2, groups=2), (1, 4, 3, 3)),
    "two layers": (
        lambda x: F.conv2d(F.conv2d(x, parameter(3, 1, 3, 3), padding=1).tanh(), parameter(1, 3, 3, 3), padding=1),
        (1, 1, 6, 7),
    ),
    "large kernel": (lambda x: F.conv2d(x, parameter(1, 1, 7, 6), padding=3), (1, 1, 9, 9)),
    "without batch": (lambda x: F.conv2d(x, parameter(3, 2, 3, 3)), (2, 4, 5)),
    "gradient": (lambda x: _gradient_of_convolution(x), (1, 2, 5)),
    "over time": (lambda x: torch.conv_tbc(x, parameter(2, 3, 2), parameter(2), 1), (4, 2, 3)),
}


def _gradient_of_convolution(x):
    leaf = x if x.requires_grad else x.detach().requires_grad_()
    kernel = torch.linspace(1, 2, 12, dtype=DOUBLE).reshape(2, 2, 3)
    return torch.autograd.grad(F.conv1d(leaf, kernel).tanh().sum(), leaf, create_graph=True)[0]


WINDOWS = {
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 2, 7)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x.sin(), (2, 3), ceil_mode=True), (2, 1, 5, 4)),
    "avg_pool2d, overlapping": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (1, 2, 4, 4)),
    "avg_pool2d, divided": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), (1, 4, 4)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, 1), (1, 1, 3, 2, 4)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), (1, 2, 7)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (1, 2, 7, 5)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), (1, 1, 3, 4, 2)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (1, 2, 6)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 5, 5)),
    "max_pool2d, dilated": (lambda x: F.max_pool2d(x, 2, 1, dilation=2), (1, 1, 5, 5)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 1, 4, 4, 2)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (1, 1, 5, 5)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 2)),
    "nearest, smaller": (lambda x: F.interpolate(x, (2, 3)), (1, 1, 5, 5)),
    "nearest, exactly": (lambda x: F.interpolate(x, 4, mode="nearest-exact"), (1, 2, 6)),
    "nearest, solid": (lambda x: F.interpolate(x, (4, 3, 2)), (1, 1, 2, 2, 3)),
    "linear": (lambda x: F.interpolate(x, 7, mode="linear"), (1, 2, 4)),
    "bilinear": (lambda x: F.interpolate(x, (7, 3), mode="bilinear"), (1, 2, 4, 5)),
    "bilinear, corners": (lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True), (1, 1, 4, 5)),
    "bilinear, smooth": (lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), (1, 1, 7, 6)),
    "bilinear by a factor": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (1, 1, 4, 5)),
    "bicubic": (lambda x: F.interpolate(x, (7, 6), mode="bicubic"), (1, 1, 5, 4)),
    "trilinear": (lambda x: F.interpolate(x, (3, 4, 5), mode="trilinear"), (1, 1, 2, 3, 3)),
    "reflected": (lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect").sin(), (1, 2, 3, 4)),
    "reflected row": (lambda x: F.pad(x, (2, 1), mode="reflect").sin(), (2, 4)),
    "reflected solid": (lambda x: F.pad(x, (1, 1, 1, 0, 0, 1), mode="reflect"), (1, 1, 2, 3, 2)),
    "replicated": (lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate").sin(), (1, 2, 3, 2)),
    "replicated solid": (lambda x: F.pad(x, (1, 1, 1, 0, 0, 1), mode="replicate"), (1, 1, 2, 3, 2)),
    "circular": (lambda x: F.pad(x, (2, 1, 1, 0), mode="circular").sin(), (1, 2, 3, 4)),
    "im2col": (lambda x: F.unfold(x, (2, 3), padding=1, stride=2).sin(), (2, 2, 5, 4)),
    "col2im": (lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=(2, 1)).sin(), (1, 12, 15)),
    "grid_sample": (
        lambda x: F.grid_sample(x, torch.rand(1, 3, 2, 2, dtype=DOUBLE), align_corners=False),
        (1, 2, 3, 3),
    ),
    "sampling grid": (lambda x: F.grid_sample(weights(1, 2, 3, 3), x.tanh(), align_corners=False), (1, 2, 2, 2)),
    "max_unpool2d": (lambda x: F.max_unpool2d(x, torch.tensor([[[[0, 3], [10, 14]]]]), 2), (1, 1, 2, 2)),
}
SAMPLED |= {
    "max_pool1d", "max_pool2d", "max_pool2d, dilated", "max_pool3d", "adaptive_max_pool2d", "grid_sample",
    "sampling grid",
}  # fmt: skip
# Which elements are chosen decides how the program goes on: the pattern is for those that were.
GUARDED = {"max of all", "positive elements"}
# torch's forward derivative is another (rows of padding), or the function takes a reverse pass of its own.
REVERSE_ONLY = {"embedding with padding", "gradient"}
FAMILIES = {
    "reduce": REDUCTIONS, "scan": SCANS, "scatter": SCATTERS, "contract": CONTRACTIONS, "convolve": CONVOLUTIONS,
    "window": WINDOWS,
}  # fmt: skip
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_reverse_pass(family, name):
    f, shape = FAMILIES[family][name]
    check(f, shape, exact=name not in SAMPLED, guarded=name in GUARDED)


@pytest.mark.parametrize(("family", "name"), [case for case in CASES if case[1] not in REVERSE_ONLY])
def test_forward_pass(family, name):
    f, shape = FAMILIES[family][name]
    try:
        recorded(f, points(shape)[0], "forward")
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(str(error).splitlines()[0])
    check(f, shape, "forward", exact=name not in SAMPLED, guarded=name in GUARDED)


def one_step(op, args, place, unknown=()):
    """What one operation's result depends on through one argument, where others are not known; and its true matrix."""
    args = list(args)
    seed = args[place]
    recorder = Recorder("reverse")
    program = recorder.program
    program.seeds = (recorder.view(seed),)
    others = [recorder.view(args[other]) for other in unknown]
    program.captured.clear()
    with recorder:
        answer = op(*args)
    storages = frozenset(view.storage for view in (*program.seeds, *others))
    walk = Walk(program, Trust(local=False, varying=storages))
    walk.run()
    assert not walk.unknown
    found = walk.memory.read(recorder.view(answer)) or Sets(tuple(answer.shape), ())
    columns = []
    for unit in torch.eye(seed.numel(), dtype=seed.dtype).reshape(-1, *seed.shape):
        moved = list(args)
        moved[place] = unit
        columns.append(op(*moved).reshape(-1))
    return found, torch.stack(columns, 1).numpy()


def dense(found, width):
    """The matrix that weighted dependencies stand for; None where a weight is not constant."""
    matrix = np.zeros((found.numel, width))
    for term in found.terms:
        if term.weight is None:
            return None
        element, position, weight = entries(term)
        np.add.at(matrix, (element, position), weight)
    return matrix


ATEN = torch.ops.aten
T34, T42 = weights(3, 4), weights(4, 2)
REPEATED = torch.tensor([[1, 1], [0, 0], [2, 1]])
# operation, arguments, which is seeded, which are indices, whether the weights are constants
STEPS = {
    "sum": (ATEN.sum.dim_IntList, (T34, [1], True), 0, (), True),
    "sum to another dtype": (lambda x: ATEN.sum.default(x, dtype=torch.float64), (T34,), 0, (), True),
    "mean": (ATEN.mean.dim, (T34, [0]), 0, (), True),
    "cumsum": (ATEN.cumsum.default, (T34, 1), 0, (), True),
    "trace": (ATEN.trace.default, (weights(3, 4),), 0, (), True),
    "index": (ATEN.index.Tensor, (T34, [None, ROWS]), 0, (), True),
    "index_put added": (ATEN.index_put.default, (ZEROS34, [ROWS], weights(4, 4), True), 2, (), True),
    "index_put one for all": (ATEN.index_put.default, (ZEROS34, [ROWS], weights(1, 4), True), 2, (), True),
    "index_put of few": (ATEN.index_put.default, (ZEROS34, [ROWS[:2]], weights(2, 4)), 2, (), True),
    "index_put beside": (ATEN.index_put.default, (T34, [ROWS[:2]], torch.zeros(2, 4, dtype=DOUBLE)), 0, (), True),
    "index_put by a mask": (ATEN.index_put.default, (ZEROS34, [MASK], weights(5), True), 2, (), True),
    "gather": (ATEN.gather.default, (T34, 1, PICKS), 0, (2,), True),
    "gather few": (ATEN.gather.default, (T34, 0, PICKS[:2].clamp(max=2)), 0, (2,), True),
    "scatter": (ATEN.scatter.src, (ZEROS34, 1, PICKS, weights(3, 2)), 3, (), False),
    "scatter apart": (ATEN.scatter.src, (ZEROS34, 1, PICKS[:1], weights(3, 4)), 3, (2,), True),
    "scatter beside": (ATEN.scatter.value, (T34, 1, PICKS, 0.0), 0, (2,), True),
    "scatter_add": (ATEN.scatter_add.default, (ZEROS34, 1, REPEATED, weights(3, 3)), 3, (2,), True),
    "scatter_add to": (ATEN.scatter_add.default, (T34, 1, REPEATED, torch.zeros(3, 2, dtype=DOUBLE)), 0, (2,), True),
    "scatter_reduce": (ATEN.scatter_reduce.two, (ZEROS34, 1, REPEATED, weights(3, 3), "sum"), 3, (2,), True),
    "scatter mean": (ATEN.scatter_reduce.two, (ZEROS34, 1, REPEATED, weights(3, 3), "mean"), 3, (2,), False),
    "index_select": (ATEN.index_select.default, (T34, 1, ROWS), 0, (2,), True),
    "index_add": (lambda *a: ATEN.index_add.default(*a, alpha=-3), (ZEROS34, 0, ROWS, weights(4, 4)), 3, (2,), True),
    "index_copy": (ATEN.index_copy.default, (ZEROS34, 0, ROWS[:2], weights(2, 4)), 3, (2,), True),
    "index_copy beside": (ATEN.index_copy.default, (T34, 0, ROWS[:2], torch.zeros(2, 4, dtype=DOUBLE)), 0, (2,), True),
    "index_fill": (ATEN.index_fill.int_Scalar, (T34, 1, ROWS[:2], 0.0), 0, (2,), True),
    "index_fill by": (ATEN.index_fill.int_Tensor, (ZEROS34, 1, ROWS, weights()), 3, (2,), True),
    "index_reduce": (ATEN.index_reduce.default, (ZEROS34, 0, ROWS, weights(4, 4), "mean"), 3, (2,), False),
    "take": (ATEN.take.default, (T34, torch.tensor([5, 5, -1])), 0, (1,), True),
    "put": (ATEN.put.default, (ZEROS34, torch.tensor([5, 5, -1]), weights(3), True), 2, (1,), True),
    "put beside": (ATEN.put.default, (T34, torch.tensor([5, -1]), torch.zeros(2, dtype=DOUBLE)), 0, (1,), True),
    "masked_select": (ATEN.masked_select.default, (T34, MASK), 0, (), True),
    "masked_scatter": (ATEN.masked_scatter.default, (ZEROS34, MASK, weights(2, 4)), 2, (), True),
    "masked_scatter beside": (ATEN.masked_scatter.default, (T34, MASK, torch.zeros(5, dtype=DOUBLE)), 0, (), True),
    "masked_scatter_backward": (ATEN.masked_scatter_backward.default, (T34, MASK, [2, 3]), 0, (), True),
    "embedding": (ATEN.embedding.default, (T42, torch.tensor([[0, 3], [3, 1]])), 0, (1,), True),
    "embedding_dense_backward": (
        ATEN.embedding_dense_backward.default,
        (T34, torch.tensor([1, 0, 1]), 2, -1, False),
        0,
        (1,),
        True,
    ),
    "embedding with padding": (
        ATEN.embedding_dense_backward.default,
        (T34, torch.tensor([1, 0, 1]), 2, 0, False),
        0,
        (1,),
        True,
    ),
    "embedding by frequency": (
        ATEN.embedding_dense_backward.default,
        (T34, torch.tensor([1, 0, 1]), 2, -1, True),
        0,
        (1,),
        False,
    ),
    "unfold_backward": (ATEN.unfold_backward.default, (weights(2, 4, 3), [2, 9], 1, 3, 2), 0, (), True),
    "mm": (ATEN.mm.default, (T34, SPARSE), 0, (1,), True),
    "mm from the left": (ATEN.mm.default, (SPARSE, weights(5, 2)), 1, (0,), True),
    "bmm": (ATEN.bmm.default, (weights(2, 3, 4), SPARSE3), 0, (1,), True),
    "addmm": (
        lambda *a: ATEN.addmm.default(*a, beta=3, alpha=2),
        (torch.zeros(3, 5, dtype=DOUBLE), T34, SPARSE),
        1,
        (2,),
        True,
    ),
    "addmm to": (lambda *a: ATEN.addmm.default(*a, beta=3), (weights(5), T34 * 0, SPARSE), 0, (), True),
    "mv": (ATEN.mv.default, (SPARSE, weights(5)), 1, (0,), True),
    "convolution": (
        ATEN.convolution.default,
        (weights(2, 1, 5, 4), LAPLACE, None, [2, 1], [1, 1], [1, 2], False, [0, 0], 1),
        0,
        (1,),
        True,
    ),
    "convolution, mixed": (
        ATEN.convolution.default,
        (weights(1, 4, 4, 4), MIXED, None, [1, 1], [1, 0], [1, 1], False, [0, 0], 2),
        0,
        (1,),
        True,
    ),
    "transposed convolution": (
        ATEN.convolution.default,
        (weights(1, 4, 3, 3), MIXED, None, [2, 2], [1, 1], [1, 1], True, [1, 0], 2),
        0,
        (1,),
        True,
    ),
    "avg_pool2d": (ATEN.avg_pool2d.default, (weights(2, 5, 4), [3, 2], [2, 1], [1, 0], True, False), 0, (), True),
    "avg_pool2d_backward": (
        ATEN.avg_pool2d_backward.default,
        (weights(1, 1, 3, 3), torch.zeros(1, 1, 5, 5, dtype=DOUBLE), [3], [2], [1], True, True, None),
        0,
        (),
        True,
    ),
    "avg_pool3d": (ATEN.avg_pool3d.default, (weights(1, 3, 4, 2), [2], [1], [1], False, True, 7), 0, (), True),
    "adaptive_avg_pool2d": (ATEN._adaptive_avg_pool2d.default, (weights(1, 7, 5), [3, 2]), 0, (), True),
    "bilinear": (ATEN.upsample_bilinear2d.default, (weights(1, 1, 4, 3), [7, 6], True), 0, (), True),
    "bilinear backward": (
        ATEN.upsample_bilinear2d_backward.default,
        (weights(1, 1, 7, 2), [7, 2], [1, 1, 4, 3], False, 1.8, None),
        0,
        (),
        True,
    ),
    "bicubic": (ATEN.upsample_bicubic2d.default, (weights(1, 2, 4, 3), [7, 2], False, 1.75, None), 0, (), True),
    "nearest": (ATEN.upsample_nearest2d.default, (weights(1, 2, 4, 3), [7, 2], 1.7, None), 0, (), True),
    "smooth bicubic": (ATEN._upsample_bicubic2d_aa.default, (weights(1, 1, 7, 6), [3, 4], False), 0, (), True),
    "reflected": (
        ATEN.reflection_pad2d_backward.default,
        (weights(1, 6, 5), weights(1, 4, 3), [2, 0, 1, 1]),
        0,
        (),
        True,
    ),
    "replicated": (ATEN.replication_pad1d.default, (weights(2, 4), [3, 2]), 0, (), True),
    "im2col": (ATEN.im2col.default, (weights(2, 2, 5, 4), [2, 3], [2, 1], [1, 0], [1, 2]), 0, (), True),
    "col2im": (ATEN.col2im.default, (weights(2, 12, 12), [5, 4], [2, 3], [2, 1], [1, 1], [2, 1]), 0, (), True),
    "cross": (
        lambda a, b, dim: ATEN.linalg_cross.default(a, b, dim=dim),
        (weights(2, 3), weights(1, 3), 1),
        0,
        (1,),
        False,
    ),
    "trilinear": (
        ATEN._trilinear.default,
        (weights(3, 4), weights(2, 4, 5), weights(3, 5), [1, 3], [0], [1, 2], [2, 3]),
        0,
        (1, 2),
        False,
    ),
    "trilinear, second": (
        ATEN._trilinear.default,
        (weights(3, 4), weights(2, 4, 5), weights(3, 5), [1, 3], [0], [1, 2], [2, 3]),
        1,
        (0, 2),
        False,
    ),
}
GEOMETRIES = {
    "plain": ((2, 2, 4, 3), (3, 2, 2, 3), [1, 1], [0, 1], [1, 1], False, [0, 0], 1),
    "stride": ((1, 2, 6, 5), (2, 2, 3, 2), [2, 3], [1, 0], [1, 2], False, [0, 0], 1),
    "groups": ((2, 4, 4, 2), (6, 2, 3, 1), [1, 1], [1, 0], [1, 1], False, [0, 0], 2),
    "transposed": ((1, 2, 3, 2), (2, 3, 3, 2), [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
    "transposed in groups": ((1, 4, 3, 2), (4, 3, 3, 2), [2, 2], [1, 0], [1, 2], True, [1, 1], 2),
}


def _convolution_backward(result):
    def op(output, source, kernel, *geometry):
        mask = [place == result for place in range(3)]
        bias = [output.shape[1]]
        return ATEN.convolution_backward.default(output, source, kernel, bias, *geometry, mask)[result]

    return op


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize(("place", "result"), [(0, 0), (0, 1), (0, 2), (1, 1), (2, 0)])
def test_convolution_backward(geometry, place, result):
    source, kernel, *rest = GEOMETRIES[geometry]
    source, kernel = weights(*source), weights(*kernel)
    output = torch.randn_like(ATEN.convolution.default(source, kernel, None, *rest))
    others = tuple(other for other in range(3) if other != place)
    found, true = one_step(_convolution_backward(result), (output, source, kernel, *rest), place, others)
    assert np.array_equal(found.matrix().toarray(), true != 0)


def pools():
    x = weights(1, 2, 6, 5)
    grad, where = F.max_pool2d(x, 3, 2, 1, 1, return_indices=True)
    yield "max", ATEN.max_pool2d_with_indices_backward.default, (grad, x, [3], [2], [1], [1], False, where), 7
    y = weights(2, 4, 4, 3)
    grad, where = F.max_pool3d(y, 2, 1, return_indices=True)
    yield "max, solid", ATEN.max_pool3d_with_indices_backward.default, (grad, y, [2], [1], [0], [1], False, where), 7
    grad, where = F.adaptive_max_pool2d(x, (4, 2), return_indices=True)
    yield "adaptive", ATEN.adaptive_max_pool2d_backward.default, (grad, x, where), 2
    grad, where = F.adaptive_max_pool3d(y, (2, 3, 2), return_indices=True)
    yield "adaptive, solid", ATEN.adaptive_max_pool3d_backward.default, (grad, y, where), 2
    grad, where = F.fractional_max_pool2d(x, 2, (3, 3), return_indices=True)
    yield "fractional", ATEN.fractional_max_pool2d_backward.default, (grad, x, [2, 2], [3, 3], where), 4


@pytest.mark.parametrize("number", range(5))
def test_pools_where_the_maximum_is_known_and_where_it_is_not(number):
    _, op, args, place = list(pools())[number]
    found, true = one_step(op, args, 0)
    np.testing.assert_allclose(dense(found, true.shape[1]), true)
    loose, _ = one_step(op, args, 0, (place,))
    pattern = loose.matrix().toarray()
    assert not ((true != 0) & ~pattern).any()
    channels = args[1].shape[0] * (args[1].shape[1] if args[1].ndim == 4 and number != 1 and number != 3 else 1)
    blocks = pattern.reshape(channels, -1, channels, true.shape[1] // channels)
    assert np.array_equal(blocks.any(axis=(1, 3)), np.eye(channels, dtype=bool))


@pytest.mark.parametrize("name", STEPS)
def test_weights_of_one_step(name):
    op, args, place, unknown, constant = STEPS[name]
    found, true = one_step(op, args, place)
    matrix = dense(found, true.shape[1])
    pattern = found.matrix().toarray() if found.terms else true != true
    if constant:
        assert matrix is not None
        np.testing.assert_allclose(matrix, true, rtol=1e-12, atol=1e-14)
    assert not ((true != 0) & ~pattern).any()
    if unknown:
        loose, _ = one_step(op, args, place, unknown)
        assert not (pattern & ~loose.matrix().toarray()).any()
        weighted = dense(loose, true.shape[1])
        assert weighted is None or np.allclose(weighted, true)


@pytest.mark.parametrize("name", [name for name, case in STEPS.items() if case[3]])
def test_an_unknown_index_may_be_any(name):
    op, args, place, unknown, _ = STEPS[name]
    loose = one_step(op, args, place, unknown)[0].matrix().toarray()
    for other in unknown:
        if args[other].is_floating_point():
            return
    limit = max(2, int(max(args[other].max() for other in unknown)) + 1)
    for _ in range(20):
        drawn = list(args)
        for other in unknown:
            drawn[other] = torch.randint(0, limit, args[other].shape)
        _, true = one_step(op, drawn, place)
        assert not ((true != 0) & ~loose).any()


def test_an_unknown_index_leaves_other_dimensions_exact():
    found, _ = one_step(ATEN.gather.default, (T34, 1, PICKS), 0, (2,))
    rows = found.matrix().toarray().reshape(3, 2, 3, 4)
    assert np.array_equal(rows.any(axis=(1, 3)), np.eye(3, dtype=bool))


SPLITS = {
    "roll and add": lambda x: (x.sin() + torch.roll(x, 1, 0) ** 2).sum(1),
    "gathered sums": lambda x: torch.zeros(2, 4, dtype=DOUBLE).index_add(0, torch.tensor([0, 1, 0]), x.sin()),
    "rows taken twice": lambda x: (x[ROWS] ** 2).mean(0) + 3 * x.sum(0),
    "scattered": lambda x: ZEROS34.scatter_add(1, PICKS, x[:, :2].sin()) - x,
    "assigned": _assigned,
    "taken elements": lambda x: x.gather(1, PICKS).exp(),
    "embedded": lambda x: F.embedding(torch.tensor([[0, 2], [2, 1]]), x) ** 2,
    "windows": lambda x: x.unfold(1, 2, 1).sin().sum(-1),
    "stencil": lambda x: F.conv2d((x**2)[None, None], LAPLACE, padding=1),
}


@pytest.mark.parametrize("name", SPLITS)
def test_split_passes_add_up(name):
    f = SPLITS[name]
    x = torch.randn(3, 4, dtype=DOUBLE)
    seed = torch.randn_like(f(x))
    program, answer = recorded(f, x, seed=seed)
    found = factors(program, trusting(program))
    if isinstance(found, str):
        pytest.skip(found)
    at_cut = [program.tensors[view.tensor].reshape(-1) for view in found.frontier]
    z = [sum(at_cut[k] * (weight or 1.0) for k, weight in parts) for parts in found.sums]
    z = torch.cat(z).numpy() if z else np.zeros(0)
    w = seed.reshape(-1).numpy()
    total = found.constant @ (w if found.head is None else found.head.matrix @ w)
    np.add.at(total, found.element, found.weight * z[found.position])
    np.testing.assert_allclose(total, answer.reshape(-1).numpy(), rtol=1e-12, atol=1e-12)


def as_dense(sets):
    """For each root the matrix that weighted sets stand for."""
    found = {}
    for root in {term.root for term in sets.terms}:
        part = Sets(sets.shape, tuple(term for term in sets.terms if term.root is root))
        found[root] = dense(part, root.size)
    return found


def several_terms(shape, count, roots, generator):
    """Random weighted terms, some of them over matrices, some the same along a dimension."""
    terms = []
    for k in range(count):
        root = roots[k % len(roots)]
        rows = None
        if k % 3 == 1:
            rows = sp.random(7, root.size, 0.3, format="csr", random_state=int(generator.integers(1000)))
        high = (root.size if rows is None else 7) + 1
        part = [1 if k % 2 and dim == 0 else size for dim, size in enumerate(shape)]
        labels = torch.from_numpy(generator.integers(0, high, part).astype(np.int32)).expand(shape)
        weight = 2.0 if k % 4 else torch.from_numpy(generator.normal(size=shape))
        terms.append(Term(root, labels, rows, weight))
    return Sets(shape, tuple(terms))


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@pytest.mark.parametrize("of", ["seed", "two roots"])
def test_sums_of_weighted_sets(count, of):
    generator = np.random.default_rng(count)
    roots = [Root("seed", 5), Root("cut", 6)][: 1 if of == "seed" else 2]
    shape = (4, 3, 2)
    sets = several_terms(shape, count, roots, generator)
    true = as_dense(sets)
    new, old = generator.integers(0, 5, 9), generator.integers(0, 3, 9)
    weight = generator.normal(size=9)
    relation = np.zeros((5, 3))
    np.add.at(relation, (new, old), weight)
    results = {
        "sum": (sets.reduce((0, 2), keepdim=False), lambda m: m.sum(axis=(0, 2))),
        "kept": (sets.reduce((1,), keepdim=True, factor=0.5), lambda m: m.sum(axis=1, keepdims=True) * 0.5),
        "merged": (sets.merged(), lambda m: m),
        "related": (sets.relate(1, new, old, 5, weight), lambda m: np.einsum("ij,ajbr->aibr", relation, m)),
        "many": (union(shape, [sets.move(lambda part, k=k: part.roll(k, 0)) for k in range(30)]),
                 lambda m: sum(np.roll(m, k, 0) for k in range(30))),
    }  # fmt: skip
    for name, (found, operation) in results.items():
        for root, matrix in as_dense(found).items():
            expected = operation(true[root].reshape(*shape, root.size))
            np.testing.assert_allclose(matrix.reshape(expected.shape), expected, atol=1e-10, err_msg=name)
            part = Sets(found.shape, tuple(term for term in found.terms if term.root is root))
            pattern = part.matrix().toarray()
            assert not ((matrix != 0) & ~pattern).any()


def test_many_equal_dependencies_do_not_cancel():
    root = Root("seed", 3)
    labels = torch.ones(2, 256, dtype=torch.int32) * torch.tensor([[1], [3]], dtype=torch.int32)
    labels = labels.contiguous()
    found = Sets((2, 256), (Term(root, labels, None, None),)).reduce((1,), keepdim=False)
    again = found.move(lambda part: part.unsqueeze(1).repeat(1, 256)).reduce((1,), keepdim=False)
    for each in (found, again):
        assert np.array_equal(each.matrix().toarray(), [[True, False, False], [False, False, True]])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty_tensors(shape):
    sets = Sets.identity(shape, Root("seed", 0))
    assert sets.reduce((0,), keepdim=False).shape == shape[1:]
    assert sets.merged().shape == shape
    assert sets.relate(0, np.zeros(0, int), np.zeros(0, int), 2).shape == (2, *shape[1:])
    assert sets.matrix().shape == (0, 0)
