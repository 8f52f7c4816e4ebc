"""What happens at a client, the same on every engine: unpack, work, pack; and scoring a model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.deployed import first_state, mode_scores, selected_model
from fedquilt.core.exchange import Context, Exchange, Method
from fedquilt.core.params import Params, finite
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site, Source, Table
from fedquilt.core.train import ClientResult, InTurn, Job, Train, Trained
from fedquilt.errors import ExchangeError, FedquiltError, FrameError, StageError
from fedquilt.own_code import told
from fedquilt.records.record import Frame, equal, pack, pack_into, record, same, tensors_in, unpack
from fedquilt.rounds.beside import Beside

Predict = Callable[[Params, Batch], Tensor]
Score = Callable[[Predict, Params, Table], Any]
Scores = dict[str, dict[str, Any]]  # what the score gave: by model, and by split
NOTHING: Mapping[str, object] = MappingProxyType({})


@record(name="fedquilt.engines.client_side:Slot")
class Slot:
    """All that a client keeps between client updates: the method's state, and the codecs' memories by exchange."""

    state: object
    memory: dict[str, object]


@record(name="fedquilt.engines.client_side:Wire", written={"samples": "examples"})
class Wire:
    """What travels up: the encoded upload and how many examples stand behind it."""

    samples: int
    upload: object


@record(name="fedquilt.engines.client_side:Task")
class Task:
    """One client update to make.

    ``slot`` is None before a client's first client update; ``measure`` asks for scores of the model before and after
    local training; ``again`` counts earlier exchanges of the same exchange in this round.
    """

    exchange: str
    client: ClientId
    round: int
    down: bytes | None
    slot: bytes | None
    measure: bool = False
    again: int = 0


@record(name="fedquilt.engines.client_side:Outcome")
class Outcome:
    """What a client update gave: the upload's frame, the new slot (None when nothing changed), and measurements.

    Whoever unpacks the upload takes its memory over, if it may be written into: who wants to keep the frame copies it.
    ``sound`` says whether the client's own new state holds finite numbers only.
    """

    upload: Frame
    slot: bytes | None
    seconds: float
    sound: bool = True
    steps: int | None = None
    loss: float | None = None
    before: object = None
    after: object = None


@record(name="fedquilt.engines.client_side:Exam")
class Evaluation:
    """One client to evaluate: its deployed model, and the global one if ``whole`` is given, which is sent
    :class:`~fedquilt.rounds.beside.Beside` the download. ``round`` is the last one that was played, for sources whose
    data change."""

    client: ClientId
    down: bytes | None
    slot: bytes | None
    whole: bytes | None
    splits: tuple[str, ...]
    round: int = 0


@dataclass(frozen=True)
class OpenUpdate:
    """A client update under way: what was asked, what came, and what the client has."""

    task: Task
    exchange: Exchange
    sent: object
    slot: Slot
    site: Site
    context: Context
    began: float


def again_folded(seed: Seed, again: int) -> Seed:
    """A seed of its own for every further exchange of the same exchange in one round."""
    return seed.fold("again", again) if again else seed


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums depend on how many threads share them: every engine computes with one, so that all agree."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)


@dataclass
class ClientSide:
    """The client's half of an engine: it makes client updates and evaluations for any client of a source."""

    method: Method
    source: Source
    seed: Seed
    score: Score | None = None
    device: torch.device | None = None
    room: Callable[[int], bytearray | memoryview] | None = None  # memory for uploads, near those who read them

    def __post_init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {e.name: e for e in self.method.exchanges()}
        self._last: tuple[bytes | None, Slot | bytes, Params] | None = None
        self._whole: tuple[bytes, bytes, Params] | None = None
        self._seen: tuple[bytes, object, tuple[int, ...]] | None = None
        self._read: tuple[str, bytes, object, tuple[int, ...]] | None = None
        self._compared: tuple[Params, Params, bool] | None = None
        self._training: frozenset[ClientId] | None = None

    def first_slot(self, client: ClientId) -> Slot:
        """A client's slot before its first client update: a pure function of the run's seed and the client's id."""
        return Slot(first_state(self.method, self.seed, client), {})

    def update(self, task: Task) -> Outcome:
        """Do the client's part of an exchange."""
        update = self.open(task)
        work = update.exchange.work
        found: ClientResult | None = None
        with (
            self.at("work", task),
            update.context.seed.fold("elsewhere").ambient(),
        ):  # also for code that forgot context.seed
            if isinstance(work, Train | InTurn):
                found = work.run(update.sent, update.slot.state, update.site, update.context, self.device)
            else:
                state, upload = work(update.sent, update.slot.state, update.site, update.context)
        return self.close(update, state, upload) if found is None else self.close_trained(update, found)

    def open(self, task: Task) -> OpenUpdate:
        """Unpack what came, and find the client's samples."""
        began, exchange, client = time.perf_counter(), self.exchanges[task.exchange], task.client
        with self.at("unpack", task):
            sent = self._sent(exchange, _given(task.down))
            slot: Slot = self.first_slot(client) if task.slot is None else unpack(task.slot)
            site = self.source.site(client, task.round)
            seed = again_folded(self.seed.fold("work", task.exchange, task.round, client), task.again)
        return OpenUpdate(task, exchange, sent, slot, site, Context(task.round, client, seed), began)

    def _sent(self, exchange: Exchange, frame: bytes) -> object:
        """What was sent. Clients that are sent the very same read it once, unless one of them wrote into it."""
        if self._read is not None:
            name, known, sent, versions = self._read
            if name == exchange.name and known is frame and versions == _versions(sent):
                return sent
        sent = exchange.download.decode(unpack(frame), None)
        self._read = (exchange.name, frame, sent, _versions(sent))
        return sent

    def close_trained(self, update: OpenUpdate, found: ClientResult) -> Outcome:
        """As :meth:`close`, after a training, which is measured if the task asks for it."""
        state, upload, job, trained = found
        with self.at("work", update.task):
            notes = self._measured(update, job, trained)
        return self.close(update, state, upload, notes)

    def close(self, update: OpenUpdate, state: object, upload: object, notes: Mapping[str, Any] = NOTHING) -> Outcome:
        """Pack the upload and what the client keeps."""
        exchange, slot, task = update.exchange, update.slot, update.task
        with self.at("encode", task):
            memory = slot.memory.get(exchange.name)
            wire, kept = exchange.codec.encode(upload, update.sent, memory, update.context.seed.fold("codec"))
            memories = {**slot.memory, exchange.name: kept} if kept is not None else slot.memory
            frame = pack_into(Wire(update.site.samples, wire), self.room)
            sound = finite(tensors_in(state))
            changed = self._changed(task, slot, Slot(state, memories))
        return Outcome(upload=frame, slot=changed, seconds=time.perf_counter() - update.began, sound=sound, **notes)

    @contextmanager
    def at(self, stage: str, task: Task) -> Iterator[None]:
        """What fails inside is told with method, exchange, stage, client and round."""
        try:
            yield
        except StageError as error:
            raise self._failed(task, error.stage, error.__cause__ or error) from error.__cause__
        except ExchangeError:
            raise
        except Exception as error:
            raise self._failed(task, stage, error) from error

    def _changed(self, task: Task, before: Slot, after: Slot) -> bytes | None:
        """The frame of the new slot, or None when it is what it was."""
        if same(before, after) or (task.slot is None and equal(before, after)):  # a first slot that is still the first
            return None
        frame = pack(after, checksum=False)  # it is kept under its sha256
        return None if frame == task.slot else frame

    def _measured(self, update: OpenUpdate, job: Job, trained: Trained) -> dict[str, Any]:
        loss = None if math.isnan(trained.loss) and trained.steps else trained.loss
        notes: dict[str, Any] = {"steps": trained.steps, "loss": loss}
        context, measure = update.context, update.task.measure
        test = (
            self.source.evaluation(context.client, "test", context.round)
            if measure and context.client is not None
            else None
        )
        if test is not None and self.score is not None:
            notes["before"] = self.score(self.method.predict, job.params, test)
            notes["after"] = self.score(self.method.predict, trained.params, test)
        return notes

    def evaluation(self, evaluation: Evaluation) -> Scores:
        """Scores of the client's deployed model, and of the global one (in every mode, where there are several), on its
        own held-out samples."""
        if self.score is None:
            return {}
        model = self._deployed(evaluation)
        whole = None if evaluation.whole is None else self._shared_model(evaluation.whole, _given(evaluation.down))
        scores: Scores = {"deployed": {}, "global": {}}
        equal = whole is not None and self._equal(model, whole)
        modes = {} if whole is None else self._modes(evaluation)
        for split in evaluation.splits:
            table = self.source.evaluation(evaluation.client, split, evaluation.round)
            if table is None:
                continue
            scores["deployed"][split] = self.score(self.method.predict, model, table)
            if whole is not None:
                scores["global"][split] = (
                    scores["deployed"][split] if equal else self.score(self.method.predict, whole, table)
                )
                for name, mode in modes.items():
                    scores.setdefault(name, {})[split] = self.score(self.method.predict, mode, table)
        return scores

    def _modes(self, evaluation: Evaluation) -> dict[str, Params]:
        """What the global model could be instead, if the method has modes; all are made of the download."""
        method: Any = self.method
        names = mode_scores(method)
        found = method.modes(self._shown(_given(evaluation.down))) if names else {}
        return {name: found[mode] for mode, name in names.items()}

    def _equal(self, model: Params, whole: Params) -> bool:
        if self._compared is None or self._compared[0] is not model or self._compared[1] is not whole:
            self._compared = (model, whole, _equal(model, whole))
        return self._compared[2]

    def _deployed(self, evaluation: Evaluation) -> Params:
        """The client's model; equal download and slot give the very same object, so that it stays bound, unless the
        client selected it by its own samples."""
        slot = self.first_slot(evaluation.client) if evaluation.slot is None else evaluation.slot
        if self._last is not None and self._last[0] is evaluation.down and same(self._last[1], slot):
            return self._last[2]
        try:
            model, selected = self._used(evaluation, unpack(slot).state if isinstance(slot, bytes) else slot.state)
        except FedquiltError:
            raise
        except Exception as error:
            name, reason = type(self.method).__name__, told(error)
            raise ExchangeError(name, "evaluation", "personal_model", evaluation.client, -1, reason) from error
        self._last = None if selected or self._rowless(evaluation.client) else (evaluation.down, slot, model)
        return model

    def _rowless(self, client: ClientId) -> bool:
        """Whether a client is known to have no training samples; others may have some to select a model by."""
        return self._training is not None and client not in self._training

    def _used(self, evaluation: Evaluation, state: object) -> tuple[Params, bool]:
        """The model that the client would use now, and whether it selected it."""
        shown = self._shown(_given(evaluation.down))
        found = selected_model(self.method, shown, state, partial(self._own_site, evaluation))
        return (self.method.personal_model(shown, state), False) if found is None else (found, True)

    def _own_site(self, evaluation: Evaluation) -> Site | None:
        """The training samples of an evaluated client, if it has any."""
        if self._training is None:
            self._training = frozenset(self.source.ids)
        return self.source.site(evaluation.client, evaluation.round) if evaluation.client in self._training else None

    def _shared_model(self, frame: bytes, down: bytes) -> Params:
        if self._whole is None or self._whole[0] is not frame or self._whole[1] is not down:
            beside = unpack(frame)
            if not isinstance(beside, Beside):
                raise FrameError(f"malformed evaluation: a {type(beside).__name__} instead of a model")
            self._whole = (frame, down, beside.model(self._shown(down)))
        return self._whole[2]

    def _shown(self, down: bytes) -> object:
        """The download of an evaluation, read once for both models and for all clients, unless one wrote into it."""
        if self._seen is None or self._seen[0] is not down or self._seen[2] != _versions(self._seen[1]):
            seen = unpack(down)
            self._seen = (down, seen, _versions(seen))
        return self._seen[1]

    def _failed(self, task: Task, stage: str, error: BaseException) -> ExchangeError:
        name = type(self.method).__name__
        return ExchangeError(name, task.exchange, stage, task.client, task.round, told(error))


def _given(frame: bytes | None) -> bytes:
    if frame is None:
        raise AssertionError("a task reached a client without its download")
    return frame


def _versions(value: object) -> tuple[int, ...]:
    """Which tensors there are, and how often each was written into."""
    return tuple(number for tensor in tensors_in(value) for number in (id(tensor), tensor._version))


def _equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())
