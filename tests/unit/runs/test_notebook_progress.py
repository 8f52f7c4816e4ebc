"""Progress where a script or a notebook runs: one output that is updated in place, and nothing in a pipe."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedquilt
from fedquilt import FedAvg
from fedquilt.runs.progress import Progress, progress_of
from fedquilt.testing import digits, network


class Cell:
    """What a notebook shows below a cell: IPython's ``display`` with a display id."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.outputs = 0

    def display(self, what: Any, display_id: bool = False) -> Cell:
        assert display_id
        self.outputs += 1
        self.update(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what._repr_html_())


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    found = Cell()
    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


def test_a_run_in_a_notebook_updates_one_output(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in fedquilt.run(FedAvg(network()), digits(clients=3), rounds=2, engine="local"):
        pass
    assert cell.outputs == 1
    assert "2/2" in cell.shown[-1]
    assert "test accuracy 0." in cell.shown[-1]
    assert capsys.readouterr().out == ""


def test_a_comparison_in_a_notebook_tells_of_each_run(cell: Cell) -> None:
    methods = {"<b>FedAvg": FedAvg(network())}
    fedquilt.compare(methods, digits(clients=3), rounds=1, seeds=[0, 1], engine="local")
    assert cell.outputs == 1
    assert "&lt;b&gt;FedAvg seed 1: 1 rounds" in cell.shown[-1]
    assert "<b>FedAvg" not in cell.shown[-1]


def test_nothing_is_shown_when_asked_not_to_or_in_a_pipe(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = {"method": FedAvg(network()), "federation": digits(clients=3), "rounds": 1, "engine": "local"}
    list(fedquilt.run(**run, progress=False))
    assert cell.outputs == 0
    monkeypatch.delitem(sys.modules, "IPython")
    list(fedquilt.run(**run))
    assert capsys.readouterr().out == ""
    list(fedquilt.run(**run, progress=True))
    assert capsys.readouterr().out.startswith("run: 1/1 test accuracy 0.")


def test_a_run_inside_the_loop_of_another_leaves_its_bar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt.runs.progress.on_screen", lambda: True)
    with progress_of(None) as outer, Progress() as inner:
        outer.bar("outer", 2).round(1, {})
        inner.bar("inner", 2).round(1, {})
        assert outer.live is not None


def test_a_snapshot_is_a_table_of_its_numbers() -> None:
    (snapshot,) = fedquilt.run(FedAvg(network()), digits(clients=3), rounds=1, engine="local")
    html = snapshot._repr_html_()
    assert "<caption>round 1</caption>" in html
    assert "<td>test_accuracy</td>" in html
