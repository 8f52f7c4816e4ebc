"""Who may join a federation, and on what terms a node may come back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from conformance.cases import CASES
from fedquilt.core.seed import Seed
from fedquilt.data import Federation, Pixels
from fedquilt.engines.flower.apps import FlowerClient
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import flower, grid, site
from helpers.toy import points

FEDPER = next(case for case in CASES if case.name == "fedper")
THREE = points(12, 20, 16)


def lying(over: InProcess, node: int, **facts: Any) -> InProcess:
    """One node says other things of itself."""
    honest = over.nodes[node].serve

    def serve(kind: str, frames: Any, context: Any) -> Any:
        found = honest(kind, frames, context)
        return {"here": pack(replace(unpack(found["here"]), **facts), compact=True)} if kind == "query.here" else found

    over.nodes[node] = FlowerClient(serve)
    return over


def renumber(over: InProcess, old: int, new: int) -> None:
    over.nodes[new], over.contexts[new] = over.nodes.pop(old), over.contexts.pop(old)


@pytest.mark.parametrize(
    ("what", "value"), [("shape", (3,)), ("dtype", "torch.float64"), ("prepare", "Pixels(mean=0.5, std=1.0)")]
)
def test_sites_that_prepare_otherwise_are_named(what, value):
    with pytest.raises(InputError, match=rf"differ in the {what} of their rows: .* at client 1\. All sites must"):
        flower(lying(grid(THREE), 12, **{what: value})).gather(2)


def test_preparation_is_compared_as_it_is_written():
    images = {"a": (torch.zeros(8, 1, 4, 4, dtype=torch.uint8).numpy(), torch.arange(8).numpy() % 2)}
    sites = [
        Federation.from_clients({name: images["a"]}, classes=2, prepare=Pixels(mean))
        for name, mean in (("a", 0.0), ("b", 0.5))
    ]
    over = InProcess({n: site(part) for n, part in enumerate(sites, start=11)})
    with pytest.raises(InputError, match=r"prepare of their rows: Pixels\(mean=0\.0.*but Pixels\(mean=0\.5.*'b'"):
        flower(over).gather(2)


MALFORMED = [
    {"protocol": 0},
    {"protocol": "new"},
    {"clients": [1]},
    {"clients": {1: -1}},
    {"clients": {1: "many"}},
    {"clients": {(1, 2.5): 3}},
    {"evaluated": None},
    {"evaluated": [torch.ones(2)]},
    {"shape": (0,)},
    {"shape": "flat"},
    {"dtype": 3},
    {"classes": 0},
    {"classes": "two"},
    {"fingerprint": b"x"},
    {"versions": None},
    {"versions": {1: 2}},
    {"clients": {}, "evaluated": []},
]


@pytest.mark.parametrize("facts", MALFORMED, ids=str)
def test_a_malformed_introduction_is_refused_and_the_others_go_on(facts):
    over = lying(grid(THREE), 12, **facts)
    words = "speaks version" if "protocol" in facts else "malformed introduction|has no clients"
    with pytest.raises(InputError, match=rf"1 of 2 nodes came .*Node 12 did not introduce itself: .*({words})"):
        flower(over).gather(2, wait=0.05)
    assert flower(over).gather(1).ids == (0, 2)


def test_two_nodes_that_claim_one_client():
    over = grid(THREE)
    over.nodes[13], over.contexts[13] = over.nodes[12], over.contexts[12]
    with pytest.raises(InputError, match=r"2 of 3 nodes came.*Node 13 cannot join: node 12.*also says .* client 1"):
        flower(over).gather(3, wait=0.05)
    assert flower(over).gather(2).ids == (0, 1, 2)


def test_a_silent_node_does_not_hold_up_the_others():
    over = grid(THREE)
    pull = over.pull_messages
    over.pull_messages = lambda names: pull([n for n in names if over._waiting[n].metadata.dst_node_id == 11])
    assert flower(over).gather(1).ids == (0, 2)


def test_a_run_that_goes_on_waits_for_its_own_clients_and_leaves_strangers_out():
    over = grid(THREE, nodes=3)
    assert flower(over).gather(1, clients=[0, 2]).ids == (0, 2)
    del over.nodes[13]
    with pytest.raises(InputError, match="client 2 of this run did not come"):
        flower(over).gather(1, wait=0.05, clients=[0, 2])


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_a_node_comes_back_under_another_number(place, tmp_path):
    here = Rounds(FEDPER.method, FEDPER.federation, Local(), Seed(0))
    over = grid(FEDPER.federation, 2, tmp_path if place == "disk" else None)
    engine = flower(over)
    there = Rounds(FEDPER.method, engine.gather(2), engine, Seed(0))
    for rounds in (here, there):
        rounds.play()
    renumber(over, 12, 77)
    if place == "memory":
        over.contexts[77].state.clear()
    log = there.play()
    here.play()
    if place == "disk":
        assert not log.quarantined
        assert there.digest() == here.digest()
    else:
        assert {q.client for q in log.quarantined} == {1, 3}
        assert all("not kept at this site" in q.reason for q in log.quarantined)


@dataclass
class Comeback:
    """A node with number 77 that takes the place of node 12, with other facts."""

    over: InProcess

    def with_facts(self, **facts: Any) -> None:
        renumber(self.over, 12, 77)
        lying(self.over, 77, **facts)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"fingerprint": "0" * 64}, "its data are not those it had"),
        ({"clients": {1: 21}}, "its data are not those it had"),
        ({"prepare": "Pixels()"}, "its prepare was nothing and is now"),
        ({"shape": (5,)}, "its shape was"),
        ({"clients": {9: 20}, "evaluated": []}, "not part of this run"),
        ({"clients": {0: 12, 1: 20}}, "node 11, which is there, also says that it is client 0"),
        ({"protocol": 0}, "speaks version 0"),
    ],
    ids=str,
)
def test_a_node_that_comes_back_otherwise_is_refused(facts, words):
    notes: list[str] = []
    over = grid(FEDPER.federation)
    engine = flower(over, note=notes.append, deadline=1.0)
    rounds = Rounds(FEDPER.method, engine.gather(2), engine, Seed(0))
    del engine
    Comeback(over).with_facts(**facts)
    log = rounds.play()
    assert {q.client for q in log.quarantined} == {1, 3}
    assert {q.reason for q in log.quarantined} == {"no answer within 1 seconds"}
    assert any(words in note for note in notes), notes
