"""Which example a position belongs to, from passes seeded on some of them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pullback.outer.owners import MOST_PADDING, masks, owners


def reached(owner, examples):
    """What the passes of all masks reach; a position belongs to the examples of its set."""
    chosen = masks(examples)
    return torch.stack([torch.tensor([any(bool(mask[e]) for e in each) for each in owner]) for mask in chosen])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_owners_are_found_whatever_the_order(data):
    examples = data.draw(st.integers(2, 9))
    owner = data.draw(st.lists(st.integers(-1, examples - 1), min_size=1, max_size=30))
    found = owners(reached([{e} if e >= 0 else set() for e in owner], examples), examples)
    most = max(owner.count(e) for e in range(examples))
    if found is None:
        assert most * examples > MOST_PADDING * len(owner)
        return
    seen = set()
    for example in range(examples):
        for step in range(found.each):
            if found.real is not None and not found.real[example, step]:
                continue
            position = int(found.index[example, step])
            assert owner[position] in {example, -1}
            assert position not in seen
            seen.add(position)
    assert seen >= {k for k, e in enumerate(owner) if e >= 0}
    values = torch.arange(len(owner))
    taken = found.take(values, -1)
    assert torch.equal(taken, values[found.index])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_position_of_two_examples_is_never_missed(data):
    examples = data.draw(st.integers(2, 9))
    owner = [{data.draw(st.integers(0, examples - 1))} for _ in range(examples)]
    pair = data.draw(st.lists(st.integers(0, examples - 1), min_size=2, max_size=4, unique=True))
    owner[data.draw(st.integers(0, examples - 1))] = set(pair)
    assert owners(reached(owner, examples), examples) is None


def test_one_example_owns_everything():
    found = owners(torch.zeros((0, 3), dtype=torch.bool), 1)
    assert found.index.tolist() == [[0, 1, 2]]
    assert found.in_order


def test_the_usual_orders_are_seen():
    batch_first = owners(reached([{0}, {0}, {1}, {1}], 2), 2)
    assert batch_first.in_order
    assert batch_first.index.tolist() == [[0, 1], [2, 3]]
    steps_first = owners(reached([{0}, {1}, {0}, {1}], 2), 2)
    assert not steps_first.in_order
    assert steps_first.index.tolist() == [[0, 2], [1, 3]]
    assert steps_first.real is None
