"""An encoder and decoder with attention over padded sequences."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Translator(nn.Module):
    def __init__(self, words=12, width=16):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRUCell(width, width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, source, lengths, target):
        packed = pack_padded_sequence(self.embed(source), lengths, batch_first=True, enforce_sorted=False)
        memory, h = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, batch_first=True)
        mask = torch.arange(memory.shape[1])[None] >= lengths[:, None]
        h, outputs = h[0], []
        for t in range(target.shape[1]):
            h = self.decoder(self.embed(target[:, t]), h)
            scores = (memory @ h[..., None]).squeeze(-1).masked_fill(mask, float("-inf"))
            context = (scores.softmax(1)[..., None] * memory).sum(1)
            outputs.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(outputs, 1)


torch.manual_seed(0)
model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    source, target = torch.randint(1, 12, (5, 7)), torch.randint(1, 12, (5, 6))
    lengths = torch.randint(3, 8, (5,))
    lengths[0] = 7
    logits = model(source, lengths, target[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
