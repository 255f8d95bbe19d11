"""A seed in float16: where it is lost on the way, and the loss scale that saves it.

    python examples/float16_seed.py

The article on ``grad_tensors`` asks that a seed has the dtype of its output. In float16 that is not enough: its numbers
end at 65504 and begin at 6e-8, and a cotangent may leave that range at any node.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pullback as pb

torch.manual_seed(0)

# The article's own example keeps all of its digits ...
x = torch.tensor([1.0, 2.0], dtype=torch.float16)
print(pb.precision(lambda x: x**2, x, dtypes=[torch.float16]), "\n")
# ... and with other seeds nothing, without a word from torch.
print(pb.precision(lambda x: x**2, x, seed=torch.tensor([1e5, 1e-8]), dtypes=[torch.float16]), "\n")

# A loss that is small, as one of many terms may be: most of its gradient is subnormal in float16.
model = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1))
data, target = torch.randn(64, 20), torch.randn(64, 1)


def loss(data: Tensor, target: Tensor) -> Tensor:
    """Under autocast, with the parameters in float32."""
    with torch.autocast("cpu", torch.float16):
        out = model(data)
    return (out - target).square().mean() * 1e-5


run = pb.precision(loss, data, target, dtypes=[torch.float32])[torch.float32]
print(run, "\n")

# The same in a training step, with the advised scale.
assert run.scales is not None
assert run.scales.factor is not None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for scale in (1.0, run.scales.factor):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with pb.autocast_watch(scaler) as w:
        optimizer.zero_grad()
        scaler.scale(loss(data, target)).backward()
        scaler.step(optimizer)
        scaler.update()
    print(w, "\n")
