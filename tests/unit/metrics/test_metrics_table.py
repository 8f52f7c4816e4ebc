"""The table of metrics: what is added there is computed, written and shown everywhere, without any other change."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from fedquilt.config.config import load
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.metrics import table
from fedquilt.metrics.classify import Scores, ScoresAndSums, classify
from fedquilt.metrics.evaluation import client_rows, common_numbers, score_row, summarise
from fedquilt.metrics.reconstruct import Reconstructed
from fedquilt.metrics.table import Counts, Metric, metric, metrics, register
from fedquilt.records.record import pack, unpack
from fedquilt.show.studies import comparison_table
from fedquilt.studies.compare import compare
from fedquilt.terminal import console
from fedquilt.watch.board import Board
from helpers.command import SMALL, small
from helpers.pages import panel

FIRST = Metric(
    id="first_class", name="called first class", of=lambda c: c.called[:, 0] / c.rows, summaries=("std", "worst10")
)
HALVES = 1000


def histogram(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each class the probabilities that its rows and the other rows have of it: [classes, 2, bins]."""
    classes = logits.shape[1]
    bins = (logits.double().softmax(1) * HALVES).long().clamp(max=HALVES - 1)
    place = (torch.arange(classes) * 2 + (labels[:, None] == torch.arange(classes)).long()) * HALVES + bins
    return torch.bincount(place.flatten(), minlength=2 * classes * HALVES).view(classes, 2, HALVES)


def auroc(counts: Counts) -> Any:
    """One class against the rest, mean over the classes that a client has beside others; ties count half."""
    rest, own = np.moveaxis(counts.sums["auroc"], 2, 0).astype(float)
    below = np.cumsum(rest, -1) - rest / 2
    pairs = own.sum(-1) * rest.sum(-1)
    each = np.ma.masked_array((own * below).sum(-1) / np.maximum(pairs, 1), mask=pairs == 0)
    return each.mean(1)


AUROC = Metric(id="auroc", name="AUROC", of=auroc, statistic=histogram)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    metrics()
    monkeypatch.setattr(table, "_KNOWN", dict(table._KNOWN))


def scores(support: list[int], correct: list[int], called: list[int]) -> Scores:
    return Scores(sum(support), 1.0, *(torch.tensor(v) for v in (support, correct, called)))


A, B = scores([2, 2], [2, 1], [3, 1]), scores([1, 3], [0, 3], [0, 4])
EVALUATIONS: dict[Any, Any] = {"a": {"deployed": {"test": A, "valid": A}}, "b": {"deployed": {"test": B}}}


def test_a_metric_is_added_in_one_place_and_found_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(FIRST)
    monkeypatch.setattr(console, "width", 140)
    recipe = small(tmp_path, SMALL + '[compare]\nmethods = ["fedavg", "local_only"]\nseeds = [0]\n')
    summary = compare(load(recipe))
    top = Path(summary["folder"])
    run = top / "fedavg-seed0"
    rounds = [json.loads(line) for line in (run / "metrics/rounds.jsonl").read_text().splitlines()]
    keys = {f"{start}test_first_class{end}" for start in ("", "global_") for end in ("", "_std", "_worst10")}
    assert all(keys <= row.keys() for row in rounds)
    clients = [json.loads(line) for line in (run / "metrics/clients.jsonl").read_text().splitlines()]
    last = [r for r in clients if (r["round"], r["model"], r["split"]) == (3, "deployed", "test")]
    assert rounds[-1]["test_first_class"] == pytest.approx(np.mean([r["first_class"] for r in last]))
    best = json.loads((run / "result.json").read_text())["best"]

    (_, row, _) = table_in(top / "table.csv")
    assert float(row["first_class"]) == pytest.approx(best["test_first_class"])
    assert float(row["first_class_worst10"]) == pytest.approx(best["test_first_class_worst10"])
    (row, _) = table_in(top / "comparison_table.csv")
    assert float(row["Final called first class"]) == pytest.approx(rounds[-1]["test_first_class"], abs=1e-6)
    comparison_table(summary)
    said = capsys.readouterr().out
    assert "called first class" in said
    assert f"{100 * best['test_first_class']:.1f}" in said

    report = top / "report.html"
    (shown,) = [b for b in panel(report, "comparison")["blocks"] if b["key"] == "comparison"]
    assert {"first_class", "first_class_worst10"} <= {c["key"] for c in shown["columns"]}
    assert [r["first_class"] for r in shown["rows"] if r["method"] == "FedAvg"] == [best["test_first_class"]]
    assert "test_first_class" in panel(report, "curves")["blocks"][0]["names"]
    variants = panel(report, "distribution")["blocks"][0]["variants"]
    assert "called first class" in {v["keys"]["measure"] for v in variants}
    (sure,) = panel(report, "sureness")["blocks"]
    assert all(0 <= row["first_class"] <= 1 for row in sure["rows"])

    board = Board(run)
    board.look()
    told = board.told(0, next(iter(board.runs)))
    assert {c["key"]: c["label"] for c in told["columns"]}["first_class"] == "called first class, %"
    held = {str(r["client"]): r["first_class"] for r in told["run"]["clients"]["rows"]}
    assert held == {str(r["client"]): r["first_class"] for r in last}
    assert told["scores"]["test_first_class"] == {"name": "test called first class", "share": True}
    assert "test_first_class" in told["point"]


def table_in(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_without_more_metrics_the_keys_are_the_usual_ones() -> None:
    four = ("accuracy", "balanced_accuracy", "macro_f1", "loss")
    assert [m.id for m in metrics() if not m.brought] == list(four)
    assert list(score_row(A)) == ["rows", *four]
    assert list(client_rows(1, EVALUATIONS)[0]) == [
        "round",
        "client",
        "model",
        "split",
        "rows",
        *four,
        "accuracy_low",
        "accuracy_high",
        "balanced_accuracy_half_95",
        "macro_f1_half_95",
        "rarest",
    ]
    ends = ("accuracy", "accuracy_pooled", "accuracy_std", "accuracy_worst10", "balanced_accuracy", "macro_f1", "loss")
    halves = ("accuracy", "accuracy_worst10", "balanced_accuracy", "macro_f1")
    assert list(summarise(EVALUATIONS)) == [
        *(f"valid_{end}" for end in ends),
        *(f"test_{end}" for end in ends),
        *(f"test_{half}_rows_half_95" for half in halves),
    ]
    common = ("common_test_accuracy", "common_test_loss", "common_test_accuracy_rows_half_95")
    assert tuple(common_numbers("common_test", A)) == common
    assert tuple(common_numbers("common_valid", Reconstructed(4, 2.0))) == ("common_valid_loss",)
    assert summarise({"a": {"deployed": {"test": Reconstructed(4, 2.0)}}}) == {"test_loss": 0.5}


def test_the_worst_tenth_is_at_the_end_that_the_metric_calls_bad() -> None:
    register(
        Metric(
            id="misses",
            name="misses",
            of=lambda c: 1 - c.correct.sum(1) / c.rows,
            higher_is_better=False,
            summaries=("pooled", "worst10"),
            variance=lambda c: c.rows,
        )
    )
    found = summarise({"a": {"deployed": {"test": A}}, "b": {"deployed": {"test": scores([4, 4], [0, 2], [4, 4])}}})
    assert found["test_misses_worst10"] == 0.75
    assert found["test_misses_pooled"] == pytest.approx((1 + 6) / 12)
    assert found["test_misses_worst10_rows_half_95"] == pytest.approx(1.959964 * 8**0.5)
    assert metric("misses").better(0.1, 0.2)
    assert not metric("misses").better(0.1, 0.2, by=0.2)
    assert not metric("accuracy").better(0.1, 0.2)


@pytest.mark.parametrize("id", ["accuracy", "rows", "Two words", "", "accuracy_std"])
def test_names_that_a_metric_cannot_have(id: str) -> None:
    with pytest.raises(InputError, match="metric"):
        register(Metric(id=id, name="x", of=lambda c: c.rows))
    register(metric("accuracy"))  # the same again is no other


def test_a_metric_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"no metric 'acuracy'; did you mean 'accuracy'\?"):
        metric("acuracy")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Make something the one entry point of the group, and forget what was read before."""

    def install(value: Any) -> None:
        point = SimpleNamespace(name="mine", load=lambda: value)
        monkeypatch.setattr(table, "entry_points", lambda group: [point] if group == "fedquilt.metrics" else [])
        table._installed.cache_clear()

    return install


def test_metrics_of_installed_packages(installed: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    installed(FIRST)
    assert metric("accuracy").id == "accuracy"
    assert metrics()[-1] is FIRST
    assert metric("first_class") is FIRST
    installed("nothing")
    with pytest.raises(InputError, match=r"'mine' of fedquilt\.metrics gives 'nothing', which is not a Metric"):
        metrics()
    installed(None)
    monkeypatch.setattr(table, "entry_points", lambda group: [EntryPoint("gone", "fedquilt.nowhere:x", group)])
    with pytest.raises(InputError, match=r"'gone' of fedquilt\.metrics cannot be loaded"):
        metrics()
    table._installed.cache_clear()


# Metrics that keep sums of their own


def rows(n: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores of classes that know a little, and labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=draw)
    return torch.randn(n, classes, generator=draw) + F.one_hot(labels, classes), labels


def scored(logits: Tensor, labels: Tensor) -> Scores:
    """As a model with these scores is scored, in blocks."""
    return classify(lambda params, batch: batch.x, {}, Table({"x": logits, "y": labels}))


def test_auroc_from_histograms_that_add_up_over_rows_and_clients() -> None:
    register(AUROC)
    parts = [rows(250), rows(130, seed=1)]
    found = [scored(*part) for part in parts]
    assert all(type(s) is ScoresAndSums for s in found)
    logits, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    expected = roc_auc_score(F.one_hot(labels, 3).numpy(), logits.softmax(1).numpy(), average="macro")
    assert score_row(found[0] + found[1])["auroc"] == pytest.approx(expected, abs=1e-3)
    again = unpack(pack(found[0], compact=True))
    again.check()
    assert score_row(again) == score_row(found[0])


def test_clients_that_have_no_value_are_left_out_of_the_mean() -> None:
    register(AUROC)
    whole, one = scored(*rows(200)), scored(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
    evaluations: dict[Any, Any] = {"a": {"deployed": {"test": whole}}, "b": {"deployed": {"test": one}}}
    assert summarise(evaluations)["test_auroc"] == score_row(whole)["auroc"]
    assert [r["auroc"] for r in client_rows(1, evaluations)] == [score_row(whole)["auroc"], None]
    assert "auroc" not in score_row(one)
    narrow = scored(*rows(100, classes=2))  # a model that knows fewer classes
    assert score_row(whole + narrow)["rows"] == 300
    evaluations["b"] = {"deployed": {"test": narrow}}
    assert summarise(evaluations)["test_auroc"] == pytest.approx(
        (score_row(whole)["auroc"] + score_row(narrow)["auroc"]) / 2
    )


def test_without_such_a_metric_the_bytes_are_as_ever() -> None:
    plain = scored(*rows(150))
    assert type(plain) is Scores
    register(AUROC)
    more = scored(*rows(150))
    counts = Scores(more.rows, more.loss_sum, more.support, more.correct, more.called)
    assert pack(counts, compact=True) == pack(plain, compact=True)
    evaluations = {
        "a": {"deployed": {"test": plain}},
        "b": {"deployed": {"test": more}},
    }  # of a site that does not know it
    assert "test_auroc" not in summarise(evaluations)
    assert "test_accuracy" in summarise(evaluations)
    assert type(more + plain) is type(plain + more) is Scores


@pytest.mark.parametrize(
    ("sums", "why"),
    [
        ({"other": torch.zeros(1)}, "nothing is known of a metric 'other'"),
        ({"auroc": torch.zeros(3, 2, HALVES)}, "the shape"),
        ({"auroc": torch.zeros(3, 2, dtype=torch.int64)}, "the shape"),
        ({"auroc": 3}, "the shape"),
        ([1], "their sums"),
        ({"means": torch.tensor([float("nan")])}, "not finite"),
    ],
)
def test_sums_from_elsewhere_are_checked(sums: Any, why: str) -> None:
    register(AUROC)
    register(Metric(id="means", name="x", of=lambda c: c.rows, statistic=lambda x, y: x.sum().view(1)))
    good = scored(*rows(20))
    with pytest.raises(InputError, match=why):
        ScoresAndSums(good.rows, good.loss_sum, good.support, good.correct, good.called, sums).check()
