"""Every method, on every engine: the promises of the design, one test each; rows are in ``cases.py``.

(a) learns, (b) workers == local, (c) messages survive packing, (d) no input mutated, (e) stop and resume, (f) order of
completion, (g) nobody answers, (i) one bad reply. ((h), Flower, comes with its engine.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.cases import CASES, Case
from fedquilt.core.errors import RoundError
from fedquilt.core.exchange import Exchange, Reply, Turn
from fedquilt.core.params import finite
from fedquilt.core.record import pack, tensors_in, unpack
from fedquilt.core.seed import Seed
from fedquilt.core.steps import Visit
from fedquilt.engines.client_side import one_thread
from fedquilt.kernels import Player, Tape
from fedquilt.metrics.classify import classify
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.registry import METHODS
from fedquilt.runs.runner import Snapshot, run
from helpers.engines import Shuffled
from helpers.sabotage import Corrupting, Without
from helpers.toy import fedavg as tiny_fedavg
from helpers.toy import last, points

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def reference(name: str) -> tuple[str, Snapshot]:
    """Two rounds on ``local``, and their digest."""
    digest, snapshot, _ = referred(name)
    return digest, snapshot


@cache
def referred(name: str) -> tuple[str, Snapshot, int]:
    """The same, and for how many client updates captured steps were made ready."""
    case, bound, captured = next(c for c in CASES if c.name == name), Tape.bound, 0

    def counted(self: Tape, stable: Sequence[Tensor]) -> Player:
        nonlocal captured
        captured += bool(len(stable))  # first values are captured, too, and depend on no tensor
        return bound(self, stable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tape, "bound", counted)
        snapshot = last(case.method, case.federation, score=classify)
    return snapshot.digest(), snapshot, captured


def untrained(case: Case) -> float:
    """The mean over clients of the loss of models before any training."""
    method, data = case.method, case.federation
    with one_thread():
        model = case.method.net.init(Seed(0))
        tables = [data.exam(client, "test") for client in data.examined]
        return sum(reconstruct(method.predict, model, t).loss for t in tables) / len(tables)


def unlike_times(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if "seconds" not in k and k != "peak_bytes"}


def test_every_method_has_a_row():
    rows = {case.name for case in CASES}
    begun = {row[:end] for row in rows for end in range(len(row) + 1) if end == len(row) or row[end] == "-"}
    assert [name for name in METHODS if name.replace("_", "-") not in begun] == []


@every_case
def test_a_two_rounds_stay_finite_and_learn_above_chance(case: Case):
    """Above chance: better, on average over clients, than answering each client's most frequent label; for methods that
    guess patches, better than before the first round."""
    _, snapshot = reference(case.name)
    assert finite(tensors_in(snapshot.state))
    assert snapshot.log.quarantined == []
    if case.guesses:
        assert snapshot.metrics["test_loss"] < 0.995 * untrained(case)
        return
    assert snapshot.metrics["test_accuracy"] > 1.3 * case.federation.majority().personal


@every_case
@pytest.mark.parametrize("engine", ["one_worker", "two_workers"])
def test_b_workers_equal_local_bit_for_bit(case: Case, engine: str, request: pytest.FixtureRequest):
    """The same hash of all state, and every number that is no time."""
    far = last(case.method, case.federation, engine=request.getfixturevalue(engine), score=classify)
    digest, near = reference(case.name)
    assert far.digest() == digest
    assert unlike_times(far.metrics) == unlike_times(near.metrics)


@every_case
def test_b_tapes_change_no_bit(case: Case, monkeypatch: pytest.MonkeyPatch):
    """With every step made by autograd, the same hash as with steps from tapes."""
    digest, _ = reference(case.name)
    monkeypatch.setattr(Visit, "step", lambda self, moving, eager: eager())
    assert last(case.method, case.federation, score=classify).digest() == digest


@every_case
def test_b_steps_are_captured_where_that_is_claimed(case: Case):
    """Otherwise the test above would compare plain steps with plain ones."""
    _, _, captured = referred(case.name)
    assert captured > 0 or not case.captured


def test_b_almost_every_method_is_captured():
    """Whoever adds a row that is not says why."""
    assert sum(case.captured for case in CASES) >= 0.8 * len(CASES)


@dataclass
class Played:
    """One exchange, played by hand without an engine: no frame between the parts, so that any mutation shows."""

    exchange: Exchange
    state: Any
    sent: list[Any]
    before: list[Any]
    after: list[Any]
    uploads: list[Any]
    next: Any
    mutated: list[str]


@cache
def play(name: str) -> list[Played]:
    """Two rounds of two clients."""
    with one_thread():
        return played(next(c for c in CASES if c.name == name))


def played(case: Case) -> list[Played]:
    method, seed = case.method, Seed(3)
    source = case.federation.pooled() if case.alone else case.federation
    state = method.init_server(seed)
    clients = {c: method.init_client(seed.fold(c)) for c in source.ids[:2]}
    trips, found = {e.name: e for e in method.exchanges()}, []
    for round in range(2):
        for name in method.plan(state, round):
            one = visit(trips[name], state, clients, source, Turn(round, None, seed.fold(round, name), len(source.ids)))
            state, clients = one.next, dict(zip(clients, one.after, strict=True))
            found.append(one)
    return found


def visit(exchange: Exchange, state: Any, clients: dict[Any, Any], source: Any, turn: Turn) -> Played:
    one = Played(exchange, state, [], [], [], [], None, [])
    replies = []
    for client, mine in clients.items():
        marks = pack(state), pack(mine), pack(dict(source.columns))
        sent = exchange.down(state, client)
        seen = pack(sent)
        site = source.site(client, turn.round)
        after, upload = exchange.work(sent, mine, site, Turn(turn.round, client, turn.seed.fold(client)))
        if (pack(state), pack(mine), pack(dict(source.columns))) != marks or pack(sent) != seen:
            one.mutated.append("work")
        one.sent.append(sent)
        one.before.append(mine)
        one.after.append(after)
        one.uploads.append(upload)
        replies.append(Reply(client, site.examples, upload))
    marks = pack(state), pack(one.uploads), pack(one.after), pack(one.sent)
    one.next = exchange.up(state, iter(replies), turn)
    if (pack(state), pack(one.uploads), pack(one.after), pack(one.sent)) != marks:
        one.mutated.append("up")
    return one


@every_case
def test_c_states_and_messages_survive_packing(case: Case):
    """unpack(pack(x)) has x's type and bits: packing it again gives the same frame."""
    for one in play(case.name):
        for value in (one.state, one.next, *one.sent, *one.before, *one.after, *one.uploads):
            again = unpack(pack(value))
            assert type(again) is type(value)
            assert pack(again) == pack(value)
            assert [t.shape for t in tensors_in(again)] == [t.shape for t in tensors_in(value)]
            assert all(map(torch.equal, tensors_in(again), tensors_in(value)))


@every_case
def test_d_no_input_is_mutated(case: Case):
    """State, download, client state, uploads and data are the same before and after every stage."""
    trips = play(case.name)
    assert [one.mutated for one in trips] == [[]] * len(trips)
    assert pack(trips[0].state) != pack(trips[-1].next) or pack(trips[0].before) != pack(trips[-1].after)


@every_case
def test_d_questions_change_nothing(case: Case):
    method, one = case.method, play(case.name)[0]
    marks = pack(one.next), pack(one.sent), pack(one.after)
    models = [method.personal_model(s, c) for s, c in zip(one.sent, one.after, strict=True)]
    whole = method.global_model(one.next)
    rows = case.federation.site(0, 0).train.whole()
    for model in [*models, *([] if whole is None else [whole])]:
        kept = pack(model)
        assert method.predict(model, rows).shape == ((len(rows),) if case.guesses else (len(rows), 10))
        assert pack(model) == kept
    method.observe(one.next, {"valid_accuracy": 0.5})
    assert (pack(one.next), pack(one.sent), pack(one.after)) == marks


@every_case
def test_e_stop_and_resume_is_uninterrupted(case: Case, tmp_path):
    straight = last(case.method, case.federation, rounds=4, folder=tmp_path / "straight", score=classify)
    for snapshot in run(case.method, case.federation, rounds=4, folder=tmp_path / "stopped", engine="local"):
        if snapshot.round == 2:
            break
    resumed = list(run(case.method, case.federation, rounds=4, folder=tmp_path / "stopped", engine="local"))
    assert [s.round for s in resumed] == [3, 4]
    assert resumed[-1].digest() == straight.digest()
    assert unlike_times(resumed[-1].metrics) == unlike_times(straight.metrics)
    logs = [(tmp_path / way / "metrics/clients.jsonl").read_text() for way in ("straight", "stopped")]
    assert logs[0] == logs[1]


@every_case
def test_f_the_order_of_completion_does_not_matter(case: Case):
    again = last(case.method, case.federation, engine=Shuffled(1), score=classify)
    assert again.digest() == reference(case.name)[0]


def test_f_workers_finish_very_unequal_clients_in_any_order(two_workers):
    """The largest client is last and is begun first; the sums run in ascending id all the same."""
    data = points(2, 3, 50, 4, 400)
    method = tiny_fedavg(epochs=3)
    assert last(method, data, engine=two_workers).digest() == last(method, data).digest()


@every_case
def test_g_without_replies_the_state_stays(case: Case):
    for one in play(case.name):
        left = one.exchange.up(one.state, iter(()), Turn(0, None, Seed(0)))
        assert pack(left) == pack(one.state)


@every_case
@pytest.mark.parametrize("kind", ["nan", "shape"])
def test_i_one_bad_reply_equals_the_run_without_that_client(case: Case, kind: str):
    bad = Corrupting(base=case.method, client="pooled" if case.alone else 1, kind=kind)
    if case.alone:
        with pytest.raises(RoundError, match="0 of 1 clients"):
            last(bad, case.federation.pooled())
        return
    spoiled = last(bad, case.federation)
    assert spoiled.digest() == last(Without(base=case.method, client=1), case.federation).digest()
    assert {q.client for q in spoiled.log.quarantined} <= {1}
    if case.name not in ("fedavg-fraction", "stitch-once"):  # there, client 1 may not have been asked lately
        assert spoiled.digest() != reference(case.name)[0]
        assert len(spoiled.log.quarantined) == 1
