"""PB829: batch normalization updates its running statistics under vmap."""

from __future__ import annotations

import ast

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.edits import Rewrite
from pullback.diagnose.evidence.functions.hooks import calls_of
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.transforms import FUNC, batch_norm_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say


class BatchNormUnderVmap(Cause):
    """Batch normalization in training mode ran under ``vmap``, where each sample would update the running statistics.

    In training mode a BatchNorm layer writes the mean and variance of the batch into ``running_mean`` and
    ``running_var``. Under ``vmap`` every sample has a mean of its own, and there is one buffer for all: torch refuses.
    It would not be a gradient *per sample* either, for batch normalization mixes the samples of a batch.

    * ``nn.GroupNorm(groups, channels)`` normalizes each sample by itself.
    * ``torch.func.replace_all_batch_norm_modules_(model)``, before parameters and buffers are collected, leaves the
      running statistics out; each sample is then normalized by its own statistics.
    * ``model.eval()`` uses the running statistics and writes none: right for a trained model.
    """

    code = "PB829"
    title = "Batch normalization was to update its running statistics under vmap."
    says = (
        "Batch norm got a batched tensor as input while the running_mean or running_var",
        "would mutate a captured Tensor",
    )
    raises = (RuntimeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        layer = batch_norm_of(case)
        transforms = transforms_in(case, *FUNC)
        if layer is None and case.says("would mutate"):
            return None
        if not any(each.name == "vmap" for each in transforms):
            return self._outside_of_vmap(case, layer, transforms[0].name if transforms else "grad")
        name = type(layer).__name__ if layer is not None else "BatchNorm"
        made = calls_of(case, {name}) if layer is not None else []
        marks = [case.mark(say("batch normalization runs here, under vmap"))]
        marks += [
            Mark.at(Place(source.file, call.lineno, ""), say("the layer is made here"), source.span(call))
            for source, call in made[:3]
        ]
        outer = next((each.caller for each in transforms if each.name == "vmap" and each.caller), None)
        if outer is not None and outer.place != marks[0].place:
            marks.append(outer.mark(say("vmap runs the function here")))
        edits = _edits(made)
        return self.found(
            say(
                "This {layer} is in training mode: it writes into running_mean and running_var, of which there is one "
                "for all samples, but under vmap each sample has statistics of its own.",
                layer=name,
            ),
            marks,
            Fix(
                say("Use GroupNorm, which knows one sample at a time, or model.eval() for a trained model."),
                "\n".join((each.text or "").strip() for each in edits) or "torch.nn.GroupNorm(1, channels)",
                edits,
                "medium",
            ),
            useless=[
                say('randomness="different": nothing is random here.'),
                say("momentum=0: the statistics are still written."),
            ],
        )

    def _outside_of_vmap(self, case: Case, layer: nn.Module | None, transform: str) -> Diagnosis:
        """Of grad, vjp or jvp alone: the statistics are no argument of the function."""
        functional = case.call is not None and case.text(case.call.func).endswith("functional_call")
        model = case.text(case.argument("module", 0)) if functional else "model"
        return self.found(
            say(
                "This {layer} is in training mode: it writes into running_mean and running_var, which are no arguments "
                "of the function that {transform} differentiates.",
                layer=type(layer).__name__, transform=transform,
            ),
            [case.mark(say("batch normalization runs here"))],
            Fix(
                say("Leave the running statistics out, or call eval() for a trained model."),
                f"torch.func.replace_all_batch_norm_modules_({model})",
            ),
            title=say("Batch normalization was to update its running statistics inside a transformed function."),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.BatchNorm1d(4))
        torch.vmap(lambda row: net(row[None])[0])(torch.randn(5, 2, 8))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.GroupNorm(1, 4))
        torch.vmap(lambda row: net(row[None])[0])(torch.randn(5, 2, 8))


def _edits(made: list[tuple[Source, ast.Call]]) -> tuple[Edit, ...]:
    """The edits that make them GroupNorm, where only the number of channels is given."""
    edits: list[Edit] = []
    for source, call in made:
        if not user_files(()).own_file(source.file) or len(call.args) != 1 or call.keywords:
            return ()
        func = source.text(call.func)
        new = f"{func[: func.rindex('.') + 1]}GroupNorm" if "." in func else "torch.nn.GroupNorm"
        edits += Rewrite(source).replace(call, f"{new}(1, {source.text(call.args[0])})").edits()
    return tuple(edits)
