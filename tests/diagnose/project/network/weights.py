"""Attention weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    """How much each word looks at each other."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def kept(weights: Tensor, mask: Tensor) -> Tensor:
    """The weights of the words that count."""
    weights *= mask[:, None, :]
    return weights


def weights_of(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights that sum to one."""
    weights = torch.softmax(scores, dim=-1)
    return kept(weights, mask)
