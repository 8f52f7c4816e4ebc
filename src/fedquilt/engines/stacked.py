"""Several trainings at once: parameters stacked along a first axis, ``torch.func.vmap`` over the objective.

The batches of several clients as one: lane i is row i of every column.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from fedquilt.core.lazy import LazyColumn
from fedquilt.core.params import Params
from fedquilt.core.table import Batch, Columns, Table
from fedquilt.core.train import Descent, Memory, Train, Trained
from fedquilt.core.tree import carried, filled, leaves, shape
from fedquilt.errors import InputError

Feed = Callable[[int], tuple[Columns, list[int]]]  # so many lanes -> their next batches, and how many rows each has


def feed_of(descents: Sequence[Descent]) -> Feed:
    """What feeds these lanes. Shorter batches are filled up with their own first row: values that any network takes."""
    tables = [d.train.rows(d.site) for d in descents]
    return _gathered(descents, tables) if _one_store(tables) else _stacked(descents)


def _one_store(tables: Sequence[Table]) -> bool:
    """Whether all rows are of the very same columns, in memory, and none is changed at random."""
    first = tables[0]
    if getattr(first.prepare, "augmented", None) is not None:
        return False
    if any(isinstance(column, LazyColumn) for column in first.columns.values()):
        return False
    return all(t.prepare is first.prepare and _same(t, first) for t in tables)


def _same(a: Table, b: Table) -> bool:
    if a.columns is b.columns:
        return True
    return list(a.columns) == list(b.columns) and all(c is b.columns[n] for n, c in a.columns.items())


def _gathered(descents: Sequence[Descent], tables: Sequence[Table]) -> Feed:
    """One look-up for all lanes."""
    drawn = [t.draws(*d.train.how(d.job, d.context)) for t, d in zip(tables, descents, strict=True)]
    table = tables[0]

    def feed(live: int) -> tuple[Columns, list[int]]:
        rows = [next(lane) for lane in drawn[:live]]
        sizes = [r.numel() for r in rows]
        longest = max(sizes)
        found = table.rows(torch.cat([_filled_up(r, longest) for r in rows])).columns
        return {n: c.view(live, longest, *c.shape[1:]) for n, c in found.items()}, sizes

    return feed


def _stacked(descents: Sequence[Descent]) -> Feed:
    """Every lane's own batches, put together."""
    lanes = [d.train.batches(d.job, d.site, d.context) for d in descents]

    def feed(live: int) -> tuple[Columns, list[int]]:
        batches = [next(lane).columns for lane in lanes[:live]]
        sizes = [len(next(iter(b.values()))) for b in batches]
        longest = max(sizes)
        return {n: torch.stack([_filled_up(b[n], longest) for b in batches]) for n in batches[0]}, sizes

    return feed


def _filled_up(column: Tensor, longest: int) -> Tensor:
    lacking = longest - column.shape[0]
    return torch.cat([column, column[:1].expand(lacking, *column.shape[1:])]) if lacking else column


REMEDY = "Use engine 'workers' or 'local' for it."
AGREES = 1e-4  # relative; how well a padded batch must give the loss of the bare one


def alike(descents: Mapping[int, Descent]) -> list[list[int]]:
    """The numbers of those that can go side by side: one training, one shape of everything, one learning rate."""
    groups: dict[Hashable, list[int]] = {}
    for number, d in descents.items():
        memory = d.job.memory or Memory()
        shapes = tuple((n, t.shape, t.dtype) for n, t in d.job.params.items())
        slots = tuple(tuple(t.shape for t in s) for s in memory.slots)
        key = (id(d.train), d.train.rate(d.job, d.context), memory.steps, slots, shapes, shape(d.job.fixed))
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def steps_of(descent: Descent) -> int:
    """How many steps it makes."""
    train, job, context = descent.train, descent.job, descent.context
    lone = not train.objective.net.normalises
    return train.rows(descent.site).steps(train.batch_size, train.passes(job, context), train.steps, lone)


def descend(descents: Sequence[Descent], device: torch.device | None = None, limit: int | None = None) -> list[Trained]:
    """What each of these alike descents leaves behind, as ``Train.descend`` but for rounding; at most ``limit`` steps.

    A lane that has made its steps drops out: lanes are in the order of their steps, so that those still under way are
    always the first ones.
    """
    counts = [steps_of(d) if limit is None else min(steps_of(d), limit) for d in descents]
    order = sorted(range(len(descents)), key=lambda i: -counts[i])
    lanes = _Lanes([descents[i] for i in order], device)
    live = [sum(c > step for c in counts) for step in range(max(counts, default=0))]
    with lanes.train.objective.net.side_by_side():
        for under_way, batch in zip(live, carried(lanes.batches(live), device), strict=True):
            lanes.step(under_way, batch)
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
        self.slots = self._slots(descents) if memory.slots else tuple(self.train.optimizer.init(self.bare))
        self.done, self.before, self.lr = 0, memory.steps, self.train.rate(first.job, first.context)
        kinds = [leaves(d.job.fixed) for d in descents]
        self.rebuild = first.job.fixed
        self.fixed = [self._one_or_stack(list(t)) for t in zip(*kinds, strict=True)]
        self.feed = feed_of(descents)
        self.losses: list[Tensor] = []
        self.told: list[list[float]] = []
        self.gradients: dict[int, list[Tensor]] = {}
        self.live, self.trusted = -1, False

    def _stack(self, tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).to(self.device) if self.device else torch.stack(tensors)

    def _slots(self, descents: Sequence[Descent]) -> tuple[list[Tensor], ...]:
        """The optimisers' memories side by side."""
        kept = [d.job.memory.slots if d.job.memory else () for d in descents]
        return tuple([self._stack(list(t)) for t in zip(*s, strict=True)] for s in zip(*kept, strict=True))

    def _one_or_stack(self, tensors: list[Tensor]) -> tuple[Tensor, int | None]:
        """What all lanes share stays one tensor."""
        if all(t is tensors[0] for t in tensors):
            return tensors[0].to(self.device) if self.device else tensors[0], None
        return self._stack(tensors), 0

    def batches(self, live: list[int]) -> Iterator[Batch]:
        """For each step the batch of all lanes still under way; rows that shorter ones were filled up with weigh 0."""
        for count in live:
            columns, sizes = self.feed(count)
            yield Batch(columns, None if min(sizes) == max(sizes) else _weight(sizes))

    def step(self, live: int, batch: Batch) -> None:
        """One step of the first ``live`` lanes."""
        if live != self.live:
            if self.done:
                self._note_gradients(live)
            self._open(live)
        losses, *self.grads = self.update.step({**batch.columns, "": batch.weight}, lambda: self._gradients(batch))
        if self.train.clip is not None:
            _clip(self.grads, self.train.clip)
        self.losses.append(losses)
        self.done += 1
        self.train.optimizer.step(self.moved, self.grads, self.memory, self.lr, self.before + self.done)

    def _open(self, live: int) -> None:
        """From here on the first ``live`` lanes are under way."""
        self.live, self.weights = live, [w[:live].detach().requires_grad_() for w in self.bare]
        self.values = {n: t[:live] for n, t in self.params.items()} | dict(zip(self.names, self.weights, strict=True))
        self.held = [t if dim is None else t[:live] for t, dim in self.fixed]
        self.moved = [w.detach() for w in self.weights]
        self.memory = tuple([t[:live] for t in s] for s in self.slots)
        stable, dims = [*self.values.values(), *self.held], [dim for _, dim in self.fixed]
        more = ("lanes", live, list(self.values), self.names, dims, self.rebuild)
        self.update = self.train.objective.net.captured_steps.update(self.train.objective, stable, more)

    def _gradients(self, batch: Batch) -> list[Tensor]:
        losses = self._losses(self.values, batch.columns, batch.weight)
        if batch.weight is not None:
            self._trust(batch.columns, batch.weight)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), self.weights, materialize_grads=True)]

    def _losses(self, values: Params, columns: Columns, weight: Tensor | None) -> Tensor:
        dims = (0, [dim for _, dim in self.fixed], 0, None if weight is None else 0)

        def lane(params: Params, held: list[Tensor], rows: dict[str, Tensor], share: Tensor | None) -> Tensor:
            return self.train.objective(params, filled(self.rebuild, iter(held)), Batch(rows, share))

        try:
            return vmap(lane, in_dims=dims)(values, self.held, columns, weight)
        except RuntimeError as error:
            raise InputError(
                f"Its objective cannot be computed for several clients at once: {_first(error)} {REMEDY}"
            ) from error

    def _trust(self, batches: Columns, weights: Tensor) -> None:
        """An objective that forgets the weights of rows would learn from the filling; find out before it does."""
        if self.trusted:
            return
        lane = int(weights.sum(1).argmax())  # one that was not filled up
        values = {n: t[lane] for n, t in self.params.items()}
        fixed = filled(self.rebuild, iter([t if dim is None else t[lane] for t, dim in self.fixed]))
        columns = {n: c[lane] for n, c in batches.items()}
        weight = torch.zeros_like(weights[lane])
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
        """Keep the last gradients of lanes that end here; those of lanes that end early not with all the others'."""
        for lane in range(live, self.live):
            self.gradients[lane] = [g[lane].clone() if live else g[lane] for g in self.grads]

    def trained(self, lane: int, steps: int) -> Trained:
        """What this lane left behind."""
        if self.live > 0:
            self._note_gradients(0)
            self.live, self.told = 0, [losses.tolist() for losses in self.losses]
        grads = self.gradients.get(lane, [])
        loss = sum(losses[lane] for losses in self.told[:steps]) / steps if steps else 0.0
        params = {n: t.detach()[lane].cpu() for n, t in self.params.items()}
        gradient = {n: g.cpu() for n, g in zip(self.names, grads, strict=False)}
        kept = Memory(self.before + steps, tuple(tuple(t[lane].cpu() for t in s) for s in self.slots))
        return Trained(params, gradient, steps, loss, self.lr, kept)


def _weight(sizes: list[int]) -> Tensor:
    """1 for every row of a lane, 0 for those that its batch was filled up with."""
    weight = torch.zeros(len(sizes), max(sizes))
    for lane, size in enumerate(sizes):
        weight[lane, :size] = 1.0
    return weight


def _clip(grads: list[Tensor], limit: float) -> None:
    total = sum((g.flatten(1).square().sum(1) for g in grads), torch.zeros(())).sqrt()
    factor = torch.clamp(limit / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(factor.view(-1, *[1] * (g.dim() - 1)))


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."
