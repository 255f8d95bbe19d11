"""Sentences of random words; the class of one is that of its most frequent word."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .settings import Settings

VOCABULARY = 20


class Sentences(Dataset):
    """Sentences with their lengths and classes."""

    def __init__(self, settings: Settings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        shape = (settings.examples, settings.words)
        self.words = torch.randint(1, VOCABULARY, shape, generator=generator)
        self.lengths = torch.randint(2, settings.words + 1, (settings.examples,), generator=generator)
        self.classes = self.words.mode(dim=1).values % settings.classes

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.words[index], self.lengths[index], self.classes[index]


def collated(examples: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
    """A batch: words, a mask of those that count, and classes."""
    words, lengths, classes = (torch.stack(column) for column in zip(*examples, strict=True))
    mask = torch.arange(words.shape[1]) < lengths[:, None]
    return {"words": words, "mask": mask, "classes": classes}


def loader(settings: Settings, workers: int = 0) -> DataLoader:
    """The batches of an epoch."""
    return DataLoader(
        Sentences(settings),
        batch_size=settings.batch,
        shuffle=True,
        collate_fn=collated,
        num_workers=workers,
        drop_last=True,
    )
