"""A server that is stopped and started again, on nodes that went on: the same numbers as if nothing had happened."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("flwr")

from conformance.cases import CASES
from fedquilt.engines.local import Local
from helpers.nodes import flower, grid
from helpers.toy import last

ROUNDS = 3
NAMES = ("fedavg", "fedper", "scaffold", "ifca")
CHOSEN = {case.name: case for case in CASES if case.name in NAMES}


@cache
def expected(name: str) -> str:
    return last(CHOSEN[name].method, CHOSEN[name].federation, ROUNDS, Local()).digest()


def served(name: str, over, folder, rounds: int = ROUNDS, **options):
    """A new server on the same nodes and the same folder."""
    engine = flower(over, run="samerun")
    return last(CHOSEN[name].method, engine.gather(2), rounds, engine, folder=folder / "run", **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [1, 2])
def test_a_new_server_goes_on_from_the_snapshot(name, stop, tmp_path):
    over = grid(CHOSEN[name].federation, 2, tmp_path / "nodes")
    served(name, over, tmp_path, rounds=stop)
    assert served(name, over, tmp_path).digest() == expected(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", [1, 2])
def test_a_server_goes_back_behind_what_its_nodes_have_done(name, lost, tmp_path):
    # Two snapshots are kept: without the newest it goes on from the one before, without both from the start; the
    # nodes are then ahead of it by one round, or by three.
    over = grid(CHOSEN[name].federation, 2, tmp_path / "nodes")
    served(name, over, tmp_path)
    (tmp_path / "run" / "result.json").unlink()
    newest = sorted((tmp_path / "run" / "snapshots").iterdir(), reverse=True)
    assert len(newest) == 2
    for snapshot in newest[:lost]:
        snapshot.unlink()
    assert served(name, over, tmp_path).digest() == expected(name)


def test_snapshots_every_other_round_and_a_kill_between(tmp_path):
    over = grid(CHOSEN["scaffold"].federation, 2, tmp_path / "nodes")
    served("scaffold", over, tmp_path, rounds=ROUNDS, snapshot_every=2)
    newest = max((tmp_path / "run" / "snapshots").iterdir())  # the one of the end, which a kill would not have left
    newest.unlink()
    (tmp_path / "run" / "result.json").unlink()
    assert served("scaffold", over, tmp_path, snapshot_every=2).digest() == expected("scaffold")


def test_nodes_keep_few_versions_with_and_without_a_folder(tmp_path):
    case = CHOSEN["scaffold"]
    for place, folder in (("a", tmp_path / "run"), ("b", None)):
        engine = flower(grid(case.federation, 2, tmp_path / place), run="run")
        last(case.method, engine.gather(2), 6, engine, folder=folder)
        files = list((tmp_path / place).rglob("*.safetensors"))
        assert 4 <= len(files) <= 4 * 3  # four clients; see the property in test_keep


def test_a_site_whose_data_changed_is_not_resumed_with(tmp_path):
    from fedquilt.errors import SnapshotError
    from helpers.toy import digits

    served("fedavg", grid(CHOSEN["fedavg"].federation, 2), tmp_path, rounds=1)
    with pytest.raises(SnapshotError, match="the data have changed since the run started"):
        served("fedavg", grid(digits(clients=4, alpha=0.5), 2), tmp_path)
