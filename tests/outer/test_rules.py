"""Every contraction rule on its samples, and every operation of the tail, against the operation itself."""

from __future__ import annotations

import pytest
import torch

from pullback.autodiff.program import Recorder, forget_seeded
from pullback.data.space import Space
from pullback.outer.contraction import OneHot
from pullback.outer.find import find
from pullback.outer.layers import Layers
from pullback.outer.rows import rows
from pullback.outer.rule import RULES
from pullback.outer.terms import parameter

SAMPLES = [
    pytest.param(name, sample, id=f"{name} {k}")
    for name, rule in RULES.all().items()
    for k, sample in enumerate(rule.samples)
]


def recorded(run, shape, result=0):
    """A linear operation as a program, with its seed; and what it gives for a random operand."""
    g = torch.randn(shape, dtype=torch.float64)
    recorder = Recorder("reverse")
    seed = torch.ones(shape, dtype=torch.float64)
    program = recorder.program
    program.seeds = (recorder.view(seed),)
    program.captured.clear()
    with recorder:
        out = run(seed)
    out = out[result] if isinstance(out, list | tuple) else out
    program.answers = (recorder.view(out),)
    program.sizes_of_answers = (out.numel(),)
    forget_seeded(program)
    expected = run(g)
    return program, g, (expected[result] if isinstance(expected, list | tuple) else expected)


def put_together(program, g, shape):
    """The answer for one seed from what was found in the program."""
    found = find(program, [tuple(shape)])
    layers = Layers(found, 0, Space.of(g), Space.of(torch.zeros(shape, dtype=torch.float64)), {})
    way = layers.together([0])
    answers = [part[None] for part in found.kernel(tuple(way.bases))((g,))]
    (made,) = way.parameters(answers).values()

    # one example with one output element: its row is the answer
    def cotangents(part, owners):
        return owners.take(part.layout(answers[way.bases.index(part.base)]), -3).movedim(0, 1)

    owned = [way.owners(part) for part in found.parts[0]]
    one = parameter(made.size, found.parts[0], owned, cotangents, (1, 1, torch.float64, torch.device("cpu")))
    return rows(one)[0].reshape(shape), found


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_a_rule_gives_what_its_operation_gives(name, sample):
    program, g, expected = recorded(sample.run, sample.shape, sample.result)
    have, found = put_together(program, g, expected.shape)
    torch.testing.assert_close(have, expected, rtol=1e-12, atol=1e-12)
    if expected.numel():
        assert found.parts[0], name
        assert all(part.key[1] != (0,) for part in found.parts[0])


@pytest.mark.parametrize("name", RULES.all())
def test_every_rule_has_a_sample_of_its_operation(name):
    def calls(sample):
        program, _, _ = recorded(sample.run, sample.shape, sample.result)
        return {step.op._schema.name.removeprefix("aten::") for step in program.steps}

    rule = RULES.all()[name]
    assert rule.samples
    siblings = {other for other, each in RULES.all().items() if each is rule or each.find is rule.find}
    assert any(calls(sample) & siblings for sample in rule.samples)


A = torch.randn(4, 3, dtype=torch.float64)

TAIL = {
    "add": lambda g: torch.add(g @ A, g[:, :3], alpha=2),
    "sub": lambda g: torch.sub(g[:, :3], g @ A, alpha=3),
    "add in place": lambda g: (g @ A).add_(g @ A * 2),
    "neg": lambda g: -(g @ A),
    "div": lambda g: (g @ A) / 4,
    "mul by a tensor": lambda g: (g @ A) * A[:1],
    "mul by a mask": lambda g: (g @ A) * torch.arange(15, dtype=torch.float64).reshape(5, 3),
    "clone": lambda g: (g @ A).t().clone(memory_format=torch.contiguous_format),
    "copy": lambda g: torch.zeros(5, 3, dtype=torch.float64).copy_(g @ A),
    "cat": lambda g: torch.cat([g @ A, 0 * A[:2], -g[:, :3]]),
    "stack": lambda g: torch.stack([g @ A, g[:, 1:]], dim=1),
    "slice_backward": lambda g: torch.ops.aten.slice_backward(g @ A, [12, 3], 0, 1, 11, 2),
    "select_backward": lambda g: torch.ops.aten.select_backward(g @ A, [5, 4, 3], 1, 2),
    "a part": lambda g: (g @ A)[1:3, 1:],
    "a part, transposed": lambda g: (g @ A).t()[::2],
    "repeated": lambda g: (g @ A)[:, :1].expand(5, 6),
    "the seed itself": lambda g: g.view(2, 10),
}


@pytest.mark.parametrize("name", TAIL)
def test_the_tail_is_followed(name):
    program, g, expected = recorded(TAIL[name], (5, 4))
    have, found = put_together(program, g, expected.shape)
    torch.testing.assert_close(have, expected, rtol=1e-12, atol=1e-12)
    alone = [isinstance(part.coefficient, OneHot) for part in found.parts[0]]
    seeds = {"add", "sub", "cat", "stack"}  # where the seed itself is a summand
    assert any(alone) == (name in {"repeated", "the seed itself"} | seeds)
    assert not all(alone) or name in {"repeated", "the seed itself"}


def test_a_cotangent_that_is_overwritten_later_is_kept():
    def run(g):
        h = g * 2
        first = h.t() @ A_long
        h.add_(first.sum())
        return torch.cat([first, h.t() @ A_long])

    program, g, expected = recorded(run, (6, 4))
    have, _ = put_together(program, g, expected.shape)
    torch.testing.assert_close(have, expected, rtol=1e-12, atol=1e-12)


def test_a_coefficient_that_is_overwritten_later_is_not_relied_on():
    def run(g):
        a = A.clone()
        out = g @ a
        a.zero_()
        return out

    program, _, expected = recorded(run, (5, 4))
    found = find(program, [tuple(expected.shape)])
    assert all(isinstance(part.coefficient, OneHot) for part in found.parts[0])


A_long = torch.randn(6, 3, dtype=torch.float64)
