"""Comparisons: intervals, labels, tables."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

from fedquilt.config.config import Kinded, parse
from fedquilt.config.shown import shown_apart
from fedquilt.errors import ConfigError
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.tables import as_csv, row
from fedquilt.studies.compare import _labels, cells, compare
from helpers.command import SMALL, fedquilt, small
from helpers.pages import panel


@pytest.mark.parametrize("values", [[0.5, 0.7], [0.1, 0.4, 0.35], [3.0, 3.0, 3.0], list(np.linspace(0, 1, 12) ** 2)])
def test_the_interval_is_students(values: list[float]) -> None:
    found = interval(values)
    spread = stats.sem(values)
    if spread == 0:
        assert (found.mean, found.half) == (3.0, 0.0)
        return
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-12)


def test_the_interval_by_hand() -> None:
    found = interval([1.0, 2.0, 3.0])  # s = 1, t(0.975, 2) = 4.302653
    assert (found.mean, found.half) == pytest.approx((2.0, 4.302653 / math.sqrt(3)), rel=1e-6)


def test_one_seed_has_no_interval_and_no_seed_no_mean() -> None:
    assert interval([0.25]).mean == 0.25
    assert math.isnan(interval([0.25]).half)
    assert math.isnan(interval([]).mean)


def kinds(*given: Any) -> list[Kinded]:
    """Choices as a configuration reads them."""
    return parse({"compare": {"methods": list(given)}}).compare.methods


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (["fedavg", {"kind": "fedprox", "mu": 0.1}], ["fedavg", "fedprox"]),
        (
            [{"kind": "fedprox", "mu": 0.1}, {"kind": "fedprox", "mu": 1.0}, "fedprox"],
            ["fedprox,mu=0.1", "fedprox,mu=1.0", "fedprox"],
        ),
        (["fedavg", "fedavg", "local_only"], ["fedavg#0", "fedavg#1", "local_only"]),
    ],
)
def test_labels_are_short_and_different(given: list[Any], labels: list[str]) -> None:
    assert _labels(kinds(*given)) == labels


def test_cells_are_every_method_with_every_seed_and_one_folder_for_all() -> None:
    config = parse(
        {"name": "x", "compare": {"methods": ["fedavg", "fedprox"], "seeds": [3, 5]}, "output": {"folder": "o"}}
    )
    top, found = cells(config)
    assert [(c.label, c.config.seed, c.config.method.kind) for c in found] == [
        ("fedavg", 3, "fedavg"),
        ("fedprox", 3, "fedprox"),
        ("fedavg", 5, "fedavg"),
        ("fedprox", 5, "fedprox"),
    ]
    assert [c.folder for c in found] == [top / f"{c.label}-seed{c.config.seed}" for c in found]
    assert (top.parent, top.name[:10]) == (Path("o"), "compare-x-")
    assert (
        cells(
            parse(
                {
                    "name": "x",
                    "engine": {"kind": "workers"},
                    "compare": config.compare.model_dump(),
                    "output": {"folder": "o"},
                }
            )
        )[0]
        == top
    )
    other = config.model_copy(update={"rounds": 3})
    assert cells(other)[0] != top


def result(accuracy: float, last: float, up: int, seconds: float) -> dict[str, Any]:
    """What a finished run writes, as far as the table reads it."""
    best = {
        "test_accuracy": accuracy,
        "test_accuracy_worst10": accuracy / 2,
        "test_balanced_accuracy": accuracy / 4,
        "test_macro_f1": accuracy / 8,
    }
    return {
        "best": best,
        "last": {"test_accuracy": last},
        "bytes_up": up,
        "bytes_down": 2 * up,
        "seconds": seconds,
        "updates": 10 * up,
        "digest": f"d{accuracy}",
    }


def test_a_row_by_hand_and_as_csv() -> None:
    found = row("m", [result(0.5, 0.4, 1_000_000, 1.0), result(0.7, 0.6, 3_000_000, 2.0)])
    half = 12.706205 * math.sqrt(0.02) / math.sqrt(2)  # t(0.975, 1), s of 0.5 and 0.7
    assert found["digests"] == ["d0.5", "d0.7"]
    assert {k: v for k, v in found.items() if k not in ("digests", "method") and v is not None} == pytest.approx(
        {
            "accuracy": 0.6,
            "accuracy_half_95": half,
            "worst10": 0.3,
            "worst10_half_95": half / 2,
            "balanced_accuracy": 0.15,
            "balanced_accuracy_half_95": half / 4,
            "macro_f1": 0.075,
            "macro_f1_half_95": half / 8,
            "last_round_accuracy": 0.5,
            "updates": 20_000_000.0,
            "megabytes_up": 2.0,
            "megabytes_down": 4.0,
            "seconds": 1.5,
            **{
                f"{name}_both_half_95": half / part
                for name, part in (("accuracy", 1), ("worst10", 2), ("balanced_accuracy", 4), ("macro_f1", 8))
            },
        },
        rel=1e-6,
    )
    read = list(csv.DictReader(io.StringIO(as_csv([found], 0.125))))
    assert [r["method"] for r in read] == ["majority class", "m"]
    assert (read[0]["accuracy"], read[0]["worst10"]) == ("0.125", "")
    assert float(read[1]["accuracy_half_95"]) == found["accuracy_half_95"]
    assert "digests" not in read[1]


def test_the_interval_of_test_rows_is_added_to_that_of_seeds() -> None:
    """Rows leave ± .03 and ± .04, root mean square sqrt(.00125); with seeds' half h: sqrt(h² + .00125). Seeds share
    their rows, so these do not average out."""
    runs = [result(0.5, 0.4, 1, 1.0), result(0.7, 0.6, 3, 2.0)]
    for run, half in zip(runs, (0.03, 0.04), strict=True):
        run["best"]["test_macro_f1_rows_half_95"] = half
    found = row("m", runs)
    assert found["macro_f1_rows_half_95"] == pytest.approx(math.sqrt(0.00125))
    assert found["macro_f1_both_half_95"] == pytest.approx(math.hypot(found["macro_f1_half_95"], math.sqrt(0.00125)))
    alone = row("m", runs[:1])
    assert math.isnan(alone["macro_f1_half_95"])
    assert alone["macro_f1_both_half_95"] == pytest.approx(0.03)


COMMON = SMALL + '[compare]\nmethods = ["fedavg", {kind = "localize_stitch", keep = 0.5}]\nseeds = [0, 1]\n'


def test_the_common_test_set_has_a_column_of_its_own(tmp_path: Path) -> None:
    """The merged model on rows that belong to nobody, beside the clients' mean, and never in its place."""
    said = fedquilt("compare", small(tmp_path, COMMON), "data.common_test=0.3", "--json").json
    top = Path(said["folder"])
    for found in said["rows"]:
        best = [json.loads((top / f"{found['method']}-seed{s}/result.json").read_text())["best"] for s in (0, 1)]
        assert found["common_accuracy"] == pytest.approx(np.mean([b["common_test_accuracy"] for b in best]))
        assert found["common_accuracy_rows_half_95"] > 0.01
        assert found["common_accuracy"] != found["accuracy"]
    stitched = said["rows"][1]
    assert stitched["stitch_keep"] == 0.5
    assert stitched["stitch_density"] == pytest.approx(0.5, abs=0.01)
    read = list(csv.DictReader(io.StringIO((top / "table.csv").read_text())))
    assert {"common_accuracy", "stitch_keep", "stitch_density", "macro_f1_both_half_95"} <= set(read[0])
    assert 0 < float(read[0]["common_accuracy"]) < 0.3  # the majority class there
    shown = fedquilt("compare", small(tmp_path, COMMON), "data.common_test=0.3").out
    assert "common test" in shown
    names = panel(top / "report.html", "curves")["blocks"][0]["names"]
    assert {"stitch_keep", "stitch_density", "common_test_accuracy"} <= set(names)


def test_without_rows_of_clients_methods_are_compared_on_the_common_test_set(tmp_path: Path) -> None:
    recipe = small(tmp_path, COMMON)
    said = fedquilt("compare", recipe, "data.test=0", "data.common_test=0.3", "compare.frame=true", "--json").json
    assert said["measure"] == "common_accuracy"
    assert [r["method"] for r in said["rows"]] == ["fedavg", "localize_stitch", "centralised"]
    assert all(r["accuracy"] is None and 0.1 < r["common_accuracy"] < 1 for r in said["rows"])
    assert said["winner"]["method"] == max(said["rows"][:2], key=lambda r: r["common_accuracy"])["method"]
    shown = fedquilt("compare", recipe, "data.test=0", "data.common_test=0.3", "compare.frame=true")
    assert shown.code == 0, shown.err
    assert "Global model on the common test set" in shown.out
    report = Path(said["report"])
    lead = panel(report, "headline")["blocks"][0]["paragraphs"]
    assert "accuracy on the common test set" in lead[0]
    other = said["rows"][1]
    assert other["versus_first_p"] == other["versus_first_seeds_t"]
    (shown,) = panel(report, "tests")["blocks"]  # none that says of the verdict's test that it decides nothing
    assert "paired t-test over seeds" in next(c["help"] for c in shown["columns"] if c["key"] == "p")
    refused = fedquilt("compare", recipe, "data.test=0", "data.common_test=0.3", 'compare.methods=["fedper"]')
    assert refused.code == 2
    assert "FedPer has none" in refused.err


def test_without_rows_of_clients_an_official_test_set_is_the_common_one(tmp_path: Path) -> None:
    """x_test and y_test of the file, and nothing held back by common_test."""
    x, y = load_digits(return_X_y=True)
    path = tmp_path / "official.npz"
    np.savez(
        path,
        x_train=x[:500].astype(np.float32),
        y_train=y[:500],
        x_test=x[500:740].astype(np.float32),
        y_test=y[500:740],
    )
    recipe = small(tmp_path, COMMON)
    settings = [f"data.path={path}", "data.test=0", "compare.seeds=[0]"]
    result = fedquilt("run", recipe, *settings, "--json").json
    assert result["majority_common_rows"] == 240
    assert result["majority_common"] == pytest.approx(np.mean(y[500:740] == commonest(Path(result["folder"]))))
    assert "test_accuracy" not in result["best"]
    shown = fedquilt("run", recipe, *settings).out
    assert re.search(r"majority class, common test set, % +│? +\d+\.\d ± \d", shown)
    assert re.search(r"global model, common test set, % +│? +\d+\.\d ± \d", shown)
    said = fedquilt("compare", recipe, *settings, "--json").json
    assert (said["measure"], said["failed"]) == ("common_accuracy", [])
    assert all(row["accuracy"] is None and row["common_accuracy_rows_half_95"] > 0 for row in said["rows"])
    assert said["majority_class"] == pytest.approx(result["majority_common"])


def commonest(folder: Path) -> int:
    """The commonest training label of a run."""
    (task,) = json.loads((folder / "federation.json").read_text())["tasks"]
    return int(np.sum(task["labels"], 0).argmax())


def test_a_comparison_without_test_rows_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.test: a comparison needs test samples"):
        compare(parse({"data": {"test": 0}, "output": {"folder": str(tmp_path / "runs")}}))
    assert not (tmp_path / "runs").exists()


def test_a_part_that_a_network_lacks_is_refused_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\nclass Tall(nn.Sequential):\n    def __init__(self, classes):\n"
        "        super().__init__()\n        self.flat = nn.Flatten()\n"
        "        self.body, self.fc = nn.Linear(64, 8), nn.Linear(8, classes)\n"
    )
    methods = '["fedavg", "hcfl", "lcfed"]'
    recipe = small(tmp_path, SMALL.replace('kind = "logistic"', 'kind = "mine.py:Tall"'))
    said = fedquilt("compare", recipe, f"compare.methods={methods}", "compare.frame=false")
    assert said.code == 2
    assert "HCFL, LCFed: The network has no part 'head'; its parts are body, fc." in said.err
    assert 'head = ["fc"]' in said.err
    assert not (tmp_path / "runs").exists()
    choices = [{"kind": "hcfl", "head": ["fc"]}]
    assert shown_apart(parse({"compare": {"methods": choices}}).compare.methods) == ["HCFL"]
