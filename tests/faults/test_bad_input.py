"""Everything a user can get wrong, and machines that misbehave: a clear message, an exit code, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.errors import RoundError
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import unpack
from fedquilt.runs.runner import run
from fedquilt.storage.slots import entries_of, file_of
from helpers.command import Said, fedquilt, lines, small
from helpers.sabotage import Corrupting
from helpers.toy import fedavg, points


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A small recipe that works."""
    return small(tmp_path)


def refused(code: int, said: Said, *words: str) -> None:
    """The command failed with this code, said these words and nothing else, and showed no traceback."""
    assert said.code == code, said
    assert said.err.startswith("fedquilt: "), said
    assert "Traceback" not in said.err + said.out
    for word in words:
        assert word in said.err, said.err


def runs(recipe: Path) -> list[Path]:
    """The folders of runs."""
    top = recipe.parent / "runs"
    return sorted(top.iterdir()) if top.exists() else []


# Settings and data


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("roundz=3", ["roundz: unknown key; did you mean 'rounds'?"]),
        ("train.optimiser.lr=3", ["train.optimiser: unknown key; did you mean 'optimizer'?"]),
        ("rounds=ten", ["rounds: ", "whole number", "got 'ten'"]),
        ("train.optimizer.lr=fast", ["train.optimizer.lr: ", "a number", "got 'fast'"]),
        ("rounds", ["'rounds' changes no setting: write KEY=VALUE, for example rounds=5"]),
        ("method.mu=0.1", ["method.mu: unknown key for 'fedavg'; fedprox has it: method.kind=fedprox"]),
        (
            "attack={kind='sign_flip', clients=2}",
            ["attack.clients: should be a share below 1 or a list of ids, e.g. 0.2 or [0, 9], got 2"],
        ),
        ("method={kind='fedprox', mu=-1}", ["mu >= 0", "-1"]),
        ("data.source=digitz", ["digitz", "digits"]),
        ("data.path=absent.npz", ["absent.npz"]),
        ("data.clients=401", ["401 clients cannot share 400 rows", "fewer clients"]),
        ("data.partition.minimum=200", ["4 clients with at least 200 rows each need 800", "400", "Lower minimum"]),
        ("data.test=0.9", ["test + valid is 1", "nothing to train on"]),
        ("data.by_user=true", ["does not say who its rows come from"]),
        ("model.kind=lenet5", ["lenet5", "not (1, 8, 8)", "These fit: logistic, mlp"]),
        ("model.kind=resnet", ["model.kind: unknown model 'resnet'", "known:"]),
        ("model={kind='mlp', hidden='wide'}", ["hidden", "whole number"]),
        ('engine.devices=["cuda:0"]', ["engine.devices: 'cuda:0' cannot be used", "CUDA"]),
        ('engine.devices=["gpu0"]', ["engine.devices: 'gpu0' cannot be used", "gpu0"]),
        (
            "engine.kind=gpu",
            ["engine.kind: ", "unknown engine 'gpu' (known: auto, flower-simulation, lanes, local, workers)"],
        ),
    ],
)
def test_what_cannot_work_is_refused_before_a_folder_is_made(recipe: Path, override: str, words: list[str]) -> None:
    if "cuda" in override and torch.cuda.is_available():
        pytest.skip("this machine has what is asked for")
    refused(2, fedquilt("run", recipe, override), *words)
    assert runs(recipe) == []


def test_several_mistakes_are_told_together(recipe: Path) -> None:
    said = fedquilt("run", recipe, "roundz=3", "seed=-1", "oops", "model.kind=resnet")
    refused(2, said, "4 problems", "roundz", "seed", "'oops'", "resnet")


def test_mistakes_as_json(recipe: Path) -> None:
    said = fedquilt("run", recipe, "roundz=3", "--json")
    assert (said.code, said.err) == (2, "")
    assert said.json == {"error": "ConfigError", "message": said.json["message"], "exit_code": 2}
    assert "did you mean 'rounds'?" in said.json["message"]


@pytest.mark.parametrize("command", ["run", "compare", "partition"])
def test_a_missing_recipe_and_a_folder_for_a_recipe(tmp_path: Path, command: str) -> None:
    refused(2, fedquilt(command, tmp_path / "absent.toml"), "There is no file", "absent.toml")
    refused(2, fedquilt(command, tmp_path), "is a folder")


def test_a_file_that_is_no_data(recipe: Path) -> None:
    (recipe.parent / "bad.npz").write_bytes(b"not a zip")
    refused(2, fedquilt("run", recipe, f"data.path={recipe.parent}/bad.npz"), "bad.npz")
    np.savez(recipe.parent / "half.npz", y=np.zeros(5))
    refused(2, fedquilt("run", recipe, f"data.path={recipe.parent}/half.npz"), "half.npz")
    np.savez(recipe.parent / "bare.npz", x=np.zeros((50, 3)))
    refused(2, fedquilt("run", recipe, f"data.path={recipe.parent}/bare.npz"), "the data have none")
    np.savez(recipe.parent / "holes.npz", x=np.full((50, 3, 2), np.nan), y=np.arange(50) % 2)
    refused(2, fedquilt("run", recipe, f"data.path={recipe.parent}/holes.npz"), "NaN")
    assert runs(recipe) == []


def test_a_client_without_data_is_named() -> None:
    with pytest.raises(ValueError, match=r"1 of 2 clients have no training samples: 'empty'.*drop_empty=True"):
        Federation.from_clients({"full": (np.zeros((9, 2)), [0] * 9), "empty": (np.zeros((0, 2)), [])})


def test_a_client_without_data_in_a_recipe(recipe: Path) -> None:
    said = fedquilt("run", recipe, "data.clients=60", "data.partition={kind='dirichlet', alpha=0.05, minimum=0}")
    refused(2, said, "of 60 clients have no training samples")


def test_one_client_works(recipe: Path) -> None:
    said = fedquilt("run", recipe, "data.clients=1", "--json")
    assert said.code == 0
    assert said.json["last"]["clients"] == 1
    assert said.json["last"]["test_accuracy"] > 0.5


# Training that diverges


def test_when_every_client_diverges_the_run_stops_and_keeps_what_it_had(recipe: Path) -> None:
    schedule = "train.schedule={kind='step_down', milestones=[2], factor=1e39}"
    said = fedquilt("run", recipe, "rounds=5", schedule)
    refused(3, said, "of 4 clients returned a usable reply, at least 2", "non-finite", "smaller learning rate")
    (folder,) = runs(recipe)
    played = len(lines(folder / "metrics" / "rounds.jsonl"))
    assert 2 <= played < 5
    kept = sorted(p.name[:12] for p in (folder / "snapshots").iterdir())
    assert kept == [f"round-{n:06d}" for n in (played - 1, played)]
    refused(3, fedquilt("resume", folder), "usable reply")
    assert sorted(p.name[:12] for p in (folder / "snapshots").iterdir()) == kept


def test_when_some_clients_diverge_the_run_goes_on_and_the_ledger_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    method = Corrupting(base=fedavg(), client=1, kind="nan")
    last = None
    for last in run(method, points(10, 20, 30), rounds=3, engine=Local(), folder=folder):
        assert (last.metrics["quarantined"], last.metrics["clients"]) == (1, 2)
    assert last is not None
    ledger = lines(folder / "dropped.jsonl")
    assert [(r["round"], r["client"], r["exchange"]) for r in ledger] == [(k, 1, "train") for k in (1, 2, 3)]
    assert all("non-finite numbers" in r["reason"] for r in ledger)
    assert json.loads((folder / "result.json").read_text())["quarantined"] == 3


def test_clients_that_diverge_are_told_in_the_terminal(recipe: Path) -> None:
    """One client's inputs are huge, so that its loss alone overflows."""
    x, y = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32), np.arange(90) % 2
    user = np.repeat([0, 1, 2], 30)
    x[user == 1] *= 1e30
    np.savez(recipe.parent / "mixed.npz", x=x, y=y, user=user)
    data = [f"data.path={recipe.parent}/mixed.npz", "data.by_user=true", "data.clients=3", "data.limit=90"]
    data.append("data.standardise=false")
    said = fedquilt("run", recipe, *data)
    assert said.code == 0, said
    assert "note: round 1: client 1 left out: non-finite numbers in the upload" in said.out
    assert "3 replies were dropped" in said.out
    assert "dropped.jsonl says why" in said.out


# Disks that are full, read-only, or gone


@contextmanager
def broken(name: str, code: int, after: int) -> Iterator[None]:
    """From the given call on, a function of ``os`` fails as a bad disk would make it."""
    real, count = getattr(os, name), [0]

    def fails(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    with patch.object(os, name, fails):
        yield


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A real limit of the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def finished(recipe: Path, *settings: str) -> dict[str, Any]:
    """The result of the same run on a good disk."""
    said = fedquilt("run", recipe, *settings, f"output.folder={recipe.parent}/good", "--json")
    assert said.code == 0, said
    found: dict[str, Any] = said.json
    return found


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "The disk is full: free some space"), (errno.EROFS, "read-only"), (errno.EIO, "Check the folder")],
)
@pytest.mark.parametrize("after", [6, 11, 25, 26, 27])
def test_a_disk_that_fails_during_a_run_costs_nothing_but_time(recipe: Path, code: int, words: str, after: int) -> None:
    settings = ["method=local_only", "rounds=4"]
    with broken("fsync", code, after):
        said = fedquilt("run", recipe, *settings)
    (folder,) = runs(recipe)
    refused(4, said, f"Cannot write below '{folder}'", words, f"go on with 'fedquilt resume {folder}'")
    assert not list(folder.rglob("*.part"))
    again = fedquilt("resume", folder, "--json")
    assert again.code == 0, again
    assert again.json["digest"] == finished(recipe, *settings)["digest"]
    assert [r["round"] for r in lines(folder / "metrics" / "rounds.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [2000, 4000, 9000, 12_000])
def test_files_that_may_not_grow_end_a_run_cleanly(recipe: Path, size: int) -> None:
    settings = ["method=local_only", "rounds=12"]
    with no_file_larger_than(size):
        said = fedquilt("run", recipe, *settings)
    (folder,) = runs(recipe)
    refused(4, said, "File too large", "raise the limit", f"fedquilt resume {folder}")
    again = fedquilt("resume", folder, "--json")
    assert again.code == 0, again
    assert again.json["digest"] == finished(recipe, *settings)["digest"]
    assert [r["round"] for r in lines(folder / "metrics" / "rounds.jsonl")] == list(range(1, 13))


def test_a_disk_without_room_for_anything(recipe: Path) -> None:
    with no_file_larger_than(100):
        said = fedquilt("run", recipe)
    refused(4, said, "File too large", "raise the limit")
    assert "resume" not in said.err  # there is nothing to go on with
    assert fedquilt("run", recipe).code == 0


def test_a_folder_that_cannot_be_made(recipe: Path) -> None:
    (recipe.parent / "file").touch()
    said = fedquilt("run", recipe, f"output.folder={recipe.parent}/file/runs")
    refused(4, said, "Cannot write below", "Not a directory")
    assert "resume" not in said.err  # there is nothing to go on with
    refused(4, fedquilt("run", recipe, f"output.folder={'x' * 300}"), "Cannot write below", "File name too long")
    with patch.object(Path, "mkdir", side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))):
        refused(4, fedquilt("run", recipe), "Read-only file system", "choose another output.folder")
    with patch.object(Path, "mkdir", side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES))):
        refused(4, fedquilt("compare", recipe), "Permission denied", "choose another output.folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(recipe: Path) -> None:
    top = recipe.parent / "runs"
    top.mkdir(mode=0o500)
    refused(4, fedquilt("run", recipe), "Permission denied", "choose another output.folder")


# Resuming


@pytest.fixture
def stopped(recipe: Path) -> Path:
    """The folder of a run that stopped after its third round of five."""
    with broken("fsync", errno.ENOSPC, 40):  # a round has some dozen of them
        said = fedquilt("run", recipe, "method=local_only", "rounds=5")
    (folder,) = runs(recipe)
    names = sorted(p.name[:12] for p in (folder / "snapshots").iterdir())
    assert (said.code, names) == (4, ["round-000002", "round-000003"]), said
    return folder


def newest(folder: Path) -> Path:
    """The newest snapshot."""
    return max((folder / "snapshots").iterdir())


@pytest.mark.parametrize("how", ["truncated", "flipped", "client file"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_damaged_snapshot_gives_way_to_the_one_before(recipe: Path, stopped: Path, how: str, as_json: bool) -> None:
    bad = newest(stopped)
    if how == "client file":
        name = file_of(2, entries_of(unpack(bad.read_bytes()).slots)[2])
        (stopped / "clients" / name).write_bytes(b"x")
    elif how == "truncated":
        os.truncate(bad, bad.stat().st_size - 1)
    else:
        content = bytearray(bad.read_bytes())
        content[len(content) // 2] ^= 4
        bad.write_bytes(content)
    said = fedquilt("resume", stopped, *(["--json"] if as_json else []))
    assert said.code == 0, said
    told = " ".join(said.json["notes"]) if as_json else said.out
    assert f"snapshot {bad.name} cannot be used" in told
    digest = json.loads((stopped / "result.json").read_text())["digest"]
    assert digest == finished(recipe, "method=local_only", "rounds=5")["digest"]
    assert [r["round"] for r in lines(stopped / "metrics" / "rounds.jsonl")] == [1, 2, 3, 4, 5]


def test_when_all_snapshots_are_damaged_nothing_is_deleted(stopped: Path) -> None:
    for path in (stopped / "snapshots").iterdir():
        os.truncate(path, 100)
    before = {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()}
    refused(4, fedquilt("resume", stopped), "No snapshot of", "can be used", "truncated or damaged")
    assert {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file()} == before


def test_a_folder_whose_settings_were_changed_is_refused(stopped: Path) -> None:
    config = stopped / "config.toml"
    config.write_text(config.read_text().replace("batch_size = 20", "batch_size = 10"))
    refused(4, fedquilt("resume", stopped), "it belongs to another method, seed or schedule")


def test_a_folder_whose_data_were_changed_is_refused(recipe: Path) -> None:
    file = recipe.parent / "own.npz"
    x, y = np.random.default_rng(0).normal(size=(400, 3)), np.arange(400) % 2
    np.savez(file, x=x, y=y)
    with broken("fsync", errno.ENOSPC, 20):
        assert fedquilt("run", recipe, f"data.path={file}", "rounds=9").code == 4
    np.savez(file, x=x + 1, y=y)
    refused(4, fedquilt("resume", *runs(recipe)), "the data have changed since the run started")


def test_what_is_not_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    refused(2, fedquilt("resume", tmp_path), "is not the folder of a run", "config.toml")
    refused(2, fedquilt("resume", tmp_path / "absent"), "There is no folder")


def test_a_finished_run_is_told_again_and_not_run_again(recipe: Path) -> None:
    first = fedquilt("run", recipe, "--json").json
    before = {p: p.stat().st_mtime_ns for p in Path(first["folder"]).rglob("*")}
    said = fedquilt("resume", first["folder"])
    assert said.code == 0
    assert "This run is already finished" in said.out
    assert first["digest"] in said.out
    assert fedquilt("run", recipe, "--json").json["digest"] == first["digest"]
    assert {p: p.stat().st_mtime_ns for p in Path(first["folder"]).rglob("*")} == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda p: p.write_text('{"dig')])
def test_a_finished_run_that_lost_its_result_writes_it_again(recipe: Path, damage: Any) -> None:
    first = fedquilt("run", recipe, "--json").json
    damage(Path(first["folder"]) / "result.json")
    again = fedquilt("resume", first["folder"])
    assert again.code == 0, again
    assert f"state {first['digest']}" in again.out
    found = json.loads((Path(first["folder"]) / "result.json").read_text())
    assert {k: found[k] for k in ("digest", "best", "last", "bytes_up")} == {
        k: first[k] for k in ("digest", "best", "last", "bytes_up")
    }


def test_a_folder_that_another_process_runs_is_left_alone(recipe: Path) -> None:
    from fedquilt.storage.folder import RunFolder

    folder = Path(fedquilt("run", recipe, "--json").json["folder"])
    (folder / "result.json").unlink()
    holder = RunFolder(folder)
    holder.open()
    refused(4, fedquilt("resume", folder), "Another process is running")
    refused(4, fedquilt("run", recipe, "--fresh"), "Another process is running")
    holder.close()
    assert fedquilt("run", recipe, "--fresh").code == 0


def test_a_client_whose_own_model_breaks_is_left_out() -> None:
    """Nothing of local-only training travels, so only the client itself can tell that its model is no longer finite."""
    method = LocalOnly(fedavg().net, optimizer=SGD(3e38), batch_size=2)
    with pytest.raises(RoundError, match="non-finite numbers in the client's own state"):
        list(run(method, points(8, 8), rounds=5, engine="local"))
