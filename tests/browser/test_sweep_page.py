"""The page of a sweep, and the virtual clock, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browser.conftest import opened
from helpers.command import fedquilt, small

pytestmark = pytest.mark.browser


def test_the_page_of_a_sweep(chromium: Any, tmp_path: Path) -> None:
    found = fedquilt(
        "sweep",
        small(tmp_path),
        "rounds=2",
        "sweep.seeds=[0,1]",
        "network.uplink_mbps=1",
        "--set",
        "train.optimizer.lr=0.001,0.5",
        "--set",
        "method=fedavg,fedprox",
        "--json",
    ).json
    shown = opened(chromium, Path(found["report"]))
    page = shown.page
    assert page.get_by_role("tab").all_inner_texts()[0] == "Sweep"
    lead = page.locator("main").inner_text()
    assert found["best"]["label"] in lead
    assert f"{100 * found['best']['valid']:.1f}" in lead
    cells = shown.cells("points")
    ordered = sorted((row["valid"] for row in found["points"]), reverse=True)
    assert [row[3].split(" ")[0] for row in cells] == [f"{100 * v:.1f}" for v in ordered]
    picture = page.locator("#chart-parameters")
    assert picture.locator("svg").count() >= 1
    menu = picture.locator("select")
    assert menu.locator("option").all_inner_texts() == ["train.optimizer.lr", "method"]
    menu.select_option(label="method")
    assert "fedprox" in (picture.locator("svg").first.text_content() or "")
    canvas = picture.locator("[tabindex='0']").first
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert "validation accuracy" in page.locator("#live").inner_text()
    curves = shown.tab("Curves")
    assert "test accuracy" not in curves.inner_text()
    assert "virtual seconds" in curves.inner_text()
    spent = shown.tab("Communication")
    assert "virtual clock by exchange" in spent.inner_text()
    assert "cannot be shown" not in page.locator("main").inner_text()
    assert shown.errors == []
    page.screenshot(path=str(tmp_path / "sweep.png"))
    page.context.close()
