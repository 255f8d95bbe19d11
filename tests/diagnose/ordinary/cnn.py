"""A small convolutional classifier with validation, a scheduler and clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.1)
        )
        self.head = nn.Linear(8 * 16, 3)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def evaluate(net, loader):
    net.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (net(x).argmax(1) == y).sum().item()
    net.train()
    return hits


def main():
    torch.manual_seed(0)
    x, y = torch.randn(48, 1, 8, 8), torch.randint(0, 3, (48,))
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    criterion = nn.CrossEntropyLoss()
    history = []
    for _ in range(3):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        schedule.step()
        history.append(total)
        evaluate(net, loader)


if __name__ == "__main__":
    main()
