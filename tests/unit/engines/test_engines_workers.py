"""Worker processes: they may die, be reused and be outlived, and the numbers stay those of ``local``."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines import auto
from fedquilt.engines.auto import Auto
from fedquilt.engines.local import Local
from fedquilt.engines.pipe import Pipe, SharedTensors, mapped
from fedquilt.engines.worker import WorkerJob
from fedquilt.engines.workers import Workers
from fedquilt.errors import ExchangeError, InputError, WorkerError
from fedquilt.metrics.classify import classify
from fedquilt.rounds.client import Task
from fedquilt.rounds.rounds import Rounds
from helpers.sabotage import Deadly, Without, Wraps
from helpers.toy import fedavg, last, linear, points

TOY = points(10, 200, 30, 5)
PRIVATE = fedavg(parts=Parts(shared=everything_but(under("bias")), private=under("bias")))


def ids(engine: Workers) -> list[int]:
    return [w.process.pid for w in engine._workers]


def test_a_worker_killed_during_an_update_is_replaced_and_nothing_changes(tmp_path):
    method = Deadly(base=PRIVATE, client=1, marker=str(tmp_path / "killed"))
    with Workers(2) as engine:
        engine.begin(PRIVATE, TOY, Seed(0), None)
        before = ids(engine)
        snapshot = last(method, TOY, rounds=3, engine=engine)
        assert (tmp_path / "killed").exists()
        assert len(set(ids(engine)) & set(before)) == 1
    assert snapshot.digest() == last(PRIVATE, TOY, rounds=3).digest()


def test_a_client_that_always_kills_its_worker_is_left_out_with_the_reason():
    with Workers(1) as engine:
        snapshot = last(Deadly(base=PRIVATE, client=1), TOY, rounds=1, engine=engine)
    (quarantine,) = snapshot.log.quarantined
    assert quarantine.client == 1
    assert quarantine.reason == "the worker process was killed by signal 9 twice during this client update"
    assert snapshot.digest() == last(Without(base=PRIVATE, client=1), TOY, rounds=1).digest()


def test_jobs_wait_at_their_workers_while_there_is_one_for_each(monkeypatch):
    """Nine client updates on two workers: seven are given ahead at most, and the last two only to whoever is free."""
    most: list[int] = []
    real = Workers._give

    def give(self: Workers, waiting: list[tuple[int, int]], what: Any) -> None:
        real(self, waiting, what)
        most.append(max(len(w.jobs) for w in self._workers))
        assert len(waiting) < 2 or all(len(w.jobs) == 2 for w in self._workers)

    monkeypatch.setattr(Workers, "_give", give)
    nine = points(*range(5, 14))
    with Workers(2) as engine:
        assert last(PRIVATE, nine, rounds=2, engine=engine).digest() == last(PRIVATE, nine, rounds=2).digest()
    assert max(most) == 2


@dataclass(frozen=True)
class Stumbling(Wraps):
    """Fails in the middle of listening."""

    base: Any

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()

        def up(state: Any, replies: Any, context: Any) -> Any:
            next(iter(replies))
            raise ValueError("enough")

        return (replace(train, up=up),)


def test_after_a_run_that_failed_with_jobs_under_way_the_next_one_is_whole():
    """Also when somebody still holds the error, and with it the open generator."""
    nine = points(*range(5, 14))
    clean = last(PRIVATE, nine, rounds=2).digest()
    held = []
    with Workers(2) as engine:
        for _ in range(4):
            with pytest.raises(ExchangeError, match="enough") as caught:
                last(Stumbling(base=PRIVATE), nine, rounds=1, engine=engine)
            held.append(caught)
            assert last(PRIVATE, nine, rounds=2, engine=engine).digest() == clean
        held.clear()
        gc.collect()
        assert last(PRIVATE, nine, rounds=2, engine=engine).digest() == clean


def test_answers_of_updates_that_nobody_waited_for_are_never_taken_for_others(two_workers):
    nine = points(*range(5, 14))
    rounds = Rounds(PRIVATE, nine, two_workers, Seed(0))
    sender = rounds.sender(rounds.exchanges["train"])

    def task(round: int, client: Any) -> Task:
        return Task("train", client, round, sender.send(client).frame, None)

    def uploads(round: int) -> list[bytes]:
        return [outcome.upload for _, outcome in two_workers.updates(nine.ids, partial(task, round))]

    wanted = uploads(1)
    for _ in range(5):
        begun = two_workers.updates(nine.ids, partial(task, 0))
        next(begun)
        begun.close()
        assert uploads(1) == wanted


def test_a_worker_that_is_out_of_step_is_replaced(monkeypatch):
    """An answer that nobody asked for: the worker is ended, and its client update made again."""
    real, wrong = Pipe.receive, [5]

    def receive(self: Pipe) -> Any:
        answer = real(self)
        wrong[0] -= 1
        return replace(answer, number=answer.number + 1) if wrong[0] == 0 else answer

    with Workers(2) as engine:
        engine.begin(PRIVATE, TOY, Seed(0), None)
        monkeypatch.setattr(Pipe, "receive", receive)
        assert last(PRIVATE, TOY, rounds=2, engine=engine).digest() == last(PRIVATE, TOY, rounds=2).digest()
        assert wrong[0] < 0


def test_a_job_that_could_not_be_sent_ends_the_run_and_hangs_nobody(monkeypatch):
    real = Pipe.send

    def send(self: Pipe, message: Any) -> None:
        if type(message) is WorkerJob:
            raise OSError(28, "No space left on device")
        real(self, message)

    with Workers(2) as engine:
        engine.begin(PRIVATE, TOY, Seed(0), None)
        with monkeypatch.context() as patched:
            patched.setattr(Pipe, "send", send)
            with pytest.raises(ExchangeError, match="No space left"):
                last(PRIVATE, TOY, rounds=1, engine=engine)
        assert last(PRIVATE, TOY, rounds=2, engine=engine).digest() == last(PRIVATE, TOY, rounds=2).digest()


def kill(engine: Workers, place: int) -> None:
    process = engine._workers[place].process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_workers_killed_between_rounds_and_between_runs_are_replaced(tmp_path):
    """An idle worker may fall to the system's memory killer: the next job, run or question must not.

    In the second round one idle worker is dead when the other dies during the only client update.
    """
    clean = last(fedavg(), TOY).digest()
    only = points(10)
    with Workers(2) as engine:
        assert last(fedavg(), TOY, engine=engine).digest() == clean
        kill(engine, 0)
        assert last(fedavg(), TOY, engine=engine).digest() == clean
        rounds = Rounds(Deadly(base=fedavg(), client=0, marker=str(tmp_path / "m")), only, engine, Seed(0))
        kill(engine, 1)
        rounds.play()
        reference = Rounds(fedavg(), only, Local(), Seed(0))
        reference.play()
        assert rounds.digest() == reference.digest()
        kill(engine, 0)
        assert len(engine.facts()["peak_bytes_of_workers"]) == 1


def test_one_engine_serves_runs_of_other_methods_data_and_seeds(two_workers):
    processes = ids(two_workers)
    runs = [(fedavg(), TOY, 0), (PRIVATE, TOY, 1), (fedavg(steps=3), points(9, 8), 0), (fedavg(), TOY, 0)]
    for method, data, seed in runs:
        far = last(method, data, seed=seed, engine=two_workers)
        assert far.digest() == last(method, data, seed=seed).digest()
    assert not processes or ids(two_workers) == processes


@dataclass(frozen=True, kw_only=True)
class Splitting(Wraps):
    """Has one model for all until the weights have moved, and none after."""

    base: Any
    rounds: int

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def init_server(self, seed: Any) -> Any:
        state = self.base.init_server(seed)
        return replace(state, shared={**state.shared, "round": torch.tensor(0)})

    def up(self, state: Any, replies: Any, context: Any) -> Any:
        list(replies)
        return replace(state, shared={**state.shared, "round": torch.tensor(context.round + 1)})

    def global_model(self, state: Any) -> Any:
        return state.shared if int(state.shared["round"]) < self.rounds else None


def test_evaluations_forget_a_global_model_that_is_no_more(one_worker):
    method = Splitting(base=fedavg(), rounds=2)
    seen = []
    for engine in (Local(), one_worker):
        rounds = Rounds(replace(method), TOY, engine, Seed(0), score=classify)
        whole = []
        for _ in range(2):
            rounds.play()
            whole.append(sorted(rounds.evaluate([0])[0]["global"]))
        seen.append(whole)
    assert seen == [[["test"], []]] * 2


def test_evaluations_are_those_of_local(two_workers):
    near, far = (last(PRIVATE, TOY, engine=e, score=classify) for e in (Local(), two_workers))
    assert list(near.evaluations) == list(far.evaluations) == [0, 1, 2, 3]
    for client in near.evaluations:
        a, b = near.evaluations[client]["deployed"]["test"], far.evaluations[client]["deployed"]["test"]
        assert (a.rows, a.loss_sum, a.correct.tolist()) == (b.rows, b.loss_sum, b.correct.tolist())


def test_data_are_mapped_not_copied():
    """Every tensor of the worker's federation lies in the mapping, which follows the shared file."""
    shared = SharedTensors({**TOY.columns_for_sharing(), "none": torch.zeros(0, 3)})
    tensors = mapped(os.dup(shared.descriptor), shared.index)
    assert tensors["none"].shape == (0, 3)
    again = Federation.from_shared(tensors, TOY.layout(), TOY.prepare)
    assert again.fingerprint() == TOY.fingerprint()
    assert again.columns["x"].data_ptr() == tensors["columns.x"].data_ptr()
    assert again.train.index.data_ptr() == tensors["train.index"].data_ptr()
    os.pwrite(shared.descriptor, torch.tensor([42.0]).numpy().tobytes(), shared.index["columns.x"][0])
    assert float(again.columns["x"].flatten()[0]) == 42.0
    again.columns["x"].zero_()  # a write stays in the process that made it
    assert float(mapped(os.dup(shared.descriptor), shared.index)["columns.x"].flatten()[0]) == 42.0


def test_one_federation_is_shared_once(two_workers):
    last(fedavg(), TOY, rounds=1, engine=two_workers)
    first = two_workers._data
    last(PRIVATE, TOY, rounds=1, engine=two_workers)
    assert two_workers._data is first


def test_what_cannot_travel_is_refused_before_anything_starts():
    engine = Workers(2)
    with pytest.raises(InputError, match=r"method\.cohort is '.*lambda"):
        last(fedavg(cohort=lambda state, ids, seed: ids), TOY, engine=engine)
    with pytest.raises(InputError, match="ready-made module"):
        last(fedavg(objective=Net(nn.Linear(2, 2))), TOY, engine=engine)
    assert ids(engine) == []
    with pytest.raises(InputError, match="at least 1 process, got 0"):
        Workers(0)


@dataclass(frozen=True)
class Elsewhere:
    """Cannot be made in a worker."""

    def __post_init__(self) -> None:
        if "FEDQUILT_WORKER" in os.environ:
            raise RuntimeError("not here")

    def __call__(self, round: int) -> float:
        return 1.0


def test_a_worker_that_cannot_rebuild_the_run_says_why_and_the_engine_survives(one_worker):
    with pytest.raises(WorkerError, match="could not rebuild the run: RuntimeError: not here"):
        last(fedavg(schedule=Elsewhere()), TOY, engine=one_worker)
    assert last(fedavg(), TOY, engine=one_worker).digest() == last(fedavg(), TOY).digest()


def test_closing_twice_ends_the_processes():
    engine = Workers(1)
    last(fedavg(), points(8), rounds=1, engine=engine)
    (worker,) = engine._workers
    engine.close()
    engine.close()
    assert worker.process.returncode == 0


def test_auto_moves_to_workers_without_changing_a_bit(monkeypatch):
    monkeypatch.setattr(auto, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(auto, "LOOK_SECONDS", 0.0)
    engine = Auto(2)
    try:
        moved = last(PRIVATE, TOY, rounds=3, engine=engine)
        assert engine.facts()["engine"] == "workers"
        assert moved.digest() == last(PRIVATE, TOY, rounds=3).digest()
        local = fedavg(objective=Net(linear().build()))  # type: ignore[operator]
        assert last(local, TOY, engine=engine).round == 2  # cannot travel: stays here
        assert engine.facts()["engine"] == "local"
    finally:
        engine.close()


def test_devices_go_to_workers_in_turn() -> None:
    engine = Workers(3, ["cpu:0", "cpu:1"])
    assert [engine._device(place) for place in range(3)] == ["cpu:0", "cpu:1", "cpu:0"]
    assert Workers(1)._device(0) is None
