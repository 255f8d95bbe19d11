"""Train the classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .data import loader
from .metrics import Mean, accuracy
from .network.model import Classifier
from .schedule import schedule
from .settings import Settings, settings_from


class Trainer:
    """A model with what trains it."""

    def __init__(self, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.batches = loader(settings)
        self.model = Classifier(settings)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.rate)
        self.schedule = schedule(self.optimizer, settings.warmup, settings.epochs * len(self.batches))

    def loss_of(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the scores."""
        scores = self.model(batch["words"], batch["mask"])
        return self.criterion(scores, batch["classes"]), scores

    def step(self, batch: dict[str, Tensor]) -> tuple[float, float]:
        """One step."""
        self.optimizer.zero_grad()
        loss, scores = self.loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.item(), accuracy(scores, batch["classes"])

    def epoch(self) -> tuple[float, float]:
        """All batches once."""
        losses, right = Mean(), Mean()
        for batch in self.batches:
            loss, share = self.step(batch)
            losses.add(loss, len(batch["classes"]))
            right.add(share, len(batch["classes"]))
        return losses.value, right.value

    def fit(self) -> None:
        """All epochs."""
        for number in range(self.settings.epochs):
            loss, right = self.epoch()
            print(f"epoch {number}: loss {loss:.3f}, right {right:.0%}")


def main() -> None:
    """Train with what the command line says."""
    Trainer(settings_from()).fit()


if __name__ == "__main__":
    main()
