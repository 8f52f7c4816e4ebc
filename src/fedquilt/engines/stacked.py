"""Several trainings at once: parameters stacked along a first axis, ``torch.func.vmap`` over the objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedquilt.core.errors import InputError
from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.core.train import Descent, Memory, Train, Trained

REMEDY = "Use engine 'workers' or 'local' for it."
AGREES = 1e-4  # relative; how well a padded batch must give the loss of the bare one


def alike(descents: Mapping[int, Descent]) -> list[list[int]]:
    """The numbers of those that can go side by side: one training, one shape of everything, one learning rate."""
    groups: dict[Any, list[int]] = {}
    for number, d in descents.items():
        memory = d.job.memory or Memory()
        shapes = tuple((n, t.shape, t.dtype) for n, t in d.job.params.items())
        slots = tuple(tuple(t.shape for t in s) for s in memory.slots)
        key = (id(d.train), d.train.rate(d.job, d.turn), memory.steps, slots, shapes, _shape(d.job.fixed))
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def steps_of(descent: Descent) -> int:
    """How many steps it makes."""
    train, job, turn = descent.train, descent.job, descent.turn
    lone = not train.objective.net.normalises
    return train.rows(descent.site).steps(train.batch_size, train.passes(job, turn), train.steps, lone)


def descend(descents: Sequence[Descent], device: torch.device | None = None, limit: int | None = None) -> list[Trained]:
    """What each of these alike descents leaves behind, as ``Train.descend`` but for rounding; at most ``limit`` steps.

    A lane that has made its steps drops out: lanes are in the order of their steps, so that those still under way are
    always the first ones.
    """
    counts = [steps_of(d) if limit is None else min(steps_of(d), limit) for d in descents]
    order = sorted(range(len(descents)), key=lambda i: -counts[i])
    lanes = _Lanes([descents[i] for i in order], device)
    with lanes.train.objective.net.side_by_side():
        for step in range(max(counts, default=0)):
            lanes.step(sum(c > step for c in counts))
    found = [lanes.trained(place, counts[i]) for place, i in enumerate(order)]
    return [found[order.index(i)] for i in range(len(descents))]


class _Lanes:
    """Stacked weights under way; lane i is row i of every tensor."""

    def __init__(self, descents: Sequence[Descent], device: torch.device | None) -> None:
        first = descents[0]
        self.train: Train = first.train
        self.device = device if device is not None and device.type != "cpu" else None
        self.names = self.train.trains(first.job.params)
        self.params = {n: self._stack([d.job.params[n].detach() for d in descents]) for n in first.job.params}
        self.bare = [self.params[n] for n in self.names]
        memory = first.job.memory or Memory()
        kept = [d.job.memory.slots if d.job.memory else () for d in descents]
        self.slots: tuple[list[Tensor], ...] = (
            tuple([self._stack(list(t)) for t in zip(*s, strict=True)] for s in zip(*kept, strict=True))
            if memory.slots
            else tuple(self.train.optimizer.init(self.bare))
        )
        self.done, self.before, self.lr = 0, memory.steps, self.train.rate(first.job, first.turn)
        leaves = [_leaves(d.job.fixed) for d in descents]
        self.rebuild = first.job.fixed
        self.fixed = [self._one_or_stack(list(t)) for t in zip(*leaves, strict=True)]
        self.batches: list[Iterator[Batch]] = [d.train.batches(d.job, d.site, d.turn) for d in descents]
        self.losses: list[Tensor] = []
        self.gradients: dict[int, list[Tensor]] = {}
        self.live, self.weights, self.trusted = -1, [*self.bare], False

    def _stack(self, tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).to(self.device) if self.device else torch.stack(tensors)

    def _one_or_stack(self, tensors: list[Tensor]) -> tuple[Tensor, int | None]:
        """What all lanes share stays one tensor."""
        if all(t is tensors[0] for t in tensors):
            return tensors[0].to(self.device) if self.device else tensors[0], None
        return self._stack(tensors), 0

    def step(self, live: int) -> None:
        """One step of the first ``live`` lanes."""
        if live != self.live:
            if self.done:
                self._note_gradients(live)
            self.live, self.weights = live, [w[:live].detach().requires_grad_() for w in self.bare]
        batches = [next(batches) for batches in self.batches[:live]]
        columns, weight = self._padded(batches)
        values = {n: t[:live] for n, t in self.params.items()} | dict(zip(self.names, self.weights, strict=True))
        losses = self._losses(values, columns, weight)
        if weight is not None:
            self._trust(batches)
        self.grads = list(torch.autograd.grad(losses.sum(), self.weights, materialize_grads=True))
        if self.train.clip is not None:
            _clip(self.grads, self.train.clip)
        self.losses.append(losses.detach())
        self.done += 1
        slots = tuple([t[:live] for t in s] for s in self.slots)
        bare = [w.detach() for w in self.weights]
        self.train.optimizer.step(bare, self.grads, slots, self.lr, self.before + self.done)

    def _losses(self, values: Params, columns: dict[str, Tensor], weight: Tensor | None) -> Tensor:
        fixed = [t if dim is None else t[: self.live] for t, dim in self.fixed]
        dims = (0, [dim for _, dim in self.fixed], 0, None if weight is None else 0)

        def lane(params: Params, leaves: list[Tensor], rows: dict[str, Tensor], share: Tensor | None) -> Tensor:
            return self.train.objective(params, _filled(self.rebuild, iter(leaves)), Batch(rows, share))

        try:
            return vmap(lane, in_dims=dims)(values, fixed, columns, weight)
        except RuntimeError as error:
            raise InputError(
                f"Its objective cannot be computed for several clients at once: {_first(error)} {REMEDY}"
            ) from error

    def _padded(self, batches: Sequence[Batch]) -> tuple[dict[str, Tensor], Tensor | None]:
        """The lanes' batches as one, filled up with rows of weight 0 where they are shorter."""
        sizes = [len(b) for b in batches]
        longest = max(sizes)
        if min(sizes) == longest:
            return {n: self._stack([b.columns[n] for b in batches]) for n in batches[0].columns}, None
        columns = {n: self._stack([_filled_up(b.columns[n], longest) for b in batches]) for n in batches[0].columns}
        weight = torch.zeros(len(batches), longest)
        for lane, size in enumerate(sizes):
            weight[lane, :size] = 1.0
        return columns, weight.to(self.device) if self.device else weight

    def _trust(self, batches: Sequence[Batch]) -> None:
        """An objective that forgets the weights of rows would learn from the filling; find out before it does."""
        if self.trusted:
            return
        lane = max(range(len(batches)), key=lambda i: len(batches[i]))
        batch = batches[lane]
        values = {n: t[lane] for n, t in self.params.items()}
        fixed = _filled(self.rebuild, iter([t if dim is None else t[lane] for t, dim in self.fixed]))
        columns = {n: c.to(self.device) if self.device else c for n, c in batch.columns.items()}
        weight = torch.zeros(len(batch), device=self.device)
        weight[0] = 1.0
        with torch.no_grad():
            bare = float(self.train.objective(values, fixed, Batch({n: c[:1] for n, c in columns.items()})))
            full = float(self.train.objective(values, fixed, Batch(columns, weight)))
        if abs(bare - full) > AGREES * max(1.0, abs(bare)):
            raise InputError(
                f"Its objective gives {bare:.6g} for a row, and {full:.6g} for the same row beside others of weight 0, "
                "which shorter batches are filled up with: a term does not average by batch.weight "
                f"(pieces.objectives.weighted_mean). {REMEDY}"
            )
        self.trusted = True

    def _note_gradients(self, live: int) -> None:
        """Keep the last gradients of lanes that end here."""
        for lane in range(live, self.live):
            self.gradients[lane] = [g[lane].clone() for g in self.grads]

    def trained(self, lane: int, steps: int) -> Trained:
        """What this lane left behind."""
        if self.live > 0:
            self._note_gradients(0)
            self.live = 0
        grads = self.gradients.get(lane, [])
        loss = float(torch.stack([x[lane] for x in self.losses[:steps]]).mean()) if steps else 0.0
        params = {n: t.detach()[lane].cpu() for n, t in self.params.items()}
        gradient = {n: g.cpu() for n, g in zip(self.names, grads, strict=False)}
        kept = Memory(self.before + steps, tuple(tuple(t[lane].cpu() for t in s) for s in self.slots))
        return Trained(params, gradient, steps, loss, self.lr, kept)


def _filled_up(column: Tensor, longest: int) -> Tensor:
    """With its own first row repeated at the end: values that any network takes."""
    lacking = longest - len(column)
    return torch.cat([column, column[:1].expand(lacking, *column.shape[1:])]) if lacking else column


def _clip(grads: list[Tensor], limit: float) -> None:
    total = sum((g.flatten(1).square().sum(1) for g in grads), torch.zeros(())).sqrt()
    factor = torch.clamp(limit / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1)))


def _leaves(value: Any) -> list[Tensor]:
    """The tensors of a tree of mappings and sequences, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in _leaves(v)]
    if isinstance(value, tuple | list):
        return [t for v in value for t in _leaves(v)]
    return []


def _filled(value: Any, leaves: Iterator[Tensor]) -> Any:
    """The same tree with these tensors in their place."""
    if isinstance(value, Tensor):
        return next(leaves)
    if isinstance(value, Mapping):
        return {k: _filled(v, leaves) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_filled(v, leaves) for v in value))
    if isinstance(value, tuple | list):
        return type(value)(_filled(v, leaves) for v in value)
    return value


def _shape(value: Any) -> Any:
    """What two trees must have in common to be stacked."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((k, _shape(v)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(_shape(v) for v in value)
    return repr(value)


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."
