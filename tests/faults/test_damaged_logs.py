"""Logs that were cut, removed or written over: resume, report and watch say what is missing, and go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedquilt.analysis.csv_export import export_csv
from fedquilt.config.config import Snapshots
from fedquilt.engines.local import Local
from fedquilt.records.record import pack, unpack
from fedquilt.report import write_report
from fedquilt.results.traffic import summary
from fedquilt.results.views import missing_in, views_in
from fedquilt.runs.runner import Run
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.logs import LOGS, ROUNDS, UPDATES, WITHHELD, gaps, row_in, spans
from fedquilt.watch import board
from fedquilt.watch.board import Board
from helpers.clustered import halves
from helpers.command import fedquilt, small
from helpers.toy import linear, points

DONE, ALL = 5, 6


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_REST", 0.0)


def made(folder: Path, every: int = 1, withhold: bool = False) -> Run:
    """A short run with clusters, so that every log has rows but that of replies which were left out; and, if it is so
    asked, test scores in a log of their own."""
    return Run(
        halves(linear()),
        points(10, 20, 30),
        rounds=ALL,
        engine=Local(),
        folder=RunFolder(folder),
        identity="me",
        snapshots=Snapshots(every=every, seconds=0),
        withhold_test=withhold,
    )


def played(run: Run) -> tuple[str, list[str]]:
    """Play to the end: the digest, and what was noted."""
    digest = ""
    for snapshot in run:
        digest = snapshot.digest()
    return digest, run.notes


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that ended after five of six rounds with one snapshot, and the digest it would have had."""
    top = tmp_path_factory.mktemp("runs")
    expected, _ = played(made(top / "calm"))
    run = made(top / "cut", every=DONE)
    for snapshot in run:
        if snapshot.round == DONE:
            break
    (top / "cut" / "config.toml").write_text(f'name = "cut"\nrounds = {ALL}\n')
    return top / "cut", expected


def without_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def halved(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(range(215, 255))
    path.write_bytes(content)


def other_digit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"2", b"3", 1))


def rows_of(*rows: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        lines[1:2] = [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]
        path.write_bytes(b"".join(lines))

    return change


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut in a line": without_end,
    "half of its lines": halved,
    "empty": empty,
    "removed": Path.unlink,
    "garbage": garbage,
    "null round": rows_of({"round": None}),
    "no object": rows_of([1, 2], None, 3, "x"),
    "NaN": rows_of(b'{"round": NaN, "test_accuracy": NaN, "seconds": Infinity}\n'),
    "blank": rows_of(b"\n"),
    "texts": rows_of({"round": 2, "test_accuracy": "high", "bytes_up": [], "client": {}, "seconds": "long"}),
    "deep": rows_of(b'{"round": ' + b"[" * 100_000 + b"\n"),
    "huge": rows_of(b'{"round": ' + b"9" * 5000 + b"}\n"),
}


def damaged(folder: Path, to: Path, name: str, damage: Callable[[Path], None]) -> Path:
    shutil.copytree(folder, to)
    damage(to / name)
    return to


def looked_at(folder: Path) -> Iterator[str]:
    """Everything that looks at runs, on this one."""
    write_report(folder, folder.parent / "report.html")
    yield (folder.parent / "report.html").read_text()
    (line,) = Board(folder).lines()
    assert line["state"] != "unreadable", line
    yield line["missing"]
    (key,) = Board(folder).runs or [line["id"]]
    told = Board(folder).told(0, key)
    json.dumps(told)
    yield " ".join(missing_in(folder))


@pytest.mark.parametrize("name", [n for n in LOGS if n not in (WITHHELD, "dropped.jsonl")])
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_log_ends_nothing_and_is_named(
    interrupted: tuple[Path, str], tmp_path: Path, name: str, kind: str
) -> None:
    """Whatever happened to a log, the run is finished with the very same state; nothing fails that looks at it."""
    source, expected = interrupted
    assert (source / name).stat().st_size > 0
    folder = damaged(source, tmp_path / "run", name, DAMAGES[kind])
    list(looked_at(folder))
    digest, notes = played(made(folder, every=DONE))
    assert digest == expected
    assert any(note.startswith(name) for note in notes), notes
    result = json.loads((folder / "result.json").read_text())
    assert name in result["missing"]
    rounds = [row["round"] for row in RunFolder(folder).rows(ROUNDS)]
    absent = [r for low, high in result["missing"].get(ROUNDS, {}).get("missing", []) for r in range(low, high + 1)]
    assert sorted([*rounds, *absent]) == list(range(1, ALL + 1))
    for log in LOGS:
        content = (folder / log).read_bytes() if (folder / log).exists() else b""
        assert all(row_in(line, log) for line in content.splitlines())
        assert content.endswith(b"\n") or not content
    page, watched, told = looked_at(folder)
    assert name in page
    assert name in told
    if absent:
        assert name in watched
    (view,) = views_in(folder)
    assert len(view.rounds) == len(rounds)
    export_csv(folder, tmp_path / "csv")
    summary(folder)
    again, _ = played(made(folder))
    assert again == expected


def test_rounds_are_rebuilt_from_the_other_logs(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    source, _ = interrupted
    folder = damaged(source, tmp_path / "run", ROUNDS, Path.unlink)
    before = {row["round"]: row for row in RunFolder(source).rows(ROUNDS)}
    _, notes = played(made(folder, every=DONE))
    assert "rebuilt from the other logs" in notes[0]
    after = {row["round"]: row for row in RunFolder(folder).rows(ROUNDS)}
    assert sorted(after) == list(range(1, ALL + 1))
    for round in range(1, DONE + 1):
        kept = [n for n in before[round] if "seconds" not in n and n != "peak_bytes" and n in after[round]]
        assert {"test_accuracy", "test_accuracy_worst10", "train_loss", "bytes_up", "updates"} <= set(kept)
        assert {n: after[round][n] for n in kept} == {n: before[round][n] for n in kept}
    missing = json.loads((folder / "result.json").read_text())["missing"]
    assert missing[ROUNDS]["missing"] == []
    assert sum(high - low + 1 for low, high in missing[ROUNDS]["rebuilt"]) == DONE


def test_what_cannot_be_rebuilt_is_named(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    source, expected = interrupted
    folder = damaged(source, tmp_path / "run", ROUNDS, halved)
    (folder / UPDATES).unlink()
    digest, notes = played(made(folder, every=DONE))
    assert digest == expected
    assert any("rows of rounds" in note and "are missing" in note for note in notes)
    result = json.loads((folder / "result.json").read_text())
    assert result["missing"][UPDATES]["missing"] == [[1, DONE]]
    assert result["missing"][ROUNDS]["missing"]  # but for the best and the last, which the snapshot knows
    (view,) = views_in(folder)
    assert any(line.startswith(ROUNDS) for line in view.missing)


@pytest.mark.parametrize("name", [ROUNDS, UPDATES])
def test_an_older_snapshot_with_whole_logs_is_preferred(tmp_path: Path, name: str) -> None:
    """The last round is played again, so that nothing is missing at all."""
    expected, _ = played(made(tmp_path / "calm"))
    for snapshot in made(tmp_path / "run"):
        if snapshot.round == DONE:
            break
    lines = (tmp_path / "run" / name).read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / name).write_bytes(b"".join(lines[:-1]) + lines[-1][:7])
    run = made(tmp_path / "run")
    digest, notes = played(run)
    assert digest == expected
    assert any("are played again" in note for note in notes)
    assert "missing" not in json.loads((tmp_path / "run" / "result.json").read_text())
    calm, mended = (RunFolder(tmp_path / which).rows(name) for which in ("calm", "run"))
    assert [(row["round"], row["bytes_up"]) for row in mended] == [(row["round"], row["bytes_up"]) for row in calm]


def test_a_log_that_was_changed_in_place_is_found_out(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    source, expected = interrupted
    folder = damaged(source, tmp_path / "run", UPDATES, other_digit)
    digest, notes = played(made(folder, every=DONE))
    assert digest == expected
    assert any("its checksum differs" in note for note in notes)


def test_snapshots_that_know_lengths_only_go_on_as_before(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    import hashlib
    from dataclasses import replace

    source, expected = interrupted
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    for file in (folder / "snapshots").iterdir():
        record = unpack(file.read_bytes())
        frame = pack(replace(record, logs={name: extent.length for name, extent in record.extents.items()}))
        file.unlink()
        name = f"{file.name.split('.')[0]}.{hashlib.sha256(frame).hexdigest()[:16]}.safetensors"
        (file.parent / name).write_bytes(frame)
    digest, notes = played(made(folder, every=DONE))
    assert (digest, notes) == (expected, [])
    assert [row["round"] for row in RunFolder(folder).rows(ROUNDS)] == list(range(1, ALL + 1))


def test_one_damaged_run_does_not_hide_the_others(interrupted: tuple[Path, str], tmp_path: Path) -> None:
    source, _ = interrupted
    top = tmp_path / "runs"
    shutil.copytree(source, top / "a")
    damaged(source, top / "b", ROUNDS, rows_of({"round": None}, {"round": "x"}, [1]))
    shutil.copytree(source, top / "c")
    (top / "c" / "now.json").write_text('{"round": null}')
    (top / "c" / "result.json").write_text('{"rounds": null, "logs": 3, "missing": [1]}')
    (top / "c" / "config.toml").write_text('rounds = "many"\nmethod = 3\n')
    (top / "c" / "messages.jsonl").write_text('{"kind": 1}\n{"time": null}\nnot json\n')
    lines = {line["label"]: line for line in Board(top).lines()}
    assert lines.keys() == {"a", "b", "c"}
    assert lines["a"]["missing"] == ""
    assert "has no rows of rounds 2" in lines["b"]["missing"]
    said = fedquilt("watch", top, "--once")
    assert (said.code, "rows of rounds 2" in said.out) == (0, True), said
    assert fedquilt("watch", top, "--once", "--json").code == 0


def test_the_commands_say_what_is_missing(tmp_path: Path) -> None:
    folder = Path(fedquilt("run", small(tmp_path), "--json").json["folder"])
    assert fedquilt("report", folder, "--json").json["missing"] == []
    (folder / ROUNDS).unlink()
    said = fedquilt("report", folder)
    assert (said.code, f"note: {ROUNDS}: is gone, has no rows of rounds 1 to 3" in said.err) == (0, True), said
    (folder / "result.json").unlink()
    said = fedquilt("resume", folder)
    assert (said.code, f"note: {ROUNDS} is gone" in said.out) == (0, True), said
    assert f"{ROUNDS}: rounds 1 to 3 were rebuilt from the other logs" in said.out.splitlines()


@pytest.mark.parametrize(("log", "command"), [("clients", "csv"), ("traffic", "traffic"), ("client_updates", "clock")])
def test_commands_that_add_up_a_log_say_what_of_it_is_missing(tmp_path: Path, log: str, command: str) -> None:
    folder = Path(fedquilt("run", small(tmp_path), "--json").json["folder"])
    path = folder / f"metrics/{log}.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    asked = (command, folder, "--to", tmp_path / "tables") if command == "csv" else (command, folder)
    said = fedquilt(*asked)
    assert (said.code, f"note: metrics/{log}.jsonl: has " in said.err) == (0, True), said


def test_a_comparison_goes_on_with_a_damaged_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt.results.comparison_plots.draw_all", lambda *_: None)  # they take longer than the runs
    asked = [small(tmp_path), 'compare.methods=["fedavg","local_only"]', "compare.seeds=[0]", "rounds=2"]
    first = fedquilt("compare", *asked, "--json").json
    for log in (ROUNDS, "metrics/clients.jsonl"):
        (Path(first["folder"]) / "fedavg-seed0" / log).unlink()
    said = fedquilt("compare", *asked, "--json")
    assert said.code == 0, said
    assert {line.split(": ")[0] for line in said.json["missing"]} == {"fedavg-seed0"}
    assert fedquilt("report", first["folder"]).code == 0


def test_spans_and_gaps() -> None:
    assert spans([5, 1, 2, 3, 9, 3]) == [[1, 3], [5, 5], [9, 9]]
    assert gaps([], 3) == [[1, 3]]
    assert gaps([1, 2, 3], 3) == gaps([], 0) == []
    assert gaps([2, 5, 7], 8) == [[1, 1], [3, 4], [6, 6], [8, 8]]
    assert gaps([10**9], 10**9) == [[1, 10**9 - 1]]  # an odd number takes no memory


@pytest.mark.parametrize("name", ["test_accuracy", "valid_loss", "train_loss", "bytes_up", "global_test_accuracy"])
def test_a_row_of_a_round_holds_numbers_where_readers_take_them_for_such(name: str) -> None:
    row = {"round": 1, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1, "clients": 2, "told": {"by": ["a", "method"]}}
    assert row_in(json.dumps(row), ROUNDS) == row
    assert row_in(json.dumps(row | {name: "high"}), ROUNDS) is None


def test_what_was_mended_is_remembered_even_if_the_run_is_killed_at_once(
    interrupted: tuple[Path, str], tmp_path: Path
) -> None:
    source, expected = interrupted
    folder = damaged(source, tmp_path / "run", UPDATES, garbage)
    run = made(folder, every=DONE)
    assert run.folder is not None
    run.folder.open()
    run._begin()  # and no further
    run.folder.close()
    digest, _ = played(made(folder, every=DONE))
    assert digest == expected
    assert UPDATES in json.loads((folder / "result.json").read_text())["missing"]


@pytest.mark.parametrize("kind", ["cut in a line", "removed", "garbage"])
def test_withheld_scores_that_are_damaged_end_nothing_and_are_named(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "cut"
    for snapshot in made(source, every=DONE, withhold=True):
        if snapshot.round == DONE:
            break
    assert (source / WITHHELD).stat().st_size > 0
    folder = damaged(source, tmp_path / "run", WITHHELD, DAMAGES[kind])
    digest, notes = played(made(folder, every=DONE, withhold=True))
    assert digest == played(made(tmp_path / "calm", withhold=True))[0]
    assert any(note.startswith(WITHHELD) for note in notes), notes
