"""A site's limits: what is beyond them is refused by the node, and the server's ledger says why."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

import pytest

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.deploy.site import read_site, settings_of
from fedquilt.engines.flower.budget import Budget, TooLong
from fedquilt.engines.flower.jobs import Answer, Given, Refused
from fedquilt.engines.local import Local
from fedquilt.errors import InputError, RoundError
from fedquilt.methods.clustered.cgpfl import CGPFLMoreau
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.merging.localize_stitch import LocalizeStitch
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.pfedme import PFedMe
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import Seen, flower, grid
from helpers.sabotage import Without
from helpers.toy import points

THREE = points(12, 20, 16)  # clients 0 and 2 are at node 11, client 1 is at node 12
NET = Net(make("mlp", (2,), 2, hidden=(4,)))


def fedavg(**settings: Any) -> FedAvg:
    """A method that nodes know."""
    return FedAvg(**{"objective": NET, "optimizer": SGD(0.1), "batch_size": 8, **settings})


def played(method: Any, budget: Budget, nodes: tuple[int, ...] = (12,), rounds: int = 1) -> Rounds:
    """Some rounds on two nodes of which these have a budget."""
    over = grid(THREE)
    for node in nodes:
        over.nodes[node].serve.node.budget = budget
    engine = flower(over)
    made = Rounds(method, engine.gather(2), engine, Seed(0))
    made.logs = [made.play() for _ in range(rounds)]
    return made


def test_a_site_refuses_without_end_by_default():
    with pytest.raises(RoundError, match=r"0 of 3 .*the task asks for 1000000000 epochs, and this site allows 1000"):
        played(fedavg(epochs=10**9), Budget(), nodes=(11, 12))
    with pytest.raises(RoundError, match=r"0 of 3 .*the task asks for 1000000000 steps, and this site allows 100000"):
        played(fedavg(steps=10**9), Budget(), nodes=(11, 12))


BEYOND = {
    "epochs": (fedavg(epochs=4), Budget(epochs=3), "the task asks for 4 epochs, and this site allows 3"),
    "steps": (fedavg(steps=4), Budget(steps=3), "the task asks for 4 steps, and this site allows 3"),
    "steps of passes": (fedavg(epochs=4), Budget(steps=11), "the task asks for 12 steps, and this site allows 11"),
    "time": (
        fedavg(epochs=10**9),
        Budget(10**12, 10**12, seconds=0.2),
        "the task took too long, and this site allows 0.2 seconds",
    ),
}


@pytest.mark.parametrize("what", [w for w in BEYOND if w != "time"])
def test_the_ledger_says_which_limit_and_the_round_goes_on(what):
    """Client 1 has 20 rows: 3 batches of 8 in a pass."""
    method, budget, words = BEYOND[what]
    rounds = played(method, budget, rounds=2)
    assert [[(q.client, q.reason) for q in log.quarantined] for log in rounds.logs] == [[(1, words)]] * 2
    without = Rounds(Without(base=method, client=1), THREE, Local(), Seed(0))
    for _ in range(2):
        without.play()
    assert rounds.digest() == without.digest()


def test_what_is_within_the_limits_is_done():
    rounds = played(fedavg(epochs=4), Budget(steps=12, epochs=4, jobs=2), nodes=(11, 12))
    assert rounds.logs[0].quarantined == []


def test_steps_of_several_trainings_count_together():
    """FedRep's head and body: 2 and 1 passes of 3 batches."""
    (left_out,) = played(in_two(), Budget(steps=8)).logs[0].quarantined
    assert left_out.reason == "the task asks for 9 steps, and this site allows 8"
    assert played(in_two(), Budget(steps=9)).logs[0].quarantined == []


INSIDE = {
    "pFedMe": (lambda: PFedMe(NET, inner_steps=4, optimizer=SGD(0.1), batch_size=8), 3 * 5 + 4),
    "CGPFL": (lambda: CGPFLMoreau(NET, inner_steps=4, optimizer=SGD(0.1), batch_size=8), 3 * 5 + 4),
    "trained masks": (lambda: masked_stitch(), 3 + 2 * 3),
}


@pytest.mark.parametrize("what", INSIDE)
def test_steps_inside_steps_count_too(what):
    """3 batches of 8; in each step 4 more, which at the end are made once again; masks of 2 passes over the rows."""
    build, steps = INSIDE[what]
    (left_out,) = played(build(), Budget(steps=steps - 1)).logs[0].quarantined
    assert re.fullmatch(rf"the task asks for \d+ steps, and this site allows {steps - 1}", left_out.reason)
    assert played(build(), Budget(steps=steps)).logs[0].quarantined == []


def masked_stitch() -> Any:
    """Localize-and-Stitch with trained masks."""
    return LocalizeStitch(NET, trained_masks=True, mask_epochs=2, optimizer=SGD(0.1), batch_size=8)


def test_a_method_that_takes_too_long_to_build_is_stopped(monkeypatch):
    def endless(*_: Any, **__: Any) -> Any:
        while True:
            sum(range(100))

    monkeypatch.setattr("fedquilt.engines.flower.node.build", endless)
    with pytest.raises(RoundError, match=r"the task took too long, and this site allows 0.2 seconds"):
        played(fedavg(), Budget(seconds=0.2), nodes=(11, 12))


def in_two() -> Any:
    """A head in two passes, then a body in one."""
    return FedRep(NET, head_epochs=2, optimizer=SGD(0.1), batch_size=8)


def test_a_task_that_takes_too_long_is_stopped_and_the_node_lives_on():
    method, budget, words = BEYOND["time"]
    over = grid(THREE)
    over.nodes[12].serve.node.budget = budget
    over.nodes[11].serve.node.budget = budget
    engine = flower(over)
    with pytest.raises(RoundError, match=words):
        Rounds(method, engine.gather(2), engine, Seed(0)).play()
    rounds, honest = Rounds(fedavg(), engine.gather(2), engine, Seed(0)), Rounds(fedavg(), THREE, Local(), Seed(0))
    assert rounds.play().quarantined == honest.play().quarantined == []
    assert rounds.digest() == honest.digest()


def test_time_that_is_over_stops_any_loop_of_its_own_thread_only():
    found: list[bool] = []

    def loop() -> None:
        try:
            with Budget(seconds=0.05).task():
                while True:
                    try:
                        sum(range(100))
                    except Exception:
                        continue
        except TooLong:
            found.append(True)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join(30)
    assert found == [True]
    with Budget(seconds=60).task():  # one that is in time leaves nothing behind
        pass
    assert threading.active_count() < 50


def messages() -> tuple[Any, dict[str, bytes]]:
    """A node with the clients 0 and 2, and a message that it got."""
    seen: Seen = []
    engine = flower(over := grid(THREE, seen=seen))
    Rounds(fedavg(), engine.gather(2), engine, Seed(0)).play()
    frames = next(frames for part, kind, frames in seen if kind == "train.train" and len(part.ids) == 2)
    return over.nodes[11].serve.node, frames


def answered(node: Any, frames: dict[str, bytes], jobs: list[Any]) -> Answer:
    asked = {**frames, "jobs": pack(replace(unpack(frames["jobs"]), number="another", jobs=jobs), compact=True)}
    return unpack(node.answer("train.train", asked, {})["answer"])


def test_a_message_with_too_many_jobs_is_refused():
    node, frames = messages()
    node.budget = Budget(jobs=1)
    jobs = unpack(frames["jobs"]).jobs
    reason = "the message has 2 jobs, and this site allows 1"
    assert answered(node, frames, jobs).results == [Refused(0, reason), Refused(2, reason)]


def test_a_client_has_one_job_in_a_message():
    """Many small trainings of one client in one message would tell its rows one by one."""
    node, frames = messages()
    (first, _) = unpack(frames["jobs"]).jobs
    given, *others = answered(node, frames, [first] * 400).results
    assert isinstance(given, Given)
    assert others == [Refused(0, "client 0 has two jobs in one message")] * 399


def test_limits_are_settings_of_the_site(tmp_path):
    given = {"data": "a.npz", "state": str(tmp_path), "max_epochs": 5, "max_seconds": 60.0}
    settings_of(given, "join").write(tmp_path / "site.toml")
    own = read_site(tmp_path / "site.toml")
    assert (own.max_steps, own.max_epochs, own.max_jobs, own.max_seconds) == (100_000, 5, 10_000, 60.0)
    with pytest.raises(InputError, match="--max_steps: should be at least 1, got 0"):
        settings_of({**given, "max_steps": 0}, "join", "--")
    with pytest.raises(InputError, match="limit of seconds must be above 0, got -1"):
        Budget(seconds=-1)


def test_limits_concern_nobody_who_simulates():
    """They belong to a node; a run of one's own is as long as its owner likes."""
    rounds = Rounds(fedavg(epochs=2000, batch_size=64), points(2, 2), Local(), Seed(0))
    assert rounds.play().quarantined == []
