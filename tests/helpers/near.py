"""Numbers that should be equal up to rounding."""

from __future__ import annotations

import torch


def close(found, expected, off=1e-6):
    assert torch.allclose(torch.as_tensor(found).double(), torch.as_tensor(expected).double(), atol=off, rtol=0)
