"""Arrays in files and folders of images that are read row by row: the same data as in memory, also when damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fedquilt import FedAvg, Federation, Net, run
from fedquilt.config.config import parse
from fedquilt.core.lazy import LazyColumn, built, told
from fedquilt.data import Dirichlet, Transforms, channel_statistics, imports, with_local_tests
from fedquilt.data.imports import folders
from fedquilt.data.lazy.files import FileRows, file_rows
from fedquilt.data.transforms import Normalise, RandomFlip
from fedquilt.errors import InputError
from fedquilt.records.record import pack, unpack
from fedquilt.runs.build import federation_of
from helpers.torch_data import Linear

METHOD = FedAvg(Net(Linear), batch_size=8)


def digest(data, engine="local") -> str:
    *_, snapshot = run(METHOD, data, rounds=2, engine=engine)
    return snapshot.digest()


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Two classes, in parts for training and testing; decoded images are kept in ``cache``."""
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "cache"))
    for part, count in (("train", 40), ("test", 10)):
        for i in range(count):
            place = tmp_path / "photos" / part / ("cat" if i % 2 else "dog")
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 6), (5 * i, i, 0)).save(place / f"{i}.png")
    return tmp_path / "photos"


def kept(photos: Path) -> list[Path]:
    return sorted((photos.parent / "cache").glob("images-*"))


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64", "int16"])
def test_a_mapped_array_stays_in_its_file(tmp_path, kind) -> None:
    made = np.random.default_rng(0)
    x, y = (255 * made.random((50, 4, 4, 3))).astype(kind), made.integers(0, 4, 50)
    np.save(tmp_path / "x.npy", x)
    lazy, plain = (Federation.from_arrays(a, y, clients=3) for a in (np.load(tmp_path / "x.npy", mmap_mode="r"), x))
    assert isinstance(lazy.columns["x"], LazyColumn)
    assert lazy.fingerprint() == plain.fingerprint()
    if kind in ("uint8", "float32"):
        assert digest(lazy) == digest(lazy, "workers") == digest(plain)


def test_what_is_read_at_once(tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(40, 5)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = Federation.from_arrays(mapped, np.arange(40) % 2, clients=2)  # a table is standardised as a whole
    assert not isinstance(table.columns["x"], LazyColumn)
    assert file_rows(mapped[3:]) is None  # a view does not say where in the file it begins
    assert file_rows(np.load(tmp_path / "x.npy", mmap_mode="c")) is None  # may differ from the file


def test_a_hole_is_told_when_it_is_read(tmp_path) -> None:
    x = np.zeros((10, 3, 4, 4), np.float32)
    x[7, 0, 0, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    data = Federation.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(10, np.int64), clients=1)
    with pytest.raises(InputError, match="item 7: x has NaN"):
        data.fingerprint()


def test_a_folder_is_decoded_once_and_read_from_disk(photos, monkeypatch) -> None:
    plain, lazy = (Federation.from_folder(photos, clients=3, size=4, lazy=how) for how in (False, True))
    assert isinstance(lazy.columns["x"], LazyColumn)
    assert isinstance(lazy.global_columns["x"], LazyColumn)
    assert lazy.fingerprint() == plain.fingerprint()
    assert digest(lazy) == digest(lazy, "workers") == digest(plain)
    stamps = kept(photos)
    monkeypatch.setattr("fedquilt.data.sources.formats.pictures.decoded_one", None)
    again = Federation.from_folder(photos, clients=3, size=4, lazy=True)
    assert again.fingerprint() == plain.fingerprint()
    assert kept(photos) == stamps
    assert len(stamps) == 2


def test_nothing_reads_all_images_to_make_a_federation(photos, monkeypatch) -> None:
    arrays = imports.of_folder(photos, 4, lazy=True)
    monkeypatch.setattr(FileRows, "__array__", None)
    monkeypatch.setattr(LazyColumn, "read", None)
    users = replace(arrays, user=arrays.y, user_test=None)
    for data in (
        Federation.from_source(arrays, Dirichlet(0.9), clients=3),
        Federation.from_source(users, natural=True),
        Federation.from_clients({"a": arrays.pair, "b": {"train": arrays.pair, "test": arrays.global_test}}),
        Federation.from_folder(photos, clients=3, size=4, lazy=True).pooled(),
    ):
        assert data.summary()["bytes"] > 40 * 48


def test_large_folders_are_lazy_unasked_also_in_recipes(photos, monkeypatch) -> None:
    settings = {"data": {"path": str(photos), "size": 4, "clients": 3, "limit": 30}, "model": {"kind": "mlp"}}
    plain = federation_of(parse(settings))
    monkeypatch.setattr(folders, "IN_MEMORY", 100)
    lazy = federation_of(parse(settings))
    assert isinstance(lazy.columns["x"], LazyColumn)
    assert len(lazy.columns["x"]) == 30
    assert lazy.fingerprint() == plain.fingerprint()
    arrays = imports.of_folder(photos, 4)
    assert np.asarray(arrays.x).shape == arrays.x.shape == (40, 3, 4, 4)


def test_statistics_transforms_and_local_tests(photos) -> None:
    prepare = Transforms((Normalise(0.5, 0.2), RandomFlip()))
    both = [
        Federation.from_folder(photos, Dirichlet(0.9), clients=3, size=4, lazy=how, test=0.0, prepare=prepare)
        for how in (True, False)
    ]
    assert digest(both[0]) == digest(both[1])
    assert len({with_local_tests(data).fingerprint() for data in both}) == 1
    assert len({channel_statistics([data.global_test]) for data in both}) == 1


def test_a_changed_or_damaged_cache_is_made_anew(photos) -> None:
    first = Federation.from_folder(photos, clients=3, size=4, lazy=True).fingerprint()
    train = next(p for p in kept(photos) if json.loads((p / "facts.json").read_text())["shape"][0] == 40)
    for damage in (b"", (train / "x.bin").read_bytes()[:-1], b"{"):
        (train / ("facts.json" if damage == b"{" else "x.bin")).write_bytes(damage)
        assert Federation.from_folder(photos, clients=3, size=4, lazy=True).fingerprint() == first
    whole = bytearray((train / "x.bin").read_bytes())
    whole[-100] ^= 1  # of a row that is looked at when it is first read
    (train / "x.bin").write_bytes(whole)
    with pytest.raises(InputError, match=r"damaged in row 37"):
        Federation.from_folder(photos, clients=3, size=4, lazy=True).fingerprint()
    assert Federation.from_folder(photos, clients=3, size=4, lazy=True).fingerprint() == first
    Image.new("RGB", (9, 6), (255, 255, 0)).save(photos / "train" / "cat" / "1.png")
    assert Federation.from_folder(photos, clients=3, size=4, lazy=True).fingerprint() != first
    assert len(kept(photos)) == 2  # what was decoded before is gone
    assert not list((photos.parent / "cache").glob(".part-*"))


def test_images_that_cannot_be_kept(photos, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match=r"take 0.0 GB in .*FEDQUILT_CACHE"):
        Federation.from_folder(photos, clients=3, size=4, lazy=True)
    (photos / "train" / "cat" / "bad.png").write_bytes(b"nothing")
    monkeypatch.undo()
    monkeypatch.setenv("FEDQUILT_CACHE", str(photos.parent / "cache"))
    with pytest.raises(InputError, match=r"bad\.png cannot be read"):
        Federation.from_folder(photos, clients=3, size=4, lazy=True)
    assert not list((photos.parent / "cache").glob(".part-*"))


def test_a_lazy_column_is_a_tensor_of_the_same_rows(tmp_path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (20, 3, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    rows = file_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    column, whole = rows.column("here"), torch.from_numpy(x)
    some = torch.tensor([7, 0, 7])
    assert torch.equal(column.index_select(0, some), whole[some])
    assert torch.equal(column[some], whole[some])
    assert torch.equal(column[5:9], whole[5:9])
    assert torch.equal(column.float().mean(0), whole.float().mean(0))
    both = torch.cat([column, rows[10:].column("here")])
    assert isinstance(both, LazyColumn)
    assert torch.equal(both.index_select(0, torch.tensor([29, 3, 20])), torch.cat([whole, whole[10:]])[[29, 3, 20]])
    assert torch.equal(torch.cat([column, whole]), torch.cat([whole, whole]))
    again = built(unpack(pack(told(both))))
    assert torch.equal(again.index_select(0, some), whole[some])


def test_no_more_is_read_at_once_than_memory_allows(tmp_path, monkeypatch) -> None:
    np.save(tmp_path / "x.npy", np.zeros((20, 3, 4, 4), np.uint8))
    column = file_rows(np.load(tmp_path / "x.npy", mmap_mode="r")).column("here")
    monkeypatch.setenv("FEDQUILT_MAX_BYTES", "100")
    assert len(column[:2]) == 2
    with pytest.raises(InputError, match="20 rows of"):
        column.float()
