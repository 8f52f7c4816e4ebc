"""The page that follows runs, in a real browser: live, killed and resumed, twenty at once; never without its token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedquilt as package
from browser.conftest import Opened
from fedquilt.data import read
from fedquilt.watch.server import WatchServer
from helpers.command import SMALL, lines, small
from helpers.growing import Growing

pytestmark = pytest.mark.browser
LONG = 60_000  # milliseconds: machines may be busy


@contextmanager
def served(top: Path) -> Iterator[WatchServer]:
    with WatchServer(top) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def watching(browser: Any, top: Path, **options: Any) -> Iterator[Opened]:
    """The page of a folder, which must make no error and ask nobody but its own server."""
    with served(top) as server:
        page = opened(browser, server.url, **options)
        yield page
        assert page.errors == []
        assert {url.split("?")[0] for url in page.requests} <= {server.url.split("?")[0] + p for p in ("", "data")}
        page.page.context.close()


def opened(browser: Any, url: str, **options: Any) -> Opened:
    made = Opened(browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page())
    made.page.on("console", lambda m: made.errors.append(m.text) if m.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda e: made.errors.append(str(e)))
    made.page.on("request", lambda r: made.requests.append(r.url))
    made.page.goto(url)
    made.page.wait_for_selector("html[data-ready]", state="attached")
    return made


def until(page: Opened, script: str, wanted: Any = None) -> None:
    page.page.wait_for_function(script, arg=wanted, timeout=LONG)


def state(page: Opened, wanted: str) -> None:
    """Wait until the run that is shown is in this state."""
    until(page, "s => document.querySelector('#one .heading .state')?.textContent === s", wanted)


def reached(page: Opened, rounds: int) -> None:
    until(page, "n => (document.querySelector('#one progress')?.value ?? 0) >= n", rounds)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A real run, with data from a file, that goes back to the last of ten rounds when it is killed."""
    arrays = read("digits")
    np.savez(tmp_path / "digits.npz", x=arrays.x, y=arrays.y)
    text = SMALL.replace("[data]", f'[data]\npath = "{tmp_path}/digits.npz"') + "every = 10\n"
    (tmp_path / "runs").mkdir()
    return small(tmp_path, text)


def started(*words: str) -> subprocess.Popen[bytes]:
    source = str(Path(package.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "fedquilt", *words, "--json"],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def same_as_the_files(page: Opened, folder: Path) -> None:
    """The numbers below the pictures, the clients and the cards are those of the metric files."""
    rows = lines(folder / "metrics" / "rounds.jsonl")
    until(page, "n => document.querySelector('#one progress').value === n", len(rows))
    chart = page.page.locator("#chart-accuracy")
    chart.get_by_text("Numbers", exact=True).click()
    shown = {int(r[1]): float(r[2]) for r in page.cells("accuracy-numbers") if r[0] == "test"}
    assert shown == pytest.approx({r["round"]: 100 * r["test_accuracy"] for r in rows}, abs=1e-3)
    assert len([r for r in page.cells("accuracy-numbers") if r[0] == "test"]) == len(rows)  # none twice
    told = {
        str(r["client"]): r
        for r in lines(folder / "metrics" / "clients.jsonl")
        if (r["round"], r["model"], r["split"]) == (len(rows), "deployed", "test")
    }
    assert {r[0]: r[1] for r in page.cells("clients")} == {c: f"{100 * r['accuracy']:.1f}" for c, r in told.items()}
    cards = page.page.locator("#one .facts").inner_text()
    assert f"{100 * rows[-1]['test_accuracy']:.1f} %" in cards
    sent = sum(r["bytes_up"] + r["bytes_down"] for r in rows) / 1e6
    assert f"{sent:.1f} MB" in cards


def test_a_live_run_from_its_beginning_to_its_end(chromium: Any, recipe: Path) -> None:
    with watching(chromium, recipe.parent / "runs") as page:
        assert "There are no runs below runs yet" in page.page.locator("#none").inner_text()
        assert page.page.locator("#subtitle").inner_text() == "waiting for the first run"
        run = started("run", str(recipe), "rounds=250")
        try:
            state(page, "running")  # the only run is opened by itself
            reached(page, 5)
            assert "left" in page.page.locator("#one .progress").inner_text()
            assert page.page.locator("#chart-accuracy svg").is_visible()
            assert page.page.locator("#messages li").last.inner_text().split("\n")[1:3] == ["begun", "round 0"]
            state(page, "done")
        finally:
            run.kill()
            run.wait()
        (folder,) = (recipe.parent / "runs").iterdir()
        same_as_the_files(page, folder)
        assert page.page.locator("#messages li").first.locator(".kind").inner_text() == "finished"
        assert page.page.title().startswith("250/250 ")


def test_a_run_that_is_killed_and_resumed(chromium: Any, recipe: Path) -> None:
    run = started("run", str(recipe), "rounds=250")
    with watching(chromium, recipe.parent / "runs") as page:
        try:
            state(page, "running")
            reached(page, 14)
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        state(page, "killed")
        (folder,) = (recipe.parent / "runs").iterdir()
        played = len(lines(folder / "metrics" / "rounds.jsonl"))
        assert played < 250
        notice = page.page.locator("#one .warning:visible").inner_text()
        assert "it was killed" in notice
        assert f"fedquilt resume {folder}" in notice
        again = started("resume", str(folder))
        try:
            state(page, "done")
        finally:
            again.kill()
            again.wait()
        same_as_the_files(page, folder)  # also what was played twice
        assert not page.page.locator("#one .warning:visible").is_visible()
        kinds = page.page.locator("#messages .kind").all_inner_texts()
        assert kinds == ["finished", "resumed", "begun"]
        resumed = json.loads((folder / "messages.jsonl").read_text().splitlines()[1])
        assert 10 <= resumed["round"] <= played


def test_twenty_runs_at_once(chromium: Any, tmp_path: Path) -> None:
    runs = [Growing(tmp_path / "runs" / f"run-{i:02d}", rounds=40) for i in range(19)]
    with watching(chromium, tmp_path / "runs") as page:
        table = page.page.locator("#runs tbody tr")
        until(page, "n => document.querySelectorAll('#runs tbody tr').length === n", 19)
        runs.append(Growing(tmp_path / "runs" / "run-19", rounds=40))  # one more while we look
        for _ in range(30):
            for run in runs:
                run.play()
        runs[3].play("not finite")
        runs[4].close()  # it dies without a word
        for _ in range(10):
            runs[5].play()
        runs[5].finish()
        until(page, "() => document.querySelectorAll('#runs .state.running').length === 18")
        until(page, "() => document.querySelector('#subtitle').textContent === '20 runs: 18 running, 1 killed, 1 done'")
        until(page, "() => document.querySelector('#all .progress b').textContent === '611 of 800 rounds'")
        shown = {row.split("\t")[0].strip(): row for row in table.all_inner_texts()}
        assert list(shown) == [f"run-{i:02d}" for i in range(20)]
        assert "31/40" in shown["run-03"]
        assert "killed" in shown["run-04"]
        assert "done" in shown["run-05"]
        assert f"{100 * (1 - 0.9**30):.1f} %" in shown["run-07"]
        assert page.page.locator("#chart-all .legend button").count() == 20
        page.page.get_by_role("searchbox", name="Filter runs").fill("killed")
        assert table.all_inner_texts()[0].startswith("run-04")
        assert table.count() == 1
        page.page.get_by_role("searchbox", name="Filter runs").fill("")
        page.page.get_by_role("link", name="run-03").focus()
        page.page.keyboard.press("Enter")
        state(page, "running")
        assert page.cells("dropped") == [["31", "train", "0", "not finite"]]
        assert len(page.cells("clients")) == 5
        runs[3].play()
        reached(page, 32)
        page.page.get_by_role("link", name="All runs").click()
        until(page, "() => document.querySelectorAll('#runs tbody tr').length === 20")
        measure = page.page.context.new_cdp_session(page.page)
        measure.send("Performance.enable")
        before = _work(measure)
        page.page.wait_for_timeout(4000)
        assert _work(measure) - before < 2.0  # seconds of work in four, also on a slow machine
    for run in runs:
        run.close()


def _work(session: Any) -> float:
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def test_what_the_reader_does_stays_while_numbers_change(chromium: Any, tmp_path: Path) -> None:
    run = Growing(tmp_path / "runs" / "one", rounds=40)
    other = Growing(tmp_path / "runs" / "two", rounds=40)
    for _ in range(5):
        run.play()
        other.play()
    with watching(chromium, tmp_path / "runs") as page:
        chart = page.page.locator("#chart-all")
        chart.get_by_role("combobox", name="vertical", exact=True).select_option("train_loss")
        chart.get_by_role("button", name="two", exact=True).click()
        new = Growing(tmp_path / "runs" / "three", rounds=40)  # a new curve: the picture is made anew
        new.play()
        chart.get_by_role("button", name="three", exact=True).wait_for(timeout=LONG)
        assert chart.get_by_role("combobox", name="vertical", exact=True).input_value() == "train_loss"
        assert chart.get_by_role("button", name="two", exact=True).get_attribute("aria-pressed") == "false"
        page.page.get_by_role("link", name="one", exact=True).click()
        state(page, "running")
        page.page.locator("#panel-clients").get_by_role("searchbox").fill("nobody")
        head = page.page.locator("#table-clients thead")
        head.get_by_role("button", name="accuracy, %").focus()
        page.page.keyboard.press("Enter")
        canvas = page.page.locator("#chart-loss .canvas")
        canvas.hover()
        pointed = "() => document.querySelector('#chart-loss svg g[aria-label=tip]')?.textContent.includes('round')"
        until(page, pointed)
        run.play()
        reached(page, 6)
        until(page, pointed)  # it is still pointed at
        assert page.cells("clients") == [["No row has these words."]]
        assert head.locator("th[aria-sort]").count() == 1
        assert page.page.evaluate("document.activeElement.dataset.key") == "accuracy"
        before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.page.get_by_role("button", name="dark theme").click()
        assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        skip = page.page.get_by_role("link", name="Skip to the content")
        skip.focus()
        page.page.keyboard.press("Enter")
        assert page.page.evaluate("document.activeElement.id") == "main"
        assert page.page.locator("#one").is_visible()
        page.page.get_by_role("link", name="All runs").click()
        page.page.locator("#runs").wait_for()
    for one in (run, other, new):
        one.close()


def test_words_are_text_whatever_they_contain(chromium: Any, tmp_path: Path) -> None:
    bad = '<img src=x onerror="window.bad=1">'
    run = Growing(tmp_path / bad.replace("/", ""), rounds=3)
    run.play(bad)
    run.journal.say("note", 1, bad)
    run.journal.say("failed", 1, bad)
    run.close()
    with watching(chromium, tmp_path) as page:
        state(page, "failed")
        assert page.cells("dropped")[0][3] == bad
        assert page.page.locator("#one .warning:visible").inner_text().startswith(f"This run failed: {bad}")
        assert page.page.evaluate("window.bad") is None
        assert page.page.locator("main img").count() == 0


def test_nothing_without_the_token(chromium: Any, tmp_path: Path) -> None:
    with served(tmp_path) as server:
        context = chromium.new_context()
        page = context.new_page()
        bare = server.url.split("?")[0]
        for url in (bare, f"{bare}?token=wrong", f"{bare}?token={server.token[:-1]}"):
            assert page.goto(url).status == 403
            assert "with its token" in page.inner_text("body")
        assert page.goto(server.url).status == 200
        ask = "async (token) => (await fetch('data', {headers: {'X-Fedquilt-Token': token}})).status"
        assert page.evaluate(ask, "wrong") == 403
        assert page.evaluate(ask, server.token) == 200
        context.close()


def test_the_page_says_when_nobody_answers_any_more(chromium: Any, tmp_path: Path) -> None:
    run = Growing(tmp_path / "one", rounds=3)
    run.play()
    with served(tmp_path) as server:
        page = opened(chromium, server.url)
        state(page, "running")
    until(page, "() => !document.getElementById('trouble').hidden")
    assert "'fedquilt watch' has ended" in page.page.locator("#trouble").inner_text()
    assert page.page.locator("#one .facts").is_visible()  # what was known stays
    page.page.context.close()
    run.close()
