"""Trackers: told every round once, over resumes too; and none of them can stop a run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import Config, parse
from fedquilt.engines.local import Local
from fedquilt.errors import ConfigError
from fedquilt.registry import TRACKERS, RegistryEntry
from fedquilt.runs.build import run_of
from fedquilt.runs.trackers import RunInfo
from helpers.command import lines

HEARD: list[tuple[Any, ...]] = []


@dataclass
class Listening:
    """Remembers what it heard; ``fails`` says where it raises."""

    fails: str = ""

    def _hear(self, what: str, *more: Any) -> None:
        if what == self.fails:
            raise OSError("no line")
        HEARD.append((what, *more))

    def start(self, run: RunInfo) -> str:
        self._hear("start", run.logged, run.place, run.config["rounds"], run.name)
        return "here"

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._hear("log", round, numbers["test_accuracy"])

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self._hear("finish", None if result is None else result["rounds"])


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    HEARD.clear()
    monkeypatch.setitem(TRACKERS, "listening", RegistryEntry("listening", f"{__name__}:Listening", "for tests"))
    return HEARD


def recipe(*trackers: Any, rounds: int = 3, **more: Any) -> Config:
    return parse(
        {
            "name": "t",
            "rounds": rounds,
            "data": {"clients": 2, "limit": 200},
            "model": "logistic",
            "snapshot": {"every": 2, "seconds": 0},
            "output": {"trackers": list(trackers)},
            **more,
        }
    )


def play(config: Config, folder: Path, stop: int | None = None) -> Any:
    """The run; after ``stop`` rounds it dies without a word, as if it were killed."""
    made = run_of(config, Local(), folder)
    if stop is None:
        return made, list(made)
    assert made.folder is not None
    made.folder.open()
    made._begin()
    played = made._play()
    for _ in range(stop):
        next(played)
    made._save = lambda: None  # type: ignore[method-assign]
    played.close()
    made.folder.close()
    return made, []


@pytest.mark.parametrize("text", ["", "[]", '{"listening": 3}', '{"listening": {"told": "x", "place": ""}}'])
def test_a_damaged_note_of_what_was_told_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/trackers.json").write_text(text)
    play(recipe("listening"), tmp_path / "run")
    assert [h[1] for h in HEARD if h[0] == "log"] == [1, 2, 3]


def test_who_watches_reads_of_a_tracker_that_failed(tmp_path: Path) -> None:
    run, _ = play(recipe({"kind": "listening", "fails": "log"}), tmp_path / "run")
    (note,) = [note for note in run.notes if "tracker" in note]
    assert note in [row["text"] for row in lines(tmp_path / "run/messages.jsonl")]


def test_a_tracker_hears_of_every_round_once_also_after_a_resume(tmp_path: Path) -> None:
    """Snapshots are after even rounds: the run dies after round 3, goes back to round 2 and plays 3 again."""
    config = recipe("listening", rounds=5)
    play(config, tmp_path / "run", stop=3)
    play(config, tmp_path / "run")
    rows = {r["round"]: r["test_accuracy"] for r in lines(tmp_path / "run/metrics/rounds.jsonl")}
    assert [h for h in HEARD if h[0] == "log"] == [("log", n, rows[n]) for n in range(1, 6)]
    assert [h for h in HEARD if h[0] != "log"] == [
        ("start", 0, "", "5", "run"),
        ("start", 3, "here", "5", "run"),
        ("finish", 5),
    ]


def test_who_stops_early_is_told_as_interrupted(tmp_path: Path) -> None:
    for _ in run_of(recipe("listening"), Local(), tmp_path / "run"):
        break
    assert HEARD[-1] == ("finish", None)


@pytest.mark.parametrize("stage", ["start", "log", "finish"])
def test_a_failing_tracker_is_noted_once_and_the_run_and_the_others_go_on(tmp_path: Path, stage: str) -> None:
    plain = play(recipe(), tmp_path / "plain")[1][-1].digest()
    made, rounds = play(recipe({"kind": "listening", "fails": stage}, "listening"), tmp_path / "run")
    assert rounds[-1].digest() == plain
    assert made.notes == ["the tracker 'listening#0' failed and was disabled: OSError: no line"]
    assert [h[:2] for h in HEARD if h[0] == "log"][-1] == ("log", 3)
    assert (tmp_path / "run/result.json").exists()


def test_unknown_trackers_and_options_are_refused() -> None:
    with pytest.raises(ConfigError) as told:
        parse({"output": {"trackers": ["tensorbord", {"kind": "mlflow", "url": "x"}]}})
    assert told.value.problems == [
        "output.trackers.0.kind: unknown tracker 'tensorbord'; did you mean 'tensorboard'? (known: listening, mlflow, "
        "tensorboard, wandb)",
        "output.trackers.1.url: unknown key for 'mlflow'; did you mean 'uri'?",
    ]


# The real ones, where they are installed

quiet = pytest.mark.filterwarnings("ignore")  # of other packages, about themselves


@quiet
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = recipe("tensorboard", rounds=5)
    play(config, tmp_path / "run", stop=3)
    made, _ = play(config, tmp_path / "run")
    assert made.notes == []
    found = EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    rows = lines(tmp_path / "run/metrics/rounds.jsonl")
    for name in ("test_accuracy", "valid_loss", "bytes_up", "seconds"):
        points = [(e.step, e.value) for e in found.Scalars(name)]
        assert [step for step, _ in points] == [1, 2, 3, 4, 5]
        if name != "seconds":  # of round 3, those of its first playing
            assert [value for _, value in points] == pytest.approx([row[name] for row in rows], rel=1e-6)
    assert "settings/text_summary" in found.Tags()["tensors"]


@quiet
def test_mlflow(tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    config = recipe({"kind": "mlflow", "uri": uri, "experiment": "e"}, rounds=5)
    play(config, tmp_path / "run", stop=3)
    client = tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("e").experiment_id
    made, _ = play(config, tmp_path / "run")
    assert made.notes == []
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    rows = lines(tmp_path / "run/metrics/rounds.jsonl")
    points = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [(p.step, p.value) for p in points] == [(r["round"], r["test_accuracy"]) for r in rows]
    assert run.data.params["method.kind"] == "fedavg"
    assert run.data.tags["digest"] == json.loads((tmp_path / "run/result.json").read_text())["digest"]


def records(content: bytes) -> Iterator[bytes]:
    """The records of an offline file: after 7 bytes, LevelDB's log format, in blocks of 32 KiB whose records may be
    whole (1) or first, middle and last parts (2, 3, 4); each has a checksum, a length and its kind before it."""
    place, held = 7, b""
    while place + 7 <= len(content):
        if place % 32768 > 32768 - 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        held += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield held
            held = b""


def until_the_end(file: Path, kind: Any) -> list[Any]:
    """The records of a file, once the process that writes it has written the last one."""
    for _ in range(200):
        found = []
        for data in records(file.read_bytes()):
            record = kind()
            record.ParseFromString(data)
            found.append(record)
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.1)
    raise AssertionError(f"{file} does not end")


@quiet
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    from wandb.proto import wandb_internal_pb2

    config = recipe({"kind": "wandb", "project": "p"}, rounds=4)
    made = run_of(config, Local(), tmp_path / "run")
    for snapshot in made:
        if snapshot.round == 3:
            break
    made, _ = play(config, tmp_path / "run")
    assert made.notes == []
    steps, ids = [], set()
    files = sorted((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        for record in until_the_end(file, wandb_internal_pb2.Record):
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                steps.append((items["round"], items["test_accuracy"]))
    rows = lines(tmp_path / "run/metrics/rounds.jsonl")
    assert steps == [(r["round"], r["test_accuracy"]) for r in rows]
    assert len(ids) == 1
