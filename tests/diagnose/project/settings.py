"""What the program is run with."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The settings of one training."""

    examples: int = 32
    words: int = 6
    width: int = 16
    heads: int = 2
    layers: int = 2
    classes: int = 4
    batch: int = 8
    epochs: int = 1
    rate: float = 1e-3
    warmup: int = 3
    seed: int = 0


def settings_from(arguments: list[str] | None = None) -> Settings:
    """The settings that a command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument("--layers", type=int, default=Settings.layers)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    given = parser.parse_args(arguments)
    return Settings(epochs=given.epochs, layers=given.layers, seed=given.seed)
