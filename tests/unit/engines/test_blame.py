"""Whose reply the server cannot take, and rounds that do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import fedquilt.rounds.exchange_run as exchange
from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, RoundError
from fedquilt.methods.fedavg import Server
from fedquilt.methods.personalised.finetune import FedAvgFineTune
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.engine import Lost
from fedquilt.rounds.exchange_run import needed
from fedquilt.rounds.rounds import Rounds
from fedquilt.rounds.scale import Scale, Unsound
from fedquilt.runs.runner import run
from helpers.engines import Counting, Tampering
from helpers.sabotage import Corrupted, Corrupting, Without, Wraps
from helpers.toy import fedavg, last, points

TOY = points(12, 20, 16, 14)
TEN = points(*[10] * 10)
PRIVATE = Parts(shared=everything_but(under("bias")), private=under("bias"))


@record
class Row:
    """A vector whose length nobody declares."""

    values: torch.Tensor


@record
class Updates:
    """How often a client was asked."""

    times: int


@dataclass(frozen=True, kw_only=True)
class Stacking(Wraps):
    """The server adds up vectors of one length; ``bad`` says what client 1 sends instead."""

    base: Any
    bad: Callable[[], torch.Tensor] | None = None
    few: int = 0

    def init_client(self, seed: Seed) -> Updates:
        return Updates(0)

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return (replace(train, work=self.work, up=self.up, check=lambda state, upload: None),)

    def work(self, download: Any, client: Updates, site: Site, context: Context) -> tuple[Updates, Row]:
        lies = self.bad is not None and context.client == 1
        return Updates(client.times + 1), Row(self.bad() if lies else torch.full((2,), float(context.client or 0)))

    def up(self, state: Server, replies: Iterable[Reply[Row]], context: Context) -> Server:
        rows = [r.upload.values for r in replies]
        if not rows and not self.few:
            return state
        if len(rows) < self.few:
            raise ValueError("too few")
        if any(float(row[0]) == -7 for row in rows):
            raise KeyError("seven")
        return replace(state, shared={n: t + torch.stack(rows).mean() for n, t in state.shared.items()})


CONTENTS = {
    "alone": (lambda: torch.tensor([-7.0, 0.0]), "the server cannot take it: KeyError: 'seven'"),
    "beside others": (lambda: torch.zeros(3), "does not go with the other replies: the server cannot take it: Runtime"),
}


@pytest.mark.parametrize("few", [0, 1, 2])
@pytest.mark.parametrize(("bad", "reason"), CONTENTS.values(), ids=CONTENTS)
def test_a_reply_that_up_cannot_take_is_found_and_left_out(bad, reason, few):
    method = Stacking(base=fedavg(), bad=bad, few=few)
    spoilt = last(method, TOY, rounds=3)
    (entry,) = spoilt.log.quarantined
    assert (entry.client, entry.round, entry.exchange) == (1, 2, "train")
    assert "seven" in entry.reason if few == 2 and "seven" in reason else reason in entry.reason
    assert min(entry.bytes_down, entry.bytes_up) > 0
    assert [v.client for v in spoilt.log.updates] == [0, 2, 3]
    assert [spoilt.client_state(c).times for c in TOY.ids] == [3, 0, 3, 3]
    assert spoilt.digest() == last(Without(base=Stacking(base=fedavg(), few=few), client=1), TOY, rounds=3).digest()


@pytest.mark.parametrize("liars", [(0, 1), (3, 5, 7), (0, 2, 4, 9)], ids=str)
def test_several_replies_that_go_with_each_other_alone_are_left_out(liars):
    class Some(Stacking):
        def work(self, download: Any, client: Updates, site: Site, context: Context) -> tuple[Updates, Row]:
            return Updates(client.times + 1), Row(torch.zeros(3 if context.client in liars else 2))

    spoilt = last(Some(base=fedavg()), TEN)
    assert tuple(q.client for q in spoilt.log.quarantined) == liars
    assert all("does not go with the other replies" in q.reason for q in spoilt.log.quarantined)
    assert [spoilt.client_state(c).times for c in TEN.ids] == [0 if c in liars else 2 for c in TEN.ids]


@pytest.mark.parametrize("few", [0, 1])
def test_replies_that_are_too_large_to_be_held_are_asked_for_again(monkeypatch, few):
    method, engine = Stacking(base=fedavg(), bad=CONTENTS["alone"][0], few=few), Counting()
    held = last(method, TOY)
    monkeypatch.setattr(exchange, "HELD", 0)
    again = last(method, TOY, engine=engine)
    assert [t.client for t in engine.tasks] == [0, 1, 2, 3] * 4
    assert again.digest() == held.digest()
    assert again.log.quarantined == held.log.quarantined
    assert [v.client for v in again.log.updates] == [0, 2, 3]


def test_nothing_is_asked_again_of_an_ordinary_round(monkeypatch):
    monkeypatch.setattr(exchange, "HELD", 0)
    engine = Counting()
    assert last(fedavg(), TOY, engine=engine).log.quarantined == []
    assert len(engine.tasks) == 2 * len(TOY.ids)


BUGS = {"always": lambda rows: True, "of any reply": bool, "of two": lambda rows: len(rows) > 1}


@pytest.mark.parametrize("held", [exchange.HELD, 0])
@pytest.mark.parametrize("fails", BUGS.values(), ids=BUGS)
def test_a_bug_of_the_method_is_raised_and_nobody_is_blamed(monkeypatch, fails, held):
    monkeypatch.setattr(exchange, "HELD", held)
    (train,) = fedavg(parts=PRIVATE).exchanges()

    def up(state: Any, replies: Any, context: Context) -> Any:
        if fails(list(replies)):
            raise IndexError("a bug")
        return state

    class Buggy(Wraps):
        def __init__(self) -> None:
            self.base = fedavg(parts=PRIVATE)

        def exchanges(self) -> Any:
            return (replace(train, up=up),)

    rounds = Rounds(Buggy(), TOY, Local(), Seed(0))
    before = rounds.digest()
    with pytest.raises(ExchangeError, match="stage 'up', round 1: IndexError: a bug"):
        rounds.play()
    assert (rounds.digest(), rounds.done) == (before, 0)


# Out of scale


def enormous(frame: Any) -> bytes:
    """All numbers of an upload are 1e30."""
    wire = unpack(bytes(frame))
    delta = {n: torch.full_like(t, 1e30) for n, t in wire.upload.delta.items()}
    return pack(replace(wire, upload=replace(wire.upload, delta=delta)), compact=True)


@pytest.mark.parametrize("parts", [Parts(), PRIVATE], ids=["shared", "private"])
def test_nine_honest_clients_are_not_left_out_because_of_a_liar(parts, tmp_path):
    method = fedavg(parts=parts)
    for snapshot in run(method, TEN, rounds=3, engine=Tampering(4, enormous), folder=tmp_path / "run", score=None):
        assert [q.client for q in snapshot.log.quarantined] == [4]
        assert "be out of scale: the norm of 'shared'" in snapshot.log.quarantined[0].reason
        assert "so far" in snapshot.log.quarantined[0].reason
    *_, resumed = run(method, TEN, rounds=5, engine=Tampering(4, enormous), folder=tmp_path / "run", score=None)
    assert [q.client for q in resumed.log.quarantined] == [4]
    assert resumed.digest() == last(Without(base=method, client=4), TEN, rounds=5).digest()


def test_a_liar_is_found_on_workers_too(two_workers):
    method = Corrupting(base=fedavg(parts=PRIVATE), client=4, kind="1e30")
    far, near = last(method, TEN, engine=two_workers), last(method, TEN)
    assert [q.client for q in far.log.quarantined] == [q.client for q in near.log.quarantined] == [4]
    assert far.digest() == near.digest() == last(Without(base=fedavg(parts=PRIVATE), client=4), TEN).digest()


@dataclass(frozen=True, kw_only=True)
class Twice(Wraps):
    """The base's exchange two times in a round; the second one's upload of client 1 is out of scale."""

    base: Any

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return train, replace(train, name="again", work=Corrupted(train.work, 1, "1e30"))

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        return "train", "again"


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "folder"])
def test_a_client_that_is_left_out_of_a_trip_keeps_what_the_trip_before_it_left(kept, tmp_path):
    """As if the second exchange had not asked it."""
    method = Twice(base=fedavg(parts=PRIVATE))

    class Lossy(Local):
        def updates(self, clients: Any, task: Any) -> Any:
            for client in clients:
                asked = task(client)
                lost = asked.exchange == "again" and client == 1
                yield client, Lost("lost") if lost else self.side.update(asked)

    options = {"folder": tmp_path / "run"} if kept else {}
    spoilt, lost = last(method, TOY, rounds=3, **options), last(method, TOY, rounds=3, engine=Lossy())
    assert [(q.exchange, q.client) for q in spoilt.log.quarantined] == [("again", 1)]
    assert spoilt.digest() == lost.digest()
    if kept:  # no file but those that are in use or that the two snapshots need
        assert len(list((tmp_path / "run" / "clients").glob("*/*.safetensors"))) == 2 * len(TOY.ids)


WILD = {"optimizer": SGD(1e8), "batch_size": 8}


@pytest.mark.filterwarnings("ignore:round . is void")
def test_a_state_out_of_scale_makes_the_round_void_and_several_stop_the_run(tmp_path):
    """No client is to blame when all of them diverge."""
    method, folder = fedavg(**WILD, parts=PRIVATE), tmp_path / "run"
    plays = run(method, TOY, rounds=9, engine="local", folder=folder, score=None)
    first = next(iter(plays))
    start = Rounds(method, TOY, Local(), Seed(0))
    assert "be out of scale" in (first.log.void or "")
    assert pack(first.state) == pack(start.state)
    assert first.digest() != start.digest()  # one more round, and nothing else
    start.done = 1
    assert first.digest() == start.digest()
    assert [q.client for q in first.log.quarantined] == list(TOY.ids)
    assert all(q.reason.startswith("the round is void: the server's state") for q in first.log.quarantined)
    assert first.log.updates == []
    plays.close()  # type: ignore[attr-defined]
    with pytest.raises(
        RoundError, match=r"round 3: .*3 consecutive rounds. The last valid state is kept. Try a " "smaller"
    ):
        list(run(method, TOY, rounds=9, engine="local", folder=folder, score=None))
    with pytest.raises(RoundError, match="round 3"):  # and again after every resume
        list(run(method, TOY, rounds=9, engine="local", folder=folder, score=None))
    assert "void" in (folder / "dropped.jsonl").read_text()


@pytest.mark.filterwarnings("ignore:round . is void")
def test_a_run_of_which_no_round_counts_is_no_result():
    with pytest.raises(RoundError, match=r"^round 2: the server's state would .*None of the 2 rounds counts"):
        last(fedavg(**WILD), TOY, rounds=2)


def test_a_round_that_counts_ends_a_row_of_void_ones():
    """Two of three rounds in a row are void, again and again: the run goes on."""
    base = fedavg()
    (train,) = base.exchanges()

    class Sometimes(Wraps):
        def __init__(self) -> None:
            self.base = base

        def exchanges(self) -> Any:
            return (replace(train, up=self.up),)

        def up(self, state: Any, replies: Any, context: Context) -> Any:
            found = train.up(state, replies, context)
            return found if context.round % 3 == 2 else Server({n: t + 1e9 for n, t in found.shared.items()})

    rounds = Rounds(Sometimes(), TOY, Local(), Seed(0))
    logs = [rounds.play() for _ in range(6)]
    assert [log.void is not None for log in logs] == [True, True, False] * 2
    assert rounds.past["void"] == 0


@pytest.mark.filterwarnings("ignore:round . is void")
def test_models_are_made_ready_for_scores_also_in_a_void_round():
    """FedAvg with tuning, scored after the last round alone, which is void: clients tune the last good model."""
    tuned = FedAvgFineTune(base=fedavg())
    train, tune = tuned.exchanges()

    class Ends(Wraps):
        def __init__(self) -> None:
            self.base = tuned

        def exchanges(self) -> Any:
            return replace(train, up=self.up), tune

        def up(self, state: Any, replies: Any, context: Context) -> Any:
            found = train.up(state, replies, context)
            return Server({n: t + 1e9 for n, t in found.shared.items()}) if context.round == 2 else found

    rounds = Rounds(Ends(), TOY, Local(), Seed(0))
    for _ in range(2):
        rounds.play(scored=False)
    before, log = pack(rounds.state), rounds.play(scored=True)
    assert log.void is not None
    assert [v.exchange for v in log.updates] == ["tune"] * len(TOY.ids)
    assert {(q.exchange, q.client) for q in log.quarantined} == {("train", c) for c in TOY.ids}
    assert pack(rounds.state) == before
    assert rounds.past["void"] == 1
    assert all(unpack(rounds.slots.get(c) or b"").state.own for c in TOY.ids)


def state(**parts: float) -> dict[str, Any]:
    return {name: torch.full((4,), size / 2) for name, size in parts.items()}


@record
class Parted:
    """A state of two parts."""

    model: Any
    other: Any


def test_every_part_of_a_state_is_compared_with_its_own_past():
    scale = Scale(1e3)
    for size in (5.0, 6.0, 7.0):
        scale.note(Parted(state(w=size), state(h=0.0)))
    assert scale.past == {"model": [5.0, 6.0, 7.0], "other": [0.0, 0.0, 0.0]}
    scale.check(Parted(state(w=5999), state(h=5e6)))
    with pytest.raises(Unsound, match=r"norm of 'model' would be 6e\+03, so far 6, and 6e\+03 is the limit"):
        scale.check(Parted(state(w=6001), state(h=0.0)))
    with pytest.raises(Unsound, match=r"norm of 'other' would be 7e\+06, so far nothing, and 6e\+06"):
        scale.check(Parted(state(w=6), state(h=7e6)))
    with pytest.raises(Unsound, match="non-finite numbers in 'model'"):
        scale.check(Parted(state(w=float("nan")), state(h=0.0)))
    with pytest.raises(Unsound, match=r"norm of 'model' would be 2e\+30"):
        scale.check(Parted(state(w=2e30), state(h=0.0)))  # whose square is no float32
    scale.check(Parted({"bn.running_var": torch.full((4,), 1e9)}, None))  # as large as the data


def test_a_state_that_creeps_is_stopped_too():
    """The median of the last rounds moves slower than a state that grows a hundredfold in every round."""
    scale = Scale(1e3)
    for size in (1.0, 1e2, 1e4):
        scale.check(Parted(state(w=size), None))
        scale.note(Parted(state(w=size), None))
    with pytest.raises(Unsound):
        scale.check(Parted(state(w=1e6), None))


@pytest.mark.parametrize(
    ("least", "asked", "count"),
    [(1, 10, 1), (3, 2, 3), (0.5, 10, 5), (0.5, 9, 5), (0.5, 1, 1), (1.0, 7, 7), (0.1, 30, 3), (0.01, 3, 1)],
)
def test_replies_needed_are_a_count_or_a_share(least, asked, count):
    assert needed(least, asked) == count


def test_half_of_the_cohort_must_answer_unless_said_otherwise():
    method = fedavg()
    for client in range(6):
        method = Silent(base=method, client=client)
    with pytest.raises(RoundError, match="4 of 10 clients returned a usable reply, at least 5 needed"):
        last(method, TEN)
    assert len(last(method, TEN, min_replies=4).log.updates) == 4
    assert len(last(method, TEN, min_replies=0.4).log.updates) == 4


def test_too_few_replies_stop_the_run_also_when_they_are_out_of_scale():
    method = fedavg(**WILD)
    for client in range(6):
        method = Silent(base=method, client=client)
    with pytest.raises(RoundError, match="4 of 10 clients returned a usable reply, at least 5 needed"):
        last(method, TEN)


@dataclass(frozen=True, kw_only=True)
class Silent(Wraps):
    """The base, but one client sends nothing that could be used."""

    base: Any
    client: int

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()

        def work(download: Any, client: Any, site: Site, context: Context) -> Any:
            kept, upload = train.work(download, client, site, context)
            return kept, None if context.client == self.client else upload

        return (replace(train, work=work),)
