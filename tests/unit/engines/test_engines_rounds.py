"""The round loop: what is left out, what is counted, what stops a run."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import fedquilt.rounds.sender as module
from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, InputError, RoundError
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.models.registry import make
from fedquilt.records.compact import MAGIC
from fedquilt.records.limits import upload_limits
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.rounds import Quarantine, RoundLog, Rounds
from helpers.engines import Counting, Tampering, with_samples
from helpers.frames import sealed
from helpers.sabotage import Corrupting, Without, Wraps
from helpers.toy import fedavg, last, linear, points

TOY = points(12, 20, 16)
PRIVATE = Parts(shared=everything_but(under("bias")), private=under("bias"))

REASONS = {
    "nan": "non-finite numbers in the upload",
    "shape": r"upload: 'weight' should be \(2, 2\) torch.float32, got \(2, 2, 2\)",
    "names": r"unexpected \['stray'\]",
    "dtype": "got .* torch.float64",
    "kind": "'str' object has no attribute 'delta'",
}


@pytest.mark.parametrize("parts", [Parts(), PRIVATE], ids=["shared", "private"])
@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_upload_is_left_out_as_if_its_client_had_not_been_asked(kind, parts):
    base = fedavg(parts=parts)
    spoiled = last(Corrupting(base=base, client=1, kind=kind), TOY, rounds=3)
    (quarantine,) = spoiled.log.quarantined
    assert (quarantine.round, quarantine.exchange, quarantine.client) == (2, "train", 1)
    assert [v.client for v in spoiled.log.updates] == [0, 2]
    assert re.search(REASONS[kind], quarantine.reason)
    assert spoiled.digest() == last(Without(base=base, client=1), TOY, rounds=3).digest()
    assert spoiled.digest() != last(base, TOY, rounds=3).digest()


TAMPERS = {
    "truncated": (lambda frame: frame[:-1], "its checksum is not that of its bytes"),
    "a flipped bit": (lambda frame: bytes([*frame[:-9], frame[-9] ^ 1, *frame[-8:]]), "its checksum is not"),
    "empty": (lambda frame: b"", "not a compact frame"),
    "safetensors": (lambda frame: pack(unpack(bytes(frame))), "not a compact frame"),
    "another record": (lambda frame: pack("hello", compact=True), "malformed: not an upload"),
    "no examples": (with_samples(0), "invalid weight: 0 samples"),
    "negative": (with_samples(-5), "invalid weight: -5 samples"),
    "too many": (with_samples(10**12), "invalid weight: 1000000000000 samples"),
    "a fraction": (with_samples(1.5), "invalid weight: 1.5 samples"),
    "a word": (with_samples("many"), "invalid weight: 'many' samples"),
}


@pytest.mark.parametrize(("change", "reason"), TAMPERS.values(), ids=TAMPERS)
def test_a_bad_frame_is_left_out_as_if_its_client_had_not_been_asked(change, reason):
    spoiled = last(fedavg(parts=PRIVATE), TOY, engine=Tampering(1, change))
    assert [reason in q.reason for q in spoiled.log.quarantined] == [True]
    assert spoiled.digest() == last(Without(base=fedavg(parts=PRIVATE), client=1), TOY).digest()


LONG = b"\x09" + b"\xff" * 300_000  # a tuple whose length is a number of 300,000 bytes
HOSTILE = {
    "a long number": (sealed(MAGIC + LONG), "a number of more than 10 bytes"),
    "many values": (pack([0] * 2**18, compact=True), "more than 131,072 values"),
    "many names": (pack({str(n): torch.zeros(0) for n in range(2**16)}, compact=True), "more than 131,072 values"),
}


@pytest.mark.parametrize(("frame", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_frame_that_would_take_long_to_decode_is_left_out_at_once(frame, reason):
    began = time.process_time()  # which other processes cannot lengthen
    spoiled = last(fedavg(), TOY, rounds=1, engine=Tampering(1, lambda upload: frame))
    assert [reason in q.reason for q in spoiled.log.quarantined] == [True]
    assert time.process_time() - began < 2


@dataclass(frozen=True, kw_only=True)
class Bounded(Wraps):
    base: Any
    most_bytes: int

    def exchanges(self) -> Any:
        return tuple(replace(e, most_bytes=self.most_bytes) for e in self.base.exchanges())


def test_an_upload_is_as_long_as_its_exchange_allows():
    """By default 64 MiB and 16 times the download, which no honest upload of these comes near."""
    log = rounds_of(fedavg()).play()
    assert not log.quarantined
    (size,) = {v.up.wire for v in log.updates}
    assert not rounds_of(Bounded(base=fedavg(), most_bytes=size)).play().quarantined
    with pytest.raises(RoundError, match=f"too large: a frame of {size} bytes where at most {size - 1} are allowed"):
        rounds_of(Bounded(base=fedavg(), most_bytes=size - 1)).play()
    assert upload_limits(1000).size == 2**26 + 16_000


def test_who_holds_the_model_already_may_upload_one(monkeypatch: pytest.MonkeyPatch):
    """HGLS sends nearly nothing to clients that hold the newest body, and they answer with a whole one."""
    monkeypatch.setattr("fedquilt.records.limits.FLOOR", 0)  # as if the model were far above 64 MiB
    rounds = rounds_of(HGLS(Net(make("mlp", (2,), 2))))
    for log in (rounds.play(), rounds.play()):
        assert not log.quarantined
    assert max(v.up.wire / v.down.raw for v in log.updates) > 16


class Hurried(Local):
    """Its clients answered when their deadline was nearly over; of one it was over."""

    def seconds_left(self, client: Any) -> float:
        return -1.0 if client == 1 else 60.0


def test_decoding_a_reply_is_part_of_its_deadline():
    log = rounds_of(fedavg(), Hurried()).play()
    assert [(q.client, q.reason.split(":")[0]) for q in log.quarantined] == [(1, "late")]


def rounds_of(method: Any, engine: Any = None, **options: Any) -> Rounds:
    return Rounds(method, TOY, engine or Local(), Seed(0), **options)


def test_a_round_without_a_usable_reply_stops_the_run_and_changes_nothing():
    method = fedavg()
    for client in TOY.ids:
        method = Corrupting(base=method, client=client, kind="nan")
    rounds = rounds_of(method)
    before = rounds.digest()
    with pytest.raises(RoundError, match=r"round 1, exchange 'train': 0 of 3 clients.*client 0: non-finite"):
        rounds.play()
    assert (rounds.digest(), rounds.done) == (before, 0)


def test_fewer_replies_than_wanted_stop_the_run():
    method = Corrupting(base=fedavg(), client=1, kind="nan")
    with pytest.raises(RoundError, match="2 of 3 clients returned a usable reply, at least 3 needed"):
        rounds_of(method, min_replies=3).play()
    rounds_of(method, min_replies=2).play()


@dataclass(frozen=True, kw_only=True)
class Planned(Wraps):
    base: Any
    names: tuple[str, ...]

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        return self.names


def test_a_plan_with_an_unknown_exchange_is_refused():
    with pytest.raises(InputError, match=r"Planned\.plan\(\) names the exchange 'search' in round 1.*only \['train'\]"):
        rounds_of(Planned(base=fedavg(), names=("train", "search"))).play()


def test_an_empty_plan_is_a_round_of_rest():
    rounds = rounds_of(Planned(base=fedavg(), names=()))
    before = pack(rounds.state)
    assert rounds.play().updates == []
    assert (pack(rounds.state), rounds.done) == (before, 1)
    assert list(rounds.evaluate(TOY.evaluated)) == list(TOY.evaluated)  # models can be scored all the same


@pytest.mark.parametrize(
    ("asked", "message"), [((0, 1, 1), "client 1 is selected twice"), ((0, 7), "client 7 .* is not in")]
)
def test_a_cohort_names_clients_there_are_and_each_once(asked, message):
    """A client asked twice in one exchange would see two states on one engine and one on another."""
    with pytest.raises(ExchangeError, match=message) as caught:
        rounds_of(fedavg(cohort=lambda state, ids, seed: asked)).play()
    assert (caught.value.stage, caught.value.round) == ("cohort", 0)


def test_a_cohort_s_order_does_not_matter():
    def backwards(state, ids, seed):
        return list(reversed(ids))

    assert last(fedavg(cohort=backwards), TOY).digest() == last(fedavg(), TOY).digest()


def test_the_bytes_reported_are_those_of_the_frames():
    engine = Counting()
    snapshot = last(fedavg(parts=PRIVATE), TOY, rounds=1, engine=engine)
    updates = snapshot.log.updates
    assert [v.bytes_down for v in updates] == [len(t.down) for t in engine.tasks]
    assert [v.bytes_up for v in updates] == [len(f) for f in engine.uploads]
    assert snapshot.metrics["bytes_down"] == sum(len(t.down) for t in engine.tasks)
    assert snapshot.metrics["bytes_up"] == sum(map(len, engine.uploads))
    assert [unpack(f).upload.delta.keys() for f in engine.uploads] == [{"weight"}] * 3  # the private part stays home


@dataclass(frozen=True, kw_only=True)
class Greeting(Wraps):
    """Sends some clients another scalar beside the very same tensors."""

    base: Any
    special: int | None

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        start = train.work.start
        work = replace(
            train.work, start=lambda download, client, site, context: start(download[0], client, site, context)
        )
        return (replace(train, down=self.down, work=work),)

    def down(self, state: Any, client_id: Any) -> Any:
        return (self.base.down(state, client_id), client_id == self.special)


@pytest.mark.parametrize(("special", "frames"), [(None, 1), (1, 2)])
def test_equal_downloads_are_packed_once(special, frames, monkeypatch):
    packed = []

    def counting(value, compact):
        packed.append(value)
        return pack(value, compact)

    rounds = rounds_of(Greeting(base=fedavg(), special=special), engine := Counting())
    monkeypatch.setattr(module, "pack", counting)
    rounds.play()
    assert len(packed) == frames == len({id(t.down) for t in engine.tasks})
    assert [unpack(t.down)[1] for t in engine.tasks] == [c == special for c in TOY.ids]


@pytest.mark.parametrize("method", [fedavg(), LocalOnly(linear())], ids=["shared", "private"])
def test_a_client_s_state_is_kept_only_when_it_has_one(method):
    rounds = rounds_of(method)
    rounds.play()
    private = method.parts.private("weight")
    assert set(rounds.slots.digests()) == (set(TOY.ids) if private else set())


def test_the_log_tells_what_training_did():
    """12, 20 and 16 rows in batches of 8: 2, 3 and 2 steps."""
    updates = last(fedavg(), TOY, rounds=1).log.updates
    assert [(v.client, v.samples, v.steps) for v in updates] == [(0, 12, 2), (1, 20, 3), (2, 16, 2)]
    assert all(0 < v.loss < 5 and v.seconds > 0 for v in updates)


def test_a_run_is_a_function_of_its_seed():
    assert last(fedavg(), TOY, seed=1).digest() == last(fedavg(), TOY, seed=1).digest()
    assert last(fedavg(), TOY, seed=1).digest() != last(fedavg(), TOY, seed=2).digest()


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        last(fedavg(), TOY)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, kw_only=True)
class Unpackable(Wraps):
    """Says something that is no record, on the way down or up."""

    base: Any
    way: str

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        down = (lambda state, client: {1, 2}) if self.way == "down" else train.down
        work = (lambda sent, client, site, context: (client, {1, 2})) if self.way == "up" else train.work
        return (replace(train, down=down, work=work),)


@pytest.mark.parametrize(("way", "stage"), [("down", "down"), ("up", "encode")])
def test_a_message_that_is_no_record_is_named_with_its_place(way, stage):
    with pytest.raises(ExchangeError, match=r"set at '.*' cannot be packed") as caught:
        rounds_of(Unpackable(base=fedavg(), way=way)).play()
    assert (caught.value.method, caught.value.stage, caught.value.client) == ("Unpackable", stage, 0)


@dataclass(frozen=True, kw_only=True)
class Recording(Wraps):
    """Notes the seeds it is given."""

    base: Any
    seen: list[Any]

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return (replace(train, work=self.work, up=self.up, cohort=self.cohort),)

    def work(self, sent: Any, client: Any, site: Any, context: Any) -> Any:
        self.seen.append(("work", context.round, context.client, context.seed))
        (train,) = self.base.exchanges()
        return train.work(sent, client, site, context)

    def up(self, state: Any, replies: Any, context: Any) -> Any:
        self.seen.append(("up", context.round, context.client, context.seed))
        return self.base.up(state, replies, context)

    def cohort(self, state: Any, ids: Any, seed: Any) -> Any:
        self.seen.append(("cohort", None, None, seed))
        return ids[:2]


def test_randomness_is_folded_with_its_purpose_the_round_and_the_client():
    """So that no draw depends on who else was asked, and none comes twice."""
    seen: list[Any] = []
    rounds, root = rounds_of(Recording(base=fedavg(), seen=seen)), Seed(0)
    for round in range(2):
        rounds.play()
        assert seen[4 * round :] == [
            ("cohort", None, None, root.fold("cohort", round)),
            ("up", round, None, root.fold("up", "train", round)),
            ("work", round, 0, root.fold("work", "train", round, 0)),
            ("work", round, 1, root.fold("work", "train", round, 1)),
        ]
    assert len({seed for *_, seed in seen}) == 8


@record
class Gift:
    """A finite upload that is far too large to be added."""

    delta: Any


def test_a_state_that_overflows_stops_the_run() -> None:
    """Two finite changes of 3e38 make a mean that is finite, but w + 3e38 + 3e38 in float32 is not. No state counts
    that holds such numbers, and when it happens again and again, the run is over."""
    base = fedavg()
    (train,) = base.exchanges()

    def finish(job: Any, trained: Any, client: Any, site: Any, context: Any) -> tuple[Any, Any]:
        return client, Gift({n: torch.full_like(t, 3e38) for n, t in job.params.items()})

    class Huge(OnBase):
        def __init__(self) -> None:
            self.base = base

        def exchanges(self) -> Any:
            return (replace(train, work=replace(train.work, finish=finish)),)

    rounds = Rounds(Huge(), points(4, 4), Local(), Seed(0), growth=float("inf"))
    assert rounds.play().void is None
    before = pack(rounds.state)
    for _ in range(2):
        assert "non-finite numbers in 'shared' after 'up'" in (rounds.play().void or "")
    with pytest.raises(RoundError, match="non-finite numbers in 'shared' after 'up'"):
        rounds.play()
    assert pack(rounds.state) == before


def test_quarantined_bytes_are_counted() -> None:
    log = RoundLog(0, [], [Quarantine(0, "train", 1, "why", 10, 20)])
    assert (log.bytes_down, log.bytes_up) == (10, 20)


def test_every_trip_of_one_exchange_in_a_round_has_its_own_seed() -> None:
    seen: list[int] = []
    base = fedavg()
    (train,) = base.exchanges()

    class Twice(OnBase):
        def __init__(self) -> None:
            self.base = base

        def plan(self, state: Any, round: int) -> tuple[str, ...]:
            return ("train", "train")

        def exchanges(self) -> Any:
            def start(download: Any, client: Any, site: Any, context: Any) -> Any:
                seen.append(context.seed.value)
                return base.start(download, client, site, context)

            return (replace(train, work=replace(train.work, start=start)),)

    Rounds(Twice(), points(4, 4), Local(), Seed(0)).play()
    assert len(seen) == len(set(seen)) == 4
