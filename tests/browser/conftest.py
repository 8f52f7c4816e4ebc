"""A real Chromium, and reports for it to open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedquilt.report import write_report
from helpers.command import fedquilt, small
from helpers.made_runs import made_comparison

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The system's browser, without a window; FEDQUILT_CHROMIUM names another one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = os.environ.get("FEDQUILT_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)
    if path is None:
        pytest.skip(f"needs a Chromium: none of {', '.join(NAMES)} is on the path, and FEDQUILT_CHROMIUM is not set")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it said and asked for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def tab(self, name: str) -> Any:
        """Open a tab and give its panel."""
        self.page.get_by_role("tab", name=name, exact=True).click()
        return self.page.locator(f"#view-{name.lower().replace(' ', '-')}")

    def cells(self, table: str) -> list[list[str]]:
        """The body of a table as it is shown."""
        script = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
        found: list[list[str]] = self.page.locator(f"#table-{table}").evaluate(script)
        return found

    def copied(self, block: Any, name: str) -> str:
        """Press a copy button; what is in the clipboard then."""
        block.get_by_role("button", name=name, exact=True).first.click()
        self.page.wait_for_function("n => document.getElementById('live').textContent.includes(n)", arg=name)
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text


def opened(browser: Any, path: Path, **options: Any) -> Opened:
    """The report in a new window."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    made = Opened(context.new_page())
    made.page.on("console", lambda m: made.errors.append(m.text) if m.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda e: made.errors.append(str(e)))
    made.page.on("request", lambda r: made.requests.append(r.url))
    made.page.goto(path.as_uri())
    made.page.wait_for_selector("html[data-ready]", state="attached")
    return made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods, three seeds, 50 clients, 100 rounds."""
    top = made_comparison(tmp_path_factory.mktemp("made") / "compare-made")
    write_report(top)
    return top


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison that was really run, with clusters."""
    folder = tmp_path_factory.mktemp("real")
    said = fedquilt(
        "compare",
        small(folder),
        "--json",
        'compare.methods=["fedavg",{kind="flhc",initial_rounds=1}]',
        "compare.seeds=[0,1]",
        "compare.frame=true",
    )
    assert said.code == 0, said.err
    return Path(said.json["report"]).parent


@pytest.fixture
def report(chromium: Any, made: Path) -> Iterator[Opened]:
    """The large report, which must stay silent and alone."""
    page = opened(chromium, made / "report.html")
    yield page
    assert page.errors == []
    assert {url.split(":")[0] for url in page.requests} <= {"file", "data", "blob"}
    assert [url for url in page.requests if url.startswith("file")] == [(made / "report.html").as_uri()]
    page.page.context.close()
