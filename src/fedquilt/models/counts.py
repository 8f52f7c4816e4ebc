"""How large a network is, how much one row costs, and how much of it is frozen, trained and sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel  # the counter does not know the fused CPU kernel
from torch.utils.flop_counter import FlopCounterMode

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError


@dataclass(frozen=True)
class Audit:
    """Numbers in the parameters of a model, tied ones once.

    Args:
        total, frozen, trainable: How many in all, never trained, and trained.
        bytes: Of the model without its adapters: what would travel if it were trained as a whole.
        sent: Bytes of the trainable ones: what travels each way in a round.
        parts: For each part of the model: its numbers, and those of them that are trained.

    Example:
        >>> from fedquilt.models import MLP
        >>> found = audit(MLP(features=4, classes=2, hidden=(3,)))
        >>> found.total, found.frozen
        (23, 0)
    """

    total: int
    frozen: int
    trainable: int
    bytes: int
    sent: int
    parts: dict[str, tuple[int, int]]

    @property
    def percent(self) -> float:
        """The trainable share of the total, in percent."""
        return 100 * self.trainable / self.total if self.total else 0.0

    @property
    def ratio(self) -> float | None:
        """How many times less travels than if the model were trained as a whole; None if nothing is trained."""
        return self.bytes / self.sent if self.sent else None

    def rows(self) -> list[dict[str, str]]:
        """The same as a table for people."""
        parts = [_row(name, whole, trained) for name, (whole, trained) in self.parts.items()]
        return [*parts, _row("total", self.total, self.trainable)]


def _row(name: str, whole: int, trained: int) -> dict[str, str]:
    share = f"{100 * trained / whole:.2f} %" if whole else ""
    numbers = {"total": whole, "frozen": whole - trained, "trainable": trained}
    return {"part": name, **{k: f"{v:,}" for k, v in numbers.items()}, "percent": share}


def audit(model: nn.Module | Callable[[], nn.Module]) -> Audit:
    """The audit of a module, or of what a builder makes; for a builder, no memory is used and no weight read.

    Example:
        >>> from functools import partial
        >>> from fedquilt.models import MaskedAutoencoder, adapted
        >>> audit(partial(adapted, MaskedAutoencoder, size=8)).trainable
        4384
    """
    if not isinstance(model, nn.Module):
        with torch.device("meta"):
            model = model()
    found = dict(model.named_parameters())
    parts: dict[str, tuple[int, int]] = {}
    for name, p in found.items():
        top = name.split(".")[0]
        whole, trained = parts.get(top, (0, 0))
        parts[top] = whole + p.numel(), trained + p.numel() * p.requires_grad
    trained_ones = [p for p in found.values() if p.requires_grad]
    total, trainable = sum(p.numel() for p in found.values()), sum(p.numel() for p in trained_ones)
    return Audit(
        total=total,
        frozen=total - trainable,
        trainable=trainable,
        parts=parts,
        bytes=sum(p.numel() * p.element_size() for n, p in found.items() if not n.startswith("adapters.")),
        sent=sum(p.numel() * p.element_size() for p in trained_ones),
    )


@dataclass(frozen=True)
class ModelSize:
    """The size of a network and the cost of one row.

    Args:
        parameters: Numbers in all parameters; tied ones once.
        trainable: Those of them that are trained.
        buffers: Numbers in buffers that are saved, such as BatchNorm statistics.
        flops: Floating-point operations of a forward pass of one row: two for each multiplication and addition in
            convolutions, matrix products and attention. Biases, norms and activations are not counted.
        bytes: Memory of parameters and saved buffers.

    Example:
        >>> from fedquilt.models import MLP
        >>> count(MLP(features=4, classes=2, hidden=(3,)), (4,)).parameters
        23
    """

    parameters: int
    trainable: int
    buffers: int
    flops: int
    bytes: int


def count(module: nn.Module | Callable[[], nn.Module], shape: Sequence[int]) -> ModelSize:
    """The counts of a module, or of what a builder makes, for one row of this shape.

    Nothing is computed and no memory used, unless what the module does depends on values: then one row really
    passes through it.

    Example:
        >>> from fedquilt.models import make
        >>> count(make("logistic", (784,), 10), (784,)).flops
        15680
    """
    made = module if isinstance(module, nn.Module) else _build(module, "meta")
    try:
        flops = _flops(made, shape, "meta")
    except (NotImplementedError, RuntimeError):
        made = module if isinstance(module, nn.Module) else _build(module, "cpu")
        flops = _flops(made, shape, None)
    parameters, buffers = list(made.parameters()), _saved(made)
    return ModelSize(
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        buffers=sum(b.numel() for b in buffers),
        flops=flops,
        bytes=sum(t.numel() * t.element_size() for t in [*parameters, *buffers]),
    )


def _build(build: Callable[[], nn.Module], device: str) -> nn.Module:
    if not callable(build):
        raise InputError(f"count takes a module or a builder of one, got {type(build).__name__}.")
    with Seed(0).ambient(), torch.device(device):
        return build()


def _saved(module: nn.Module) -> list[Tensor]:
    found = {
        id(b): b
        for m in module.modules()
        for n, b in m._buffers.items()
        if b is not None and n not in m._non_persistent_buffers_set
    }
    return list(found.values())


def _flops(module: nn.Module, shape: Sequence[int], device: str | None) -> int:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    place = device or next((t.device for t in tensors.values()), torch.device("cpu"))
    kind = torch.int64 if getattr(module, "ids", False) else torch.float32
    row = torch.ones(1, *shape, dtype=kind, device=place)
    held = {n: t if device is None else torch.empty_like(t, device=device) for n, t in tensors.items()}
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            functional_call(module, held, (row,))
    finally:
        for part, mode in modes:
            part.training = mode
    return int(counter.get_total_flops())
