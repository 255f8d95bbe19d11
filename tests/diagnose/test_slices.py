"""The slice of a value: the statements that it came from, through functions, modules, loops and closures."""

import ast
import gc
import weakref

import torch
from torch import nn

from pullback.diagnose.evidence.frames import user_frames
from pullback.diagnose.evidence.slices import Body, Part, definitions, steps_of


def _failed(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        frames = user_frames(error.__traceback__)
    return Body.of(frames)


def _texts(body, name):
    node = next(node for node in _walk(body) if isinstance(node, ast.Name) and node.id == name)
    return [step.part.text for step in steps_of(Part(node, body))]


def _walk(body):
    return ast.walk(body.frame.statement)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.lin(x)
        return hidden.detach()


def _helper(value):
    doubled = value * 2
    return doubled + 1


def _through_a_module():
    net = Net()
    out = _helper(net(torch.ones(1, 2)))
    raise RuntimeError(out)


def test_a_slice_goes_through_functions_and_modules():
    texts = _texts(_failed(_through_a_module), "out")
    for text in ("doubled + 1", "value * 2", "hidden.detach()", "self.lin(x)", "torch.ones(1, 2)"):
        assert text in texts, texts
    assert texts.index("doubled + 1") < texts.index("hidden.detach()")


def _branches(flag):
    a = 1
    a = 2
    if flag:
        a = 3
    else:
        a = 4
        raise RuntimeError(a)


def test_only_definitions_that_reach_are_taken():
    body = _failed(_branches, False)
    assert _texts(body, "a")[1:] == ["4"]


def _looped():
    total = 0
    for part in [5, 6]:
        total += part
        last = total
    raise RuntimeError(last)


def test_a_loop_leads_back_to_what_was_before_it():
    texts = _texts(_failed(_looped), "last")
    assert "part" in texts
    assert "0" in texts
    assert "[5, 6]" in texts


def _filled():
    parts = []
    for number in range(2):
        parts.append(number * 7)
    table = torch.zeros(2)
    table[0] = 3
    raise RuntimeError(parts, table)


def test_what_is_put_into_a_container_is_part_of_it():
    body = _failed(_filled)
    assert "number * 7" in _texts(body, "parts")
    assert {"3", "torch.zeros(2)"} <= set(_texts(body, "table"))


def _unpacked():
    first, (second, third) = 10, (20, 30)
    raise RuntimeError(second, first, third)


def test_unpacking_takes_the_part_that_is_meant():
    texts = _texts(_failed(_unpacked), "second")
    assert "20" in texts
    assert "30" not in texts
    assert "10" not in texts


def _closure():
    scale = torch.ones(()) * 9

    def inner():
        raise RuntimeError(scale)

    inner()


def test_a_closure_leads_to_the_function_around_it():
    assert "torch.ones(()) * 9" in _texts(_failed(_closure), "scale")


def _recursive(depth):
    return depth if depth == 0 else _recursive(depth - 1)


def _endless():
    value = _recursive(3)
    raise RuntimeError(value)


def test_a_recursive_function_ends():
    assert len(_texts(_failed(_endless), "value")) < 500


def test_nothing_is_kept_alive():
    body = _failed(_through_a_module)
    value = weakref.ref(body.frame.local["out"])
    _texts(body, "out")
    del body
    gc.collect()
    assert value() is None


def test_definitions_of_an_unknown_name_are_none():
    body = _failed(_unpacked)
    assert definitions(ast.Name("nowhere"), body) == []
