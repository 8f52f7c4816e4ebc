"""The self-test of speed: it measures every engine and recommends the fastest."""

import pytest

from fedquilt.analysis.bench import advice, measured
from fedquilt.errors import InputError


def test_every_engine_is_measured():
    rows = list(measured(["logistic"], processes=2, seconds=0.01, clients=2, rows=10))
    assert [(row["model"], row["engine"]) for row in rows] == [("logistic", e) for e in ("local", "lanes", "workers")]
    assert all(row["steps_per_second"] > 0 for row in rows)
    assert all(row["memory_mb"] is None or row["memory_mb"] > 10 for row in rows)


def test_one_process_has_no_workers():
    rows = list(measured(["logistic"], processes=1, seconds=0.01, clients=2, rows=10))
    assert [row["engine"] for row in rows] == ["local", "lanes"]


def test_advice_names_the_fastest_unless_it_is_hardly_faster():
    def row(model, engine, speed):
        return {"model": model, "engine": engine, "steps_per_second": speed}

    rows = [
        row("a", "local", 100.0),
        row("a", "workers", 180.0),
        row("a", "lanes", 120.0),
        row("b", "local", 100.0),
        row("b", "workers", 105.0),
        row("b", "lanes", 50.0),
    ]
    a, b = advice(rows)
    assert (a["best"], a["times_local"], b["best"], b["times_local"]) == ("workers", "1.8", "local", "1.0")
    assert "engine.kind=workers" in a["set"]


def test_no_time_is_refused():
    with pytest.raises(InputError, match="seconds must be more than 0, got 0"):
        list(measured(seconds=0))
