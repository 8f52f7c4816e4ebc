"""A training loop of one's own, in plain PyTorch: AdamW with a schedule of its own, and gradients that are clipped."""

import torch
from torch.nn import functional as F

from fedquilt import client_update


@client_update
def train(model, data_loader, context):
    """Train a client's model; the method around it may be FedAvg, FedProx, clusters, ..."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(data_loader) * context.epochs)
    for _ in range(context.epochs):
        for x, y in data_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05) + context.penalty(model)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return {"loss": loss.item()}
