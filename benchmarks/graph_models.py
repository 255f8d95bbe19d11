"""Networks whose graphs are drawn and measured: a residual one, a transformer, a recurrent one, a perceptron."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYERS, STEPS = 6, 200
KEYS = ("graph-mlp", "graph-resnet18", "graph-transformer", "graph-lstm")


class Block(nn.Module):
    """Two convolutions and a way around them; where the shape changes, the way around has one too."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += around
        return functional.relu(out, inplace=True)


class ResNet18(nn.Module):
    """The residual network of 18 layers (He et al., 2016), 64 channels wide in its first stage or narrower."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(Block(sizes[i], sizes[i + 1], 1 if i == 0 else 2), Block(sizes[i + 1], sizes[i + 1], 1))
            for i in range(4)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DecoderLayer(nn.Module):
    """Causal attention and a small network, each normalised first and added to what came in."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = q @ k.transpose(-2, -1) / math.sqrt(size // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = weights.masked_fill(future, -math.inf).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, length, size))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model: embeddings, layers with causal attention, and the logits of the next token."""

    def __init__(self, tokens: int = 50, size: int = 32, heads: int = 4, length: int = 16) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, size), nn.Embedding(length, size)
        self.layers = nn.ModuleList(DecoderLayer(size, heads) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, tokens, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        x = self.token(index) + self.position(torch.arange(index.shape[1], device=index.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM cell called once for each step, and a layer after the last."""

    def __init__(self, inputs: int = 8, size: int = 16, out: int = 4) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(inputs, size), nn.Linear(size, out)

    def forward(self, x: Tensor) -> Tensor:
        state: tuple[Tensor, Tensor] | None = None
        for step in x:
            state = self.cell(step, state)
        if state is None:
            raise ValueError("a sequence has at least one step")
        return self.out(state[0])


def encoder(size: int = 32, heads: int = 4, **more: float) -> nn.TransformerEncoder:
    """PyTorch's own encoder of six layers."""
    layer = nn.TransformerEncoderLayer(size, heads, 4 * size, batch_first=True, **more)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with the hyperbolic tangent between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Drawn:
    """A network and what it is called with, as a benchmark draws them."""

    key: str
    title: str
    model: nn.Module
    x: Tensor

    def value(self) -> Tensor:
        """A scalar made of the network's output: the root of the graph."""
        return self.model(self.x).sin().mean()


def suite(*, quick: bool = False) -> list[Drawn]:
    """The networks, with the same numbers every time."""
    torch.manual_seed(0)
    steps = 20 if quick else STEPS
    drawn = (
        ("MLP of 4 layers", perceptron(64, 128, 128, 128, 10), torch.randn(32, 64)),
        ("resnet18, 32 x 32 pixels", ResNet18(16, 10), torch.randn(4, 3, 32, 32)),
        ("transformer encoder of 6 layers", encoder(64, 4, dropout=0.1), torch.randn(4, 16, 64)),
        (f"LSTM cell over {steps} steps", Recurrent(), torch.randn(steps, 4, 8)),
    )
    return [Drawn(key, *rest) for key, rest in zip(KEYS, drawn, strict=True)]
