"""The report in a real browser: what is shown is what the metric files say, and nothing leaves the page."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser.conftest import Opened, opened
from fedquilt.registry import shown_as
from fedquilt.report import write_report
from helpers.command import lines
from helpers.made_runs import METHODS, made_comparison

pytestmark = pytest.mark.browser
NAMES = {label: shown_as("method", label) for label in METHODS}
TABS = ["Summary", "Curves", "Clients", "Federation", "Methods", "Communication", "Dropped replies", "Runs"]


def results(top: Path, label: str) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(top.glob(f"{label}-seed*/result.json"))]


def test_a_large_report_opens_at_once_and_is_small(chromium: Any, made: Path) -> None:
    """Under 8 MB and 2 s. The time is that of the page's own process, which other work on the machine does not
    lengthen."""
    assert (made / "report.html").stat().st_size < 8e6
    page = opened(chromium, made / "report.html")
    measure = page.page.context.new_cdp_session(page.page)
    measure.send("Performance.enable")
    found = {m["name"]: m["value"] for m in measure.send("Performance.getMetrics")["metrics"]}
    assert found["ProcessTime"] < 2.0
    assert page.page.get_by_role("tab").all_inner_texts() == TABS
    page.page.context.close()


def test_every_tab_opens_and_shows_its_panels(report: Opened) -> None:
    for name in TABS:
        panel = report.tab(name)
        assert panel.is_visible()
        assert panel.locator("section.panel").count() >= 1
        assert report.page.get_by_role("tabpanel").count() == 1  # the others are hidden
    for chart in ("curves", "distribution", "heat", "labels", "sent", "seconds"):
        assert report.page.locator(f"#chart-{chart} svg").count() >= 1, chart
    assert "cannot be shown" not in report.page.locator("main").inner_text()


def test_the_table_is_what_the_result_files_say(report: Opened, made: Path) -> None:
    shown = {row[0]: row for row in report.cells("comparison")}
    scores = [float(row[1].split(" ")[0]) for row in shown.values()]
    assert scores == sorted(scores, reverse=True)  # by score from the beginning, and the head says so
    assert report.page.locator("#table-comparison th[aria-sort=descending]").inner_text().strip() == "accuracy"
    assert report.page.locator("header .subtitle").first.inner_text().startswith("data digits · partition Dirichlet")
    assert report.page.locator("#chart-glance svg").is_visible()
    assert report.page.locator("#chart-glance-clients svg").is_visible()
    for label in METHODS:
        values = [r["best"]["test_accuracy"] for r in results(made, label)]
        half = 4.302653 * np.std(values, ddof=1) / np.sqrt(3)
        assert shown[NAMES[label]][1] == f"{100 * np.mean(values):.1f} ± {100 * half:.1f}"
        worst = [r["best"]["test_accuracy_worst10"] for r in results(made, label)]
        assert shown[NAMES[label]][3].startswith(f"{100 * np.mean(worst):.1f} ±")
    lead = report.page.locator(".lead").inner_text()
    assert lead.startswith("Ditto has the highest test accuracy")  # centralised training cannot win
    assert "significantly above" in lead


def test_tables_sort_filter_and_show_more_columns(report: Opened) -> None:
    head = report.page.locator("#table-comparison thead")
    head.get_by_role("button", name="accuracy", exact=True).click()
    shown = [float(row[1].split(" ")[0]) for row in report.cells("comparison") if row[1]]
    assert shown == sorted(shown)
    head.get_by_role("button", name="accuracy", exact=True).click()
    shown = [float(row[1].split(" ")[0]) for row in report.cells("comparison") if row[1]]
    assert shown == sorted(shown, reverse=True)
    assert head.locator("th[aria-sort=descending]").inner_text().strip().startswith("accuracy")
    head.get_by_role("button", name="method", exact=True).click()
    assert [row[0] for row in report.cells("comparison")] == sorted([*NAMES.values(), "majority class"], key=str.lower)
    panel = report.page.locator("#panel-comparison")
    panel.get_by_role("searchbox").fill("fed")
    assert {row[0] for row in report.cells("comparison")} == {"FedAvg", "FedProx", "FedRep"}
    panel.get_by_role("searchbox").fill("nobody")
    assert report.cells("comparison") == [["No row has these words."]]
    panel.get_by_role("searchbox").fill("")
    assert head.get_by_role("button", name="Gini").count() == 0
    panel.get_by_role("button", name="spread", exact=True).click()
    assert head.get_by_role("button", name="Gini").count() == 1


def test_tables_are_copied_as_markdown_latex_and_csv(report: Opened, made: Path) -> None:
    panel = report.page.locator("#panel-comparison")
    markdown = report.copied(panel, "Markdown").splitlines()
    assert markdown[0].startswith("| method | accuracy |")
    assert re.fullmatch(r"\|---\|(---:\|)+", markdown[1])
    assert len(markdown) == 2 + 7
    latex = report.copied(panel, "LaTeX")
    assert latex.startswith("\\begin{tabular}{lr")
    assert "\\textbf{Ditto} & \\textbf{" in latex
    assert "$\\pm$" in latex
    rows = {r["method"]: r for r in csv.DictReader(io.StringIO(report.copied(panel, "CSV")))}
    values = [r["best"]["test_accuracy"] for r in results(made, "ditto")]
    assert float(rows["Ditto"]["accuracy"]) == pytest.approx(np.mean(values))
    assert rows["majority class"]["worst 10 %"] == ""


def test_curves_are_the_means_of_the_round_files(report: Opened, made: Path) -> None:
    panel = report.tab("Curves")
    panel.get_by_text("Numbers", exact=True).click()
    shown = {(r[0], int(r[1])): r for r in report.cells("curves-numbers")}
    seeds = [lines(made / f"fedrep-seed{s}/metrics/rounds.jsonl") for s in range(3)]
    for round in (1, 50, 100):
        values = [100 * rows[round - 1]["test_accuracy"] for rows in seeds]
        assert [float(v) for v in shown["FedRep", round][2:]] == pytest.approx(
            [np.mean(values), min(values), max(values)], abs=2e-3
        )
    panel.get_by_role("combobox", name="vertical", exact=True).select_option("test_loss")
    panel.get_by_role("combobox", name="horizontal", exact=True).select_option("megabytes")
    panel.get_by_role("combobox", name="band", exact=True).select_option("t")
    shown = {(r[0], int(r[1])): r for r in report.cells("curves-numbers")}
    values = [rows[49]["test_loss"] for rows in seeds]
    half = 4.302653 * np.std(values, ddof=1) / np.sqrt(3)
    found = [float(v) for v in shown["FedRep", 50][2:]]
    assert found == pytest.approx(
        [50 * 2 * 4100 * 50 / 1e6, np.mean(values), np.mean(values) - half, np.mean(values) + half], abs=2e-3
    )
    panel.get_by_role("button", name="FedAvg", exact=True).click()
    assert "FedAvg" not in {row[0] for row in report.cells("curves-numbers")}
    panel.get_by_label("logarithmic horizontal").check()
    assert panel.locator("svg").count() == 1


def test_hovering_names_the_client_and_its_score(report: Opened, made: Path) -> None:
    panel = report.tab("Clients")
    chart = panel.locator("#chart-distribution")
    chart.get_by_role("combobox", name="seeds", exact=True).select_option("seed 1")
    dots = chart.locator("svg g[aria-label=dot]").first.locator("circle")
    dots.nth(7).hover(force=True)
    tip = chart.locator("svg g[aria-label=tip]").text_content()
    client = re.search(r"client (\d+)", tip)
    assert client is not None, tip
    best = results(made, "fedavg")[1]["best_round"]
    told = {
        r["client"]: r["accuracy"]
        for r in lines(made / "fedavg-seed1/metrics/clients.jsonl")
        if (r["round"], r["model"], r["split"]) == (best, "deployed", "test")
    }
    assert float(re.search(r"accuracy, %: ([\d.]+)", tip)[1]) == pytest.approx(100 * told[int(client[1])], abs=0.01)  # type: ignore[index]


def test_the_heat_map_follows_its_menus_and_the_client_files(report: Opened, made: Path) -> None:
    panel = report.tab("Clients")
    chart = panel.locator("#chart-heat")
    chart.get_by_role("combobox", name="method", exact=True).select_option("Ditto")
    chart.get_by_role("combobox", name="seed", exact=True).select_option("2")
    chart.get_by_text("Numbers", exact=True).click()
    shown = report.cells("heat-numbers")
    told = {
        (str(r["client"]), r["round"]): r["accuracy"]
        for r in lines(made / "ditto-seed2/metrics/clients.jsonl")
        if (r["model"], r["split"]) == ("deployed", "test")
    }
    assert len(shown) == 50
    assert len(shown[0]) == 101
    for row in shown[::9]:
        assert [float(v) for v in row[1:]] == pytest.approx([told[row[0], r] for r in range(1, 101)], abs=6e-4)
    chart.get_by_role("combobox", name="clients", exact=True).select_option("score")
    ends = [float(row[-1]) for row in report.cells("heat-numbers")]
    assert ends == sorted(ends, reverse=True)
    box = chart.locator("svg image").first.bounding_box()
    report.page.mouse.move(box["x"] + 30, box["y"] + 30)
    tip = chart.locator("svg g[aria-label=tip]").first.text_content().replace("\u200b", " ")
    assert re.search(r"client \d+, group \d\s*round \d+\s*accuracy: [\d.]+ %", tip), tip


def test_the_keyboard_reaches_tabs_and_points(report: Opened) -> None:
    report.page.get_by_role("tab", name="Summary").focus()
    report.page.keyboard.press("ArrowRight")
    assert report.page.get_by_role("tab", name="Curves").get_attribute("aria-selected") == "true"
    assert report.page.evaluate("document.activeElement.id") == "tab-curves"
    report.page.keyboard.press("End")
    assert report.page.get_by_role("tab", name="Runs").get_attribute("aria-selected") == "true"
    report.tab("Curves")
    canvas = report.page.locator("#chart-curves .canvas")
    canvas.focus()
    report.page.keyboard.press("ArrowRight")
    assert report.page.locator("#live").inner_text().startswith("FedAvg, round 1, test accuracy")
    assert "round 1" in canvas.locator("svg g[aria-label=tip]").text_content()  # the tip follows
    report.page.keyboard.press("End")
    assert report.page.locator("#live").inner_text().startswith("Centralised, round 100")


def test_the_theme_changes_and_print_is_always_light(report: Opened) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = report.page.evaluate(colour)
    report.page.get_by_role("button", name="dark theme").click()
    assert report.page.evaluate(colour) != light
    report.page.reload()
    report.page.wait_for_selector("html[data-ready]", state="attached")
    assert report.page.evaluate("document.documentElement.dataset.theme") == "dark"  # it is remembered
    report.page.emulate_media(media="print")
    assert report.page.evaluate(colour) == "rgb(255, 255, 255)"
    report.page.wait_for_function(  # all parts are printed
        "n => [...document.querySelectorAll('[role=tabpanel]')].filter(p => p.checkVisibility()).length === n",
        arg=len(TABS),
        timeout=10_000,
    )
    assert report.page.locator("#chart-heat svg").count() >= 1
    assert report.page.pdf()[:5] == b"%PDF-"
    report.requests[:] = list(dict.fromkeys(report.requests))  # the page itself, twice


def test_dropped_replies_and_the_settings(report: Opened) -> None:
    report.tab("Dropped replies")
    assert report.cells("dropped") == [["Ditto", str(s), "2", "train", "0", "not finite"] for s in range(3)]
    report.tab("Runs")
    differ = {row[0]: row[1:] for row in report.cells("differences")}
    assert differ["method.kind"] == list(METHODS)
    assert differ["method.mu"] == ["", "0.1", "", "", "", ""]


def test_names_are_text_whatever_they_contain(chromium: Any, tmp_path: Path) -> None:
    bad = ['<img src=x onerror="window.bad=1">', "</script><script>window.bad=1</script>", "a'b\"c", "=1+1"]
    top = made_comparison(tmp_path / "compare-bad", clients=4, rounds=3, seeds=2, names=bad, name="</title><b>x</b>")
    page = opened(chromium, write_report(top))
    for name in TABS:
        page.tab(name)
        page.page.wait_for_timeout(50)
    assert page.page.evaluate("window.bad") is None
    assert page.page.locator("main img, main b, header b").count() == 0
    assert page.page.locator("h1").inner_text() == "</title><b>x</b>"
    page.tab("Dropped replies")
    assert page.cells("dropped")[0][4] == bad[0]
    assert page.errors == []
    page.page.context.close()


def test_runs_that_did_not_finish_are_shown_as_such(chromium: Any, tmp_path: Path) -> None:
    top = made_comparison(tmp_path / "compare-half", clients=5, rounds=6, seeds=2, unfinished=["ditto"])
    (top / "fedrep-seed1" / "metrics" / "rounds.jsonl").unlink()
    (top / "fedrep-seed1" / "config.toml").unlink()
    (top / "fedrep-seed1" / "result.json").unlink()
    page = opened(chromium, write_report(top))
    warning = page.page.locator(".warning").first.inner_text()
    assert "Ditto, seed 1: unfinished: 3 of 6 rounds" in warning
    assert "FedRep, seed 1: not begun" in warning
    assert {"Ditto", "FedRep"}.isdisjoint(row[0] for row in page.cells("comparison"))
    page.tab("Curves")
    assert page.page.locator("#chart-curves .legend").get_by_role("button", name="Ditto").count() == 1
    assert page.errors == []
    page.page.context.close()


def test_a_real_comparison_is_shown_with_its_clusters(chromium: Any, real: Path) -> None:
    page = opened(chromium, real / "report.html")
    shown = {row[0]: row for row in page.cells("comparison")}
    told = {row["display"]: row for row in json.loads((real / "summary.json").read_text())["rows"]}
    assert set(shown) == {"majority class", *told}
    for label, row in told.items():
        assert shown[label][1].startswith(f"{100 * row['accuracy']:.1f} ±")
    page.tab("Methods")
    assert page.page.locator("#panel-clusters").is_visible()
    assert {row[0] for row in page.cells("clusters")} == {"FL+HC (initial_rounds 1)"}
    page.tab("Federation")
    assert page.page.locator("#chart-labels circle").count() > 4
    assert page.errors == []
    page.page.context.close()
