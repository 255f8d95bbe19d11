"""PB924: samples with a graph, to be made a batch in a worker."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.functions.classes import Method, method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class SamplesWithGraphs(Cause):
    """A worker of a DataLoader was to stack samples that require grad.

    A worker stacks the samples of a batch into memory that it shares with the program, by ``torch.stack(...,
    out=...)``, which autograd cannot record; a graph could not be sent to another process anyway. With
    ``num_workers=0`` nothing fails, but each batch then carries the graphs of all its samples.

    A dataset gives data: compute features under ``torch.no_grad()``, or ``detach()`` them. A model that is to be
    trained on the way belongs into the training loop, where it sees whole batches.
    """

    code = "PB924"
    title = "A worker of a DataLoader was to stack samples that require grad."
    says = ("functions with out=... arguments don't support automatic differentiation",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        fetched = case.library_frame("data/_utils/fetch.py", "fetch")
        if fetched is None or case.library_frame("data/_utils/collate.py", "collate_tensor_fn") is None:
            return None
        kind = type(getattr(fetched.get("self"), "dataset", None))
        method = method_of(kind, "__getitem__") or method_of(kind, "__iter__")
        marks, edits = _returned(method) if method is not None else ([], ())
        return self.found(
            say("{name} gives tensors that require grad; a worker cannot stack them.", name=kind.__name__),
            marks,
            Fix(
                say("Let the dataset compute without recording."),
                f"@torch.no_grad()\ndef {method.name.rpartition('.')[2] if method else '__getitem__'}(...): ...",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if marks else "medium",
            useless=[say("num_workers=0: nothing fails, but each batch carries the graphs of all its samples")],
        )

    @staticmethod
    def bad():
        import torch

        class Features(torch.utils.data.Dataset):
            def __init__(self):
                self.encoder = torch.nn.Linear(3, 2)

            def __len__(self):
                return 4

            def __getitem__(self, index):
                return self.encoder(torch.full((3,), float(index)))

        torch.utils.data._utils.worker._worker_info = object()  # as in a worker
        for batch in torch.utils.data.DataLoader(Features(), batch_size=2):
            batch.sum()

    @staticmethod
    def good():
        import torch

        class Features(torch.utils.data.Dataset):
            def __init__(self):
                self.encoder = torch.nn.Linear(3, 2)

            def __len__(self):
                return 4

            @torch.no_grad()
            def __getitem__(self, index):
                return self.encoder(torch.full((3,), float(index)))

        torch.utils.data._utils.worker._worker_info = object()  # as in a worker
        for batch in torch.utils.data.DataLoader(Features(), batch_size=2):
            batch.sum()


def _returned(method: Method) -> tuple[list[Mark], tuple[Edit, ...]]:
    """The last line that hands over a sample, and the edit that lets its function record nothing."""
    source, node = method.source, method.node
    given = [each for each in ast.walk(node) if isinstance(each, ast.Return | ast.Yield)]
    values = [each.value for each in given if each.value is not None]
    what = say("the samples are handed over here")
    marks = [marked(source, value, what, method.name) for value in values[-1:]]
    if isinstance(node, ast.FunctionDef) and method.own and all(isinstance(each, ast.Return) for each in given):
        return marks, (source.inserted_before(node, "@torch.no_grad()"),)
    return marks, ()
