"""What was importable in 0.1 still is, with a warning that says where it is now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings

import pytest

from fedquilt.moved import MODULES, moved, names


@pytest.fixture(autouse=True)
def _fresh():
    """Aliases that this test imports are gone after it: their warning comes at their first import."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in MODULES:
            del sys.modules[name]


def test_every_old_module_has_a_new_one() -> None:
    lacking = [new for new in MODULES.values() if importlib.util.find_spec(new) is None]
    assert lacking == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_old_module_hides_a_new_one() -> None:
    """An alias is found only where nothing else is."""
    assert [old for old in MODULES if importlib.util.find_spec(old).loader.__class__.__name__ != "Finder"] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(names()))
def test_every_old_name_has_a_new_one(name: str) -> None:
    module, _, leaf = name.partition(":")
    assert getattr(importlib.import_module(module), leaf) is moved(name)


def test_an_old_import_goes_on_working_and_says_so() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module("fedquilt.core.errors")
        old = importlib.import_module("fedquilt.methods.scaffold").scaffold
    from fedquilt.errors import InputError
    from fedquilt.methods import Scaffold

    assert (module.InputError, old) == (InputError, Scaffold)
    texts = [str(warning.message) for warning in said]
    assert any("fedquilt.core.errors is fedquilt.errors now" in text for text in texts)
    assert any("scaffold of fedquilt.methods.scaffold is" in text and "Scaffold now" in text for text in texts)


def test_what_was_never_there_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedquilt.core.nothing")
    with pytest.warns(DeprecationWarning, match="errors"), pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module("fedquilt.core.errors").nothing


def test_attributes_of_0_1_lead_on_with_a_warning() -> None:
    from fedquilt import Federation, Reply

    federation = Federation.from_source("digits", clients=3)
    with pytest.warns(DeprecationWarning, match="Reply.examples is samples now"):
        assert Reply("oslo", 42, None).examples == 42
    with pytest.warns(DeprecationWarning, match="Federation.examined is evaluated now"):
        assert federation.examined == federation.evaluated
    with pytest.warns(DeprecationWarning, match="Federation.exam is evaluation now"):
        assert federation.exam(federation.ids[0], "test") is not None
    with pytest.warns(DeprecationWarning, match="Site.examples is samples now"):
        assert federation.site(federation.ids[0], 0).examples == federation.size(federation.ids[0])


def test_what_a_method_of_0_1_reports_is_heard() -> None:
    from dataclasses import dataclass

    from fedquilt import FedAvg, Federation, Net, OnBase, run
    from fedquilt.models import LogisticRegression

    @dataclass(frozen=True)
    class Telling(OnBase):
        base: FedAvg

        reported = None  # as in a class that was written for 0.1

        def told(self, state: object) -> dict[str, float]:
            return {"answer": 42.0}

    federation = Federation.from_source("digits", clients=3)
    method = Telling(FedAvg(Net.of(LogisticRegression, features=64, classes=10)))
    with pytest.warns(DeprecationWarning, match="Telling.told should be called reported"):
        (snapshot,) = run(method, federation, rounds=1, engine="local")
    assert snapshot.metrics["answer"] == 42.0


def test_options_and_fields_of_0_1_are_read() -> None:
    from fedquilt.config.settings import Config
    from fedquilt.pieces.codecs import half, on

    with pytest.warns(DeprecationWarning, match="hgls.slopes is gradient_codec now"):
        config = Config.model_validate({"method": {"kind": "hgls", "slopes": "hgc"}, "data": {"source": "digits"}})
    assert config.method.options == {"gradient_codec": "hgc"}
    with pytest.warns(DeprecationWarning, match="base.slope is base.gradient now"):
        assert on("base.slope", half()).field == "base.gradient"


def test_logs_of_0_1_are_read_and_gone_on_with(tmp_path) -> None:
    import json

    from fedquilt.storage.folder import RunFolder
    from fedquilt.storage.logs import LEDGER, UPDATES, read

    row = {"round": 1, "client": 3, "exchange": "train", "seconds": 0.1, "bytes_up": 5, "bytes_down": 6}
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "visits.jsonl").write_text(json.dumps({**row, "examples": 7, "trip": 0}) + "\n")
    (tmp_path / "ledger.jsonl").write_text(json.dumps({"round": 1, "client": 3, "exchange": "x", "reason": "y"}) + "\n")
    assert read(tmp_path, UPDATES) == [{**row, "samples": 7, "place": 0}]
    assert [found["reason"] for found in read(tmp_path, LEDGER)] == ["y"]
    folder = RunFolder(tmp_path)
    folder.open()
    folder.log(UPDATES, [{**row, "round": 2, "samples": 8, "place": 0}])
    folder.close()
    assert [found["samples"] for found in read(tmp_path, UPDATES)] == [7, 8]
    assert not (tmp_path / "metrics" / "visits.jsonl").exists()


def test_a_field_keeps_its_name_in_frames() -> None:
    import torch

    from fedquilt.methods.averaging.feddyn import GradientClient
    from fedquilt.records.record import pack, unpack

    frame = pack(GradientClient({}, {"w": torch.ones(1)}))
    assert b"slope" in frame
    assert b"gradient" not in frame
    assert unpack(frame).gradient["w"] == 1
    assert unpack(pack(GradientClient({}, {"w": torch.ones(1)}), compact=True)).gradient["w"] == 1
