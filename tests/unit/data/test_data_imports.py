"""Users' own data: tables and image folders, from Python and from a recipe."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from PIL import Image

from fedquilt.config.config import parse
from fedquilt.data import IID, Federation, imports
from fedquilt.errors import InputError
from fedquilt.runs.build import federation_of

TABLE = "age,weight,outcome,clinic\n61,80.5,well,oslo\n45,70,ill,bergen\n30,65,well,oslo\n70,90,ill,bergen\n"


def write(path, text):
    path.write_text(text)
    return path


def test_csv_with_names_and_clients(tmp_path):
    path = write(tmp_path / "a.csv", TABLE)
    data = Federation.from_csv(path, label="outcome", user="clinic", test=0, valid=0, standardise=False)
    assert data.ids == ("bergen", "oslo")
    assert data.classes == 2
    oslo = data.site("oslo", 0).train.whole()
    assert oslo.x.tolist() == [[61.0, 80.5], [30.0, 65.0]]
    assert oslo.y.tolist() == [1, 1]  # ill, well
    assert oslo.x.dtype == torch.float32


def test_csv_columns_and_partitions(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(("label;a;b\n" + "1;2;3\n0;4;5\n" * 3).encode()))
    arrays = imports.of_csv(path, features=["b"], delimiter=";")
    assert arrays.x.tolist() == [[3], [5]] * 3
    assert arrays.y.tolist() == [1, 0] * 3
    assert Federation.from_csv(path, IID(), 2, delimiter=";").ids == (0, 1)


@pytest.mark.parametrize(
    ("values", "ids"), [(["7", "12", "7"], (7, 12)), (["07", "7", "7"], ("07", "7")), (["1.5", "2", "2"], ("1.5", "2"))]
)
def test_users_are_numbers_only_if_written_so(tmp_path, values, ids):
    rows = "".join(f"{v},0,1\n" for v in values)
    path = write(tmp_path / "a.csv", f"who,label,x\n{rows}")
    assert Federation.from_csv(path, user="who", test=0, valid=0).ids == ids


def test_csv_refusals(tmp_path):
    def refuses(text, message, **options):
        with pytest.raises(InputError, match=message):
            Federation.from_csv(write(tmp_path / "a.csv", text), **options)

    refuses(TABLE, r"a.csv has no column 'label'. Its columns are age, weight, outcome, clinic")
    mixed = "x,label\n1,0\n2,1\n1,1\nmuch,0\n"
    refuses(mixed, "column 'x' holds much in row 4, not a number, though most cells are")
    assert Federation.from_csv(write(tmp_path / "a.csv", mixed), clients=1, categories=["x"]).preparation is not None
    refuses(TABLE, "categories names 'town'. The columns are age, weight", label="outcome", categories=["town"])
    names = "".join(f"name {i},{i % 2}\n" for i in range(1100))
    refuses(f"x,label\n{names}", "column 'x' holds 1100 different names, too many for a category")
    refuses(TABLE, "has no column 'who'", label="outcome", user="who")
    refuses("x,label\ninf,0\n2,1\n", "column 'x' has an infinite value, or nearly so, in row 1")
    refuses("x,label\n1,0\n2\n", "line 3, has 1 fields, the header has 2")
    refuses("x,x,label\n1,0,2\n", "two columns of one name")
    refuses("x,label\n", "no rows below a header")
    refuses("x,label\n1,0.5\n", r"column 'label' holds 0.5, but labels are classes")
    refuses("label\n1\n", "no columns beside 'label'")
    refuses('x,label\n1,"0\n', "not well-formed csv")
    with pytest.raises(InputError, match=r"There is no file .*none.csv"):
        Federation.from_csv(tmp_path / "none.csv")


def test_parquet_equals_csv(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    table = csv.read_csv(write(tmp_path / "a.csv", TABLE))
    parquet.write_table(table, tmp_path / "a.parquet")
    options = {"label": "outcome", "user": "clinic"}
    a, b = (
        Federation.from_csv(tmp_path / "a.csv", **options),
        Federation.from_parquet(tmp_path / "a.parquet", **options),
    )
    assert a.fingerprint() == b.fingerprint()
    holes = pyarrow.table({"x": [1.0, None], "label": [0, 1], "note": ["a", None]})
    parquet.write_table(holes, tmp_path / "holes.parquet")
    told = Federation.from_parquet(tmp_path / "holes.parquet", clients=1, test=0, valid=0).preparation.describe()
    assert "flagged: x, note" in told
    with pytest.raises(InputError, match="column 'note', has 1 empty cells"):
        Federation.from_parquet(tmp_path / "holes.parquet", label="note")
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        Federation.from_parquet(tmp_path / "junk.parquet")


def picture(path, red):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (red, 0, 0)).save(path)


def red(data, client, split="train"):
    table = data.site(client, 0).train if split == "train" else data.global_test
    return sorted(int(v) for v in (table.whole().x[:, 0, 0, 0] * 255).round())


def test_folder_of_classes(tmp_path):
    for i in range(6):
        picture(tmp_path / ("cat" if i % 2 else "ant") / f"{i}.png", i)
    data = Federation.from_folder(tmp_path, size=4, clients=1, test=0, valid=0)
    assert data.columns["x"].shape == (6, 3, 4, 4)
    assert data.columns["y"].tolist() == [0, 0, 0, 1, 1, 1]
    assert red(data, 0) == [0, 1, 2, 3, 4, 5]


def test_folder_of_clients(tmp_path):
    for i, (client, name) in enumerate([("oslo", "cat"), ("oslo", "dog"), ("bergen", "dog")]):
        picture(tmp_path / client / name / "a.png", i)
    (tmp_path / ".cache").mkdir()
    data = Federation.from_folder(tmp_path, size=4, test=0, valid=0)
    assert data.ids == ("bergen", "oslo")
    assert data.classes == 2
    assert data.labels("bergen").tolist() == [1]
    assert red(data, "oslo") == [0, 1]
    assert Federation.from_folder(tmp_path, IID(), 3, test=0, valid=0).ids == (0, 1, 2)


def test_folder_of_train_and_test(tmp_path):
    for i, (part, name) in enumerate([("train", "a"), ("train", "b"), ("val", "b"), ("test", "b")]):
        picture(tmp_path / part / name / "1.png", i)
    data = Federation.from_folder(tmp_path, size=4, clients=1, test=0, valid=0)
    assert red(data, 0) == [0, 1, 2]
    assert red(data, 0, "test") == [3]
    assert data.global_test.whole().y.tolist() == [1]


def test_folder_refusals(tmp_path):
    with pytest.raises(InputError, match=r"has no folders in it. Lay images out as PATH/CLASS"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="there are no images in its folders"):
        Federation.from_folder(tmp_path)
    picture(tmp_path / "b" / "1.png", 0)
    with pytest.raises(InputError, match="b holds images, a does not"):
        Federation.from_folder(tmp_path)
    (tmp_path / "a" / "1.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"a/1.png cannot be read as an image"):
        Federation.from_folder(tmp_path)
    with pytest.raises(InputError, match="There is no folder"):
        Federation.from_folder(tmp_path / "none")


def test_whole_numbers_are_not_images():
    """Token ids are stored as int64 whatever type they come in, in the shape they have; only bytes are images."""
    tokens = np.arange(24).reshape(6, 4)
    for kind in (np.int64, np.int32, np.int16, np.uint16):
        data = Federation.from_clients({"a": (tokens.astype(kind), np.arange(6) % 2)}, test=0, valid=0)
        batch = data.site("a", 0).train.whole()
        assert batch.x.dtype == torch.int64
        assert data.prepare is None
        assert batch.x.tolist() == tokens.tolist()
    assert torch.nn.Embedding(24, 3)(batch.x).shape == (6, 4, 3)


def test_recipes_open_tables_and_folders(tmp_path):
    path = write(tmp_path / "a.csv", TABLE)
    named = {"path": str(path), "label": "outcome", "user": "clinic", "test": 0, "valid": 0}
    assert federation_of(parse({"data": named})).ids == ("bergen", "oslo")
    for i in range(8):
        picture(tmp_path / "images" / f"class {i % 2}" / f"{i}.png", i)
    data = {"path": str(tmp_path / "images"), "size": 5, "clients": 2, "partition": "iid"}
    assert federation_of(parse({"data": data})).columns["x"].shape == (8, 3, 5, 5)


def test_recipes_refuse_options_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, who=np.arange(4) // 2)
    npz = {"path": str(tmp_path / "a.npz"), "test": 0, "valid": 0}
    assert federation_of(parse({"data": {**npz, "user": "who"}})).ids == (0, 1)
    with pytest.raises(InputError, match=r"label = 'y' is for tables"):
        federation_of(parse({"data": {**npz, "label": "y"}}))
    with pytest.raises(InputError, match="size = 8 is for folders of images"):
        federation_of(parse({"data": {**npz, "size": 8}}))
    with pytest.raises(InputError, match="user = 'who' is for files"):
        federation_of(parse({"data": {"path": str(tmp_path), "user": "who"}}))
    with pytest.raises(InputError, match=r"data.label goes with data.path"):
        federation_of(parse({"data": {"label": "y"}}))
