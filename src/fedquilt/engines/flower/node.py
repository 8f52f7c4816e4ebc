"""The client's half on a Flower node, without a word of Flower: batches of jobs in, answers out."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedquilt import own_code
from fedquilt.core.columns import PerColumn
from fedquilt.core.describe import build
from fedquilt.core.memory import OverLimit
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Source
from fedquilt.engines.flower.budget import Budget, TooLong
from fedquilt.engines.flower.jobs import (
    HEAD_SECONDS,
    PROTOCOL,
    Answer,
    EvaluationJob,
    Frames,
    Given,
    Here,
    Marks,
    NodeJobs,
    Parcel,
    Refused,
    RunTerms,
    UpdateJob,
    frame_at,
    head_limits,
    read,
)
from fedquilt.engines.flower.keep import Keep
from fedquilt.engines.flower.mark import Mark
from fedquilt.errors import ExchangeError, FedquiltError, InputError
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import ClientSide, Evaluation, Task, one_thread

log = logging.getLogger("fedquilt.node")


@dataclass
class Node:
    """One site: its data, what it keeps, and whose code it trusts.

    Args:
        source: The clients of this site.
        keep: Gives the place for the states of a run's clients.
        trusted: Packages, beside this library, whose methods the server may name.
        mark: Tells other processes of this site what is being worked on.
        budget: What it works on at most.
        trusted_code: The SHA-256 of files of the recipe's own that may run here.
        refused: The folder that gets other such files, to be looked at.
    """

    source: Source
    keep: Callable[[str], Keep]
    trusted: Sequence[str] = ()
    mark: Mark | None = None
    budget: Budget = field(default_factory=Budget)
    trusted_code: Sequence[str] = ()
    refused: Path | None = None
    _sides: dict[bytes, ClientSide] = field(default_factory=dict)
    _doing: str = ""
    _done: tuple[str, Parcel] | None = None
    _prints: dict[str, str] = field(default_factory=dict)
    _one: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def _clients(self) -> set[ClientId]:
        return {*self.source.ids, *self.source.evaluated}

    def answer(self, kind: str, frames: Frames, versions: Mapping[str, str]) -> dict[str, bytes]:
        """The frames that answer a message of any kind."""
        if kind == "query.here":
            return self.here(read(frames, "run", str), dict(versions)).frames
        if kind == "query.busy":
            return Parcel().head("busy", self._busy(read(frames, "number", str))).frames
        if not kind.startswith(("train.", "evaluate.")):
            raise InputError(f"unknown message type {kind!r}")
        number = read(frames, "jobs", NodeJobs).number
        with self._one:  # a second process may bring work that is being done: it waits, and gets the same answer
            if self._done is None or self._done[0] != number:
                with self._working(number):
                    self._done = (number, self.work(frames))
            return self._done[1].frames

    def _busy(self, number: str) -> bool:
        return self._doing == number or (self.mark is not None and self.mark.shows(number))

    @contextmanager
    def _working(self, number: str) -> Iterator[None]:
        self._doing = number
        try:
            with nullcontext() if self.mark is None else self.mark.set(number):
                yield
        finally:
            self._doing = ""

    def print_for(self, run: str) -> str:
        """The fingerprint of the data, salted with the run, so that it tells nothing to anybody else."""
        if run not in self._prints:
            source: Any = self.source
            self._prints[run] = hashlib.sha256(f"{run}:{source.fingerprint()}".encode()).hexdigest()
        return self._prints[run]

    def here(self, run: str, versions: dict[str, str]) -> Parcel:
        """Who is at this site."""
        source: Any = self.source
        if not source.ids:
            raise InputError("this site has no clients with rows to train on")
        first = source.site(source.ids[0], 0).train
        x, prepare = first.rows(first.all_rows()[:1]).x, getattr(source, "prepare", None)
        table = replace(prepare.blank(), scope="federation") if isinstance(prepare, PerColumn) else None
        shape = tuple(x.shape[1:]) if table is None else (len(table.columns),)
        facts = Here(
            PROTOCOL,
            {c: source.size(c) for c in source.ids},
            list(source.evaluated),
            shape,
            str(x.dtype),
            prepared(prepare),
            source.classes,
            self.print_for(run),
            versions,
            table,
        )
        return Parcel().head("here", facts)

    def work(self, frames: Frames) -> Parcel:
        """Do all jobs of a batch of jobs, one after another; a job that fails is refused and the others go on."""
        batch: NodeJobs = read(frames, "jobs", NodeJobs)
        begin: RunTerms = read(frames, "begin", RunTerms)
        parcel, seen = Parcel(), set()
        results: list[object] = []
        excess = self.budget.excess(batch.jobs)
        # a name that is given to a trusted function opens no more than one that the server gives itself
        with one_thread(), own_code.only(self.trusted_code, self.trusted):
            for job in batch.jobs:
                client = getattr(job, "client", None)
                try:
                    if excess is not None or client in seen:
                        raise InputError(excess or f"client {client!r} has two jobs in one message")
                    seen.add(client)
                    with self.budget.task():
                        side = self._side(begin, frames.get("code"))
                    results.append(self._job(side, self.keep(begin.run), batch, job, frames, parcel))
                except TooLong:
                    log.warning("a job for client %r took longer than %g seconds", client, self.budget.seconds)
                    self._sides.clear()  # it may have been stopped in the midst of anything
                    allowed = f"and this site allows {self.budget.seconds:g} seconds"
                    results.append(Refused(client, f"the task took too long, {allowed}"))
                except Exception as error:
                    log.exception("a job for client %r failed", client)
                    results.append(Refused(client, _told(error)))
        return parcel.head("answer", Answer(batch.number, self.print_for(begin.run), results))

    def _job(
        self, side: ClientSide, keep: Keep, batch: NodeJobs, job: object, frames: Frames, parcel: Parcel
    ) -> Given | Marks:
        if not isinstance(job, UpdateJob | EvaluationJob):
            raise InputError(f"a {type(job).__name__} is no job")
        if job.client not in self._clients:
            raise InputError(f"client {job.client!r} is not at this site")
        slot = None if job.slot is None else keep.get(job.client, job.slot)
        if isinstance(job, EvaluationJob):
            whole = None if job.whole is None else frame_at(frames, job.whole)
            evaluation = Evaluation(job.client, frame_at(frames, job.down), slot, whole, job.splits, job.round)
            with self.budget.task():
                return Marks(job.client, side.evaluation(evaluation))
        down = frame_at(frames, job.down)
        task = Task(job.exchange, job.client, job.round, down, slot, job.measure, job.again)
        with self.budget.task():
            outcome = side.update(task)
        kept = None
        if outcome.slot is not None:
            kept = keep.put(job.client, outcome.slot, job.round, job.slot)
        keep.prune(job.client, job.slot, batch.keep_from)
        return Given(
            job.client,
            parcel.add(bytes(outcome.upload)),
            kept,
            outcome.seconds,
            outcome.sound,
            outcome.steps,
            outcome.loss,
            outcome.before,
            outcome.after,
        )

    def _side(self, begin: RunTerms, code: bytes | None) -> ClientSide:
        if begin.protocol != PROTOCOL:
            raise InputError(f"the server speaks version {begin.protocol} of the protocol, this site {PROTOCOL}")
        key = pack(begin)
        side = self._sides.get(key)
        if side is None:
            trusted = (*self.trusted, *(() if code is None else self._let_in(code)))
            method, score = (build(part, trusted=trusted) for part in (begin.method, begin.score))
            self._sides.clear()  # one run at a time: a long-lived process must not collect them
            side = self._sides[key] = ClientSide(method, self._prepared(begin.prepare), Seed(begin.seed), score)
        return side

    def _let_in(self, frame: bytes) -> list[str]:
        """The packages of the recipe's own code that came with the run, if this site trusts all of it; otherwise it is
        only written down."""
        codes = own_code.received(unpack(frame, limits=head_limits(HEAD_SECONDS)))
        why = own_code.refusal(codes, self.trusted_code)
        if why is not None:
            if self.refused is not None:
                own_code.write_down(codes, self.refused)
                log.warning("code of the server's that is not trusted can be looked at in '%s'", self.refused)
            raise why
        own_code.let_in(codes)
        return [code.package for code in codes]

    def _prepared(self, prepare: object) -> Source:
        """The clients of this site, with their tables prepared as the federation agreed on."""
        source: Any = self.source
        if prepare is None:
            return self.source
        mine = getattr(source, "prepare", None)
        if not isinstance(prepare, PerColumn) or not isinstance(mine, PerColumn) or prepare.kinds() != mine.kinds():
            raise InputError("the server's table has other columns than this site's")
        found: Source = source.prepared(prepare)
        return found


def prepared(prepare: object) -> str:
    """How rows become what a network takes, in words that are equal where the preparation is; of tables, whose numbers
    the sites agree on later, the columns."""
    if isinstance(prepare, PerColumn):
        return f"the columns {prepare.kinds()}"
    if prepare is None:
        return "nothing"
    return repr(prepare) if is_dataclass(prepare) else str(getattr(prepare, "__qualname__", type(prepare).__name__))


def _told(error: Exception) -> str:
    """What may leave the site about a failure: our own sentences, but of others only the kind, since their texts may
    quote data."""
    if isinstance(error.__cause__, OverLimit):
        return str(error.__cause__)
    if isinstance(error, ExchangeError):
        return f"failed in '{error.stage}' ({error.reason.split(':', 1)[0]})"
    if isinstance(error, FedquiltError):
        return str(error)
    return f"failed ({type(error).__name__})"
