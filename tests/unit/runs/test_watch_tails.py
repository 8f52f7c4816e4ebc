"""Logs that grow, are cut back, vanish and end half-way are read once, row by row."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedquilt.watch.board import Clients
from fedquilt.watch.tail import Log, Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rounds.jsonl"


def add(log: Path, *rows: object, end: str = "\n") -> None:
    with log.open("a") as file:
        file.write("\n".join(json.dumps(row) for row in rows) + end)


def rounds(*numbers: int) -> list[dict[str, int]]:
    return [{"round": number} for number in numbers]


def test_every_row_is_read_once(log: Path) -> None:
    tail = Tail(log)
    assert tail.read() == (False, [])  # it is not there yet
    add(log, *rounds(1, 2))
    assert tail.read() == (False, rounds(1, 2))
    assert tail.read() == (False, [])
    add(log, *rounds(3))
    assert tail.read() == (False, rounds(3))


def test_half_a_line_waits_for_its_other_half(log: Path) -> None:
    tail = Tail(log)
    log.write_text('{"round": 1}\n{"rou')
    assert tail.read() == (False, rounds(1))
    assert tail.read() == (False, [])
    with log.open("a") as file:
        file.write('nd": 2}\n{')
    assert tail.read() == (False, rounds(2))


def test_a_damaged_line_is_passed_over(log: Path) -> None:
    log.write_text('{"round": 1}\n{"rou{"round": 2}\n7\n{"round": 3}\n\xe4')
    assert Tail(log).read() == (False, rounds(1, 3))


def test_a_log_that_was_cut_back_is_read_again(log: Path) -> None:
    tail = Tail(log)
    add(log, *rounds(1, 2, 3))
    tail.read()
    os.truncate(log, len('{"round": 1}\n'))
    assert tail.read() == (True, rounds(1))
    add(log, *rounds(2))
    assert tail.read() == (False, rounds(2))


def test_a_log_that_was_cut_back_and_grew_again_meanwhile_is_read_again(log: Path) -> None:
    tail = Tail(log)
    add(log, {"round": 1, "s": 0.1}, {"round": 2, "s": 0.2})
    tail.read()
    os.truncate(log, len('{"round": 1, "s": 0.1}\n'))
    add(log, {"round": 2, "s": 0.7}, {"round": 3, "s": 0.3})  # longer than it was, and other
    void, rows = tail.read()
    assert void
    assert [row["s"] for row in rows] == [0.1, 0.7, 0.3]


def test_a_log_that_was_replaced_or_went_is_read_again(log: Path, tmp_path: Path) -> None:
    tail = Tail(log)
    add(log, *rounds(1))
    tail.read()
    other = tmp_path / "other"
    add(other, *rounds(1))
    other.replace(log)  # a run that was started afresh: equal, but another file
    assert tail.read() == (True, rounds(1))
    log.unlink()
    assert tail.read() == (True, [])
    assert tail.read() == (False, [])
    add(log, *rounds(4))
    assert tail.read() == (False, rounds(4))


def test_long_logs_can_be_read_from_near_their_end_and_only_in_part(log: Path) -> None:
    add(log, *rounds(*range(1000)))
    _, rows = Tail(log, reach=100).read()
    assert rows == rounds(*range(1000 - len(rows), 1000))
    assert 3 < len(rows) < 10
    _, rows = Tail(log, having=(b"99",)).read()
    assert rows[:2] == rounds(99, 199)


def test_readers_are_told_what_they_have_not_got(log: Path) -> None:
    kept = Log(Tail(log), lambda row, before: (before or 0) + row["round"])
    add(log, *rounds(1, 2))
    assert kept.look(1)
    add(log, *rounds(3))
    assert kept.look(2)
    assert not kept.look(3)
    assert kept.since(0) == {"anew": True, "rows": [1, 3, 6]}
    assert kept.since(1) == {"anew": False, "rows": [6]}
    assert kept.since(3) == {"anew": False, "rows": []}
    log.write_text('{"round": 5}\n')
    assert kept.look(4)
    assert kept.since(3) == {"anew": True, "rows": [5]}
    assert kept.since(4) == {"anew": False, "rows": []}


UPDATE = {"exchange": "train", "seconds": 0.1, "samples": 3, "bytes_up": 1, "bytes_down": 1}


def test_the_last_word_on_every_client(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    scores, updates = tmp_path / "metrics/clients.jsonl", tmp_path / "metrics/client_updates.jsonl"

    def score(round: int, client: object, accuracy: float, model: str = "deployed", split: str = "test") -> None:
        add(scores, {"round": round, "client": client, "model": model, "split": split, "accuracy": accuracy})

    clients = Clients(tmp_path)
    score(1, "a", 0.1)
    score(1, "a", 0.9, model="global")
    score(1, "a", 0.8, split="valid")
    score(1, ["b", 2], 0.2)
    score(1, "test", 0.7, model="global")  # a client may be called so
    add(updates, {**UPDATE, "round": 2, "client": "a", "loss": 0.5})
    clients.look(1)
    found = {row["client"]: row for row in clients.since(0)["rows"]}
    assert {c: row.get("accuracy") for c, row in found.items()} == {"a": 0.1, '["b", 2]': 0.2}
    assert (found["a"]["scored"], found["a"]["visited"], found["a"]["visit_loss"]) == (1, 2, 0.5)
    score(3, "a", 0.3)
    clients.look(2)
    assert [row["accuracy"] for row in clients.since(1)["rows"]] == [0.3]
    scores.write_text("")  # the run went back to its beginning
    updates.write_text("")
    clients.look(3)
    assert clients.since(2) == {"anew": True, "rows": []}
