"""Small files that unpack to gigabytes are refused before anything is allocated."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedquilt.core.memory import check_bytes, most_bytes
from fedquilt.data import imports
from fedquilt.data.npz import load
from fedquilt.data.sizes import MOST_PIXELS
from fedquilt.data.sources.formats.files import content
from fedquilt.data.sources.formats.pictures import decoded
from fedquilt.data.sources.hub import loaded
from fedquilt.errors import InputError
from fedquilt.models.registry import net
from fedquilt.models.weights import hub

REFUSED = "would take .* of memory, and at most .* are allowed.*FEDQUILT_MAX_BYTES"


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch):
    """A machine that is careful: 10 MB for one thing."""
    monkeypatch.setenv("FEDQUILT_MAX_BYTES", "10M")


@contextmanager
def refused(match: str = REFUSED):
    """An InputError, and hardly any memory on the way to it."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=match):
            yield
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def npz_of_zeros(path, shape, told=None):
    """An .npz whose x is all zeros; ``told``: the shape in its head."""
    head = io.BytesIO()
    facts = {"descr": "|u1", "fortran_order": False, "shape": told or shape}
    np.lib.format.write_array_header_1_0(head, facts)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(head.getvalue())
        for _ in range(shape[0]):
            member.write(bytes(shape[1]))
    return path


def test_an_npz_that_unpacks_to_much_is_refused(tmp_path):
    path = npz_of_zeros(tmp_path / "bomb.npz", (20, 10**6))
    assert path.stat().st_size < 100_000
    with refused():
        load(path)
    assert load(npz_of_zeros(tmp_path / "small.npz", (5, 10**6)))["x"].shape == (5, 10**6)


def test_the_head_of_an_array_is_believed_before_its_bytes_are_read(tmp_path):
    with refused():
        load(npz_of_zeros(tmp_path / "malicious client.npz", (1, 1000), told=(10**6, 10**6)))


def test_csv_gz_that_unpacks_to_much_is_refused(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,label\n")
        for _ in range(30):
            file.write(b"0" * 10**6)
    with refused():
        imports.of_csv(path)
    small = tmp_path / "small.gz"
    small.write_bytes(gzip.compress(b"hello"))
    assert content(small) == b"hello"


def test_one_long_cell_does_not_cost_its_length_in_every_row(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("a,label\n" + "x" * 100_000 + ",0\n" + "1,0\n" * 100)
    with pytest.raises(InputError, match=REFUSED):
        imports.of_csv(path)


@pytest.mark.parametrize("column", [np.zeros(4_000_000, np.int64), ["x" * 1000] * 20_000], ids=["numbers", "texts"])
def test_a_parquet_file_that_unpacks_to_much_is_refused(tmp_path, column):
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pa.table({"a": column, "label": np.zeros(len(column), np.int8)}), path)
    assert path.stat().st_size < 100_000
    with refused():
        imports.of_parquet(path)


def test_parquet_files_of_all_kinds_of_columns_are_measured(tmp_path):
    path = tmp_path / "small.parquet"
    table = pa.table({"a": [1.0, 2.0], "b": ["x", None], "c": [[1, 2], []], "d": [["x"], ["y", "x"]], "label": [0, 1]})
    parquet.write_table(table, path)
    assert imports.of_parquet(path, features=["a"]).x.tolist() == [[1.0], [2.0]]


def png(width: int, height: int) -> bytes:
    """The head of an image, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_an_image_with_too_many_pixels_is_refused_by_its_head(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(png(5000, 4000))
    with refused():
        decoded([path], 8)
    monkeypatch.setenv("FEDQUILT_MAX_BYTES", "100G")
    path.write_bytes(png(100_000, 100_000))
    with refused("too many pixels"):
        decoded([path], 8)
    assert MOST_PIXELS == 10**8
    monkeypatch.setattr("fedquilt.data.sizes.MOST_PIXELS", 10**6)
    path.write_bytes(png(2000, 1000))
    with refused("2,000 x 1,000 pixels"):
        decoded([path], 8)


def test_images_that_together_take_too_much_are_refused(tmp_path):
    with refused():
        decoded([tmp_path / "a.png"] * 100, 1000)


def test_a_network_that_would_take_too_much_is_refused_before_it_is_made():
    with refused():
        net("mlp", (1, 8, 8), 10, hidden=(10**12,))


def test_the_limit_is_three_quarters_of_the_memory_unless_said_otherwise(monkeypatch):
    for text, size in (("1000", 1000), ("3K", 3072), ("2GiB", 2**31), ("5 ", 5)):
        monkeypatch.setenv("FEDQUILT_MAX_BYTES", text)
        assert most_bytes() == size
    for text in ("lots", "-1", "0", "1.5G"):
        monkeypatch.setenv("FEDQUILT_MAX_BYTES", text)
        with pytest.raises(InputError, match="should be a number of bytes"):
            most_bytes()
    monkeypatch.delenv("FEDQUILT_MAX_BYTES")
    check_bytes(2**28, "A quarter of a gigabyte")
    with pytest.raises(InputError, match=r"1,000,000\.0 GB"):
        check_bytes(10**15, "A petabyte")


def test_no_code_of_a_data_set_or_model_is_run(monkeypatch):
    asked = {}

    def load_dataset(name: str, trust_remote_code: bool | None = None) -> str:
        asked[name] = trust_remote_code
        return name

    assert loaded(load_dataset, "old") == "old"
    assert loaded(lambda name: name, "new") == "new"  # later versions have no such option

    class AutoModel:
        @staticmethod
        def from_pretrained(folder: str, **options: object) -> object:
            asked[folder] = options["trust_remote_code"]
            return folder

    quiet = SimpleNamespace(
        is_progress_bar_enabled=lambda: False, disable_progress_bar=lambda: None, enable_progress_bar=lambda: None
    )
    library = SimpleNamespace(AutoModel=AutoModel, utils=SimpleNamespace(logging=quiet))
    monkeypatch.setattr(hub, "library", lambda: library)
    hub.pretrained("AutoModel", "folder")
    assert asked == {"old": False, "folder": False}
