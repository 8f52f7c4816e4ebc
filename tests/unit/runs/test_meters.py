"""What a run writes about its phases: on every engine, over a resume, with and without a virtual clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.links import Network
from fedquilt.core.net import Net
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.methods.fedavg import FedAvg
from fedquilt.metrics.energy import Meter
from fedquilt.models.registry import make
from fedquilt.report import write_report
from fedquilt.rounds.phases import PHASES
from fedquilt.runs.play import Run
from fedquilt.runs.virtual_clock import timed
from fedquilt.storage.folder import RunFolder
from helpers.command import fedquilt, lines, small
from helpers.ticking import Ticking
from helpers.toy import digits

LINKS = Network(uplink_mbps=1, downlink_mbps=4, latency_ms=20, seconds_per_step=0.01, spread=0.3)


def played(folder: Path, engine: Any, network: Network | None = LINKS, rounds: int = 2, **more: Any) -> list[Any]:
    """The snapshots of a run in a folder."""
    method = FedAvg(objective=Net(make("mlp", (1, 8, 8), 10, hidden=(16,))), batch_size=64)
    made = Run(method, digits(3), rounds=rounds, engine=engine, folder=RunFolder(folder), network=network, **more)
    return [(s.metrics, s.digest()) for s in made]


def test_all_engines_write_the_same_phases_and_the_same_virtual_clock(tmp_path: Path, two_workers: Workers) -> None:
    engines = {"local": Local(), "workers": two_workers, "lanes": Lanes(2)}
    found = {name: played(tmp_path / name, engine) for name, engine in engines.items()}
    for name, rounds in found.items():
        rows = lines(tmp_path / name / "metrics/phases.jsonl")
        assert {(r["exchange"], r["phase"]) for r in rows} == {
            (None, "aggregate"),
            (None, "evaluate"),
            *(("train", p) for p in PHASES if p != "evaluate"),
        }
        for metrics, _ in rounds:
            here = [r for r in rows if r["round"] == metrics["round"]]
            assert sum(r["seconds"] for r in here if r["phase"] != "evaluate") == pytest.approx(
                metrics["train_seconds"], rel=1e-9
            )
            assert sum(metrics[f"seconds_{p}"] for p in PHASES) <= metrics["seconds"]
            assert {r["phase"]: r["bytes"] for r in here if "bytes" in r} == {
                "broadcast": metrics["bytes_down"],
                "upload": metrics["bytes_up"],
            }
            assert all(r["memory"] > 10**7 for r in here)
    clocks = {name: [m["virtual_seconds"] for m, _ in rounds] for name, rounds in found.items()}
    assert clocks["workers"] == clocks["local"] == clocks["lanes"]
    assert 0 < clocks["local"][0] < clocks["local"][1]
    assert found["workers"][-1][1] == found["local"][-1][1]


def test_the_virtual_clock_changes_no_number_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole", Local(), rounds=3)
    plain = played(tmp_path / "plain", Local(), None, rounds=3)
    assert [d for _, d in plain] == [d for _, d in whole]
    assert "virtual_seconds" not in plain[-1][0]
    played(tmp_path / "cut", Local(), rounds=1)
    again = played(tmp_path / "cut", Local(), rounds=3)
    assert again[-1][0]["virtual_seconds"] == whole[-1][0]["virtual_seconds"]
    assert again[-1][1] == whole[-1][1]
    whole_rows, cut_rows = (
        [
            (r["round"], r["phase"], r["virtual_seconds"])
            for r in lines(tmp_path / n / "metrics/phases.jsonl")
            if "virtual_seconds" in r
        ]
        for n in ("whole", "cut")
    )
    assert cut_rows == whole_rows
    result = json.loads((tmp_path / "whole/result.json").read_text())
    assert result["virtual_seconds"] == whole[-1][0]["virtual_seconds"]


def test_joules_by_phase_add_up_to_those_of_the_run(tmp_path: Path) -> None:
    meter = Meter([Ticking()])  # type: ignore[list-item]
    played(tmp_path / "run", Local(), None, meter=meter)
    rows = [r for r in lines(tmp_path / "run/metrics/phases.jsonl") if "joules" in r]
    sums: dict[str, float] = {}
    for row in rows:
        sums[row["phase"]] = sums.get(row["phase"], 0.0) + row["joules"]
    assert sums == meter.spent
    assert {"train", "aggregate", "evaluate"} == set(sums)


def test_the_report_shows_phases_and_the_virtual_clock(tmp_path: Path) -> None:
    played(tmp_path / "run", Local())
    (tmp_path / "run/config.toml").write_text('name = "x"\nrounds = 2\n[method]\nkind = "fedavg"\n')
    text = write_report(tmp_path / "run").read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    bars, table = next(p for p in data["panels"] if p["key"] == "seconds")["blocks"]
    kinds = {v["keys"]["seconds of"]: v["bars"] for v in bars["variants"]}
    assert set(kinds) == {
        "wall clock by phase",
        "wall clock by exchange and phase",
        "clients' work by exchange",
        "virtual clock by exchange",
    }
    last = lines(tmp_path / "run/metrics/rounds.jsonl")[-1]
    assert sum(b["value"] for b in kinds["virtual clock by exchange"]) == pytest.approx(last["virtual_seconds"])
    train = next(r for r in table["rows"] if r["phase"] == "train")
    assert train["memory"] > 10
    names = next(p for p in data["panels"] if p["key"] == "curves")["blocks"][0]["names"]
    assert "virtual_seconds" in names


def test_a_run_can_be_timed_again_on_other_links(tmp_path: Path) -> None:
    """The clock of the run, worked out from its logs; and with a tenth of the uplink, ten times its uploads."""
    path = small(tmp_path)
    links = ["network.uplink_mbps=1", "network.seconds_per_step=0.01"]
    folder = Path(fedquilt("run", path, *links, "--json").json["folder"])
    last = lines(folder / "metrics/rounds.jsonl")[-1]
    (same,) = timed(folder)
    assert same["virtual_seconds"] == pytest.approx(last["virtual_seconds"], rel=1e-12)
    sent = sum(r["virtual_seconds"] for r in lines(folder / "metrics/phases.jsonl") if r["phase"] == "upload")
    (slow,) = fedquilt("clock", folder, "uplink_mbps=0.1", "--target", 0.01, "--json").json
    assert slow["virtual_seconds"] == pytest.approx(last["virtual_seconds"] + 9 * sent)
    assert slow["rounds_to_target"] == 1
    assert 0 < slow["to_target"] < slow["virtual_seconds"]
    assert fedquilt("clock", folder, "--target", 1.0).out.count("never") >= 1
    bad = fedquilt("clock", folder, "uplink=0.1")
    assert (bad.code, "did you mean 'uplink_mbps'?" in bad.err) == (2, True)
    measured = fedquilt("clock", folder, "seconds_per_step=1e9", "--json").json[0]["virtual_seconds"]
    assert measured > 1e9
