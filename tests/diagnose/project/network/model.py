"""An encoder and a classifier on top."""

from __future__ import annotations

from torch import Tensor, nn

from ..data import VOCABULARY
from ..settings import Settings
from .attention import Attention


class Feed(nn.Module):
    """Two layers for each word."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.activation = nn.GELU()
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each word by itself."""
        return self.outer(self.activation(self.inner(x)))


class Block(nn.Module):
    """Attention and two layers, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed = Feed(width)
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attention(self.before(x), mask)
        return x + self.feed(self.between(x))


class Encoder(nn.Module):
    """Words to vectors."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, settings.width)
        self.blocks = nn.ModuleList(Block(settings.width, settings.heads) for _ in range(settings.layers))

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """A vector for each word."""
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, mask)
        return x


class Classifier(nn.Module):
    """The class of a sentence."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.encoder = Encoder(settings)
        self.head = nn.Linear(settings.width, settings.classes)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """A score for each class."""
        vectors = self.encoder(words, mask)
        share = mask / mask.sum(1, keepdim=True)
        return self.head((vectors * share[..., None]).sum(1))
