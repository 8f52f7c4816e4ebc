"""Logs as Parquet: the same rows as the lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from fedquilt.config.config import parse
from fedquilt.engines.local import Local
from fedquilt.runs.build import run_of
from fedquilt.storage.logs import write_tables
from helpers.command import lines


def without_none(value: Any) -> Any:
    """Arrow fills every field that any row has."""
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list) else value


def test_a_finished_run_has_every_log_as_parquet(tmp_path: Path) -> None:
    config = parse({"rounds": 2, "data": {"clients": 2, "limit": 200}, "model": "logistic", "evaluate": {"every": 2}})
    list(run_of(config, Local(), tmp_path / "run"))
    place = tmp_path / "run/metrics"
    logs = sorted(p.stem for p in place.glob("*.jsonl"))
    assert sorted(p.stem for p in place.glob("*.parquet")) == logs
    assert {"rounds", "clients", "client_updates", "phases", "traffic"} <= set(logs)
    for name in logs:
        found = parquet.read_table(place / f"{name}.parquet").to_pylist()
        assert without_none(found) == without_none(lines(place / f"{name}.jsonl"))
    assert not list(place.glob("*.part"))


def test_mixed_types_become_texts(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    rows = [{"round": 1, "client": 3, "parts": {}}, {"round": 2, "client": ["a", 1], "parts": {}}]
    (tmp_path / "metrics/client_updates.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    write_tables(tmp_path)
    found = parquet.read_table(tmp_path / "metrics/client_updates.parquet").to_pylist()
    assert [(r["round"], json.loads(r["client"]), json.loads(r["parts"])) for r in found] == [
        (1, 3, {}),
        (2, ["a", 1], {}),
    ]


def test_a_log_that_arrow_does_not_take_is_told_and_the_run_ends_well(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise pyarrow.ArrowInvalid("no such type")

    monkeypatch.setattr(parquet, "write_table", refuse)
    config = parse({"rounds": 1, "data": {"clients": 2, "limit": 200}, "model": "logistic"})
    run = run_of(config, Local(), tmp_path / "run")
    list(run)
    assert "metrics/rounds.jsonl could not be written as Parquet: no such type" in run.notes
    assert (tmp_path / "run/result.json").exists()


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys, fedquilt, fedquilt.runs.runner, fedquilt.runs.build; print([m for m in sys.modules if m in %r])"
    packages = ("pyarrow", "tensorboard", "wandb", "mlflow", "optuna", "torch.utils.tensorboard")
    done = subprocess.run([sys.executable, "-c", code % (packages,)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
