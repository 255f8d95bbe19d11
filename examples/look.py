"""Look at what a transformer's backward pass goes through: its graph as text, its memory, and a page.

Run from a clone: ``make demo`` once for the environment, then ``.venv/bin/python examples/look.py``. The page is one
file, ``out/graph.html``: open it in any browser.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import pullback as pb

PAGE = Path("out/graph.html")


class Reader(nn.Module):
    """Reads a sentence and says which of three classes it is of."""

    def __init__(self, words: int = 100, size: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size)
        layer = nn.TransformerEncoderLayer(size, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=6)
        self.head = nn.Linear(size, 3)

    def forward(self, sentence: Tensor) -> Tensor:
        read = self.encoder(self.words(sentence))
        return self.head(read.mean(dim=1))


def main() -> None:
    """Print the graph, what it keeps and the first steps back, and write the page."""
    torch.manual_seed(0)
    model = Reader()
    sentences, classes = torch.randint(100, (8, 12)), torch.randint(3, (8,))
    with pb.record():
        loss = nn.functional.cross_entropy(model(sentences), classes)
    graph = pb.graph(loss)
    print(graph)
    print()
    print(graph.memory())
    print()
    print(graph.replay().step(0))
    PAGE.parent.mkdir(exist_ok=True)
    print(f"\nwrote {graph.html(PAGE)}")


if __name__ == "__main__":
    main()
