"""Data frames in memory give what the same table in a file gives."""

from __future__ import annotations

import pytest

from fedquilt import Federation
from fedquilt.errors import InputError

ROWS = {
    "age": [61, None, 45, 30] * 5,
    "income": [4.1e5, 3.8e5, 5.2e5, 1e5] * 5,
    "sex": ["f", "m", None, "f"] * 5,
    "ward": [1, 2, 3, 1] * 5,
    "ill": ["yes", "no", "no", "yes"] * 5,
    "clinic": ["oslo", "bergen"] * 10,
}


def frames():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS)
    yield frame
    yield frame.convert_dtypes()
    yield frame.convert_dtypes(dtype_backend="pyarrow")
    yield frame.astype({"sex": "category", "clinic": "category", "ill": "category"})
    yield pyarrow.table(ROWS)


def from_frame(frame) -> Federation:
    return Federation.from_frame(frame, label="ill", user="clinic", categories=["ward"])


def from_file(folder) -> Federation:
    lines = [",".join("" if v is None else str(v) for v in row) for row in zip(*ROWS.values(), strict=True)]
    (folder / "a.csv").write_text("\n".join([",".join(ROWS), *lines]))
    return Federation.from_csv(folder / "a.csv", label="ill", user="clinic", categories=["ward"])


def test_pandas_and_pyarrow(tmp_path) -> None:
    for frame in frames():
        assert from_frame(frame).fingerprint() == from_file(tmp_path).fingerprint()


def test_polars(tmp_path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ROWS)
    coded = frame.with_columns(polars.col("sex").cast(polars.Categorical), polars.col("age").cast(polars.Int8))
    for given in (frame, coded):
        assert from_frame(given).fingerprint() == from_file(tmp_path).fingerprint()
    with pytest.raises(InputError, match="collect"):
        from_frame(frame.lazy())


def test_hugging_face(tmp_path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(ROWS)
    assert from_frame(table).fingerprint() == from_file(tmp_path).fingerprint()
    pictures = datasets.Dataset.from_dict({"image": [[[i, 1], [2, 3]] for i in range(20)], "label": [0, 1] * 10})
    both = [Federation.from_datasets({"a": pictures.with_format("numpy")}, lazy=lazy) for lazy in (True, False)]
    assert both[0].fingerprint() == both[1].fingerprint()
    assert both[0].classes == 2


def test_texts_and_partitions() -> None:
    pandas = pytest.importorskip("pandas")
    mail = pandas.DataFrame({"text": ["win money", "see you"] * 10, "label": [0, 1] * 10})
    assert Federation.from_frame(mail, text="text", clients=2).columns["x"].shape == (20, 64)


def test_what_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    for frame, said in [
        ([1, 2], "is not a pandas"),
        (pandas.DataFrame({"x": [1.0]}), "no column 'label'"),
        (pandas.DataFrame({"label": [None, "a"], "x": [1, 2]}), "'label', has 1 empty cells"),
        (pandas.DataFrame([[1, 2, 0]], columns=["a", "a", "label"]), "two columns of one name"),
        (pandas.DataFrame({"d": pandas.date_range("2020", periods=2), "label": [0, 1]}), "neither numbers nor names"),
        (pandas.DataFrame({"label": [], "x": []}), "has no rows"),
    ]:
        with pytest.raises(InputError, match=said):
            Federation.from_frame(frame, clients=1)
