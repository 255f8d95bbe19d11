"""An older torch does not let its saved tensors be looked into: what is read through the node is the same."""

import pytest
import torch

from pullback.graph.slots import slots


def read(node, name):
    raw = getattr(node, f"_raw_saved_{name}")
    many = isinstance(raw, tuple | list)
    return slots(node, f"_saved_{name}", raw if many else [raw])


def test_a_saved_tensor_is_read():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    (slot,) = read(y.grad_fn, "result")
    assert torch.equal(slot.data, y)
    assert slot.unpack() is slot.data
    assert slot.unpack_hook is None


def test_several_under_one_name_are_read():
    x = torch.ones(3, requires_grad=True)
    index = torch.tensor([0, 2])
    found = read((x * 2)[index].grad_fn, "indices")
    assert torch.equal(found[0].data, index)


def test_a_freed_one_tells_the_error_of_a_pass():
    y = torch.ones(3, requires_grad=True).exp()
    y.sum().backward()
    (slot,) = read(y.grad_fn, "result")
    assert slot.data is None
    with pytest.raises(RuntimeError, match="second time"):
        slot.unpack()


def test_a_hook_does_not_run():
    ran = []

    def unpack(packed):
        ran.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 1, unpack):
        y = torch.ones(3, requires_grad=True).exp()
    (slot,) = read(y.grad_fn, "result")
    assert slot.unpack_hook
    assert not ran
    y.sum().backward()
    assert len(ran) == 1


def test_one_that_was_changed_is_refused_as_a_pass_refuses_it():
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    y = h.square()
    h += 1
    (slot,) = read(y.grad_fn, "self")
    assert torch.equal(slot.data, h)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        slot.unpack()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
