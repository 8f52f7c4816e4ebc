"""Streams: what is on when, what has been seen, and that every engine and every resume gives the same run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedquilt import FedAvg, Net, check, run
from fedquilt.core.table import Source
from fedquilt.data import IID, Clock, Dirichlet, Federation, LabelPermutation, Rotation, Stream, read, without_labels
from fedquilt.data.streams.kinds import ByClass
from fedquilt.engines.workers import Workers
from fedquilt.errors import InputError
from fedquilt.methods.averaging.centralised import Centralised
from fedquilt.models import MLP
from fedquilt.records.record import pack, unpack

DIGITS = read("digits")
PAIRS = ((0, 1), (2, 3), (4, 5))


def digits(clients=4, **options):
    return Federation.from_source(DIGITS, partition=IID(), clients=clients, **options)


def incremental(**options):
    return Stream.by_class(digits(), PAIRS, rounds_per_task=2, **options)


def labels(table):
    return set() if table is None else set(table.whole().y.tolist())


# When


def test_each_task_has_its_rounds_and_the_last_one_stays():
    stream: Source = incremental()
    assert [labels(stream.site(0, r).train) for r in range(8)] == [{0, 1}] * 2 + [{2, 3}] * 2 + [{4, 5}] * 4
    assert [labels(stream.site(0, r).valid) for r in (0, 2)] == [{0, 1}, {2, 3}]


def test_recurring_tasks_begin_again():
    stream = incremental(recurring=True)
    assert [stream.task_at(0, r) for r in range(13)] == [0, 0, 1, 1, 2, 2] * 2 + [0]
    again = incremental(order=(0, 1, 0))
    assert [again.task_at(0, r) for r in range(8)] == [0, 0, 1, 1, 0, 0, 0, 0]
    assert again.seen(0, 7) == (0, 1)


def test_clients_may_be_behind():
    stream = incremental(delays=(0, 1, 3))  # dealt in turn: client 3 is on time again
    assert stream.delays == {1: 1, 2: 3}
    assert [stream.task_at(1, r) for r in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [stream.task_at(2, r) for r in range(8)] == [0] * 5 + [1, 1, 2]
    assert [stream.task_at(3, r) for r in range(6)] == [stream.task_at(0, r) for r in range(6)]
    rolled = incremental(recurring=True, delays={1: 1})
    assert [rolled.task_at(1, r) for r in range(4)] == [2, 0, 0, 1]
    assert [rolled.seen(1, r) for r in (0, 1, 3)] == [(2,), (2, 0), (2, 0, 1)]


def test_a_drift_comes_at_its_round():
    before = digits()
    stream = Stream.drift(before, LabelPermutation(permutations=((*range(1, 10), 0),))(before), at=3)
    assert [stream.task_at(0, r) for r in (0, 2, 3, 9)] == [0, 0, 1, 1]
    old, new = stream.site(0, 2).train.whole(), stream.site(0, 3).train.whole()
    assert torch.equal(old.x, new.x)
    assert torch.equal((old.y + 1) % 10, new.y)


# Evaluations


def test_evaluations_are_of_all_tasks_seen_so_far_and_of_each_task():
    stream = incremental()
    for split in ("valid", "test"):
        seen = [labels(stream.evaluation(1, split, r)) for r in (0, 1, 2, 5)]
        assert seen == [{0, 1}, {0, 1}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}]
        assert [labels(stream.evaluation_of(1, split, t)) for t in range(3)] == [set(p) for p in PAIRS]
    assert len(stream.evaluation(1, "test", 9)) == sum(len(stream.evaluation_of(1, "test", t)) for t in range(3))


def test_domains_are_put_below_each_other_and_keep_their_rows():
    data = digits()
    domains = [data, Rotation((90,))(data), Rotation((180,))(data)]
    stream = Stream.of(domains, rounds_per_task=1)
    assert len(stream.tasks[0].columns["x"]) == sum(len(d.columns["x"]) for d in domains)
    for number, domain in enumerate(domains):
        for client in data.ids:
            assert torch.equal(stream.site(client, number).train.whole().x, domain.site(client, 0).train.whole().x)
            assert torch.equal(
                stream.evaluation_of(client, "test", number).whole().x, domain.evaluation(client, "test").whole().x
            )
    parts = [d.evaluation(2, "test").whole().x for d in domains]
    assert torch.equal(stream.evaluation(2, "test", 2).whole().x, torch.cat(parts))


def test_tasks_of_one_federation_share_its_columns():
    data = digits()
    stream = Stream.by_class(data, PAIRS)
    assert all(task.columns["x"] is data.columns["x"] for task in stream.tasks)
    assert [n for n in stream.columns_for_sharing() if n.startswith("columns.")] == ["columns.x", "columns.y"]


# Everywhere the same


def method(**options):
    return FedAvg(objective=Net.of(MLP, features=64, classes=10, hidden=(16,)), epochs=1, **options)


def trail(source, rounds=6, used=None, **options):
    return [
        (s.round, s.digest(), s.metrics["test_accuracy"], s.metrics["valid_loss"])
        for s in run(used or method(), source, rounds=rounds, **options)
    ]


STREAMS = {
    "classes": incremental,
    "asynchronous": lambda: incremental(delays=(0, 1), recurring=True),
    "domains": lambda: Stream.of([digits(), Rotation((90, 180))(digits())], rounds_per_task=2),
}


def test_workers_equal_local():
    with Workers(2) as engine:
        for make in STREAMS.values():
            stream = make()
            assert trail(stream, engine=engine) == trail(stream, engine="local")


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_run_that_was_stopped_goes_on_exactly(stop, tmp_path):
    whole = trail(STREAMS["asynchronous"](), engine="local")
    going = run(method(), STREAMS["asynchronous"](), rounds=6, engine="local", folder=tmp_path)
    for snapshot in going:
        if snapshot.round == stop:
            break
    going.close()
    rest = trail(STREAMS["asynchronous"](), engine="local", folder=tmp_path)
    assert rest == whole[stop:]


def test_a_method_is_checked_and_data_are_pooled_on_streams():
    assert check(method(), incremental()) == []
    pooled = Centralised(objective=method().objective, epochs=1)
    assert len(trail(incremental(), rounds=3, used=pooled, engine="local")) == 3
    with pytest.raises(InputError, match="cannot be pooled"):
        incremental(delays=(0, 1)).pooled()


def test_old_tasks_are_forgotten():
    """Plain FedAvg on class-incremental tasks answers the classes of the task that is on."""
    stream = Stream.by_class(digits(), PAIRS, rounds_per_task=4)
    *_, last = run(method(), stream, rounds=12, engine="local")
    model, predict = last.global_model(), method().predict
    now, before = (stream.evaluation_of(0, "test", t).whole() for t in (2, 0))
    assert float((predict(model, now).argmax(1) == now.y).float().mean()) > 0.6
    assert float((predict(model, before).argmax(1) == before.y).float().mean()) < 0.6


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(
    "travel", [lambda v: unpack(pack(v)), lambda v: json.loads(json.dumps(v))], ids=["pack", "json"]
)
def test_sharing_rebuilds_the_stream_on_the_same_memory(kind, travel):
    stream = STREAMS[kind]()
    tensors = stream.columns_for_sharing()
    twin = Stream.from_shared(tensors, travel(stream.layout()), stream.prepare)
    assert (twin.clock, twin.delays, twin.fingerprint()) == (stream.clock, stream.delays, stream.fingerprint())
    assert all(tensors[name] is tensor for name, tensor in twin.columns_for_sharing().items())


def test_the_fingerprint_sees_when_and_who():
    prints = {s.fingerprint() for s in (incremental(), incremental(recurring=True), incremental(delays=(0, 1)))}
    assert len(prints) == 3
    assert incremental().fingerprint() in prints


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stream.of([]), "at least 1 task .* got 0 and 3"),
        (lambda: incremental(order=(0, 3)), "order names the task 3, but the tasks are 0 to 2"),
        (lambda: Stream.of([digits()], rounds_per_task=0), "1 round per task, got 1 and 0"),
        (lambda: Stream.of([digits(4), digits(5)]), "Task 1 has the clients 0, 1, 2, 3, 4, task 0 has 0, 1, 2, 3"),
        (lambda: Stream.by_class(digits(), ((0,), (11,))), r"no row of the classes \[11\]"),
        (
            lambda: Stream.by_class(Federation.from_source(DIGITS, partition=Dirichlet(0.01), clients=8), PAIRS),
            "clients have no training samples in task 0: .* Divide each task by itself",
        ),
        (lambda: Stream.drift(digits(), digits(), at=0), "a round of at least 1, got 0"),
        (lambda: incremental(delays={9: 1}), "delays are whole numbers from 0 .* got 1 for 9"),
        (lambda: incremental(delays=(0, -1)), "got -1 for 1"),
        (lambda: Clock((1, 2), (0, 1)), "start at round 0"),
        (lambda: Clock((0, 2), (0,)), "2 stages need as many tasks"),
        (lambda: Clock((0, 2), (0, 1), 2), "The period 2 ends before the last stage"),
        (
            lambda: Stream.of([digits(), Federation.from_arrays(np.zeros((40, 3)), np.zeros(40, int), clients=4)]),
            "task 1: rows of x are",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()


# Tasks that share classes


def test_a_row_of_two_tasks_is_evaluated_and_counted_once():
    stream = Stream.by_class(digits(), ((0, 1), (1, 2)), rounds_per_task=1)
    evaluation = stream.evaluation(0, "test", 5).all_rows().tolist()
    apart = Stream.by_class(digits(), ((0, 1), (2,)), rounds_per_task=1)
    assert sorted(evaluation) == sorted(apart.evaluation(0, "test", 5).all_rows().tolist())
    assert np.array_equal(stream.label_counts(), apart.label_counts())
    assert np.array_equal(stream.label_counts("test"), apart.label_counts("test"))


def test_tasks_divided_by_themselves_may_share_no_class():
    with pytest.raises(
        InputError, match="class 1 is in two groups: a test sample of one task would be a training sample"
    ):
        ByClass(groups=((0, 1), (1, 2)), each=True)
    ByClass(groups=((0, 0, 1), (2,)), each=True)


def test_a_label_hidden_in_one_task_is_hidden_in_all():
    with pytest.raises(InputError, match="Tasks of this stream share training samples"):
        without_labels(Stream.by_class(digits(), ((0, 1), (1, 2))), 0.5)
    data = digits()
    drift = without_labels(Stream.drift(data, LabelPermutation(2)(data), at=1), 0.5)
    pixels = [{row.numpy().tobytes() for row in task.site(0, 0).unlabelled.whole().x} for task in drift.tasks]
    assert pixels[0] == pixels[1]  # the same rows before and after


def test_together_has_the_unlabelled_rows_of_all_tasks():
    stream = without_labels(incremental(), 0.5)
    assert len(stream.together().unlabelled.index) == sum(len(task.unlabelled.index) for task in stream.tasks)
