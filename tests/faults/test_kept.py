"""Folders of runs that an earlier version left half-way are gone on with, to the digest that it would have had."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load, parse
from fedquilt.engines.local import Local
from fedquilt.records.record import pack, unpack
from fedquilt.registry import METHODS
from fedquilt.runs.build import run_of
from fedquilt.runs.outputs import environment, same_kind
from fedquilt.runs.snapshot import Snapshot

KEPT = sorted((Path(__file__).parents[1] / "kept").glob("*.tar.gz"))
SOME = (
    *("apfl", "creff", "fedavg", "fedavgm", "fedloge", "fedproto", "hgls", "scaffold", "localize_stitch", "podfcssv"),
    *("cgpfl", "feddrift", "fedgroup", "hcfl", "ifca"),
)
OTHERS = sorted(METHODS.keys() - {"fedbn", *SOME})


@pytest.fixture(scope="module", params=KEPT, ids=lambda path: path.name.removesuffix(".tar.gz"))
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked folders of one version."""
    place = tmp_path_factory.mktemp("kept")
    with tarfile.open(request.param) as pack_:
        pack_.extractall(place, filter="data")
    return place


@pytest.mark.parametrize("kind", [*SOME, *(pytest.param(k, marks=pytest.mark.slow) for k in OTHERS)])
def test_a_run_of_an_earlier_version_goes_on(kept: Path, kind: str) -> None:
    facts: dict[str, Any] = json.loads((kept / "facts.json").read_text())
    folder = kept / kind
    played = list(run_of(load(folder / "config.toml"), Local(), folder))
    assert [snapshot.round for snapshot in played] == [3, 4]
    if same_kind(facts["environment"], environment()):  # elsewhere the first two rounds would have other last digits
        assert as_0_1_said(played[-1]).digest() == facts["digests"][kind]


def as_0_1_said(last: Snapshot) -> Snapshot:
    """The same with the criterion of its clusters as 0.1 called it: only the word is another."""
    clusters = getattr(last.state, "clusters", None)
    if getattr(clusters, "criterion", None) == "silhouette":
        last._rounds.state = replace(last.state, clusters=replace(clusters, criterion="auto"))
    return last


def test_frames_of_an_earlier_version_are_read_and_written_as_they_are(kept: Path) -> None:
    frames = sorted(kept.rglob("snapshots/*.safetensors")) + sorted(kept.rglob("clients/*/*.safetensors"))
    for entry in METHODS.values():
        entry.load()  # records are known once their modules are imported
    assert len(frames) > 100
    for path in frames:
        bytes_ = path.read_bytes()
        assert pack(unpack(bytes_), checksum=b'"crc32"' in bytes_[:40]) == bytes_, path


def test_what_0_1_called_auto_is_silhouette_now(kept: Path) -> None:
    asked = load(kept / "hcfl" / "config.toml")
    assert asked.method.options == {"criterion": "silhouette"}
    today = {c: parse({"method": {"kind": "hcfl", "criterion": c}}).identity() for c in ("auto", "silhouette")}
    assert parse({"method": {"kind": "hcfl"}}).identity() == today["auto"] != today["silhouette"]
