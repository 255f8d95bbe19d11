"""The audit listens, names things, and leaves nothing behind."""

import gc
import threading
import warnings
import weakref

import torch
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.recorders.passes import Passes
from pullback.diagnose.values import Fix
from tests.diagnose.harness import told


class Ear(Fault):
    """Remembers the names of what it hears."""

    code = "PBA000"
    title = "Heard."
    hears = frozenset({"tanh"})

    def __init__(self):
        self.heard = []

    def after_call(self, audit, call, args, kwargs, result):
        self.heard.append(call.name)

    def before_backward(self, audit, backward):
        self.heard.append(("begins", len(backward.leaves), len(backward.had_grad)))

    def after_backward(self, audit, backward):
        self.heard.append(("ended", sum(leaf.grad is not None for leaf in backward.leaves)))

    def before_step(self, audit, step):
        self.heard.append("before_step")

    def after_step(self, audit, step):
        self.heard.append("after_step")

    def after_zero_grad(self, audit, step):
        self.heard.append("zero_grad")

    def warned(self, audit, message, category, mark):
        self.heard.append(message)

    def at_end(self, audit):
        self.heard.append("end")

    @staticmethod
    def bad():
        pass

    @staticmethod
    def good():
        pass


def listening(*faults):
    passes = Passes()
    audit = Audit(faults, passes)
    passes.start()
    audit.start()
    audit.turned(True)
    audit.tape.start()

    def stop():
        audit.tape.stop()
        audit.stop()
        passes.stop()

    return audit, stop


def test_all_events_are_told_in_order():
    ear = Ear()
    audit, stop = listening(ear)
    try:
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            w.tanh().sum().backward()
            optimizer.step()
        optimizer.zero_grad()
    finally:
        stop()
    audit.finish({}, crashed=False)
    turn = ["tanh", ("begins", 1, 0), ("ended", 1), "before_step", "after_step"]
    second = ["tanh", ("begins", 1, 1), ("ended", 1), "before_step", "after_step"]
    assert ear.heard == [*turn, *second, "zero_grad", "end"]
    assert not audit.trouble
    assert list(audit.optimizers) == [optimizer]


def test_everything_is_as_it_was_afterwards():
    before = (
        Optimizer.zero_grad,
        Optimizer.__init__,
        threading.Thread.start,
        warnings.showwarning,
        torch.nn.Parameter.__new__,
        torch.nn.Module.load_state_dict,
    )
    _, stop = listening()
    stop()
    after = (
        Optimizer.zero_grad,
        Optimizer.__init__,
        threading.Thread.start,
        warnings.showwarning,
        torch.nn.Parameter.__new__,
        torch.nn.Module.load_state_dict,
    )
    assert before == after
    assert not torch._C._len_torch_function_stack()


def test_loading_a_state_works_as_before_and_is_found_where_nothing_was_copied():
    report = told(
        """
        import torch
        net, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        kept = net.state_dict()
        assert other.load_state_dict(kept, strict=True) == other.load_state_dict(net.state_dict())
        partial = {**net.state_dict(), "bias": torch.ones(1)}
        net.load_state_dict(partial)
        assert net.bias.item() == 1
        net.load_state_dict(kept)
        """,
        "audit",
    )
    assert (report["error"], report["trouble"]) == (None, [])
    assert [(each["code"], each["lines"][0]["line"]) for each in report["findings"]] == [("PBA130", 9)]


def test_a_fault_that_raises_is_noted_and_no_more():
    class Broken(Ear):
        code = "PBA001"

        def before_backward(self, audit, backward):
            raise ValueError("broken")

    audit, stop = listening(Broken())
    try:
        w = torch.ones(3, requires_grad=True)
        w.sum().backward()
    finally:
        stop()
    assert w.grad is not None
    assert audit.trouble == ["PBA001: ValueError: broken"]


def test_nothing_is_kept_alive():
    class Namer(Ear):
        def after_call(self, audit, call, args, kwargs, result):
            self.heard.append(audit.name_of(args[0]))

    ear = Namer()
    _, stop = listening(ear)
    try:
        w = torch.ones(3, requires_grad=True)
        inner = w * 2
        result = inner.tanh()
        result.sum().backward()
        gone = weakref.ref(inner), weakref.ref(result)
        del inner, result
        gc.collect()
        assert [each() for each in gone] == [None, None]
    finally:
        stop()
    assert ear.heard


def test_the_same_is_said_once():
    audit, stop = listening()
    stop()
    finding = Ear().found("cause", [], Fix("fix"))
    audit.report(finding)
    audit.report(finding)
    assert len(audit.findings) == 1
