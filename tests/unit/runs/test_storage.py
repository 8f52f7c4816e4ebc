"""Run folders: files that are whole or absent, snapshots that can be trusted, logs that go back with them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.errors import SnapshotError, StorageError
from fedquilt.records.record import pack
from fedquilt.storage.files import storage, to_json, write_atomic
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.slots import FolderSlots, entries_of, file_of

SENT = {"bytes_up": 1, "bytes_down": 1, "seconds": 0.5, "clients": 2}
UPDATE = {"exchange": "train", "seconds": 0.1, "samples": 3, "bytes_up": 1, "bytes_down": 1}


def flip(path: Path, place: int = -5) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut a file in half."""
    os.truncate(path, path.stat().st_size // 2)


def frame(number: float) -> bytes:
    """A client's state."""
    return pack({"w": torch.full((3,), float(number))})


def files(folder: Path) -> set[str]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# Atomic files


def test_write_atomic_makes_folders_and_replaces_files(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert files(tmp_path) == {"a/b/file"}


@pytest.mark.parametrize("where", ["fsync", "replace", "open"])
def test_write_atomic_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place, name = {"fsync": (os, "fsync"), "replace": (Path, "replace"), "open": (Path, "open")}[where]
    with monkeypatch.context() as change:
        change.setattr(place, name, full)
        with pytest.raises(
            StorageError, match=r"No space left on device\. The disk is full: free some space\.$"
        ) as told:
            write_atomic(path, b"new")
    assert told.value.exit_code == 4
    assert path.read_bytes() == b"old"
    assert files(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EROFS, "read-only: choose another output.folder"),
        (errno.EACCES, "No permission"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "may not grow"),
        (errno.EIO, "Check the folder"),
    ],
)
def test_each_complaint_of_the_system_comes_with_advice(tmp_path: Path, code: int, advice: str) -> None:
    with pytest.raises(StorageError, match=advice) as told, storage(tmp_path):
        raise OSError(code, os.strerror(code))
    assert "resume" not in str(told.value)  # there is nothing here to resume
    (tmp_path / "config.toml").touch()
    with pytest.raises(StorageError, match=f"'fedquilt resume {tmp_path}'"), storage(tmp_path):
        raise OSError(code, os.strerror(code))


def test_json_is_strict() -> None:
    value = {"a": float("nan"), "b": [1.5, float("inf")], "c": ({"d": float("-inf")},), "e": True, "f": None}
    assert json.loads(to_json(value)) == {"a": None, "b": [1.5, None], "c": [{"d": None}], "e": True, "f": None}
    assert to_json({"a": 0.1}) == '{"a": 0.1}'


# Clients' files


def test_slots_give_back_what_was_put(tmp_path: Path) -> None:
    slots = FolderSlots(tmp_path / "clients")
    assert slots.get(1) is None
    ids = (1, "1", ("a", 1), "../../x", "a/b")
    for number, client in enumerate(ids):
        slots.put(client, frame(number))
    assert [slots.get(c) for c in ids] == [frame(n) for n in range(len(ids))]
    assert set(slots.digests()) == set(ids)
    assert len(set(slots.digests().values())) == len(ids)
    assert len(files(tmp_path / "clients")) == len(ids)
    assert len(files(tmp_path)) == len(ids)  # no id leads out of the folder


def test_a_superseded_file_goes_at_once_when_no_snapshot_needs_it(tmp_path: Path) -> None:
    slots = FolderSlots(tmp_path / "clients")
    for number in range(4):
        slots.put("a", frame(number))
        assert len(files(tmp_path)) == 1
    slots.put("a", frame(3))
    assert slots.get("a") == frame(3)


def test_files_of_the_kept_snapshots_stay_and_older_ones_go(tmp_path: Path) -> None:
    slots = FolderSlots(tmp_path / "clients")
    kept: list[dict[Any, bytes]] = []
    for number in range(5):
        slots.put("a", frame(number))
        slots.put("b", frame(100))  # never changes
        slots.put("c", frame(number // 2))
        slots.mark()
        kept.append(dict(slots.now))
        for snapshot in kept[-2:]:
            slots.verify(snapshot)
        needed = {file_of(c, d) for snapshot in kept[-2:] for c, d in snapshot.items()}
        assert files(slots.folder) == needed
    with pytest.raises(SnapshotError, match="client 'a' is missing or damaged"):
        slots.verify(kept[0])


def test_a_file_that_a_snapshot_relies_on_is_never_written_again(tmp_path: Path) -> None:
    slots = FolderSlots(tmp_path / "clients")
    slots.put("a", frame(1))
    slots.mark()
    name = file_of("a", slots.now["a"])
    before = (slots.folder / name).stat()
    slots.put("a", frame(2))
    slots.put("a", frame(1))  # back to what the snapshot has
    after = (slots.folder / name).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert files(slots.folder) == {name}
    assert slots.get("a") == frame(1)


def test_restore_goes_back_and_removes_what_came_after(tmp_path: Path) -> None:
    slots = FolderSlots(tmp_path / "clients")
    slots.put("a", frame(1))
    slots.mark()
    then = dict(slots.now)
    slots.put("a", frame(2))
    slots.put("b", frame(3))
    again = FolderSlots(slots.folder)
    again.restore(then)
    assert (again.get("a"), again.get("b")) == (frame(1), None)
    assert files(slots.folder) == {file_of("a", then["a"])}
    again.put("a", frame(4))
    assert (slots.folder / file_of("a", then["a"])).exists()


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_a_damaged_client_file_is_noticed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    slots = FolderSlots(tmp_path / "clients")
    slots.put("a", frame(1))
    slots.verify(slots.now)
    damage(slots.folder / file_of("a", slots.now["a"]))
    with pytest.raises(SnapshotError, match=r"client 'a' (cannot be read|in .* is damaged)"):
        slots.get("a")
    with pytest.raises(SnapshotError, match="client 'a' is missing or damaged"):
        slots.verify(slots.now)


# The folder


def opened(path: Path) -> RunFolder:
    """A run folder that is held by this process."""
    folder = RunFolder(path)
    folder.open()
    return folder


def play(folder: RunFolder, rounds: range, identity: str = "me", data: str = "these") -> None:
    """What a run does to its folder."""
    for done in rounds:
        folder.slots.put("a", frame(done))
        folder.slots.put("b", frame(done // 2))
        folder.log("metrics/rounds.jsonl", [{"round": done, **SENT}])
        folder.log("metrics/client_updates.jsonl", [{"round": done, "client": c, **UPDATE} for c in "ab"])
        folder.save(identity, data, done, {"w": torch.tensor(float(done))}, {"bytes_up": done})


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """A folder in which four rounds were played, and a fifth begun, by a process that is gone."""
    folder = opened(tmp_path / "run")
    play(folder, range(1, 5))
    folder.slots.put("a", frame(5))
    folder.log("metrics/rounds.jsonl", [{"round": 5, **SENT}])
    folder.log("dropped.jsonl", [{"round": 5}])
    folder.close()
    with (tmp_path / "run" / "metrics" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 6')
    return tmp_path / "run"


def test_two_snapshots_are_kept(played: Path) -> None:
    names = [p.name for p in RunFolder(played).snapshots()]
    assert [n[:12] for n in names] == ["round-000004", "round-000003"]


def test_restore_gives_the_newest_snapshot_and_rewinds_the_logs(played: Path) -> None:
    folder = opened(played)
    assert [r["round"] for r in folder.rows("metrics/rounds.jsonl")] == [1, 2, 3, 4, 5]
    found, notes = folder.restore("me", "these")
    assert found is not None
    assert notes == []
    assert (found.done, float(found.state["w"]), found.progress) == (4, 4.0, {"bytes_up": 4})
    assert (folder.slots.get("a"), folder.slots.get("b")) == (frame(4), frame(2))
    assert [r["round"] for r in folder.rows("metrics/rounds.jsonl")] == [1, 2, 3, 4]
    assert (played / "metrics" / "rounds.jsonl").read_text().endswith(json.dumps({"round": 4, **SENT}) + "\n")
    assert folder.rows("dropped.jsonl") == []
    assert len(folder.rows("metrics/client_updates.jsonl")) == 8
    folder.close()


def newest(path: Path) -> Path:
    """The newest snapshot."""
    return RunFolder(path).snapshots()[0]


def client_file(path: Path) -> Path:
    """A file that only the newest snapshot relies on."""
    folder = RunFolder(path)
    found, _ = folder.restore("me", "these")
    assert found is not None
    return path / "clients" / file_of("a", entries_of(found.slots)["a"])


@pytest.mark.parametrize(
    ("damage", "target", "reason"),
    [
        (truncate, newest, "truncated or damaged"),
        (flip, newest, "truncated or damaged"),
        (lambda p: flip(p, 3), newest, "truncated or damaged"),
        (lambda p: p.write_bytes(b""), newest, "truncated or damaged"),
        (flip, client_file, "the state of client 'a' is missing or damaged"),
        (truncate, client_file, "the state of client 'a' is missing or damaged"),
        (Path.unlink, client_file, "the state of client 'a' is missing or damaged"),
    ],
)
def test_a_damaged_snapshot_gives_way_to_the_one_before_and_that_is_said(
    played: Path, damage: Callable[[Path], None], target: Callable[[Path], Path], reason: str
) -> None:
    bad = newest(played)
    damage(target(played))
    folder = opened(played)
    found, notes = folder.restore("me", "these")
    assert found is not None
    assert found.done == 3
    assert notes == [f"snapshot {bad.name} cannot be used: {notes[0].split(': ', 1)[1]}"]
    assert reason in notes[0]
    assert (folder.slots.get("a"), folder.slots.get("b")) == (frame(3), frame(1))
    assert [r["round"] for r in folder.rows("metrics/rounds.jsonl")] == [1, 2, 3]
    assert not bad.exists()
    play(folder, range(4, 6))
    folder.close()
    found, notes = RunFolder(played).restore("me", "these")
    assert found is not None
    assert (found.done, notes) == (5, [])


def test_the_snapshot_before_stays_usable_after_a_restore(played: Path) -> None:
    for _ in range(3):  # resumed and killed again and again before the next snapshot
        RunFolder(played).restore("me", "these")
    flip(newest(played))
    found, notes = RunFolder(played).restore("me", "these")
    assert found is not None
    assert (found.done, len(notes)) == (3, 1)


def test_when_every_snapshot_is_damaged_nothing_is_touched(played: Path) -> None:
    for file in RunFolder(played).snapshots():
        truncate(file)
    before = {p: (played / p).read_bytes() for p in files(played)}
    with pytest.raises(SnapshotError, match=r"No snapshot of .*run' can be used\..*round-000004.*; .*round-000003"):
        RunFolder(played).restore("me", "these")
    assert {p: (played / p).read_bytes() for p in files(played)} == before


@pytest.mark.parametrize(
    ("identity", "data", "reason"),
    [("other", "these", "belongs to another method"), ("me", "those", "the data have changed since the run started")],
)
def test_a_snapshot_of_another_run_is_refused(played: Path, identity: str, data: str, reason: str) -> None:
    before = files(played)
    with pytest.raises(SnapshotError, match=reason) as told:
        RunFolder(played).restore(identity, data)
    assert told.value.exit_code == 4
    assert files(played) == before


def test_a_folder_without_snapshots_starts_anew_with_empty_logs(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    folder.log("metrics/rounds.jsonl", [{"round": 1}])
    folder.slots.put("a", frame(1))
    folder.close()
    (tmp_path / "run" / "snapshots" / "round-000001.abc.safetensors.part").write_bytes(b"half")
    again = opened(tmp_path / "run")
    assert again.restore("me", "these") == (None, [])
    assert again.rows("metrics/rounds.jsonl") == []
    assert files(tmp_path / "run") == {".lock", "metrics/rounds.jsonl"}
    again.close()


def test_a_log_that_lost_its_end_is_not_filled_with_zeros(played: Path) -> None:
    log = played / "metrics" / "rounds.jsonl"
    os.truncate(log, len(json.dumps({"round": 1, **SENT}) + "\n"))
    for name in ("client_updates", "clients"):  # so that nothing can be rebuilt
        (played / "metrics" / f"{name}.jsonl").unlink(missing_ok=True)
    folder = RunFolder(played)
    folder.restore("me", "these")
    assert log.read_text() == json.dumps({"round": 1, **SENT}) + "\n"
    assert folder.missing["metrics/rounds.jsonl"] == {"missing": [[2, 4]], "rebuilt": []}


def test_a_full_disk_during_a_log_is_one_clear_error_and_closing_adds_none(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    (tmp_path / "run" / "dropped.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="disk is full"):
        folder.log("dropped.jsonl", [{"round": 1}])
    folder.close()
    folder.open()  # and the folder is free again
    folder.close()


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    with pytest.raises(StorageError, match=r"Another process is running .*run'"):
        RunFolder(tmp_path / "run").open()
    with pytest.raises(StorageError, match="Another process is running"):
        RunFolder(tmp_path / "run").remove()
    assert (tmp_path / "run").exists()
    first.close()
    RunFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()


def test_another_process_that_holds_the_folder_is_noticed_and_its_death_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    program = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True);"
    command = [sys.executable, "-S", "-c", f"{program} sys.stdin.read()", str(path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match="Another process is running"):
            RunFolder(path).open()
        other.kill()
    opened(path).close()


def test_a_file_that_comes_back_outlives_the_snapshot_that_knew_it_first(tmp_path: Path) -> None:
    """A, snapshot, B, A again, snapshot, C, snapshot: the second snapshot relies on A, so A may go only after it."""
    slots = FolderSlots(tmp_path / "clients")
    slots.put("a", frame(1))
    slots.mark()
    slots.put("a", frame(2))
    slots.put("a", frame(1))
    slots.mark()
    second = dict(slots.now)
    slots.put("a", frame(3))
    slots.mark()
    slots.verify(second)
    slots.put("a", frame(4))
    slots.mark()
    with pytest.raises(SnapshotError):
        slots.verify(second)
