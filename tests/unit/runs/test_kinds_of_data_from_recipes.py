"""Words, characters and signals from official files to a finished run, and people as clients, by recipes alone."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedquilt.config.config import load
from fedquilt.runs.build import federation_of
from helpers.command import Said, fedquilt, small

RECIPE = """
name = "kind"
rounds = 1

[data]
{data}

[model]
{model}

[train]
batch_size = 8
optimizer = {{ kind = "sgd", lr = 0.1 }}

[engine]
kind = "local"
"""
SPEECH = "To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer " * 2


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    return tmp_path


def ran(folder: Path, data: str, model: str) -> Said:
    return fedquilt("run", small(folder, RECIPE.format(data=data, model=model)), "--json")


def write_news(folder: Path, rows: int = 60) -> None:
    words = ("war", "goal", "market", "chip")
    for part in ("train", "test"):
        (folder / "ag_news").mkdir(exist_ok=True)
        with (folder / "ag_news" / f"{part}.csv").open("w", newline="") as out:
            writer = csv.writer(out, quoting=csv.QUOTE_ALL)
            writer.writerows((i % 4 + 1, words[i % 4], f"the {words[i % 4]} of day {i}") for i in range(rows))


def write_leaf(folder: Path) -> None:
    windows = [(SPEECH[i : i + 80], SPEECH[i + 80]) for i in range(30)]
    own = {"x": [x for x, _ in windows], "y": [y for _, y in windows]}
    people = ["HAMLET", "OPHELIA"]
    whole = {"users": people, "num_samples": [30, 30], "user_data": dict.fromkeys(people, own)}
    for part in ("train", "test"):
        (folder / "shakespeare" / "data" / part).mkdir(parents=True)
        (folder / "shakespeare" / "data" / part / "some.json").write_text(json.dumps(whole))


def write_roles(folder: Path) -> None:
    (folder / "shakespeare_roles").mkdir()
    rows = "".join(f'hamlet,{role},"{SPEECH * 3}"\n' for role in ("HAMLET", "OPHELIA", "KING"))
    (folder / "shakespeare_roles" / "shakespeare_roles.csv").write_text(f"play,role,text\n{rows}")


def write_signals(folder: Path) -> None:
    raw = folder / "hapt" / "RawData"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in ("acc", "gyro"):
        for user in (1, 2):
            np.savetxt(raw / f"{name}_exp0{user}_user0{user}.txt", draw.normal(size=(1500, 3)))
    (raw / "labels.txt").write_text("1 1 1 1 750\n1 1 5 751 1500\n2 2 2 1 1500\n")


def test_news_with_the_text_network(folder: Path):
    """Its defaults are those of ``ag_news``: 25,000 words, of which a text has 128."""
    write_news(folder)
    said = ran(folder, 'source = "ag_news"\nclients = 3\npartition = "iid"', 'kind = "text_cnn"\nwidth = 4\nmaps = 4')
    assert said.code == 0, said.err
    assert federation_of(load(folder / "small.toml")).ids == (0, 1, 2)


@pytest.mark.parametrize(
    ("source", "kind", "clients"),
    [
        ("shakespeare", "char_lstm", ("HAMLET", "OPHELIA")),
        ("shakespeare_roles", "char_gru", ("hamlet/HAMLET", "hamlet/KING", "hamlet/OPHELIA")),
    ],
)
def test_roles_with_the_character_networks(folder: Path, source: str, kind: str, clients: tuple[str, ...]):
    write_leaf(folder)
    write_roles(folder)
    said = ran(folder, f'source = "{source}"\nby_user = true', f'kind = "{kind}"\nhidden = 8')
    assert said.code == 0, said.err
    assert federation_of(load(folder / "small.toml")).ids == clients


def test_people_with_the_signal_network(folder: Path):
    write_signals(folder)
    said = ran(folder, 'source = "hapt"\nby_user = true', 'kind = "signal_cnn"\nhidden = 8')
    assert said.code == 0, said.err
    assert federation_of(load(folder / "small.toml")).ids == (1, 2)


def test_any_user_column(folder: Path):
    rows = "".join(f"{i},{i % 7},{'ab'[i % 2]},{('oslo', 'bergen', 'bodø')[i % 3]}\n" for i in range(90))
    (folder / "client updates.csv").write_text(f"age,pulse,outcome,clinic\n{rows}")
    said = ran(folder, f'path = "{folder}/client updates.csv"\nlabel = "outcome"\nuser = "clinic"', 'kind = "logistic"')
    assert said.code == 0, said.err
    assert federation_of(load(folder / "small.toml")).ids == ("bergen", "bodø", "oslo")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lenet5", r"lenet5 takes \(C, 28, 28\) or \(C, 32, 32\), not \(128,\). These fit: .*text_cnn"),
        ("signal_cnn", r"signal_cnn takes \(C, L\) with L of 28 or more, not \(128,\)"),
    ],
)
def test_a_network_for_other_data_is_refused_with_those_that_fit(folder: Path, model: str, message: str):
    write_news(folder)
    said = ran(folder, 'source = "ag_news"\nclients = 2', f'kind = "{model}"')
    assert said.code == 2
    assert re.search(message, said.json["message"])
