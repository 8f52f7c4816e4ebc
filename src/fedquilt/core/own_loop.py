"""A training loop of the user's own, in plain PyTorch, as the local work of a method."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Table
from fedquilt.errors import InputError

if TYPE_CHECKING:
    from fedquilt.core.train import Descent

Metrics = Mapping[str, float] | None
_USUAL = "fedquilt.pieces.objectives:cross_entropy"  # the loss that any loss of a loop's own may replace
F = TypeVar("F", bound="Loop")


class Loop(Protocol):
    """The shape of a training loop."""

    def __call__(self, model: nn.Module, data_loader: DataLoader[Any], context: LoopContext, /) -> Metrics:
        """Train the model in place; numbers by name, or None."""
        ...


def client_update(loop: F) -> F:
    """Mark a plain PyTorch function ``(model, data_loader, context) -> metrics`` as a client's local training.

    ``model`` is an ``nn.Module`` with the values that the client was sent; what the function leaves in it is what the
    client has learned. ``data_loader`` gives shuffled batches ``(x, y)`` of the client's training samples. The function
    may return numbers: ``loss``, the mean training loss, and ``steps``, if these are not the batches that it drew.

    Example:
        >>> import torch.nn.functional as F
        >>> @client_update
        ... def train(model, data_loader, context):
        ...     optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        ...     for x, y in data_loader:
        ...         optimizer.zero_grad()
        ...         loss = F.cross_entropy(model(x), y) + context.penalty(model)
        ...         loss.backward()
        ...         optimizer.step()
        ...     return {"loss": loss.item()}
    """
    check_loop(loop)
    return loop


def check_loop(loop: object) -> None:
    """Refuse what cannot be called with a model, a data loader and a context."""
    try:
        if not callable(loop):
            raise TypeError("it is no function")
        inspect.signature(loop).bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"A client update is a function (model, data_loader, context) -> metrics, got {loop!r}: {error}."
        ) from error


@dataclass
class LoopContext:
    """Where in a run a training loop is called, and what the method adds to the loss.

    Args:
        round: Counted from 0.
        client: Whose data these are.
        seed: For randomness that should be the same on every engine; the generators of torch, numpy and Python are
            seeded already.
        device: Where the model is.
        epochs, batch_size, lr: As the method or recipe has them, for loops that want to go by them.
    """

    round: int
    client: ClientId | None
    seed: Seed
    device: torch.device
    epochs: int
    batch_size: int
    lr: float
    _objective: Objective = field(repr=False)
    _fixed: Mapping[str, Any] = field(repr=False)
    _called: set[str] = field(default_factory=set, repr=False)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The method's whole loss of a batch, its own terms included. It makes the forward pass."""
        self._called |= {"loss", "penalty"}
        net = self._objective.net
        return self._objective(
            _values(model, net), self._fixed, Batch(dict(zip((*net.inputs, "y"), (x, y), strict=True)))
        )

    def penalty(self, model: nn.Module) -> Tensor:
        """What the method adds to the loss, as FedProx does: to be added to yours. Zero for FedAvg."""
        self._called.add("penalty")
        nothing = torch.zeros((), device=self.device)
        total, values = nothing, _values(model, self._objective.net)
        for term in self._objective.terms[1:]:
            try:
                total = total + term(nothing, values, self._fixed, None)  # type: ignore[arg-type]
            except (TypeError, AttributeError) as error:
                raise InputError(
                    f"The term {term!r} needs the batch. Use context.loss(model, x, y) instead of your own loss."
                ) from error
        return total


def _values(model: nn.Module, net: Net) -> Params:
    """A model's tensors by the names that methods know."""
    return {n: t for n, t in model.state_dict(keep_vars=True).items() if n in set(net.names)}


class _Samples(Dataset[tuple[Tensor, ...]]):
    """A table's samples, one by one or several at once, as training takes them."""

    def __init__(self, table: Table, columns: Sequence[str], seed: Seed) -> None:
        self.table, self.columns, self.index = table, columns, table.all_rows()
        self.seed, self.reads = seed, 0

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        return tuple(column[0] for column in self.__getitems__([place]))

    def __getitems__(self, places: Sequence[int]) -> tuple[Tensor, ...]:
        batch = self.table.training(self.index[list(places)], self.seed.fold(self.reads))
        self.reads += 1
        return tuple(batch[name] for name in self.columns)


@dataclass
class Unknown(dict[str, Tensor]):
    """What a loop of one's own does not say; asking for it is an error with a reason."""

    what: str

    def _refuse(self, *_: object) -> Any:
        raise InputError(f"This method needs {self.what}, which a training loop of your own does not give it.")

    __getitem__ = __contains__ = __iter__ = __len__ = items = keys = values = get = _refuse


def run_loop(
    loop: Loop, descent: Descent, names: Sequence[str], device: torch.device | None
) -> tuple[Params, int, float]:
    """(the values after the loop, batches drawn, mean loss) of a client's own training."""
    train, job, site, context = descent.train, descent.job, descent.site, descent.context
    objective = train.objective
    if not isinstance(objective, Objective):
        raise InputError(
            f"{type(objective).__name__} makes its own steps, which a custom training loop cannot replace."
        )
    net = objective.net
    model = _model(net, job.params, names, device)
    table, where = train.rows(site), device or torch.device("cpu")
    generator = context.seed.fold("batches").torch()
    columns = (*net.inputs, *(["y"] if "y" in table.columns else []))
    drawn = _Drawn(_Samples(table, columns, context.seed.fold("augment")), train.batch_size, generator)
    at = LoopContext(
        context.round,
        context.client,
        context.seed,
        where,
        train.passes(job, context),
        train.batch_size,
        train.rate(job, context),
        objective,
        job.fixed,
    )
    with context.seed.fold("ambient").everywhere():
        told = loop(model.train(), drawn.loader, at)
    _check_terms(objective, at._called)
    if told is not None and not isinstance(told, Mapping):
        raise InputError(f"A client update returns numbers by name, such as {{'loss': 0.3}}, or None; got {told!r}.")
    after = {n: t.detach().cpu().clone() for n, t in model.state_dict().items()}
    numbers = {"steps": drawn.batches, "loss": float("nan"), **(told or {})}
    return {n: after[n] for n in job.params}, int(numbers["steps"]), float(numbers["loss"])


class _Drawn:
    """A data loader that counts its batches."""

    def __init__(self, samples: _Samples, size: int, generator: torch.Generator) -> None:
        self.batches = 0
        self.loader: DataLoader[Any] = DataLoader(
            samples, size, shuffle=True, generator=generator, collate_fn=self._counted
        )

    def _counted(self, batch: Any) -> Any:
        self.batches += 1
        return batch


def _model(net: Net, params: Params, names: Sequence[str], device: torch.device | None) -> nn.Module:
    """A module of its own with these values; only ``names`` are trained."""
    if "plain" not in net._cell:
        with Seed(net.seed).fold("frozen").ambient():
            net._cell["plain"] = net._make()
    model: nn.Module = copy.deepcopy(net._cell["plain"])  # noqa: TID251 - a module cannot be shared: loops change it
    model.load_state_dict(params, strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in set(names))
    return model.to(device)


def _check_terms(objective: Objective, called: set[str]) -> None:
    """A method's own terms must not be lost in silence."""
    first = objective.terms[0]
    usual = f"{getattr(first, '__module__', '')}:{getattr(first, '__qualname__', '')}" == _USUAL
    if not usual and "loss" not in called:
        raise InputError(
            f"The method has its own loss ({first!r}), which your training loop never used. Minimise "
            "context.loss(model, x, y)."
        )
    if len(objective.terms) > 1 and "penalty" not in called:
        raise InputError(
            "The method adds a term to the loss, which your training loop never added. Minimise your loss + "
            "context.penalty(model), or context.loss(model, x, y)."
        )
