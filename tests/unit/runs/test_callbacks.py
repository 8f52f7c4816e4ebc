"""Callbacks: what they hear and in which order, what a snapshot keeps of them, and what happens when one fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt import Callback, run
from fedquilt.core.exchange import Reply
from fedquilt.errors import CallbackError
from fedquilt.runs.play import Run
from fedquilt.runs.snapshot import Snapshot
from helpers.command import lines
from helpers.toy import fedavg, points

TOY = points(10, 20, 30)


class Diary(Callback):
    """Writes down what it hears; ``fails`` names the hook and the round in which it raises."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.fails, self.count = fails, 0

    def hear(self, hook: str, round: int, *more: Any) -> None:
        self.heard.append((hook, round, *more))
        if self.fails == (hook, round):
            raise KeyError("lost")

    def on_run_begin(self, run: Run) -> None:
        self.hear("begin", run.done)

    def on_round_begin(self, round: int) -> None:
        self.hear("round", round)

    def on_reply(self, round: int, reply: Reply[Any], state: Any) -> None:
        self.hear("reply", round, reply.client)

    def on_evaluate(self, snapshot: Snapshot) -> Mapping[str, float]:
        self.hear("evaluate", snapshot.round)
        return {"largest": float(max(t.abs().max() for t in (snapshot.global_model() or {}).values()))}

    def on_round_end(self, snapshot: Snapshot) -> None:
        self.count += len(snapshot.log.updates)
        self.hear("end", snapshot.round)

    def on_snapshot(self, round: int) -> None:
        self.hear("snapshot", round)

    def on_run_end(self, result: dict[str, Any] | None) -> None:
        self.hear("over", 0 if result is None else result["rounds"])

    def state(self) -> Mapping[str, Any]:
        return {"count": self.count, "tensor": torch.tensor([float(self.count)])}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert float(state["tensor"]) == state["count"]
        self.count = state["count"]


def play(*callbacks: Callback, rounds: int = 2, **options: Any) -> Iterator[Snapshot]:
    return run(fedavg(), TOY, rounds=rounds, engine="local", callbacks=callbacks, **options)


def test_what_a_callback_hears_in_order(tmp_path: Path) -> None:
    diary = Diary()
    *_, end = play(diary, folder=tmp_path, evaluate_every=2)
    replies = [[("reply", n, client) for client in (0, 1, 2)] for n in (1, 2)]
    assert diary.heard == [
        ("begin", 0),
        *[("round", 1), *replies[0], ("end", 1), ("snapshot", 1)],
        *[("round", 2), *replies[1], ("evaluate", 2), ("end", 2), ("snapshot", 2)],
        ("over", 2),
    ]
    assert end.metrics["largest"] > 0
    assert [row.get("largest") for row in lines(tmp_path / "metrics/rounds.jsonl")] == [None, end.metrics["largest"]]
    assert json.loads((tmp_path / "result.json").read_text())["last"]["largest"] == end.metrics["largest"]


def test_without_a_folder_there_are_no_snapshots_and_the_result_is_short() -> None:
    diary, found = Diary(), []

    class Kept(Callback):
        def on_run_end(self, result: dict[str, Any] | None) -> None:
            found.append(result)

    *_, end = play(diary, Kept())
    assert {hook for hook, *_ in diary.heard} == {"begin", "round", "reply", "evaluate", "end", "over"}
    ((digest, rounds),) = [(result["digest"], result["rounds"]) for result in found]
    assert (digest, rounds) == (end.digest(), 2)


def test_callbacks_change_no_number() -> None:
    assert [s.digest() for s in play(Diary())] == [s.digest() for s in play()]


def test_a_run_that_is_left_early_is_told_so() -> None:
    diary = Diary()
    for _ in play(diary):
        break
    assert diary.heard[-2:] == [("end", 1), ("over", 0)]


def test_a_resumed_callback_goes_on_from_the_snapshot(tmp_path: Path) -> None:
    for snapshot in play(Diary(), rounds=5, folder=tmp_path):
        if snapshot.round == 2:
            break
    again, new = Diary(), Callback()
    list(play(again, new, rounds=5, folder=tmp_path))
    assert again.heard[:2] == [("begin", 2), ("round", 3)]
    assert again.count == 5 * 3


HOOKS = [("begin", 0), ("round", 3), ("reply", 3), ("evaluate", 3), ("end", 3)]


@pytest.mark.parametrize("fails", HOOKS, ids=[hook for hook, _ in HOOKS])
def test_a_callback_that_fails_ends_the_run_and_the_same_call_goes_on(tmp_path: Path, fails: tuple[str, int]) -> None:
    """Round 3 does not count, whatever of it was done."""
    expected = [s.digest() for s in play(rounds=4)]
    diary, other = Diary(fails), Diary()
    with pytest.raises(CallbackError, match=r"The callback Diary#0 failed in on_\w+: KeyError: 'lost'\. What the last"):
        list(play(diary, other, rounds=4, folder=tmp_path))
    assert lines(tmp_path / "messages.jsonl")[-1]["kind"] == "failed"
    assert other.heard[-1] == ("over", 0)
    after = Diary()
    *_, end = play(Diary(), after, rounds=4, folder=tmp_path)
    assert end.digest() == expected[-1]
    assert after.heard[0] == ("begin", 0 if fails[0] == "begin" else 2)
    assert after.count == 4 * 3
    assert [row["round"] for row in lines(tmp_path / "metrics/rounds.jsonl")] == [1, 2, 3, 4]
    assert [row["round"] for row in lines(tmp_path / "metrics/client_updates.jsonl")] == [
        n for n in (1, 2, 3, 4) for _ in "abc"
    ]


def test_a_callback_that_fails_after_a_snapshot_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="failed in on_snapshot"):
        list(play(Diary(("snapshot", 1)), folder=tmp_path))
    diary = Diary()
    list(play(diary, folder=tmp_path))
    assert diary.heard[0] == ("begin", 1)


def test_a_callback_that_fails_at_the_end_leaves_a_finished_run(tmp_path: Path) -> None:
    other = Diary()
    with pytest.raises(CallbackError, match="failed in on_run_end"):
        list(play(Diary(("over", 2)), other, folder=tmp_path))
    assert other.heard[-1] == ("over", 2)
    assert (tmp_path / "result.json").exists()
    assert lines(tmp_path / "messages.jsonl")[-1]["kind"] == "finished"


def test_a_failure_at_an_early_end_is_noted_and_hides_nothing(tmp_path: Path) -> None:
    class Bad(Diary):
        def on_round_end(self, snapshot: Snapshot) -> None:
            raise ZeroDivisionError("first")

    with pytest.raises(CallbackError, match="first"):
        list(play(Bad(("over", 0)), folder=tmp_path))
    notes = [row["text"] for row in lines(tmp_path / "messages.jsonl") if row["kind"] == "note"]
    assert len(notes) == 1
    assert "The callback Bad failed in on_run_end: KeyError: 'lost'" in notes[0]


def test_a_state_that_cannot_be_saved_names_its_callback(tmp_path: Path) -> None:
    class Odd(Callback):
        def state(self) -> Mapping[str, Any]:
            return {"set": {1, 2}}

    with pytest.raises(CallbackError, match="The callback Odd failed in state: "):
        list(play(Odd(), folder=tmp_path))
