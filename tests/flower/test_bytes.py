"""What Flower's messages weigh is what a run says of them: exchanges, scoring, and everything beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from conformance.cases import CASES
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.content import from_content
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.flower.jobs import Parcel
from fedquilt.engines.local import Local
from fedquilt.metrics.classify import classify
from fedquilt.models.registry import make
from fedquilt.records.record import pack
from fedquilt.results.traffic import summary, table
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.runner import run
from fedquilt.show.show import result_table
from fedquilt.storage.finished import CARRIED
from helpers.nodes import flower, grid
from helpers.toy import digits, fedavg

TOY = digits(clients=4)
FEDAVG = fedavg(objective=Net(make("mlp", (1, 8, 8), 10, hidden=(200,))))


class Scales(InProcess):
    """Weighs what passes, without asking who sent it."""

    def __init__(self, over: InProcess) -> None:
        self.__dict__ = over.__dict__
        self.down = self.up = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.down += sum(len(frame) for m in messages for frame in from_content(m.content).values())
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(super().pull_messages(message_ids))
        self.up += sum(len(frame) for m in found for frame in from_content(m.content).values())
        return found


def test_equal_frames_travel_once():
    parcel, frame = Parcel(), bytes(range(9))
    assert [parcel.add(frame), parcel.add(b"other"), parcel.add(bytes(bytearray(frame)))] == [0, 1, 0]
    assert list(parcel.frames.values()) == [frame, b"other"]


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_run_says_what_its_messages_weighed(nodes, tmp_path, capsys):
    scales = Scales(grid(TOY, nodes))
    engine = flower(scales)
    *_, _ = run(FEDAVG, engine.gather(nodes), rounds=2, engine=engine, folder=tmp_path / "run", seed=3)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics" / "rounds.jsonl").read_text().splitlines()]
    for name in CARRIED:
        assert result[name] == sum(row[name] for row in rows) > 0
    assert (result["carried_down"], result["carried_up"]) == (scales.down, scales.up)
    assert summary(tmp_path / "run")["carried"] == {name: result[name] for name in CARRIED}
    assert "of which scoring took" in table(summary(tmp_path / "run"))
    *_, _ = run(FEDAVG, TOY, rounds=2, engine=Local(), folder=tmp_path / "here", seed=3)
    at_home = json.loads((tmp_path / "here" / "result.json").read_text())
    assert not set(CARRIED) & at_home.keys()
    for name in ("bytes_up", "bytes_down", "raw_up", "raw_down", "digest"):
        assert result[name] == at_home[name]
    if nodes == 4:  # one client each: nothing is shared, so messages hold all that the exchanges sent, and a bit more
        assert result["carried_down"] >= result["bytes_down"] + result["scoring_down"]
    result_table(tmp_path / "run", result)
    assert "messages held" in capsys.readouterr().out


def test_scoring_sends_a_model_once_to_each_node():
    """The download, from which a client makes its model, and the global model are the same tensors here."""
    engine = flower(grid(TOY, 2))
    rounds = Rounds(FEDAVG, engine.gather(2), engine, Seed(3), score=classify)
    rounds.play()
    engine.carried()
    rounds.evaluate(TOY.evaluated)
    weighed = engine.carried()
    assert weighed["carried_down"] == weighed["scoring_down"]
    model = len(pack(rounds.state.shared, compact=True))
    heads = 2 * (2000 + len(engine._terms["begin"]))
    assert 2 * model < weighed["scoring_down"] < 2 * model + heads < 4 * model
    assert weighed["scoring_up"] > 0
    assert set(engine.carried().values()) == {0}


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in ("ifca", "ditto", "scaffold")], ids=str)
def test_a_lost_reply_and_a_second_message_are_weighed_too(case):
    """A node that fails is asked once more: both messages travelled."""
    scales = Scales(grid(case.federation, 2))
    engine = flower(scales)
    rounds = Rounds(case.method, engine.gather(2), engine, Seed(3), score=classify)
    node, failures = scales.nodes[11], [RuntimeError("once")]

    def failing(message, context):
        if failures and message.metadata.message_type.startswith("train."):
            raise failures.pop()
        return node(message, context)

    before = (scales.down, engine.carried())[0]
    scales.nodes[11] = failing
    scales.pull_messages = lambda names: InProcess.pull_messages(scales, names)
    log = rounds.play()
    weighed = engine.carried()
    assert not log.quarantined
    assert not failures
    assert weighed["carried_down"] == scales.down - before
