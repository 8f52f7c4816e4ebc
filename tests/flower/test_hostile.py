"""Nodes that lie, fail, vanish and come back: refused with a reason, and the round goes on without them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import UnexpectedObjectContentError, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.apps import FlowerClient
from fedquilt.engines.flower.engine import Flower, Patience
from fedquilt.engines.flower.jobs import Answer, Parcel, Refused, read
from fedquilt.engines.local import Local
from fedquilt.errors import FrameError, InputError, RoundError
from fedquilt.metrics.classify import classify
from fedquilt.models.registry import make
from fedquilt.records.compact import MAGIC
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.rounds import Rounds
from helpers.frames import resealed, sealed
from helpers.nodes import flower, grid
from helpers.sabotage import Without
from helpers.tampering import answer, each, flip, results, spoilt, tampered, uploads, wire
from helpers.toy import fedavg, last, points

THREE = points(12, 20, 16)  # node 11 has the clients 0 and 2, node 12 has client 1, the hostile one
METHOD = fedavg(objective=Net(make("mlp", (2,), 2, hidden=(4,))))
NAN = float("nan")


@pytest.fixture(scope="module")
def without() -> str:
    """The digest of two rounds without client 1."""
    rounds = Rounds(Without(base=METHOD, client=1), THREE, Local(), Seed(0))
    for _ in range(2):
        rounds.play()
    return rounds.digest()


def refused(over: Any, **settings: Any) -> tuple[str, set[str]]:
    """Two rounds on a grid: the digest, and why client 1 was left out; nobody else may be."""
    engine = Flower(over, patience=Patience(**{"deadline": 20, "ask": 5, "pause": 0.001, **settings}))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0), score=classify)
    logs = [rounds.play(measure=True) for _ in range(2)]
    assert {q.client for log in logs for q in log.quarantined} == {1}
    assert all(len(log.quarantined) == 1 and len(log.updates) == 2 for log in logs)
    return rounds.digest(), {q.reason for log in logs for q in log.quarantined}


def changed(**how: Any) -> Any:
    return wire(lambda found: replace(found, **how))


def header_of(size: int) -> bytes:
    return size.to_bytes(8, "little") + pack("hello", checksum=False)[8:]


LIES = {
    "truncated": (uploads(lambda f: f[: len(f) // 2]), "damaged: its checksum"),
    "flipped": (uploads(flip), "damaged: its checksum"),
    "doubled": (uploads(lambda f: f + f), "damaged: its checksum"),
    "empty": (uploads(lambda f: b""), "not a compact frame"),
    "huge header": (uploads(lambda f: header_of(2**62)), "not a compact frame"),
    "safetensors": (uploads(lambda f: pack(unpack(f))), "not a compact frame"),
    "no checksum": (uploads(lambda f: f[:-4]), "damaged: its checksum"),
    "huge compact tensor": (
        uploads(lambda f: sealed(MAGIC + bytes([8, 0x11, 0xFF, 0xFF, 0xFF, 0x7F]) + f)),
        "the tensors take",
    ),
    "unknown compact record": (uploads(lambda f: resealed(f[:3] + b"\0\0\0\0" + f[7:])), "unknown record type"),
    "no upload": (lambda frames: {"answer": frames["answer"]}, "frame 0 is missing"),
    "not an upload": (uploads(lambda f: pack("hello", compact=True)), "not an upload"),
    "nan": (spoilt(NAN), "non-finite numbers"),
    "inf": (spoilt(float("inf")), "non-finite numbers"),
    "weight 0": (changed(samples=0), "invalid weight: 0"),
    "weight -1": (changed(samples=-1), "invalid weight: -1"),
    "weight 1e30": (changed(samples=1e30), "invalid weight"),
    "weight 10**19": (changed(samples=10**19), "invalid weight"),
    "weight of others": (changed(samples=1000), "invalid weight: 1000 samples of a client that has 20"),
    "weight nan": (changed(samples=NAN), "invalid weight"),
    "weight text": (changed(samples="many"), "invalid weight"),
    "upload of another kind": (changed(upload={"weight": torch.zeros(1)}), "."),
    "truncated answer": (lambda fs: {**fs, "answer": fs["answer"][:20]}, "damaged: its checksum"),
    "flipped answer": (lambda fs: {**fs, "answer": flip(fs["answer"])}, "damaged: its checksum"),
    "no answer": (lambda fs: {n: f for n, f in fs.items() if n != "answer"}, "no part called 'answer'"),
    "safetensors answer": (lambda fs: {**fs, "answer": pack(unpack(fs["answer"]))}, "not a compact frame"),
    "another record": (lambda fs: {**fs, "answer": pack(Refused(1, "no"), compact=True)}, "'answer' is a Refused"),
    "wrong number": (answer(lambda a: replace(a, number="7")), "replayed"),
    "other data": (answer(lambda a: replace(a, data="0" * 64)), "other data"),
    "no list": (answer(lambda a: replace(a, results="none")), "no list of results"),
    "missing result": (results(lambda r: []), "gave no result"),
    "for another's client": (each(client=0), "gave no result"),
    "for a tensor": (each(client=torch.ones(3)), "gave no result"),
    "for a list": (each(client=[1]), "gave no result"),
    "results are words": (results(lambda r: ["x", 3, None, torch.ones(2)]), "gave no result"),
    "a refusal": (results(lambda r: [Refused(1, "I will\x1b[2J not\n" + "x" * 5000)]), r"I will\?\[2J not x+\.\.\."),
    "slot of 31 bytes": (each(slot=bytes(31)), "digest is not 32 bytes"),
    "slot of words": (each(slot="x" * 32), "digest is not 32 bytes"),
    "seconds are words": (each(seconds="soon"), "malformed answer: its time"),
    "seconds are nan": (each(seconds=NAN), "malformed answer: its time"),
    "sound is a word": (each(sound="yes"), "malformed answer"),
    "steps are words": (each(steps="many"), "its steps or its loss"),
    "loss is a word": (each(loss="low"), "its steps or its loss"),
    "score is a word": (each(before="good"), "malformed scores: a str"),
    "place is a word": (each(up="nowhere"), "frame nowhere is missing"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_with_a_reason_and_the_round_goes_on(lie, without):
    tamper, words = LIES[lie]
    digest, reasons = refused(tampered(THREE, 12, tamper))
    assert digest == without
    (reason,) = reasons
    assert len(reason) < 600
    assert re.search(words, reason), reason


def test_what_is_left_of_the_deadline_is_for_decoding():
    engine = flower(grid(THREE), deadline=50)
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0))
    assert not rounds.play().quarantined
    assert all(0 < engine.seconds_left(client) < 50 for client in THREE.ids)


def test_reading_an_answer_has_a_deadline():
    """An answer of a hundred thousand results may take no more than what is left of its exchange, or 5 seconds."""
    frames = Parcel().head("answer", Answer("1", "data", list(range(100_000)))).frames
    assert len(read(frames, "answer", Answer).results) == 100_000
    with pytest.raises(FrameError, match="late"):
        read(frames, "answer", Answer, seconds=-1.0)


def test_results_that_come_twice_count_once():
    honest = Rounds(METHOD, THREE, Local(), Seed(0))
    engine = flower(tampered(THREE, 12, results(lambda r: [*r, replace(r[0], up=99), *r])))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0))
    for each_of in (honest, rounds):
        assert not each_of.play().quarantined
    assert rounds.digest() == honest.digest()


def test_an_answer_of_an_earlier_round_is_refused():
    earlier: list[dict[str, bytes]] = []

    def replay(frames: dict[str, bytes]) -> dict[str, bytes]:
        earlier.append(frames)
        return earlier[0]

    engine = flower(tampered(THREE, 12, replay))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0))
    assert not rounds.play().quarantined
    assert [q.reason for q in rounds.play().quarantined] == ["replayed: an answer to another batch of jobs"]


class Broken(FlowerClient):
    """A node that fails in its own way when it is to train."""

    def __init__(self, honest: FlowerClient, how: Any) -> None:
        super().__init__(honest.serve)
        self.how, self.count = how, 0

    def __call__(self, message: Message, context: Any) -> Message:
        if not message.metadata.message_type.startswith("train."):
            return super().__call__(message, context)
        self.count += 1
        return self.how(message)


def broken(how: Any) -> Any:
    over = grid(THREE)
    over.nodes[12] = Broken(over.nodes[12], how)
    return over


def raising(message: Message) -> Message:
    raise RuntimeError("row 17 is 0.31")


def test_a_node_that_raises_is_asked_twice_and_left_out(without):
    over = broken(raising)
    digest, reasons = refused(over)
    assert digest == without
    assert all(r.startswith("Flower says: RuntimeError") for r in reasons)
    assert over.nodes[12].count == 4  # two rounds


def test_a_node_that_answers_with_an_error_is_left_out(without):
    digest, reasons = refused(broken(lambda m: Message(Error(2, "out of\nmemory"), reply_to=m)))
    assert (digest, reasons) == (without, {"Flower says: out of memory"})


def test_a_node_that_never_answers_is_left_out_after_the_deadline(without):
    over = grid(THREE)
    pull = over.pull_messages

    def slow(names: Any) -> Any:
        return pull([n for n in names if over._waiting[n].metadata.dst_node_id == 11 or query(over._waiting[n])])

    def query(message: Message) -> bool:
        return message.metadata.message_type.startswith("query.")

    over.pull_messages = slow
    digest, reasons = refused(over, deadline=0.3)
    assert (digest, reasons) == (without, {"no answer within 0.3 seconds"})


def handmade() -> None:
    """What the SuperLink takes for an object, and Flower's reader does not."""
    body = b"ConfigRecord  5\0" + b"\xff" * 5
    validate_object_content(body)
    inflate_object_from_contents(get_object_id(body), {get_object_id(body): body})


def no_object() -> None:
    raise ValueError("no such object")


def other_content() -> None:
    raise UnexpectedObjectContentError("a", "another one.")


FAULTS: dict[str, Any] = {
    "ValueError": no_object,
    "DecodeError": handmade,
    "UnexpectedObjectContentError": other_content,
    "push": None,
}


def test_a_message_that_flower_cannot_read_or_take_is_the_nodes_own_trouble(without):
    for fault, unreadable in FAULTS.items():
        over = grid(THREE)
        pull, push = over.pull_messages, over.push_messages

        def bad_pull(names: Any, over=over, pull=pull, unreadable=unreadable) -> Any:
            for name in names:
                message = over._waiting.get(name)
                if message and message.metadata.dst_node_id == 12 and message.metadata.message_type[0] == "t":
                    unreadable()
            return pull(names)

        def bad_push(messages: Any, push=push) -> Any:
            (one,) = messages
            bad = one.metadata.dst_node_id == 12 and one.metadata.message_type[0] == "t"
            return [""] if bad else push(messages)

        over.pull_messages, over.push_messages = (pull, bad_push) if fault == "push" else (bad_pull, push)
        digest, reasons = refused(over)
        assert digest == without
        unread = f"malformed message: Flower cannot read it ({fault})"
        assert reasons == {"Flower did not take the message" if fault == "push" else unread}


def test_replies_that_nobody_asked_for_are_let_pass():
    over = grid(THREE)
    pull = over.pull_messages
    seen: list[Message] = []

    def more(names: Any) -> Any:
        found = [*seen[-1:], *pull(names)]
        seen.extend(found[-1:])
        return found

    over.pull_messages = more
    engine = flower(over)
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0))
    assert not rounds.play().quarantined


def test_a_question_that_gets_lost_is_asked_again_and_forgotten_work_is_sent_again():
    over = grid(THREE)
    push, kinds = over.push_messages, []

    def losing(messages: Any) -> Any:
        (message,) = messages
        kinds.append((message.metadata.dst_node_id, message.metadata.message_type))
        first = kinds.count(kinds[-1]) == 1 and kinds[-1][0] == 12 and kinds[-1][1] != "query.here"
        return ["lost"] if first else push(messages)

    over.push_messages = losing
    engine = Flower(over, patience=Patience(deadline=20, ask=0.05, pause=0.001))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0))
    assert not rounds.play().quarantined
    assert kinds.count((12, "query.busy")) == 2
    assert kinds.count((12, "train.train")) == 2


def test_too_few_usable_replies_stop_the_run():
    engine = flower(tampered(THREE, 12, spoilt(NAN)))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0), min_replies=3)
    with pytest.raises(RoundError, match=r"2 of 3 clients .* at least 3 needed\. client 1: non-finite"):
        rounds.play()


def test_the_ledger_and_the_result_tell_it(tmp_path):
    engine = flower(tampered(THREE, 12, changed(samples=-1)))
    last(METHOD, engine.gather(2), rounds=2, engine=engine, folder=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    assert [(r["round"], r["client"], r["reason"]) for r in rows] == [
        (n, 1, "invalid weight: -1 samples") for n in (1, 2)
    ]


@pytest.mark.parametrize(
    "marks",
    [{}, {"deployed": 3}, {"evil": {}}, {"deployed": {"train": 1}}, {"deployed": {"test": "good"}}, "none", None],
    ids=str,
)
def test_malformed_scores_are_left_out(marks, tmp_path):
    notes: list[str] = []
    engine = flower(tampered(THREE, 12, each(scores=marks), kind="evaluate."), note=notes.append)
    snapshot = last(METHOD, engine.gather(2), rounds=1, engine=engine, folder=tmp_path, score=classify)
    assert set(snapshot.evaluations) == ({0, 1, 2} if marks == {} else {0, 2})
    assert 0 <= snapshot.metrics["test_accuracy"] <= 1
    assert marks == {} or any("client 1 was not scored: malformed scores" in n for n in notes)


def test_scores_that_do_not_add_up_are_left_out():
    def better(found: list[Any]) -> list[Any]:
        test = found[0].scores["deployed"]["test"]
        return [replace(found[0], scores={"deployed": {"test": replace(test, correct=test.correct + 9)}})]

    engine = flower(tampered(THREE, 12, results(better), kind="evaluate."))
    rounds = Rounds(METHOD, engine.gather(2), engine, Seed(0), score=classify)
    assert set(rounds.evaluate([0, 1, 2])) == {0, 2}


def test_a_site_refuses_code_it_does_not_trust_with_a_reason():
    engine = flower(grid(THREE, trusted=()))
    method = Without(base=METHOD, client=7)
    rounds = Rounds(method, engine.gather(2), engine, Seed(0))
    with pytest.raises(RoundError, match=r"'fedquilt\.testing\.faults:Without' is not among the trusted packages"):
        rounds.play()


def test_what_a_site_says_of_a_failure_does_not_quote_its_data():
    over = grid(THREE)

    def leaking(kind: str, frames: Any, context: Any) -> Any:
        raise KeyError("patient 4711")

    over.nodes[12] = FlowerClient(leaking)
    with pytest.raises(InputError, match=r"Node 12 did not introduce itself: .*failed \(KeyError\)") as found:
        flower(over).gather(2, wait=0.05)
    assert "4711" not in str(found.value)


def test_unpacked_answers_hold_no_more_than_was_asked(without):
    """The frames that a node sees name no other node's clients."""
    seen: list[bytes] = []
    over = grid(points(12, 20, 16))
    honest = over.nodes[12].serve

    def spy(kind: str, frames: Any, context: Any) -> Any:
        seen.extend([frames["jobs"]] if "jobs" in frames else [])
        return honest(kind, frames, context)

    over.nodes[12] = FlowerClient(spy)
    engine = flower(over)
    Rounds(METHOD, engine.gather(2), engine, Seed(0)).play()
    assert [[job.client for job in unpack(batch).jobs] for batch in seen] == [[1]]
