"""Attacks on training samples, who is malicious and who is scored, and what checks leave in dropped.jsonl."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt import Attackers, CohortChecks, FedAvg, Federation, Net, run
from fedquilt.config.config import parse
from fedquilt.core.exchange import Reply
from fedquilt.core.seed import Seed
from fedquilt.data import IID, Stream
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Upload
from fedquilt.models import MLP
from fedquilt.pieces.robust import median
from fedquilt.pieces.robust.attacks import adaptive, ipm, sign_flip
from fedquilt.pieces.robust.poisoning import backdoor, label_flip
from fedquilt.runs.attacked import attacked
from fedquilt.runs.build import federation_of, run_of
from fedquilt.show.show import result_table


def federation(clients: int = 10) -> Federation:
    return Federation.from_source("digits", partition=IID(), clients=clients)


def method(**settings: Any) -> FedAvg:
    return FedAvg(Net.of(MLP, features=64, classes=10, hidden=()), batch_size=5, **settings)


def last(rounds: int = 2, **settings: Any) -> Any:
    *_, snapshot = run(settings.pop("method", method()), federation(), rounds=rounds, processes=2, **settings)
    return snapshot


def test_labels_of_attackers_are_flipped_and_nobody_else_is_touched() -> None:
    data, attackers = federation(), Attackers(label_flip(), clients=(2, 5))
    before = data.columns["y"].clone()
    spoilt: Any = attacked(data, attackers, Seed(0))
    assert spoilt.evaluated == (0, 1, 3, 4, 6, 7, 8, 9)
    assert torch.equal(data.columns["y"], before)
    for client in data.ids:
        true, now = data.labels(client), spoilt.labels(client)
        assert torch.equal(now, 9 - true if client in (2, 5) else true)
    for client in spoilt.evaluated:
        assert torch.equal(data.labels(client, "test"), spoilt.labels(client, "test"))


def test_a_backdoor_marks_a_share_of_the_rows() -> None:
    data = federation()
    spoilt: Any = attacked(data, Attackers(backdoor(target=3, share=0.5, size=2), clients=(4,)), Seed(0))
    x, y = (spoilt.columns[n][spoilt.train[4]] for n in ("x", "y"))
    marked = (x[:, 0, -2:, -2:] == 1).flatten(1).all(1)
    assert int(marked.sum()) == round(0.5 * len(x))
    assert (y[marked] == 3).all()
    assert torch.equal(x[~marked], data.columns["x"][data.train[4]][~marked])
    again: Any = attacked(data, Attackers(backdoor(target=3, share=0.5, size=2), clients=(4,)), Seed(0))
    assert torch.equal(again.columns["x"], spoilt.columns["x"])


def test_how_well_a_backdoor_works_is_a_metric_of_honest_clients(tmp_path: Path) -> None:
    """Scores are counted by hand from the model that the run left."""
    door = Attackers(backdoor(target=0, size=3, factor=5.0), clients=0.2)
    held = last(3, attackers=door, folder=tmp_path / "run")
    assert held.metrics["test_attack_success"] > 0.5
    assert "test_attack_success" not in last(1).metrics
    data, shares = federation(), []
    for client in sorted(set(data.ids) - door.among(data.ids, Seed(0))):
        table = data.evaluation(client, "test")
        assert table is not None
        x, y = table.whole().x, table.whole().y
        x = x[y != 0].clone()
        x[:, :, -3:, -3:] = 1.0
        model = held.state.shared
        scores = x.flatten(1) @ model["head.weight"].T + model["head.bias"]
        shares.append(float((scores.argmax(1) == 0).double().mean()))
    assert held.metrics["test_attack_success"] == pytest.approx(np.mean(shares), abs=1e-9)
    assert last(3, attackers=door, engine="workers").digest() == held.digest()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics/clients.jsonl").read_text().splitlines()]
    assert {row["client"] for row in rows}.isdisjoint(door.among(data.ids, Seed(0)))


def test_the_majority_class_is_that_of_scored_clients_and_the_result_says_who_attacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last(1, attackers=Attackers(sign_flip(), clients=(9, 0)), folder=tmp_path / "run")
    result = json.loads((tmp_path / "run/result.json").read_text())
    shares, rows, data = [], 0, federation()
    for client in range(1, 9):
        truth = data.labels(client, "test")
        shares.append(float((truth == data.labels(client, "train").bincount().argmax()).double().mean()))
        rows += len(truth)
    assert result["majority_class"] == pytest.approx(np.mean(shares))
    assert result["test_rows"] == rows
    assert result["malicious"] == {"clients": [0, 9], "of": 10}
    result_table(tmp_path / "run", result)
    assert "2 of 10 clients malicious (0, 9), not evaluated" in capsys.readouterr().out
    last(1, folder=tmp_path / "honest")
    assert "malicious" not in json.loads((tmp_path / "honest/result.json").read_text())


def test_attackers_by_the_samples_that_they_hold() -> None:
    size = {0: 10, 1: 20, 2: 30, 3: 40}.__getitem__
    for seed in range(10):
        few = Attackers(label_flip(), samples=0.35).among(range(4), Seed(seed), size)
        assert few
        assert sum(map(size, few)) <= 35
        assert not any(sum(map(size, few)) + size(c) <= 35 for c in range(4) if c not in few)
    assert Attackers(label_flip(), samples=0.05).among(range(4), Seed(0), size) == {0}  # one at least
    with pytest.raises(InputError, match="samples is a share"):
        Attackers(label_flip(), samples=1.0)


def test_more_attackers_are_the_same_and_others() -> None:
    some, more = (Attackers(label_flip(), clients=share).among(range(20), Seed(3)) for share in (0.1, 0.3))
    assert (len(some), len(more)) == (2, 6)
    assert some < more


def test_adaptive_attackers_know_the_aggregator_of_the_run() -> None:
    """Against the mean the farthest try is best; the median is not moved by it."""
    on_mean = last(1, attackers=Attackers(adaptive("ipm"), clients=0.2))
    on_median = last(1, attackers=Attackers(adaptive("ipm"), clients=0.2), method=method(aggregate=median()))
    assert on_median.metrics["test_accuracy"] > on_mean.metrics["test_accuracy"] + 0.1
    honest = [{"w": torch.tensor([1.0])} for _ in range(3)]
    with pytest.raises(InputError, match="needs the rule"):
        adaptive()(honest, honest, Seed(0))
    with pytest.raises(InputError, match="one of alie, ipm, min_max, sign_flip"):
        adaptive("nothing")


@pytest.mark.parametrize("kind", ["label_flip", "backdoor", "adaptive"])
def test_by_name_in_a_recipe(kind: str) -> None:
    config = parse({"rounds": 1, "data": {"clients": 5}, "attack": {"kind": kind, "samples": 0.3}})
    made = run_of(config, SimpleNamespace(keeps_states=False), None)  # type: ignore[arg-type]
    assert made.attackers is not None
    assert made.attackers.samples == 0.3
    assert type(made.attackers.attack).__name__ == kind
    assert config.identity() != parse({"rounds": 1, "data": {"clients": 5}}).identity()


def test_a_real_federation_refuses_the_section() -> None:
    config = parse({"rounds": 1, "data": {"clients": 5}, "attack": "sign_flip"})
    with pytest.raises(InputError, match="real clients are not made to attack"):
        run_of(config, SimpleNamespace(keeps_states=True), None, federation_of(config))  # type: ignore[arg-type]


def test_what_cannot_be_poisoned() -> None:
    table = Federation.from_clients(
        {c: (np.random.default_rng(c).normal(size=(50, 4)), np.arange(50) % 2) for c in range(4)}
    )
    with pytest.raises(InputError, match="needs images"):
        attacked(table, Attackers(backdoor(), clients=(1,)), Seed(0))
    with pytest.raises(InputError, match="target is a class from 0 to 9, got 10"):
        attacked(federation(), Attackers(backdoor(target=10), clients=(1,)), Seed(0))
    rows = {c: {"train": [0, 1, 2], "test": [3]} for c in "ab"}
    shared = Federation.from_rows(dict(federation().columns), rows)
    with pytest.raises(InputError, match="share rows"):
        attacked(shared, Attackers(label_flip(), clients=("a",)), Seed(0))
    with pytest.raises(InputError, match="size >= 1"):
        backdoor(size=0)


# Checks: bounded replies, and what stands in the list


def lengths(*values: float) -> list[Reply]:
    return [Reply(i, 10, Upload({"w": torch.tensor([value, 0.0])})) for i, value in enumerate(values)]


def test_long_changes_are_shortened_to_a_running_quantile() -> None:
    """Round 1: the lower median of 1, 2, 3, 4 is 2; two of four lie within, so it stays 2 exp(0.2 (0.5 - 0.5)). Round
    2: all but one are longer, and it grows by exp(0.2 (0.5 - 0.25))."""
    checks = CohortChecks(length=False, direction=False, shorten=0.5)
    first = checks.sift(lengths(1, 2, 3, 4), {}, 0, "train")
    assert [float(r.upload.delta["w"][0]) for r in first.kept] == [1, 2, 2, 2]
    assert first.bounded == {2: "shortened to 2: its change is 3 long", 3: "shortened to 2: its change is 4 long"}
    assert first.past["radii"] == {"train": 2.0}
    second = checks.sift(lengths(1, 5, 8, 1000), first.past, 1, "train")
    assert [float(r.upload.delta["w"][0]) for r in second.kept] == [1, 2, 2, 2]
    assert second.past["radii"]["train"] == pytest.approx(2 * np.exp(0.2 * 0.25))
    other = checks.sift(lengths(7, 7, 7, 7), second.past, 1, "tune")
    assert other.past["radii"]["tune"] == pytest.approx(7 * np.exp(-0.1))
    with pytest.raises(InputError, match="shorten"):
        CohortChecks(shorten=1.0)


def test_every_decision_is_in_the_list_and_the_same_on_resume(tmp_path: Path) -> None:
    checks = CohortChecks(shorten=0.5, most_share=0.12)
    attackers = Attackers(sign_flip(factor=10.0), clients=0.2)
    x, y = (federation().columns[name] for name in ("x", "y"))
    sizes = Federation.from_clients({c: (x[80 * c :][: 30 + 6 * c], y[80 * c :][: 30 + 6 * c]) for c in range(10)})

    def played(folder: Path | None, stop: int | None = None, engine: str = "local") -> Any:
        asked = {"rounds": 4, "folder": folder, "checks": checks, "attackers": attackers}
        for snapshot in run(method(), sizes, engine=engine, processes=2, **asked):
            if snapshot.round == stop:
                break
        return snapshot

    whole = played(None)
    assert played(None, engine="workers").digest() == whole.digest()
    played(tmp_path, stop=2)
    assert played(tmp_path).digest() == whole.digest()
    rows = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    used, dropped = ([row for row in rows if bool(row.get("used")) is way] for way in (True, False))
    assert any("shortened to" in row["reason"] for row in used)
    assert any("samples instead of" in row["reason"] for row in used)
    assert all("deviations" in row["reason"] or "3 rounds in a row" in row["reason"] for row in dropped)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["quarantined"] == len(dropped) > 0


def test_samples_of_a_stream_are_not_poisoned() -> None:
    stream = Stream.by_class(federation(4), ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)))
    spoilt = attacked(stream, Attackers(ipm(), clients=(1, 2)), Seed(0))
    assert spoilt.evaluated == (0, 3)
    assert spoilt.ids == stream.ids
    with pytest.raises(InputError, match="stream"):
        attacked(stream, Attackers(label_flip(), clients=0.5), Seed(0))


def test_replies_that_carry_no_change_are_left_alone() -> None:
    plain = [replace(r, upload=object()) for r in lengths(1, 2, 3, 4)]
    assert CohortChecks(shorten=0.5).sift(plain, {}, 0, "count").kept == plain
