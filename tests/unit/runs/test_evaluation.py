"""Numbers of a round, worked out by hand; what is scored when; what steers a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedquilt.config.config import EvaluationSettings, Snapshots, Stop
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.on_base import OnBase
from fedquilt.metrics.classify import Scores
from fedquilt.metrics.evaluation import client_rows, score_row, summarise, worst_tenth
from fedquilt.records.record import pack
from fedquilt.runs.runner import Run, Snapshot
from fedquilt.storage.folder import RunFolder
from helpers.toy import fedavg, linear, points


def scores(loss: float, support: list[int], correct: list[int], called: list[int]) -> Scores:
    """A client's counts."""
    return Scores(sum(support), loss, torch.tensor(support), torch.tensor(correct), torch.tensor(called))


# A: 3 of 4 right, classes 2/2 and 1/2. B: 1 of 1 right, one class. Only A has validation samples.
A = scores(2.0, [2, 2, 0], [2, 1, 0], [2, 1, 1])
B = scores(0.5, [0, 1], [0, 1], [0, 1])  # its model has not heard of a third class
EVALUATIONS: dict[Any, Any] = {
    "a": {"deployed": {"test": A, "valid": B}, "global": {"test": B}},
    "b": {"deployed": {"test": B}},
}


def test_the_numbers_of_an_evaluation_by_hand() -> None:
    numbers = summarise(EVALUATIONS)
    assert numbers["test_accuracy"] == pytest.approx((3 / 4 + 1) / 2)
    assert numbers["test_accuracy_pooled"] == pytest.approx((3 + 1) / (4 + 1))
    assert numbers["test_accuracy_std"] == pytest.approx(1 / 8)
    assert numbers["test_accuracy_worst10"] == pytest.approx(3 / 4)
    assert numbers["test_balanced_accuracy"] == pytest.approx(((2 / 2 + 1 / 2) / 2 + 1) / 2)
    # A's F1 by class: 2*2/(2+2), 2*1/(2+1), and 0 for the class it called and does not have
    assert numbers["test_macro_f1"] == pytest.approx(((1 + 2 / 3 + 0) / 3 + 1) / 2)
    assert numbers["test_loss"] == pytest.approx((2.0 / 4 + 0.5) / 2)
    assert numbers["valid_accuracy"] == 1.0
    assert numbers["global_test_accuracy"] == 1.0
    assert not any(name.startswith("global_valid") for name in numbers)


def test_the_numbers_agree_with_those_of_a_single_score() -> None:
    found = score_row(A)
    expected = {"rows": 4, "accuracy": A.accuracy, "balanced_accuracy": 3 / 4, "macro_f1": 5 / 9, "loss": A.loss}
    assert found == pytest.approx(expected)


def test_rows_per_client_model_and_split() -> None:
    rows = client_rows(7, EVALUATIONS)
    keys = [(r["round"], r["client"], r["model"], r["split"]) for r in rows]
    assert keys == [
        (7, "a", "deployed", "test"),
        (7, "a", "deployed", "valid"),
        (7, "a", "global", "test"),
        (7, "b", "deployed", "test"),
    ]
    assert [r["accuracy"] for r in rows] == [0.75, 1.0, 1.0, 1.0]
    json.dumps(rows)
    assert client_rows(7, {}) == []
    assert summarise({}) == {}


@pytest.mark.parametrize(
    ("accuracy", "worst"),
    [
        ([0.5], 0.5),
        ([0.9, 0.1, 0.5], 0.1),
        ([k / 10 for k in range(10)], 0.0),
        ([1 - k / 10 for k in range(11)], 0.05),  # eleven clients: the worst tenth is two
        ([k / 20 for k in range(20)], (0 + 0.05) / 2),
        ([k / 21 for k in range(21)], (0 + 1 + 2) / 21 / 3),
    ],
)
def test_the_worst_tenth_is_rounded_up(accuracy: list[float], worst: float) -> None:
    assert worst_tenth(np.array(accuracy)) == pytest.approx(worst)


# Runs


@dataclass
class Script:
    """A score that gives planned validation and test accuracies, round by round, out of 100 rows."""

    valid: list[int]
    test: list[int]
    calls: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, predict: Any, params: Any, table: Any) -> Scores:
        kind = len(table)
        round = sum(1 for k, _ in self.calls if k == kind)
        self.calls.append((kind, round))
        right = (self.valid if kind == VALID else self.test)[round]
        return scores(1.0, [100], [right], [100])


class Losing(Script):
    """The same numbers as losses."""

    def __call__(self, predict: Any, params: Any, table: Any) -> Scores:
        found = super().__call__(predict, params, table)
        return replace(found, loss_sum=float(found.correct.sum()))


VALID, TEST = 4, 6  # how the two evaluations are told apart: by their rows


def one_client() -> Federation:
    """One client whose validation and test samples differ in number."""
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(20, 2, generator=draw), torch.arange(20) % 2
    cut = {"train": slice(0, 10), "valid": slice(10, 10 + VALID), "test": slice(14, 14 + TEST)}
    return Federation.from_clients({"a": {name: (x[rows], y[rows]) for name, rows in cut.items()}}, classes=2)


def scripted(
    valid: list[int], test: list[int], folder: Path, kind: type[Script] = Script, **options: Any
) -> tuple[list[Snapshot], dict[str, Any]]:
    """A run with planned scores; its snapshots and its result."""
    made = Run(
        LocalOnly(linear()),
        one_client(),
        rounds=len(valid),
        engine=Local(),
        score=kind(valid, test),
        folder=RunFolder(folder),
        **options,
    )
    return list(made), json.loads((folder / "result.json").read_text())


def test_the_best_round_is_chosen_by_validation_not_by_test(tmp_path: Path) -> None:
    _, result = scripted([50, 80, 70, 80, 60], [10, 20, 99, 30, 40], tmp_path)
    assert (result["best_round"], result["rounds"], result["stopped_early"]) == (2, 5, False)  # a tie keeps the first
    assert result["best"]["valid_accuracy"] == 0.8
    assert result["best"]["test_accuracy"] == 0.2
    assert result["last"]["test_accuracy"] == 0.4


def test_early_stop_counts_evaluations_without_growth_on_validation(tmp_path: Path) -> None:
    snapshots, result = scripted([50, 60, 60, 59, 70, 70], [1, 2, 3, 4, 5, 6], tmp_path / "a", stop=Stop(patience=2))
    assert len(snapshots) == 4  # 3 and 4 did not grow; growth of the test numbers does not count
    assert (result["rounds"], result["stopped_early"], result["best_round"]) == (4, True, 2)
    _, result = scripted([50, 60, 60, 61, 60, 60, 70], [0] * 7, tmp_path / "b", stop=Stop(patience=3))
    assert (result["rounds"], result["stopped_early"], result["best_round"]) == (7, False, 7)


def test_growth_below_min_delta_is_no_growth(tmp_path: Path) -> None:
    _, result = scripted([50, 52, 54, 56, 58], [0] * 5, tmp_path, stop=Stop(patience=3, min_delta=0.05))
    assert (result["rounds"], result["best_round"]) == (5, 4)  # 50 -> 56 is growth; 52, 54 and 58 are not


def test_another_metric_chooses_and_stops_by_its_own_direction(tmp_path: Path) -> None:
    stop = Stop(metric="loss", patience=2, min_delta=0.05)
    _, result = scripted([50, 40, 36, 60, 30], [1, 2, 3, 4, 5], tmp_path / "a", Losing, stop=stop)
    assert (result["best_round"], result["rounds"], result["stopped_early"]) == (2, 4, True)  # 0.36 is too little less
    assert result["chosen_by"] == "loss"
    assert result["best"]["valid_loss"] == 0.4
    messages = (tmp_path / "a" / "messages.jsonl").read_text()
    assert "validation loss got no better" in messages
    _, result = scripted([50, 40, 60], [0] * 3, tmp_path / "b", Losing)
    assert (result["best_round"], "chosen_by" in result) == (3, False)
    with pytest.raises(ValidationError, match="no metric 'los'; did you mean 'loss'"):
        Stop(metric="los")


def test_a_score_off_the_schedule_chooses_and_stops_nothing(tmp_path: Path) -> None:
    made = Run(
        LocalOnly(linear()),
        one_client(),
        rounds=5,
        engine=Local(),
        score=Script([50, 60, 99], [10, 20, 30]),
        folder=RunFolder(tmp_path),
        evaluation=EvaluationSettings(every=2),
        stop=Stop(patience=1),
    )
    assert [s.round for s in made] == [1, 2, 3, 4, 5]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["best_round"], result["best"]["test_accuracy"], result["last"]["test_accuracy"]) == (4, 0.2, 0.3)


def test_a_stopped_run_stays_stopped(tmp_path: Path) -> None:
    scripted([50, 40, 30, 20], [0] * 4, tmp_path, stop=Stop(patience=2))
    first = json.loads((tmp_path / "result.json").read_text())
    again, result = scripted([99, 99, 99, 99], [0] * 4, tmp_path, stop=Stop(patience=2))
    assert [s.round for s in again] == [3]
    assert result["digest"] == first["digest"]
    assert (result["rounds"], result["stopped_early"]) == (3, True)


def test_without_validation_rows_the_last_round_is_the_choice() -> None:
    made = Run(fedavg(), points(10, 20), rounds=3, engine=Local(), stop=Stop(patience=1))
    assert [s.round for s in made] == [1, 2, 3]
    assert (made.progress["best_round"], made.progress["best_valid"]) == (3, None)


@dataclass(frozen=True, kw_only=True)
class Listening(OnBase):
    """The base, and a note of everything it is told."""

    base: Any
    heard: list[Mapping[str, float]]

    def observe(self, state: Any, metrics: Mapping[str, float]) -> Any:
        """Write it down."""
        self.heard.append(dict(metrics))
        return state


def test_a_method_hears_of_validation_only_and_only_when_there_was_an_evaluation() -> None:
    method = Listening(base=fedavg(), heard=[])
    data = Federation.from_arrays(torch.randn(90, 2), torch.arange(90) % 2, clients=3, test=0.3, valid=0.2)
    snapshots = list(Run(method, data, rounds=5, engine=Local(), evaluation=EvaluationSettings(every=2)))
    assert len(method.heard) == 2  # rounds 2 and 4; the last is scored, but steers nothing
    assert "test_accuracy" in snapshots[4].metrics
    for heard, snapshot in zip(method.heard, [snapshots[1], snapshots[3]], strict=True):
        expected = {k: v for k, v in snapshot.metrics.items() if "valid" in k}
        assert heard == expected
        assert {"valid_accuracy", "global_valid_accuracy"} <= heard.keys()
        assert "test_accuracy" in snapshot.metrics
        assert not any("test" in name for name in heard)


def test_evaluation_is_due_every_so_many_rounds_and_at_the_end() -> None:
    made = Run(fedavg(), points(10, 20), rounds=5, engine=Local(), evaluation=EvaluationSettings(every=2))
    assert [(s.round, "test_accuracy" in s.metrics, bool(s.evaluations)) for s in made] == [
        (1, False, False),
        (2, True, True),
        (3, False, False),
        (4, True, True),
        (5, True, True),
    ]


def test_a_sample_of_clients_is_the_same_in_every_round() -> None:
    made = Run(fedavg(), points(*[6] * 12), rounds=3, seed=5, engine=Local(), evaluation=EvaluationSettings(clients=4))
    asked = [tuple(s.evaluations) for s in made]
    assert len(asked[0]) == len(set(asked[0])) == 4
    assert asked[0] == tuple(sorted(asked[0]))  # type: ignore[type-var]
    assert len(set(asked)) == 1
    other = Run(fedavg(), points(*[6] * 12), rounds=1, seed=6, engine=Local(), evaluation=EvaluationSettings(clients=4))
    assert tuple(next(iter(other)).evaluations) != asked[0]
    everyone = Run(fedavg(), points(6, 6), rounds=1, engine=Local(), evaluation=EvaluationSettings(clients=9))
    assert tuple(next(iter(everyone)).evaluations) == (0, 1)


def test_bytes_are_those_of_the_frames_and_add_up(tmp_path: Path) -> None:
    made = Run(fedavg(), points(10, 20, 30), rounds=2, engine=Local(), folder=RunFolder(tmp_path))
    total = {"bytes_up": 0, "bytes_down": 0}
    before = pack(fedavg().down(fedavg().init_server(made.seed.fold("server")), 0), compact=True)
    for snapshot in made:
        for name in total:
            added = sum(getattr(v, name) for v in snapshot.log.updates)
            assert added == snapshot.metrics[name] > 0
            total[name] += added
        assert [v.bytes_down for v in snapshot.log.updates] == [len(before)] * 3
    result = json.loads((tmp_path / "result.json").read_text())
    assert {n: result[n] for n in total} == total
    updates = RunFolder(tmp_path).rows("metrics/client_updates.jsonl")
    assert {n: sum(v[n] for v in updates) for n in total} == total
    assert [(v["round"], v["client"], v["samples"]) for v in updates] == [
        (r, c, n) for r in (1, 2) for c, n in ((0, 10), (1, 20), (2, 30))
    ]


def test_local_only_sends_no_tensors() -> None:
    wide = points(10, 20)

    def sizes(method: Any) -> set[tuple[int, int]]:
        snapshot = next(iter(Run(method, wide, rounds=1, engine=Local(), score=None)))
        return {(v.bytes_down, v.bytes_up) for v in snapshot.log.updates}

    from fedquilt.core.net import Net

    narrow, broad = (Net.of(torch.nn.Linear, 2, classes) for classes in (2, 500))
    assert sizes(LocalOnly(narrow)) == sizes(LocalOnly(broad))  # the frames do not know how large the model is
    (down, up), (_, full) = *sizes(LocalOnly(broad)), *sizes(fedavg(objective=broad))
    assert max(down, up) < 500
    assert full > 500 * 3 * 4


def test_scores_before_and_after_local_training_are_kept_when_asked_for(tmp_path: Path) -> None:
    made = Run(
        fedavg(),
        points(10, 20),
        rounds=2,
        engine=Local(),
        evaluation=EvaluationSettings(every=2, local=True),
        folder=RunFolder(tmp_path),
    )
    assert len(list(made)) == 2
    first, second = (
        [v for v in RunFolder(tmp_path).rows("metrics/client_updates.jsonl") if v["round"] == r] for r in (1, 2)
    )
    assert all("before" not in v and "after" not in v for v in first)
    assert all(v["before"]["loss"] != v["after"]["loss"] for v in second)
    assert all(
        v["before"]["rows"] == v["samples"] for v in second
    )  # points(): as many test samples as training samples


def test_a_common_test_set_scores_the_global_model() -> None:
    x, y = torch.randn(60, 2), torch.arange(60) % 2
    data = Federation.from_arrays(x[:40], y[:40], clients=2, global_test=(x[40:], y[40:]), standardise=None)
    snapshot = next(iter(Run(fedavg(), data, rounds=1, engine=Local())))
    model = snapshot.global_model()
    assert model is not None
    right = (x[40:] @ model["weight"].T + model["bias"]).argmax(1) == y[40:]
    assert snapshot.metrics["common_test_accuracy"] == pytest.approx(float(right.float().mean()))
    alone = next(iter(Run(LocalOnly(linear()), data, rounds=1, engine=Local())))
    assert "common_test_accuracy" not in alone.metrics  # there is no global model


# Snapshots of a run


def test_a_snapshot_speaks_of_its_own_round_only() -> None:
    steps = iter(Run(fedavg(), points(10, 20), rounds=2, engine=Local()))
    first = next(steps)
    digest = first.digest()
    second = next(steps)
    assert second.digest() != digest
    with pytest.raises(InputError, match="has already reached round 2"):
        first.digest()
    with pytest.raises(InputError, match="has already reached"):
        first.personal_model(0)


def test_leaving_the_loop_keeps_the_last_round(tmp_path: Path) -> None:
    method, data = LocalOnly(linear()), points(10, 20)

    def made() -> Run:
        options: dict[str, Any] = {"snapshots": Snapshots(every=1, seconds=1000), "folder": RunFolder(tmp_path)}
        return Run(method, data, rounds=6, engine=Local(), **options)

    steps = iter(made())
    assert [next(steps).round for _ in range(3)] == [1, 2, 3]
    steps.close()  # type: ignore[attr-defined]
    resumed = list(made())
    assert [s.round for s in resumed] == [4, 5, 6]
    straight = list(Run(method, data, rounds=6, engine=Local()))
    assert resumed[-1].digest() == straight[-1].digest()


def test_a_finished_run_gives_its_last_snapshot_again(tmp_path: Path) -> None:
    method, data = LocalOnly(linear()), points(10, 20)
    first = list(Run(method, data, rounds=3, engine=Local(), folder=RunFolder(tmp_path)))
    again = list(Run(method, data, rounds=3, engine=Local(), folder=RunFolder(tmp_path)))
    assert [s.round for s in again] == [3]
    assert again[0].digest() == first[-1].digest()
    assert again[0].metrics == first[-1].metrics
    assert torch.equal(again[0].personal_model(1)["weight"], first[-1].personal_model(1)["weight"])


def test_personal_models_are_written_when_asked_for(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    data = Federation.from_clients(
        {"a/b": (torch.randn(9, 2), [0, 1, 0] * 3), ("c", 1): (torch.randn(9, 2), [1, 0, 1] * 3)}
    )
    made = Run(LocalOnly(linear()), data, rounds=1, engine=Local(), folder=RunFolder(tmp_path), personal_models=True)
    (last,) = made
    found = [load_file(p) for p in sorted((tmp_path / "models").glob("client-*"))]
    expected = [last.personal_model(c) for c in data.ids]
    assert len(found) == 2
    for model in expected:
        assert any(all(torch.equal(f[n], t) for n, t in model.items()) for f in found)
