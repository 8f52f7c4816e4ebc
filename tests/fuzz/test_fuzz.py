"""The short form of ``make fuzz``: a few hundred mutated frames and recipes, and the odd ones that once got through."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import fuzz_configs
import fuzz_frames
import pytest

import fuzz
from fedquilt.config.config import dump, load
from fedquilt.config.data import federation_of
from fedquilt.errors import ConfigError, FrameError, InputError
from fedquilt.pieces import etf
from fedquilt.records.compact import MAGIC
from fedquilt.records.limits import upload_limits
from fedquilt.records.record import unpack
from fedquilt.studies.compare import cells


@pytest.fixture(autouse=True)
def at_home():
    """The fuzzer works in a folder of its own, and is in more of a hurry than others."""
    before, steps = Path.cwd(), etf.projected.__defaults__
    yield
    os.chdir(before)
    etf.projected.__defaults__ = steps


@pytest.mark.parametrize(("kind", "count"), [("frame", 3000), ("config", 80)])
def test_mutants_are_refused_or_read_and_nothing_else(kind, count, monkeypatch):
    monkeypatch.setenv("FEDQUILT_MAX_BYTES", "50M")
    monkeypatch.setattr(fuzz, "SECONDS", 20.0)  # a hang is one also on a machine that is busy
    found = fuzz.played(kind, 1, range(count), memory=2048)
    assert not found.wrong
    assert found.counts.total() == count
    assert len(found.counts) > 1  # some are read


def test_large_headers_are_refused_at_once():
    """They took a processor for seconds, whatever their limits."""
    for frame in fuzz_frames._headers():
        began = time.process_time()
        reason = "more than 131,072 values|late" if frame[:2] == MAGIC else "not a compact frame"
        with pytest.raises(FrameError, match=reason):
            unpack(frame, limits=upload_limits(0, None, 0.5))
        assert time.process_time() - began < 1


def test_a_case_is_the_same_whenever_it_is_played():
    texts = [[fuzz_configs.mutated(fuzz.random.Random(n), fuzz_configs.Seeds.found()) for n in range(30)] for _ in "ab"]
    assert texts[0] == texts[1]


ODD = {
    "deep lists": "x = " + "[" * 5000 + "]" * 5000,
    "deep sections": "[" + ".".join(["a"] * 3000) + "]",
    "a little deep": "[data]\nmean = " + "[" * 30 + "]" * 30,
    "a number of 5000 digits": "seed = " + "9" * 5000,
    "a seed beyond 64 bits": "seed = 99999999999999999999",
    "no folder": '[output]\nfolder = ""',
    "a name too long for a folder": 'name = "' + "x" * 400 + '"',
    "a folder that no system has": '[output]\nfolder = "a\\u0000b"',
    "a negative eps": '[train]\noptimizer = { kind = "adam", eps = -1.0 }',
    "no path": '[data]\npath = ""',
    "infinite": "[data]\nmean = inf",
    "not a number": '[model]\nkind = "mlp"\nweights = nan',
    "vast": '[model]\nkind = "mlp"\nhidden = [1000000000000]',
    "vast and deep": '[model]\nkind = "vit_tiny"\ndepth = 1000000000',
    "weights a list": '[model]\nkind = "mlp"\nweights = [1]',
    "pretrained a number": '[model]\nkind = "mae"\npretrained = 3',
    "no weights": '[model]\nkind = "mlp"\nweights = ""',
    "a long path": '[model]\nkind = "mlp"\nweights = "' + "x" * 5000 + '"',
    "beyond torch": '[model]\nkind = "mlp"\nhidden = [99999999999999999999999999]',
    "a kind that is a table": "[method]\nkind = { a = 1 }\nslopes = 1",
    "a kind that is a list": "[train]\noptimizer = { kind = [] }",
    "a script, and a method that is a number": "script = 1\nmethod = 7",
    "an empty name": '[method]\nkind = "fedavg"\n"" = 1',
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_recipes_are_refused_with_a_reason(text, tmp_path):
    with pytest.raises(InputError) as refused:
        fuzz_configs.build(load_text(text, tmp_path))
    assert 10 < len(str(refused.value)) < 12_000


ODD_DATA = {
    "groups without end": ('shift = { kind = "label_permutation", groups = 1000000000000000000000000000000 }', None),
    "a state beyond 32 bits": (
        'long_tail = { kind = "step", factor = 0.9, random_state = 1000000000000 }',
        "random_state must be a number from 0 to",
    ),
    "an infinite sum": ('partition = { kind = "dirichlet", alpha = 1e308 }', "alpha must be at most 1e.12"),
}


@pytest.mark.parametrize(("setting", "refusal"), ODD_DATA.values(), ids=ODD_DATA)
def test_odd_data_are_made_or_refused_in_no_time(setting, refusal, tmp_path):
    fuzz_configs.warm()
    began = time.process_time()
    with nullcontext() if refusal is None else pytest.raises(InputError, match=refusal):
        federation_of(fuzz_configs.small(load_text(f"[data]\n{setting}\n", tmp_path)))
    assert time.process_time() - began < 1


def test_a_comparison_of_many_seeds_is_planned_in_no_time(tmp_path):
    """What a method trains with was looked up anew for every one of its seeds."""
    config = load_text(f"[compare]\nmethods = ['fedavg', 'hgls', 'fedbabu']\nseeds = {list(range(1000))}", tmp_path)
    began = time.process_time()
    assert len(cells(config)[1]) == 3 * 1000
    assert time.process_time() - began < 1


def load_text(text: str, folder: Path) -> fuzz_configs.Config:
    """The settings of a text."""
    (folder / "recipe.toml").write_text(text)
    return load(folder / "recipe.toml")


def test_a_recipe_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "latin.toml").write_bytes("name = 'é'".encode("latin-1"))
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(tmp_path / "latin.toml")
    with pytest.raises(InputError, match="File name too long"):
        load("x" * 5000)


def test_options_with_odd_names_are_written_and_read_back(tmp_path):
    text = '[sweep.space]\n"train.optimizer.lr" = [0.1, 0.2]\n'
    config = load_text(text, tmp_path)
    assert load_text(dump(config), tmp_path) == config
