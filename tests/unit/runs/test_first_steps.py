"""What a newcomer tries first: texts from a table, a few rows of a large set, a picture of many clients."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedquilt.config.config import parse
from fedquilt.data import Federation, Words
from fedquilt.errors import InputError
from fedquilt.registry import RegistryEntry
from fedquilt.results.plots import _bubble
from fedquilt.runs.build import federation_of
from fedquilt.show.show import partition_table

MAIL = "text,title,label\n" + "b a b,x,spam\na c,y,ham\n" * 5


def test_texts_of_a_table_become_word_ids(tmp_path):
    path = tmp_path / "mail.csv"
    path.write_text(MAIL)
    federation = Federation.from_csv(path, text=Words(("title", "text"), size=4, length=3), clients=2)
    # Counts: a 10, b 10, c 5, x 5, y 5. Two words fit beside padding and unknown: a = 2, b = 3; c, x, y become 1.
    assert {tuple(row) for row in federation.columns["x"].tolist()} == {(1, 3, 2), (1, 2, 1)}
    data = {"path": str(path), "text": ["title", "text"], "words": 4, "length": 3, "clients": 2, "partition": "iid"}
    again = federation_of(parse({"data": data}))
    assert again.columns["x"].tolist() == federation.columns["x"].tolist()


def test_text_options_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "mail.csv"
    path.write_text(MAIL)
    with pytest.raises(InputError, match="text and features are mutually exclusive"):
        Federation.from_csv(path, text="text", features=["title"], clients=2)
    with pytest.raises(InputError, match="no column 'body'"):
        Federation.from_csv(path, text="body", clients=2)
    with pytest.raises(InputError, match=r"go with data\.text"):
        federation_of(parse({"data": {"path": str(path), "length": 3}}))
    with pytest.raises(InputError, match=r"data\.text goes with data\.path"):
        federation_of(parse({"data": {"source": "digits", "text": "text"}}))


def test_features_of_a_table_from_a_recipe(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("age,name,label\n" + "61,ann,0\n45,bob,1\n" * 10)
    data = {"path": str(path), "features": ["age"], "clients": 2, "partition": "iid"}
    assert federation_of(parse({"data": data})).columns["x"].shape == (20, 1)


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"notes.txt is none of .npz, .csv, .csv.gz, .parquet"):
        federation_of(parse({"data": {"path": str(path)}}))


def test_limit_also_limits_the_common_test_set(tmp_path):
    x, y = np.arange(400.0).reshape(200, 2), np.arange(200) % 2
    np.savez(tmp_path / "both.npz", x_train=x, y_train=y, x_test=-x, y_test=y)
    data = {"path": str(tmp_path / "both.npz"), "limit": 30, "clients": 2, "partition": "iid"}
    federation = federation_of(parse({"data": data}))
    assert len(federation.global_test) == 30


@pytest.mark.parametrize("where", ["no_such_module_here:x", "fedquilt.data:no_such_name"])
def test_an_entry_point_that_leads_nowhere_is_named(where):
    with pytest.raises(InputError, match=f"'mine' .from my-package. cannot be loaded from {where}: .*no_such_"):
        RegistryEntry("mine", where, "from my-package").load()


def test_bubbles_of_many_clients_are_small():
    figure = Figure(figsize=(15, 12))  # 1080 x 864 points
    assert _bubble(figure, 10, 10) == 13
    assert _bubble(figure, 100, 100) == pytest.approx(2.5 * 0.33 * 1080 / 100)  # the columns are narrower than the rows
    assert _bubble(figure, 1000, 10) == 4


def test_the_table_of_many_classes_stays_legible(tmp_path, capsys):
    x, y = np.zeros((400, 1)), np.arange(400) % 100
    partition_table(Federation.from_arrays(x, y, clients=2), tmp_path / "p.png")
    said = capsys.readouterr().out
    assert "…" not in said
    assert re.search(r"and \d+ more labels; all are in", said)
