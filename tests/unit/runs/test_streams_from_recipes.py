"""Streams, transforms, unlabelled samples and newcomers, from a recipe to the data and to a run that resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt.config.config import load, parse
from fedquilt.config.data import federations_of
from fedquilt.data import Normalise, Stream, Transforms
from fedquilt.errors import ConfigError, InputError
from fedquilt.runs.build import engine_of, federation_of, run_of
from helpers.command import SMALL, fedquilt, lines, small, untimed

GROUPS = [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
DATA: dict[str, Any] = {"clients": 4, "limit": 600, "partition": "iid"}
STREAM = """
[stream]
kind = "by_class"
groups = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
rounds_per_task = 2
delays = [0, 1]
"""


def stream_of(stream: dict[str, Any], **data: Any) -> Stream:
    found = federation_of(parse({"data": {**DATA, **data}, "stream": stream}))
    assert isinstance(found, Stream)
    return found


def classes(stream: Stream, client: int, round: int) -> set[int]:
    return set(stream.site(client, round).train.whole().y.tolist())


def test_by_class():
    found = stream_of({"kind": "by_class", "groups": GROUPS, "rounds_per_task": 2, "order": [2, 0], "delays": [0, 3]})
    assert [classes(found, 0, r) for r in (0, 1, 2, 9)] == [{6, 7, 8, 9}] * 2 + [{0, 1, 2}] * 2
    assert classes(found, 1, 2) == {6, 7, 8, 9}  # three rounds behind
    again = stream_of({"kind": "by_class", "groups": GROUPS, "rounds_per_task": 1, "recurring": True})
    assert [again.task_at(0, r) for r in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_tasks_can_be_divided_each_by_itself():
    skewed = {"partition": {"kind": "dirichlet", "alpha": 0.05, "minimum": 5}}
    with pytest.raises(InputError, match="have no training samples in task"):
        stream_of({"kind": "by_class", "groups": GROUPS}, **skewed)
    found = stream_of({"kind": "by_class", "groups": GROUPS, "each": True}, **skewed)
    assert found.classes == 10
    for task, group in enumerate(GROUPS):
        assert all(set(found.tasks[task].labels(c).tolist()) <= set(group) for c in found.ids)


def test_drift():
    found = stream_of({"kind": "drift", "at": 2, "shift": {"kind": "rotation", "angles": [180]}})
    before, after = (found.site(1, r).train.whole() for r in (1, 2))
    np.testing.assert_array_equal(np.sort(before.y), np.sort(after.y))
    np.testing.assert_array_equal(np.rot90(before.x.numpy(), 2, (2, 3)), after.x.numpy())
    with pytest.raises(InputError, match=r"give stream\.shift"):
        stream_of({"kind": "drift", "at": 2})
    with pytest.raises(InputError, match="for the kind 'drift'"):
        stream_of({"kind": "by_class", "groups": GROUPS, "shift": "rotation"})


def test_data_sets_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("night", 0), ("day", 200)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((60, 4, 4), value, np.uint8), y=np.arange(60) % 3)
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    found = stream_of({"kind": "datasets", "sources": ["day", "night"], "rounds_per_task": 1})
    assert [float(found.site(0, r).train.whole().x.mean()) for r in (0, 1)] == pytest.approx([200 / 255, 0])


def test_transforms_unlabelled_rows_and_newcomers():
    config = parse(
        {
            "data": {
                **DATA,
                "unlabelled": 0.5,
                "newcomers": 1,
                "transforms": [{"kind": "resize", "size": 6}, "grey_to_rgb", "normalise", "random_flip"],
            }
        }
    )
    part, new = federations_of(config)
    assert (len(part.ids), len(new.ids)) == (3, 1)
    assert isinstance(part.prepare, Transforms)
    assert part.prepare == new.prepare
    step = part.prepare.steps[2]
    assert isinstance(step, Normalise)
    assert len(step.mean) == 3
    whole = [part.site(c, 0) for c in part.ids]
    assert all(s.unlabelled is not None and abs(len(s.unlabelled) - len(s.train)) <= 1 for s in whole)
    rows = np.concatenate([s.inputs.whole().x.numpy() for s in whole])
    assert rows.shape[1:] == (3, 6, 6)
    assert (rows.mean(), rows.std()) == pytest.approx((0, 1), abs=1e-4)  # those of the rows of all that take part


def test_problems_are_told_with_their_place():
    with pytest.raises(ConfigError) as told:
        parse(
            {
                "data": {"transforms": [{"kind": "resize"}, {"kind": "random_crop", "padding": 0}, "flip"]},
                "stream": {"kind": "by_class", "groups": [[]], "rounds": 3},
            }
        )
    text = str(told.value)
    for part in (
        "data.transforms.0.size: missing",
        "data.transforms.1: RandomCrop: padding must be at least 1, got 0",
        "data.transforms.2.kind: unknown transform 'flip'; did you mean",
        "stream.rounds: unknown key for 'by_class'",
        "stream: groups must be one or more lists of classes",
    ):
        assert part in text
    with pytest.raises(ConfigError, match=r"stream.shift.angels: unknown key for 'rotation'"):
        parse({"stream": {"kind": "drift", "at": 1, "shift": {"kind": "rotation", "angels": [1]}}})


def test_a_run_on_a_stream_resumes_exactly(tmp_path: Path):
    text = SMALL.replace("[model]", f"{STREAM}\n[model]").replace("rounds = 3", "rounds = 5")
    text = text.replace("limit = 400", 'limit = 400\ntransforms = ["random_flip"]')
    (tmp_path / "whole").mkdir()
    whole = fedquilt("run", small(tmp_path / "whole", text), "--json")
    assert whole.code == 0, whole
    recipe = small(tmp_path, text)
    config = load(recipe)
    folder = Path(config.output.folder) / config.folder_name
    steps = iter(run_of(config, engine_of(config), folder))
    for _ in range(3):  # one round into the second task
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    resumed = fedquilt("resume", folder, "--json")
    assert resumed.json["digest"] == whole.json["digest"]
    logs = [untimed(lines(Path(f) / "metrics" / "rounds.jsonl")) for f in (folder, whole.json["folder"])]
    assert logs[0] == logs[1]
    there = fedquilt(
        "run", recipe, "engine.kind=workers", "engine.processes=2", f"output.folder={tmp_path}/w", "--json"
    )
    assert there.json["digest"] == whole.json["digest"]


def test_the_command_shows_every_task(tmp_path: Path):
    recipe = small(tmp_path, SMALL.replace("[model]", f"{STREAM}\n[model]"))
    said = fedquilt("partition", recipe, "--plot", tmp_path / "split.png", "--json")
    assert said.code == 0, said
    assert [t["classes"] for t in said.json["tasks"]] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert said.json["stages"] == [{"rounds": "1-2", "task": 0}, {"rounds": "3-", "task": 1}]
    assert said.json["delays"] == {"1": 1, "3": 1}
    assert [Path(t["plot"]).name for t in said.json["tasks"]] == ["split-task0.png", "split-task1.png"]
    assert all(Path(t["plot"]).is_file() for t in said.json["tasks"])
    words = fedquilt("partition", recipe, "--plot", tmp_path / "split.png").out
    assert "rounds 1-2: task 0 (classes 0-4)" in words
    assert "rounds 3-: task 1 (classes 5-9)" in words


def test_a_comparison_on_a_stream(tmp_path: Path):
    recipe = small(tmp_path, SMALL.replace("[model]", f"{STREAM}\n[model]"))
    said = fedquilt("compare", recipe, "compare.seeds=[0]", "compare.methods=['fedavg']", "--json")
    assert said.code == 0, said
    assert 0 < said.json["majority_class"] < 1
