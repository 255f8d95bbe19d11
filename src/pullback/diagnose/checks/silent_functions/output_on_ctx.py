"""PBA504: an output kept on ctx."""

from __future__ import annotations

import gc
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.custom import custom_nodes, name_of
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class OutputOnCtx(Fault):
    """A custom ``forward`` keeps its output as an attribute of ``ctx``: a reference cycle that holds memory.

    The output's ``grad_fn`` is the node, that is ``ctx``, and ``ctx`` holds the output. Neither is freed when the
    program lets go of them, only when Python's garbage collector runs: memory grows over the steps. Attributes are not
    checked for in-place changes either.

    Use ``ctx.save_for_backward(y)``, which is built for outputs too. Attributes of ``ctx`` are for shapes and numbers.
    """

    code = "PBA504"
    title = "A custom Function keeps its output on ctx: a reference cycle that holds its memory."

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        for node in custom_nodes(backward):
            self._look(audit, node)

    def at_end(self, audit: Audit) -> None:
        for thing in gc.get_objects():
            if issubclass(type(thing), BackwardCFunction) and not thing._forward_cls.__module__.startswith("torch."):
                self._look(audit, thing)

    def _look(self, audit: Audit, node: Any) -> None:
        for name, value in list(vars(node).items()):
            if isinstance(value, Tensor) and not value.is_leaf and value.grad_fn is node:
                key = name_of(node), name
                if key not in self._told:
                    self._told.add(key)
                    audit.report(self._finding(node, name))

    def _finding(self, node: Any, name: str) -> Diagnosis:
        code = node._forward_cls.forward.__code__
        source = source_of(code.co_filename)
        scope = source.function_at(code.co_firstlineno, code.co_name)
        first = scope.lineno if not isinstance(scope, type(source.tree)) else 1  # type: ignore[union-attr]
        last = getattr(scope, "end_lineno", None) or len(source.lines)
        found = next(
            (line for line in range(first, last + 1) if f".{name}" in source.lines[line - 1].partition("#")[0]),
            code.co_firstlineno,
        )
        function = name_of(node)
        return self.found(
            say(
                "{function}.forward keeps its output as ctx.{name}. The output refers to this node by its grad_fn, and "
                "the node to the output: neither is freed before the garbage collector runs.",
                function=function, name=name,
            ),
            [Mark.at(Place(code.co_filename, found, f"{function}.forward"), say("the output is kept here"))],
            Fix(
                say("Save it with ctx.save_for_backward."),
                f"ctx.save_for_backward({name})    # {say('in backward:')} ({name},) = ctx.saved_tensors",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Exponential(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.result = x.exp()
                return ctx.result

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.result

        Exponential.apply(torch.randn(3, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        class Exponential(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.size = y.shape
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, grad):
                (y,) = ctx.saved_tensors
                return grad * y

        Exponential.apply(torch.randn(3, requires_grad=True)).sum().backward()
