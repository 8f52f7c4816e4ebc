"""Local training: the one kind of work that engines understand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol

import torch
from torch import Tensor

from fedquilt.core.exchange import C, Context, D, U
from fedquilt.core.memory import ask
from fedquilt.core.objective import Loss
from fedquilt.core.own_loop import Loop, Unknown, run_loop
from fedquilt.core.params import Names, Params, everything
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site, Table
from fedquilt.core.tree import carried, elsewhere, leaves, moved
from fedquilt.errors import InputError, StageError
from fedquilt.kernels import gradients
from fedquilt.records.record import record

Schedule = Callable[[int], float]


@record
class Memory:
    """An optimiser's memory: steps taken, and per kind of memory one tensor per trained weight."""

    steps: int = 0
    slots: tuple[tuple[Tensor, ...], ...] = ()


class Optimizer(Protocol):
    """One step of descent, in place, on the engine's own copies of the weights."""

    @property
    def lr(self) -> float:
        """The learning rate before any schedule."""
        ...

    def init(self, weights: list[Tensor]) -> tuple[list[Tensor], ...]:
        """Fresh memory, one list of tensors per kind."""
        ...

    def step(
        self, weights: list[Tensor], grads: list[Tensor], memory: tuple[list[Tensor], ...], lr: float, count: int
    ) -> None:
        """Change ``weights`` and ``memory``; ``count`` is the number of this step, from 1. The next step may overwrite
        ``grads``: what is to be kept of them is copied."""
        ...


@dataclass(frozen=True)
class Job:
    """What a client is about to train.

    Args:
        params: The whole model it starts from; training changes copies.
        fixed: What the objective reads and nothing changes. ``fixed["start"]`` is by convention the shared part
            of the model the client began from.
        memo: Anything else ``finish`` needs; never sent.
        rate: Multiplies the learning rate of this client update.
        epochs: Replaces the epochs of the ``Train``, for this client update.
        memory: The optimiser's memory to go on with, from an earlier ``Trained``; None starts afresh.

    Example:
        >>> Job(params={"head.weight": torch.zeros(2, 3)}, rate=0.5).rate
        0.5
    """

    params: Params
    fixed: Mapping[str, Any] = field(default_factory=dict)
    memo: Any = None
    rate: float = 1.0
    epochs: int | None = None
    memory: Memory | None = None


@dataclass(frozen=True)
class Trained:
    """What training left behind: the model, the last step's gradient, how many steps, their mean loss, memory.

    Example:
        >>> from fedquilt.core.train import Memory
        >>> trained = Trained(params={}, gradient={}, steps=8, loss=0.7, lr=0.1, memory=Memory())
        >>> trained.steps
        8
    """

    params: Params
    gradient: Params
    steps: int
    loss: float
    lr: float
    memory: Memory


@dataclass(frozen=True)
class Descent:
    """A training that is ready to descend: which, from where, on whose rows, when."""

    train: Train
    job: Job
    site: Site
    context: Context


ClientResult = tuple[C, U, Job, Trained]  # the client's new state, the upload, and both ends of the training
Play = Generator[Descent, Trained, ClientResult[C, U]]


def labelled(site: Site) -> Table:
    """The rows most methods train on: those with labels."""
    return site.train


def constant(round: int) -> float:
    """The schedule that changes nothing."""
    return 1.0


class TrainingWork(ABC, Generic[D, C, U]):
    """Work that trains. Calling it is its definition; engines may only make it faster."""

    @abstractmethod
    def play(self, download: D, client: C, site: Site, context: Context) -> Play[C, U]:
        """What is yielded is to be descended, and sent back."""

    def __call__(self, download: D, client: C, site: Site, context: Context) -> tuple[C, U]:
        client, upload, _, _ = self.run(download, client, site, context)
        return client, upload

    def run(
        self, download: D, client: C, site: Site, context: Context, device: torch.device | None = None
    ) -> ClientResult[C, U]:
        """As calling it, and also what it began with and what it left behind, for engines that measure."""
        return _played(self.play(download, client, site, context), device)


@dataclass(frozen=True)
class Train(TrainingWork[D, C, U]):
    """Local training. Calling it is its definition; engines may only make it faster.

    Args:
        start: ``(download, client_state, site, context) -> Job``. Any Python.
        objective: ``(params, fixed, batch) -> scalar``. Pure: the only hot code.
        finish: ``(job, trained, client_state, site, context) -> (client_state, upload)``. Any Python.
        optimizer: How a step is made.
        epochs: Passes over the client's training samples.
        epochs_first: Passes in the first round of a run, if other than ``epochs``.
        steps: If set, exactly so many steps instead of passes.
        batch_size: Rows per step; the last batch of a pass may be smaller. With BatchNorm, which cannot learn from a
            single row, a last batch of one row joins the batch before it.
        schedule: Factor on the learning rate by round.
        clip: Largest Euclidean norm of a step's gradient over all tensors, or None.
        only: Which parameters are trained here; the others stay as they are.
        rows: ``site -> table``, what is trained on.
        loop: A training loop of the user's own instead of these steps, see :func:`fedquilt.client_update`. It is never
            captured, and its clients cannot train side by side (lanes).

    Example:
        >>> from fedquilt.testing import fedavg
        >>> fedavg(epochs=3).exchanges()[0].work.epochs
        3
    """

    start: Callable[[D, C, Site, Context], Job]
    objective: Loss
    finish: Callable[[Job, Trained, C, Site, Context], tuple[C, U]]
    optimizer: Optimizer
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    schedule: Schedule = constant
    clip: float | None = None
    only: Names = everything
    epochs_first: int | None = None
    rows: Callable[[Site], Table] = labelled
    loop: Loop | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps", "epochs_first"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def play(self, download: D, client: C, site: Site, context: Context) -> Play[C, U]:
        """The client update with its descent left to whoever plays it: what is yielded is to be descended, and sent
        back."""
        with _stage("start"):
            job = self.start(download, client, site, context)
        trained = yield Descent(self, job, site, context)
        with _stage("finish"):
            client, upload = self.finish(job, trained, client, site, context)
        return client, upload, job, trained

    def rate(self, job: Job, context: Context) -> float:
        """The learning rate of a client update."""
        return self.optimizer.lr * self.schedule(context.round) * job.rate

    def trains(self, params: Params) -> list[str]:
        """The names of a job's params that are trained."""
        names = [n for n in self.objective.trainable if n in params and self.only(n)]
        if not names:
            raise InputError(
                "There is nothing to train: every parameter is frozen (requires_grad=False after build, or named in "
                "frozen=), or left out by only=. Leave at least one of them trainable."
            )
        return names

    def passes(self, job: Job, context: Context) -> int:
        """How often a client update passes over the rows, unless ``steps`` says how many steps it makes."""
        return job.epochs or ((context.round == 0 and self.epochs_first) or self.epochs)

    def how(self, job: Job, context: Context) -> tuple[int, int, Seed, int | None, bool]:
        """How a client update's rows are cut into batches: the arguments of :meth:`Table.batches`."""
        lone = not self.objective.net.normalises
        return self.batch_size, self.passes(job, context), context.seed.fold("batches"), self.steps, lone

    def batches(self, job: Job, site: Site, context: Context) -> Iterator[Batch]:
        """The batches of a client update, one for each step."""
        return self.rows(site).batches(*self.how(job, context))

    def _ask(self, job: Job, site: Site, context: Context) -> None:
        """Whether so much training is allowed here, with the steps that the objective makes inside each."""
        passes = self.passes(job, context)
        steps = self.steps or passes * -(-len(self.rows(site)) // self.batch_size)
        ask(passes if self.steps is None else None, steps * (1 + getattr(self.objective, "inner_steps", 0)))

    def descend(self, descent: Descent, device: torch.device | None = None) -> Trained:
        """Step by step down the objective."""
        job, site, context = descent.job, descent.site, descent.context
        self._ask(job, site, context)
        if self.loop is not None:
            values, made, mean = run_loop(self.loop, descent, self.trains(job.params), device)
            unknown = Unknown("the gradient of the last step")
            return Trained(values, unknown, made, mean, self.rate(job, context), Memory())
        params = self.objective.net.own(job.params, device)
        fixed = moved(job.fixed, device) if device is not None and elsewhere(device) else job.fixed
        names = self.trains(params)
        weights = tuple(params[n].requires_grad_() for n in names)
        one = torch.ones((), device=device)
        bare = [w.detach() for w in weights]  # the same memory, seen without autograd
        memory = job.memory or Memory()
        slots = self._slots(memory, bare)
        lr = self.rate(job, context)
        losses: list[Tensor] = []
        grads: list[Tensor] = []
        stable = [*params.values(), *leaves(fixed), one]
        update = self.objective.net.captured_steps.update(self.objective, stable, (list(params), names, fixed), fresh=1)

        def eager() -> list[Tensor]:
            loss = self.objective(params, fixed, batch)
            return [loss.detach(), *gradients(loss, weights, one)]

        with context.seed.fold("ambient").ambient():
            for batch in carried(self.batches(job, site, context), device):
                loss, *grads = update.step({**batch.columns, "": batch.weight}, eager)
                if self.clip is not None:
                    _clip(grads, self.clip)
                losses.append(loss)
                self.optimizer.step(bare, grads, slots, lr, memory.steps + len(losses))
        gradient = dict(zip(names, grads, strict=False))
        return _left_behind(params, gradient, losses, lr, Memory(memory.steps + len(losses), tuple(map(tuple, slots))))

    def _slots(self, memory: Memory, bare: list[Tensor]) -> tuple[list[Tensor], ...]:
        """The optimiser's memory to go on with, beside the weights, for itself."""
        slots = tuple(list(s) for s in memory.slots) or self.optimizer.init(bare)
        return tuple([t.detach().to(w.device, copy=True) for t, w in zip(s, bare, strict=True)] for s in slots)


@dataclass(frozen=True)
class InTurn(TrainingWork[D, C, U]):
    """Several trainings in one client update: each sees the client's state as the one before left it; one of them
    uploads.

    The first has the client update's own seed, so that it does exactly what it would do alone.
    """

    works: tuple[Train[D, C, U | None], ...]

    def play(self, download: D, client: C, site: Site, context: Context) -> Play[C, U]:
        """As :meth:`Train.play`; the job is that of the training that uploads."""
        found: list[tuple[U, Job, Trained]] = []
        for i, work in enumerate(self.works):
            here = context if i == 0 else replace(context, seed=context.seed.fold("then", i))
            client, upload, job, trained = yield from work.play(download, client, site, here)
            if upload is not None:
                found.append((upload, job, trained))
        if len(found) != 1:
            raise InputError(f"Of the trainings in turn exactly one must upload something, but {len(found)} did.")
        return client, *found[0]


def _left_behind(params: Params, gradient: Params, losses: list[Tensor], lr: float, memory: Memory) -> Trained:
    """The same on the CPU."""
    mean_loss = float(torch.stack(losses).mean()) if losses else 0.0
    home = {n: t.detach().cpu() for n, t in params.items()}
    gradients = {n: g.cpu() for n, g in gradient.items()}
    kept = Memory(memory.steps, tuple(tuple(t.cpu() for t in s) for s in memory.slots))
    return Trained(home, gradients, len(losses), mean_loss, lr, kept)


def _played(play: Play[C, U], device: torch.device | None) -> ClientResult[C, U]:
    """Play it here, one descent after another."""
    try:
        descent = next(play)
        while True:
            with _stage("objective"):
                trained = descent.train.descend(descent, device)
            descent = play.send(trained)
    except StopIteration as end:
        found: ClientResult[C, U] = end.value
        return found


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """What fails inside failed in this stage."""
    try:
        yield
    except Exception as error:
        raise StageError(name) from error


def in_turn(*works: Any) -> InTurn:
    """One training after another, in one client update; see :class:`InTurn`."""
    return InTurn(works)


def _clip(grads: list[Tensor], limit: float) -> None:
    total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(limit / (total + 1e-6), max=1.0))
