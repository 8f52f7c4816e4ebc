"""Files that are damaged, hostile or absurd: each is refused with a sentence that names it, and nothing else fails."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import zipfile

import numpy as np
import pyarrow.parquet
import pytest
from scipy.io import savemat

from fedquilt.data import Federation, available
from fedquilt.data.imports import open as opened
from fedquilt.data.npz import headers, load
from fedquilt.data.sources.formats import har, idx, leaf, svhn
from fedquilt.data.sources.formats.pictures import decoded
from fedquilt.data.sources.places import unpack
from fedquilt.errors import InputError

X, Y = np.ones((12, 3), np.float32), np.arange(12) % 3


def header(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def huge(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header((10**13, 4)))


def garbled(path):
    np.savez_compressed(path, x=np.arange(900.0), y=Y)
    data = bytearray(path.read_bytes())
    data[45:90] = b"\xff" * 45  # within the deflated bytes of x
    path.write_bytes(data)


def odd_header(path):
    with zipfile.ZipFile(path, "w") as archive:
        text = b"{'descr': ('<f4', "
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)


def flagged(at_local, at_central, value):
    def make(path):
        np.savez(path, x=X, y=Y)
        data = bytearray(path.read_bytes())
        for mark, place in ((b"PK\x03\x04", at_local), (b"PK\x01\x02", at_central)):
            start = -1
            while (start := data.find(mark, start + 1)) >= 0:
                data[start + place] = value
        path.write_bytes(data)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (huge, "would take .* of memory, and at most"),
        (garbled, "cannot be read as .npz"),
        (odd_header, "cannot be read as .npz"),
        (flagged(6, 8, 1), "encrypted"),
        (flagged(8, 10, 99), "compression method"),
    ],
    ids=["huge", "garbled", "header", "locked", "method"],
)
def test_npz_files_that_are_broken_are_refused_and_do_not_hide_the_others(tmp_path, monkeypatch, make, words):
    path = tmp_path / "bad.npz"
    make(path)
    with pytest.raises(InputError, match=words):
        load(path)
    if make is not huge:
        with pytest.raises(InputError, match=r"bad.npz cannot be read as .npz"):
            headers(path)
    np.savez(tmp_path / "scalar.npz", x=np.float32(3), y=Y)
    np.savez(tmp_path / "good.npz", x=X, y=Y)
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    named = {row["name"]: row for row in available()}
    assert named["good"]["shape"] == (3,)
    assert named["good"]["count"] == 12
    assert not {"bad", "scalar"} & named.keys()


def test_absurd_arrays():
    with pytest.raises(InputError, match=r"label 1000000000000, .*at most 1,000,000 .*np.unique"):
        Federation.from_arrays(X, np.where(Y == 0, 10**12, Y), clients=2)
    for x, y in ((X, Y.astype(np.uint64) + 2**63), (np.full((12, 3), 2**63, np.uint64), Y)):
        with pytest.raises(InputError, match=r"value 92233720368547758\d\d, too large for int64"):
            Federation.from_arrays(x, y, clients=2)
    with pytest.raises(InputError, match=r"x has shape \(12, 0\): its rows hold nothing"):
        Federation.from_arrays(X[:, :0], Y, clients=2)
    with pytest.raises(InputError, match="global test set has no rows"):
        Federation.from_arrays(X, Y, clients=2, global_test=(X[:0], Y[:0]))


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ("1,0\n2,inf\n", {}, "holds inf, but labels are classes"),
        ("1,0\n2,99999999999999999999\n", {}, r"holds 1e\+20, but labels are classes"),
        ("1,0\n2,\n3,1\n", {}, "column 'label' has 1 empty cells"),
        ("1,0\n1e300,1\n", {}, r"column 'a' has an infinite value, or nearly so, in row 2"),
        ("1,0\n2,1\n", {"features": ["a", "label"]}, "features names 'label', the column of labels"),
        ("1,0\n2,1\n", {"delimiter": ";;"}, "delimiter must be one character, got ';;'"),
    ],
)
def test_csv_cells_that_would_become_something_else(tmp_path, rows, options, words):
    path = tmp_path / "a.csv"
    path.write_text("a,label\n" + rows)
    with pytest.raises(InputError, match=words):
        Federation.from_csv(path, clients=1, test=0, valid=0, **options)


@pytest.mark.parametrize("place", ["x", "label", "who"])
@pytest.mark.parametrize("cell", [[0.5, 1.5], [], {"a": 1}], ids=["list", "empty", "record"])
def test_parquet_cells_that_hold_several_values(tmp_path, cell, place):
    """Lists ended in numpy's errors; records became names."""
    columns = {"x": [0.0, 1.0] * 5, "label": [0, 1] * 5, "who": ["a", "b"] * 5, place: [cell] * 10}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "odd.parquet")
    with pytest.raises(InputError, match=f"column '{place}' holds cells of type .*; a cell is one number or name"):
        opened(tmp_path / "odd.parquet", user="who")


def test_labels_in_half_precision(tmp_path):
    """Warnings are errors here."""
    columns = {"x": [0.0, 1.0], "label": np.array([0, 1], np.float16)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "half.parquet")
    assert opened(tmp_path / "half.parquet").y.tolist() == [0, 1]


def test_csv_users_are_not_empty(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,who,label\n1,anna,0\n2, ,1\n")
    with pytest.raises(InputError, match="column 'who' has 1 empty cells"):
        Federation.from_csv(path, user="who")


def pfllib(folder, train, config=None):
    for part, content in (("train", train), ("test", {"x": X, "y": Y})):
        (folder / part).mkdir()
        np.savez(folder / part / "0.npz", data=np.array(content, dtype=object))
    if config is not None:
        (folder / "config.json").write_text(config)


def test_pfllib_with_numbers_for_arrays_and_a_list_for_settings(tmp_path):
    for place, (train, config, words) in enumerate(
        [
            ({"x": 3, "y": 4}, None, r"x has the shape \(\) and y \(\)"),
            ({"x": X, "y": Y}, "[1]", r"config.json holds no table of settings"),
        ]
    ):
        folder = tmp_path / str(place)
        folder.mkdir()
        pfllib(folder, train, config)
        with pytest.raises(InputError, match=words):
            Federation.from_pfllib(folder)


GOOD = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0.5] * 784], "y": [1]}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": 3}, "users is int, not a list"),
        ({"num_samples": None}, "num_samples is NoneType, not a list"),
        ({"user_data": [1]}, "user_data is list, not a table"),
        ({"user_data": {"a": None}}, "user 'a' should have 1 rows"),
        ({"user_data": {"a": {"x": None, "y": None}}}, "user 'a' should have 1 rows"),
        ({"users": [["a"]]}, "should have 1 rows"),
        ({"users": ["a", "a"], "num_samples": [1, 1]}, "names a user twice"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [1.7]}}}, "whole numbers, not 1.7"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [float("inf")]}}}, "user 'a': cannot convert"),
        ({"user_data": {"a": {"x": [[0.5] * 784], "y": [10**30]}}}, "user 'a': Python int too large"),
    ],
)
def test_leaf_files_of_another_make(tmp_path, change, words):
    for part, content in (("train", {**GOOD, **change}), ("test", GOOD)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        leaf.femnist(tmp_path)


def test_json_that_is_nested_without_end(tmp_path):
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "a.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match="not well-formed JSON"):
        leaf.femnist(tmp_path)


def test_idx_of_floats_is_not_taken_for_bytes(tmp_path):
    for part in ("train", "t10k"):
        images = bytes([0, 0, 8, 3]) + struct.pack(">3I", 1, 28, 28) + bytes(784)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(images)
        labels = bytes([0, 0, 13, 1]) + struct.pack(">If", 1, float("nan"))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte holds float32, not bytes"):
        idx.mnist(tmp_path)


@pytest.mark.parametrize("labels", [np.zeros((0, 1)), ["ab"], [[1.5]], [[float("nan")]]])
def test_svhn_labels_that_are_no_digits(tmp_path, labels):
    count = len(labels)
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": np.zeros((32, 32, 3, count), np.uint8), "y": labels})
    with pytest.raises(InputError, match=r"train_32x32.mat"):
        svhn.svhn(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "labels.txt is empty"),
        ("1 1 nan 1 300\n", {}, "row 1 holds a number that is not finite"),
        ("1 1 1 1 1e300\n", {}, "not whole"),
        ("1 1 1.5 1 300\n", {}, "not whole"),
        ("1 1 1 1 300\n", {"step": 0}, "window and step must be 1 or more, got 128 and 0"),
    ],
)
def test_hapt_labels_that_make_no_sense(tmp_path, text, options, words):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(InputError, match=words):
        har.hapt(tmp_path, **options)


def test_images_that_fit_into_no_memory(tmp_path):
    with pytest.raises(InputError, match=r"3 images of size 10000000 would take .* of memory"):
        decoded([tmp_path / "a.png"] * 3, 10**7)


def test_damaged_archives_are_refused_and_leave_nothing(tmp_path):
    zipped, gzipped = tmp_path / "a.zip", tmp_path / "b.gz"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(range(256)) * 9)
    gzipped.write_bytes(gzip.compress(bytes(range(256)) * 9))
    for path, start in ((zipped, 31), (gzipped, 10)):
        data = bytearray(path.read_bytes())
        data[start : start + 40] = b"\xff" * 40
        path.write_bytes(data)
        with pytest.raises(InputError, match="cannot be unpacked"):
            unpack(path, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())


def test_an_archive_that_says_it_is_larger_than_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5000))
    free = shutil.disk_usage(tmp_path)._replace(free=4999)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    with pytest.raises(InputError, match=r"'zeros' alone says it has 5,000 bytes, more than the disk has left"):
        unpack(path, tmp_path / "into")
    assert not list((tmp_path / "into").iterdir())
