"""The engine for small models and GPUs: several clients at once, side by side in stacked tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedquilt.core.capture.steps import EAGER
from fedquilt.core.exchange import Method
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.core.train import ClientResult, Descent, InTurn, Play, Train, Trained
from fedquilt.engines.local import Local
from fedquilt.engines.stacked import REMEDY, alike, descend
from fedquilt.errors import InputError
from fedquilt.rounds.client import ClientSide, OpenUpdate, Outcome, Score, Task
from fedquilt.rounds.engine import Facts, Lost

WINDOW = 4  # so many times the width of clients are sorted by size, that lanes may have like lengths
TUNE_STEPS = 3
SHORT_SECONDS = 0.02
WORTH = 0.9  # of the time alone: less than that, or clients go one by one
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Lane:
    """One client update whose descents are made together with others'."""

    def __init__(self, client_update: OpenUpdate) -> None:
        self.update = client_update
        self.found: ClientResult | None = None
        work: Any = client_update.exchange.work
        self._play: Play = work.play(
            client_update.sent, client_update.slot.state, client_update.site, client_update.context
        )
        self._chance = client_update.context.seed.fold("elsewhere").torch().get_state()

    def go_on(self, trained: Trained | None) -> Descent | None:
        """To the next descent, or to the end."""
        try:
            with self._ambient():
                return next(self._play) if trained is None else self._play.send(trained)
        except StopIteration as end:
            self.found = end.value
            return None

    @contextmanager
    def _ambient(self) -> Iterator[None]:
        """torch's default generator as it would be if this client update were alone."""
        before = torch.get_rng_state()
        torch.set_rng_state(self._chance)
        try:
            yield
        finally:
            self._chance = torch.get_rng_state()
            torch.set_rng_state(before)


def update_together(side: ClientSide, tasks: Sequence[Task]) -> list[Outcome]:
    """The outcomes of these client updates, which are of one exchange; descents that are alike are made side by
    side."""
    lanes = [_Lane(side.open(task)) for task in tasks]
    waiting: dict[int, Descent] = {}

    def go_on(number: int, trained: Trained | None) -> None:
        with side.at("work", tasks[number]):
            descent = lanes[number].go_on(trained)
        if descent is not None:
            waiting[number] = descent

    for number in range(len(lanes)):
        go_on(number, None)
    while waiting:
        for group in alike(waiting):
            descents = [waiting.pop(number) for number in group]
            with side.at("objective", tasks[group[0]]):
                found = descend(descents, side.device)
            for number, trained in zip(group, found, strict=True):
                go_on(number, trained)
    outcomes = []
    for lane in lanes:
        assert lane.found is not None
        outcomes.append(side.close_trained(lane.update, lane.found))
    return outcomes


def best_width(side: ClientSide, tasks: Sequence[Task]) -> int:
    """The width at which a step costs least per client, by making a few steps that nobody keeps."""
    descents = _begun(side, tasks)
    if not descents:
        return 1
    group = max(alike(descents), key=len)
    alone, best, least, worse = float("inf"), 1, float("inf"), 0
    for width in (w for w in WIDTHS if w <= len(group)):
        with side.at("objective", tasks[group[0]]):
            spent = _seconds([descents[i] for i in group[:width]], side.device) / width
        alone = min(alone, spent) if width == 1 else alone
        best, least, worse = (width, spent, 0) if spent < least else (best, least, worse + 1)
        if worse == 2:
            break
    return best if least < WORTH * alone else 1


def _begun(side: ClientSide, tasks: Sequence[Task]) -> dict[int, Descent]:
    """The first descents of these client updates, by their places; not of those that train nothing."""
    found: dict[int, Descent] = {}
    for number, task in enumerate(tasks):
        with side.at("work", task):
            descent = _Lane(side.open(task)).go_on(None)
        if descent is not None:
            found[number] = descent
    return found


def _seconds(descents: Sequence[Descent], device: torch.device | None) -> float:
    """How long a few steps take; short ones are made often enough before to be captured."""
    began = time.perf_counter()
    descend(descents, device, limit=1)
    if time.perf_counter() - began < SHORT_SECONDS:
        for _ in range(EAGER + 2):
            descend(descents, device, limit=TUNE_STEPS)
    began = time.perf_counter()
    descend(descents, device, limit=TUNE_STEPS)
    return time.perf_counter() - began


def refuse(method: Method) -> None:
    """Say which parts of a method cannot go side by side."""
    for exchange in method.exchanges():
        works = exchange.work.works if isinstance(exchange.work, InTurn) else (exchange.work,)
        for work in works:
            if isinstance(work, Train) and work.loop is not None:
                raise InputError(
                    f"The lanes engine cannot train {type(method).__name__}: a training loop of your own works on one "
                    f"client at a time. {REMEDY}"
                )
            if isinstance(work, Train) and work.objective.net.normalises:
                norms = ", ".join(work.objective.net.norms[:3])
                raise InputError(
                    f"The lanes engine cannot train {type(method).__name__}: its network learns statistics of batches "
                    f"({norms}), one set for each client. Use a network with GroupNorm or LayerNorm. {REMEDY}"
                )


class Lanes(Local):
    """Trains up to ``width`` clients at once; equal to ``local`` but for rounding.

    What is not local training (an exchange with work of its own) is done one after another, as on ``local``. Networks
    and objectives that ``torch.func.vmap`` cannot take are refused by name: BatchNorm in training, dropout, recurrent
    layers, shapes that depend on the data.

    Args:
        width: How many clients at once; None finds the fastest in the first exchange that trains, and records it.
        device: Where local training runs; None is the CPU.
    """

    name = "lanes"

    def __init__(self, width: int | None = None, device: str | None = None) -> None:
        super().__init__(device)
        self.width = checked_width(width)

    def begin(self, method: Method, source: Source, seed: Seed, score: Score | None) -> None:
        """Get ready for a run."""
        refuse(method)
        super().begin(method, source, seed, score)

    def updates(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """In groups of like size; outcomes in the order of ``clients``."""
        if not clients or not trains(self.side, task(clients[0])):
            yield from super().updates(clients, task)
            return
        self.tune(clients, task)
        assert self.width is not None
        for window in windows(clients, self.width):
            found: dict[ClientId, Outcome] = {}
            for group in by_size(window, self.side.source, self.width):
                found.update(zip(group, update_together(self.side, [task(c) for c in group]), strict=True))
            yield from ((client, found[client]) for client in window)

    def tune(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> int:
        """The width, which is found here if it was not given."""
        if self.width is None:
            self.width = best_width(self.side, [task(c) for c in clients[: WIDTHS[-1]]])
        return self.width

    def facts(self) -> Facts:
        """One process, and the width."""
        return {**super().facts(), "width": self.width}


def checked_width(width: int | None) -> int | None:
    """A width that can be used."""
    if width is not None and width < 1:
        raise InputError(f"engine.width must be at least 1, got {width}. Leave it out to find the fastest.")
    return width


def trains(side: ClientSide, task: Task) -> bool:
    """Whether a client update is local training, which can go side by side."""
    return isinstance(side.exchanges[task.exchange].work, Train | InTurn)


def windows(clients: Sequence[ClientId], width: int) -> Iterator[Sequence[ClientId]]:
    """Stretches of clients whose outcomes may wait for each other; they bound memory."""
    for low in range(0, len(clients), width * WINDOW):
        yield clients[low : low + width * WINDOW]


def by_size(clients: Sequence[ClientId], source: Source, width: int) -> Iterator[list[ClientId]]:
    """Groups of at most ``width``, larger clients first."""
    order = sorted(clients, key=source.size, reverse=True)
    for low in range(0, len(order), width):
        yield order[low : low + width]
