"""Joules from a tree of files like the kernel's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.metrics import energy
from fedquilt.metrics.energy import Meter, devices, joules, packages, per_change
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.energy import Energy, change_in
from fedquilt.runs.runner import Run
from fedquilt.storage.folder import RunFolder
from helpers.command import lines
from helpers.ticking import Ticking
from helpers.toy import fedavg, points

SPAN = 262143328850


def domain(root: Path, folder: str, name: str, counter: int) -> Path:
    """One domain as the kernel shows it."""
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{SPAN}\n")
    (place / "energy_uj").write_text(f"{counter}\n")
    return place / "energy_uj"


def test_a_counter_that_starts_again() -> None:
    assert joules(262143000000, 1000, SPAN) == pytest.approx(0.329850)  # 262143328850 - 262143000000 + 1000 µJ
    assert joules(5_000_000, 8_200_000, SPAN) == pytest.approx(3.2)


def test_joules_per_change() -> None:
    assert per_change(3.2, 0.8) == pytest.approx(4.0)
    assert per_change(3.2, 0.0) is None


def test_packages_only_and_each_once(tmp_path: Path) -> None:
    first = domain(tmp_path, "intel-rapl:0", "package-0", 262143000000)
    domain(tmp_path, "intel-rapl:0:0", "core", 5)
    domain(tmp_path, "intel-rapl:0:1", "dram", 5)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 0)
    domain(tmp_path, "intel-rapl:2", "psys", 5)
    domain(tmp_path, "intel-rapl-mmio:0", "package-0", 5)
    (tmp_path / "intel-rapl:3").mkdir()  # a domain without files
    found = packages(tmp_path)
    assert [rapl.file for rapl in found] == [first, second]
    meter = Meter(found)
    with meter.phase("train"):
        first.write_text("1000\n")
        second.write_text("2000000\n")
    assert meter.source == "rapl"
    assert meter.spent == {"train": pytest.approx(2.329850)}


def test_unreadable_counters_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", 1).write_text("secret")  # what cannot be read as a number
    assert packages(tmp_path) == []
    assert packages(tmp_path / "nowhere") == []
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = Meter.here()
    with meter.phase("train"):
        pass
    assert (meter.source, meter.spent) == ("none", {})


def test_a_counter_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    file = domain(tmp_path, "intel-rapl:0", "package-0", 1)
    meter = Meter(packages(tmp_path))
    with meter.phase("train"):
        file.unlink()
    assert meter.spent == {}


def test_devices_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trouble(Exception):
        pass

    readings = iter([1000, 1000, 4200])

    def energy_of(handle: int) -> int:
        if handle == 1:
            raise Trouble  # an old device does not count
        return next(readings)

    fake = SimpleNamespace(
        NVMLError=Trouble,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetTotalEnergyConsumption=energy_of,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    found = devices()
    assert len(found) == 1
    meter = Meter(found)
    with meter.phase("train"):
        pass
    assert (meter.source, meter.spent) == ("nvml", {"train": pytest.approx(3.2)})  # millijoules


def played(folder: Path, meter: Meter | None, rounds: int = 2) -> Run:
    run = Run(
        fedavg(), points(8, 8), rounds=rounds, engine=Local(), folder=RunFolder(folder), identity="x", meter=meter
    )
    for _ in run:
        pass
    return run


def test_a_run_counts_phases_and_updates(tmp_path: Path) -> None:
    counter: Any = Ticking()
    run = played(tmp_path / "run", Meter([counter]))
    result = run.energy.result()
    assert set(result["joules"]) == {"train", "aggregate", "evaluate"}
    assert all(spent > 0 for spent in result["joules"].values())
    updates = lines(tmp_path / "run" / "metrics" / "client_updates.jsonl")
    assert [v["joules"] for v in updates] == [1.0] * 4  # one look before and one after each
    assert all(v["joules_per_change"] == pytest.approx(1 / v["model_change"]) for v in updates)
    changes = sum(v["model_change"] for v in updates)
    assert result["joules_per_model_change"] == pytest.approx(4 / changes)


def test_energy_goes_on_after_an_interruption(tmp_path: Path) -> None:
    run = Run(
        fedavg(),
        points(8, 8),
        rounds=3,
        engine=Local(),
        folder=RunFolder(tmp_path),
        identity="x",
        meter=Meter([Ticking()]),
    )  # type: ignore[list-item]
    steps = iter(run)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    first = run.energy.result()["joules"]["train"]
    assert played(tmp_path, Meter([Ticking()]), 3).energy.result()["joules"]["train"] > 2 * first  # type: ignore[list-item]


def test_measuring_changes_no_number_and_absence_costs_nothing(tmp_path: Path) -> None:
    engine = Local()
    assert Energy(engine, Meter()).engine is engine
    counted = played(tmp_path / "a", Meter([Ticking()]))  # type: ignore[list-item]
    plain = played(tmp_path / "b", Meter())
    assert plain.energy.result() == {"source": "none", "note": "not measurable here"}
    digests = [(tmp_path / n / "result.json").read_text().split('"digest": ')[1][:66] for n in "ab"]
    assert digests[0] == digests[1]
    assert counted.progress["last"]["test_accuracy"] == plain.progress["last"]["test_accuracy"]
    assert "joules" not in lines(tmp_path / "b" / "metrics" / "client_updates.jsonl")[0]


def test_the_change_of_an_upload() -> None:
    import torch

    from fedquilt.methods.fedavg import Upload
    from fedquilt.records.record import pack
    from fedquilt.rounds.client import Wire

    delta: Params = {"w": torch.tensor([0.6, 0.8])}
    assert change_in(pack(Wire(3, Upload(delta)), compact=True)) == pytest.approx(1.0)
    assert change_in(pack(Wire(3, None), compact=True)) is None
    assert change_in(pack(Wire(3, Upload({"w": torch.tensor([float("nan")])})), compact=True)) is None
    assert change_in(pack("no upload", compact=True)) is None
    assert change_in(b"no frame") is None
    assert change_in(pack(Wire(3, Upload(delta)))) is None  # nobody sends that form


def test_a_meter_hides_no_deadline() -> None:
    class Hurried(Local):
        def seconds_left(self, client: Any) -> float:
            return -1.0 if client == 1 else 60.0

    meter = Meter([Ticking()])  # type: ignore[list-item]
    for engine in (Hurried(), Energy(Hurried(), meter).engine):
        log = Rounds(fedavg(), points(8, 8), engine, Seed(0)).play()
        assert [(q.client, q.reason.split(":")[0]) for q in log.quarantined] == [(1, "late")]
