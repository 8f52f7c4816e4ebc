"""A run that ends at every single step of its dealings with the disk, one after the other, and goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fedquilt.config.config import Snapshots
from fedquilt.engines.local import Local
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.runs.runner import Run
from fedquilt.storage.folder import RunFolder
from helpers.toy import linear, points

STEPS = ((os, "fsync"), (os, "truncate"), (Path, "replace"), (Path, "unlink"), (Path, "write_bytes"), (Path, "open"))
ROUNDS = 3


class PowerCut(BaseException):
    """Nothing may catch this."""


@contextmanager
def power_cut_at(number: int) -> Iterator[list[int]]:
    """End at the step with this number; the list tells how many there were."""
    count = [0]

    def counted(step: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if count[0] == number:
                raise PowerCut
            count[0] += 1
            return step(*arguments, **options)

        return call

    patches = [patch.object(place, name, counted(getattr(place, name))) for place, name in STEPS]
    for p in patches:
        p.start()
    try:
        yield count
    finally:
        for p in patches:
            p.stop()


def made(folder: Path) -> Run:
    """A short run with client files and a snapshot in every round."""
    return Run(
        LocalOnly(linear()),
        points(10, 20, 30),
        rounds=ROUNDS,
        engine=Local(),
        folder=RunFolder(folder),
        snapshots=Snapshots(every=1, seconds=0),
    )


def digest_of(run: Run) -> str:
    """Play to the end."""
    digest = ""
    for snapshot in run:
        digest = snapshot.digest()
    return digest


@pytest.mark.parametrize("again", [False, True], ids=["once", "and once more soon after"])
def test_a_run_cut_off_at_any_step_goes_on_to_the_same_end(tmp_path: Path, again: bool) -> None:
    digest_of(made(tmp_path / "first"))  # what a process reads once, as its kind of CPU, is read
    with power_cut_at(-1) as count:
        expected = digest_of(made(tmp_path / "calm"))
    rounds = RunFolder(tmp_path / "calm").rows("metrics/rounds.jsonl")
    assert count[0] > 20 * ROUNDS
    for number in range(again, count[0], 3 if again else 1):
        folder = tmp_path / str(number)
        with power_cut_at(number), pytest.raises(PowerCut):
            digest_of(made(folder))
        if again:
            with power_cut_at(number % 17), suppress(PowerCut):  # near the end there may be fewer steps
                digest_of(made(folder))
        run = made(folder)
        assert digest_of(run) == expected, number
        assert run.notes == [], number
        found = RunFolder(folder).rows("metrics/rounds.jsonl")
        assert [r["round"] for r in found] == list(range(1, ROUNDS + 1)), number
        assert [r["test_accuracy"] for r in found] == [r["test_accuracy"] for r in rounds]
        assert (folder / "result.json").exists()
        kept = RunFolder(folder).snapshots()
        assert 2 <= len(kept) <= 3, number  # a third stays when the cut came before it was deleted, at the very end
        assert len(list((folder / "snapshots").iterdir())) == len(kept)
        assert len(list((folder / "clients").rglob("*.safetensors"))) == 3 * len(kept)  # theirs, and no others
