"""Tables of one's own are standardised column by column, from training samples alone; what is no table is left
alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.core.columns import PerColumn, code_of
from fedquilt.data import Federation, Noise, Stream, Transforms, held_out, imports, read
from fedquilt.data.transforms import Normalise
from fedquilt.errors import InputError
from helpers import clinics

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(120, 3)) * [1.0, 1e3, 1e-4] + [0.0, 5e5, 2.0]
Y = DRAW.integers(2, size=120)


def pooled(data: Federation, split: str = "train") -> np.ndarray:
    return np.concatenate(
        [data.evaluation(c, split).whole().x if split == "test" else data.site(c, 0).train.whole().x for c in data.ids]
    )


def test_each_column_is_standardised_by_training_rows_alone():
    data = Federation.from_arrays(X, Y, clients=4, test=0.3)
    np.testing.assert_allclose(pooled(data).mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(pooled(data).std(0), 1, atol=1e-5)
    assert np.abs(pooled(data, "test").mean(0)).max() > 1e-3  # other rows than those the numbers come from
    train = X[data.train.index.numpy()]
    np.testing.assert_allclose([c.mean for c in data.prepare.columns], train.mean(0), rtol=1e-12)
    held = Federation.from_clients(
        {c: tuple(part) for c, part in enumerate(zip(np.split(X, 4), np.split(Y, 4), strict=False))}
    )
    assert isinstance(held.prepare, PerColumn)


def test_clients_may_take_their_own_numbers():
    shifted = X + np.repeat([[0.0], [10.0], [20.0], [30.0]], 30, 0)
    users = np.repeat(np.arange(4), 30)
    data = Federation.from_arrays(shifted, Y, user=users, standardise="clients", global_test=(X[:9], Y[:9]))
    for client in data.ids:
        np.testing.assert_allclose(data.site(client, 0).train.whole().x.mean(0), 0, atol=1e-5)
    assert data.prepare is None
    assert data.preparation.scope == "clients"
    np.testing.assert_allclose(data.global_test.whole().x.mean(0), 0, atol=1e-5)  # rows of nobody, by their own numbers
    with pytest.raises(InputError, match="standardise is 'federation', 'clients' or false, got 'rows'"):
        Federation.from_arrays(X, Y, standardise="rows")


def test_what_is_no_table_of_ones_own_stays_as_it_is():
    tokens = DRAW.integers(0, 50, (40, 8))
    assert Federation.from_arrays(tokens, Y[:40], clients=2).prepare is None
    signals = DRAW.normal(size=(40, 8, 3))
    assert Federation.from_arrays(signals, Y[:40], clients=2).prepare is None
    assert read("digits").ready
    digits = Federation.from_source("digits", clients=2)
    assert digits.prepare is None
    assert digits.preparation is None
    assert digits.columns["x"].dtype == torch.float32
    ready = {"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}
    assert Federation.from_rows(ready, {"a": {"train": [0, 1]}}).prepare is None
    plain = Federation.from_arrays(X, Y, clients=2, standardise=False)
    assert plain.prepare is None
    assert plain.columns["x"].dtype == torch.float32
    steps = Transforms((Normalise(0.0, 2.0),))
    assert Federation.from_arrays(X, Y, clients=2, prepare=steps).prepare is steps


def test_a_csv_of_numbers_names_and_holes(tmp_path):
    data = Federation.from_csv(clinics.write(tmp_path / "a.csv"), user="site", valid=0.1)
    told = data.preparation.describe()
    assert "3 number columns, standardised by all clients' training samples" in told
    assert "sex (2 levels), town (3 levels)" in told
    assert "flagged: age" in told
    assert told.endswith("9 inputs in all")
    assert data.summary()["table"] == told
    batch = data.site("east", 0).train.whole()
    assert batch.x.shape[1] == 9
    assert torch.isfinite(batch.x).all()
    assert set(batch.x[:, 1].tolist()) == {0.0, 1.0}  # the flag of age, behind it
    assert torch.equal(batch.x[:, 4:6].sum(1), torch.ones(len(batch.x)))  # one sex each
    numbers = data.prepare.columns[2]
    assert numbers.name == "income"
    assert numbers.mean == pytest.approx(4e5, rel=0.1)


def test_frames_and_arrays_of_names_are_tables_too(tmp_path):
    rows = [row[:5] for row in clinics.rows(60)]
    y = [int(row[6]) for row in clinics.rows(60)]

    class Frame(dict):
        """As much of a data frame as is needed."""

        columns = property(lambda self: list(self))

    names = clinics.HEADER[:5]
    frame = Frame({n: np.array([row[i] for row in rows], object) for i, n in enumerate(names)})
    path = tmp_path / "a.csv"
    path.write_text(
        "\n".join([",".join([*names, "label"])] + [",".join([*r, str(v)]) for r, v in zip(rows, y, strict=False)])
        + "\n"
    )
    by_frame, by_file = Federation.from_arrays(frame, y, clients=3), Federation.from_csv(path, clients=3)
    assert by_frame.fingerprint() == by_file.fingerprint()
    by_array = Federation.from_arrays(np.array(rows, object), y, clients=3)
    assert torch.equal(by_array.site(0, 0).train.whole().x, by_file.site(0, 0).train.whole().x)
    halves = {"a": (np.array(rows[:30], object), y[:30]), "b": (np.array(rows[30:], object), y[30:])}
    assert Federation.from_clients(halves).prepare.columns[3].levels == by_file.prepare.columns[3].levels
    with pytest.raises(InputError, match="some clients have a table of named columns and others have not"):
        Federation.from_clients({**halves, "c": (X, Y)})


def test_a_name_that_training_rows_lack_is_no_level():
    x = np.array([["a", "1"], ["b", "2"], ["a", "3"], ["zz", "4"]], object)
    data = Federation.from_clients({0: {"train": (x[:3], [0, 1, 0]), "test": (x[3:], [1])}})
    assert data.prepare.columns[0].levels == tuple(sorted((code_of("a"), code_of("b"))))
    assert data.evaluation(0, "test").whole().x[0, :2].tolist() == [0.0, 0.0]


def test_newcomers_have_no_say_in_the_numbers():
    data = Federation.from_arrays(X, Y, user=np.repeat(np.arange(4), 30))
    part, new = held_out(data, 1)
    assert part.prepare == new.prepare != data.prepare
    mine = X[part.train.index.numpy()]
    np.testing.assert_allclose([c.mean for c in part.prepare.columns], mine.mean(0), rtol=1e-12)


def test_tasks_of_a_stream_are_standardised_together():
    one, two = (Federation.from_arrays(x, Y, clients=2, test=0, valid=0) for x in (X, X + 7))
    stream = Stream.of([one, two], rounds_per_task=1)
    whole = np.concatenate([stream.site(c, r).train.whole().x for c in stream.ids for r in (0, 1)])
    np.testing.assert_allclose(whole.mean(0), 0, atol=1e-4)
    assert stream.preparation == stream.prepare


def test_categories_cannot_be_shifted(tmp_path):
    data = Federation.from_csv(clinics.write(tmp_path / "a.csv"), user="site")
    with pytest.raises(InputError, match="Noise changes numbers, and this table has categories"):
        Noise((0.1, 0.2))(data)


def test_integers_in_files_are_numbers_unless_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("ward,label\n" + "".join(f"{i % 3},{i % 2}\n" for i in range(12)))
    assert imports.of_csv(path).table.columns[0].category is False
    data = Federation.from_csv(path, clients=1, categories=["ward"])
    assert data.preparation.width == 3
