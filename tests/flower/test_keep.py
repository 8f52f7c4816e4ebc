"""States kept at nodes: whatever the server may ask for is there, and what it cannot ask for goes."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.engines.flower.keep import InMemory, Keep, OnDisk, Version, safe, token
from fedquilt.errors import InputError, SnapshotError

CLIENTS = ("a", "b")
STEP = st.fixed_dictionaries(
    {
        "visit": st.sets(st.sampled_from(CLIENTS)),
        "change": st.sampled_from(["new", "none", "back"]),  # a new state, the same, or one it had before
        "accept": st.booleans(),
        "trips": st.integers(1, 2),
        "roll_back": st.sampled_from([None, None, None, 0, 1]),
    }
)


class Server:
    """The handles of a server that snapshots every k rounds, keeps two snapshots, and may go back to either."""

    def __init__(self, keep: Keep, every: int) -> None:
        self.keep, self.every = keep, every
        self.round, self.made = 0, 0
        self.handles: dict[str, bytes] = {}
        self.snapshots: list[tuple[int, dict[str, bytes]]] = []
        self.oldest = 0
        self.told = dict.fromkeys(CLIENTS, 0)
        self.trips = {client: [0] for client in CLIENTS}  # the rounds of the client updates since the oldest snapshot

    def play(self, step: dict[str, Any]) -> None:
        if step["roll_back"] is not None and self.snapshots:
            place = min(step["roll_back"], len(self.snapshots) - 1)
            self.round, handles = self.snapshots[-1 - place]
            self.handles = dict(handles)
            self.snapshots = self.snapshots[: len(self.snapshots) - place]
            self.oldest = 0  # a new server knows of its snapshots only when it writes one
        for _ in range(step["trips"]):
            for client in step["visit"]:
                self.update(client, step)
        self.round += 1
        if self.round % self.every == 0:
            self.snapshots = [*self.snapshots, (self.round, dict(self.handles))][-2:]
            self.oldest = self.snapshots[0][0]

    def update(self, client: str, step: dict[str, Any]) -> None:
        asked = self.handles.get(client)
        if asked is not None:
            self.keep.get(client, asked)
        self.made += step["change"] == "new"
        frame = None if step["change"] == "none" else b"%d" % (self.made if step["change"] == "new" else 0)
        kept = None if frame is None else self.keep.put(client, frame, self.round, asked)
        self.keep.prune(client, asked, self.oldest)
        self.told[client] = self.oldest
        self.trips[client].append(self.round)
        if kept is not None and step["accept"]:
            self.handles[client] = kept

    def check(self) -> None:
        for handles in [self.handles, *(handles for _, handles in self.snapshots)]:
            for client, digest in handles.items():
                self.keep.get(client, digest)
        for client in CLIENTS:
            mine = [Version.of(n) for n in self.keep.shelf.names() if n.startswith(token(client))]
            updates = [r for r in self.trips[client] if r >= self.told[client]]
            assert len(mine) <= 2 * len(updates) + 1 + self._doubles(mine)

    @staticmethod
    def _doubles(versions: list[Version]) -> int:
        return len(versions) - len({v.digest for v in versions})


@settings(max_samples=150, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(1, 4))
def test_every_state_that_may_be_asked_for_is_kept_and_the_others_go(history, every):
    server = Server(Keep(InMemory({})), every)
    for step in history:
        server.play(step)
        server.check()


def test_a_long_run_keeps_three_versions_of_a_client():
    # Snapshots every round, two kept: after round r they reach back to r - 1, so that the versions of rounds r - 1 and
    # r stay, and the one that the older of them came from.
    server = Server(Keep(InMemory({})), every=1)
    for _ in range(30):
        server.play({"visit": ["a"], "change": "new", "accept": True, "trips": 1, "roll_back": None})
    assert len(list(server.keep.shelf.names())) == 3


def test_rejected_states_go_too():
    server = Server(Keep(InMemory({})), every=1)
    for accept in [True, *[False] * 20]:
        server.play({"visit": ["a"], "change": "new", "accept": accept, "trips": 1, "roll_back": None})
    assert len(list(server.keep.shelf.names())) <= 4


def test_states_on_disk_are_for_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        keep = Keep(OnDisk(tmp_path / "run"))
        digest = keep.put("a", b"state", 3, None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    (file,) = (tmp_path / "run").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Keep(OnDisk(tmp_path / "run")).get("a", digest) == b"state"


def test_damage_is_found_and_mended_when_the_state_is_made_again(tmp_path):
    keep = Keep(OnDisk(tmp_path))
    digest = keep.put("a", b"state", 3, None)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"stale")
    with pytest.raises(SnapshotError, match="damaged"):
        keep.get("a", digest)
    keep.put("a", b"state", 4, digest)  # the same state of another round is whole
    assert keep.get("a", digest) == b"state"
    keep.put("a", b"state", 3, None)
    assert file.read_bytes() == b"state"


def test_a_state_that_was_never_kept_is_refused():
    with pytest.raises(SnapshotError, match="not kept at this site"):
        Keep(InMemory({})).get("a", bytes(32))


def test_a_crash_before_the_rename_leaves_nothing_wrong(tmp_path, monkeypatch):
    keep = Keep(OnDisk(tmp_path))
    old = keep.put("a", b"old", 1, None)

    def crash(*paths: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            keep.put("a", b"new", 2, old)
    assert keep.get("a", old) == b"old"
    assert [p.suffix for p in tmp_path.iterdir()] == [".safetensors"]
    assert keep.get("a", keep.put("a", b"new", 2, old)) == b"new"


def test_what_a_killed_process_left_goes_once_it_is_old(tmp_path):
    OnDisk(tmp_path)
    old, young = tmp_path / "x.part", tmp_path / "y.part"
    for part in (old, young):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert list(OnDisk(tmp_path).names()) == []
    assert not old.exists()
    assert young.exists()  # another process may be writing it


@pytest.mark.parametrize("run", ["", "..", "a/b", "a.b", "é", "a\0"])
def test_a_run_key_is_no_path(run):
    with pytest.raises(InputError, match="letters and digits"):
        safe(run)


def test_clients_1_and_one_are_two():
    keep = Keep(InMemory({}))
    digest = keep.put(1, b"x", 0, None)
    with pytest.raises(SnapshotError):
        keep.get("1", digest)
