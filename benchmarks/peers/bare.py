"""The loop one writes by hand: one module, torch.optim.SGD, preloaded tensors, one thread."""

import numpy as np
import torch
from torch.nn import functional as F
from work import BATCH, asked, now, told

torch.set_num_threads(1)
work, data, rounds = asked()
module, state = data.network(), data.start
generator, rng, ends = torch.Generator().manual_seed(0), np.random.default_rng(0), [now()]
for _ in range(rounds):
    total = {name: torch.zeros_like(value) for name, value in state.items()}
    for client in rng.choice(work.clients, work.cohort, replace=False):
        module.load_state_dict(state)
        optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
        x, y = data.client(int(client))
        for rows in torch.randperm(len(y), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        for name, value in module.state_dict().items():
            total[name] += value / work.cohort
    state = total
    ends.append(now())
module.load_state_dict(state)
told(ends, data.accuracy(module))
