"""Flower's programs report to nobody, unless the user says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt.deploy.flower_command import environment

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def test_telemetry_and_update_checks_are_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in QUIET:
        monkeypatch.delenv(name, raising=False)
    found = environment(tmp_path)
    assert {name: found[name] for name in QUIET} == QUIET
    assert found["FLWR_HOME"] == str(tmp_path)


def test_who_wants_telemetry_gets_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    assert environment(tmp_path)["FLWR_TELEMETRY_ENABLED"] == "1"
