"""Official files in the folder of a data set: found, unpacked safely, decoded once, mapped afterwards."""

from __future__ import annotations

import gzip
import io
import json
import mmap
import os
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedquilt.data import Federation, available, read
from fedquilt.data.sources import cache, sources
from fedquilt.data.sources.catalogue import function_of
from fedquilt.data.sources.known import KNOWN
from fedquilt.data.sources.places import located, unpack
from fedquilt.errors import InputError
from helpers.plugged import PICTURES, picture_bytes, pictures

BYTES = picture_bytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The data folder, in which 'pictures' is a known data set."""
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    monkeypatch.delenv("FEDQUILT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))  # never the cache of who runs the tests
    monkeypatch.setitem(sources.KNOWN, "pictures", PICTURES)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """How often pictures were decoded."""
    calls = []

    def counting(path):
        calls.append(path)
        return pictures(path)

    monkeypatch.setitem(sources.KNOWN, "pictures", replace(PICTURES, read=counting))
    return calls


def put(folder, name="pictures.bin", content=BYTES):
    path = folder / "pictures" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(name="pictures.bin", content=BYTES):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, content)
    return out.getvalue()


def tarred(name="pictures.bin", content=BYTES, kind=tarfile.REGTYPE):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname = len(content), kind, "/etc/passwd"
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def check_pictures():
    found = read("pictures")
    want = pictures_of(BYTES)
    assert np.array_equal(found.x, want[:, 1:].reshape(-1, 6, 5, 3))
    assert found.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.user.tolist() == ["a", "b"] * 3
    assert (found.name, found.classes, found.licence) == ("pictures", 3, "CC0")
    return found


def mapped(array):
    """Whether the memory behind an array is a file."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def pictures_of(content):
    return np.frombuffer(content, np.uint8).reshape(-1, 91)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pictures.bin", BYTES),
        ("inner/deeper/pictures.bin", BYTES),
        ("pictures.bin.gz", gzip.compress(BYTES)),
        ("p.zip", zipped()),
        ("p.zip", zipped("official/pictures.bin")),
        ("p.tar.gz", tarred("official/pictures.bin")),
        ("p.zip", zipped("notes/inside.zip", zipped("x/pictures.bin"))),
    ],
    ids=["plain", "sub-folder", "gz", "zip", "zip with folder", "tar.gz", "zip in a zip"],
)
def test_official_files_are_found_and_unpacked(folder, name, content):
    put(folder, name, content)
    row = next(r for r in available() if r["name"] == "pictures")
    assert row["present"]
    assert row["where"].startswith(str(folder / "pictures"))
    check_pictures()
    check_pictures()


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/srv/evil", "..\\evil", "C:\\evil"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_members_that_would_land_elsewhere_are_refused(folder, make, name):
    archive = put(folder, "p.zip" if make is zipped else "p.tar.gz", make(name, b"bad"))
    with pytest.raises(InputError, match="would be written outside its folder"):
        read("pictures")
    assert not list(folder.rglob("evil"))
    assert [p.name for p in archive.parent.rglob("*") if p.is_file()] == [archive.name]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(folder, kind):
    put(folder, "p.tar.gz", tarred("pictures.bin", b"", kind))
    with pytest.raises(InputError, match="a link or a device"):
        read("pictures")


def test_damaged_and_foreign_archives(folder):
    path = put(folder, "p.zip", zipped()[:-30])
    with pytest.raises(InputError, match=r"p\.zip cannot be unpacked: .*Download it again"):
        read("pictures")
    path.write_bytes(zipped("other.bin"))
    with pytest.raises(InputError, match=r"holds p\.zip, but nothing of pictures in it") as info:
        read("pictures")
    assert "pictures.zip from http://127.0.0.1:9/pictures.zip" in str(info.value)


def test_unpacking_happens_once(tmp_path):
    archive = tmp_path / "p.zip"
    archive.write_bytes(zipped())
    first = unpack(archive, tmp_path / "out")
    stamp = (first / "pictures.bin").stat().st_mtime_ns
    assert unpack(archive, tmp_path / "out") == first
    assert (first / "pictures.bin").stat().st_mtime_ns == stamp
    assert located(tmp_path, ("pictures.bin",)) == first


def test_the_shallowest_folder_wins(tmp_path):
    for place in ("b/deep", "a"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "mark").touch()
    assert located(tmp_path, ("mark",)) == tmp_path / "a"
    assert located(tmp_path, ("other",)) is None
    assert located(tmp_path / "absent", ("mark",)) is None


def test_what_is_missing_is_said_exactly(folder):
    with pytest.raises(InputError) as info:
        read("cifar10")
    said = str(info.value)
    assert "Put cifar10.npz" in said
    assert "fedquilt datasets --download cifar10\n" in said
    assert "--download cifar10 --via hf" in said
    assert f"Put these into {folder / 'cifar10'}:" in said
    assert "cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in said
    with pytest.raises(InputError, match=r"(?s)femnist is not here.*preprocess\.sh"):
        read("femnist")


def test_decoded_once_and_mapped_afterwards(folder, decoded):
    put(folder)
    first, second = check_pictures(), check_pictures()
    assert len(decoded) == 1
    for found in (first, second):
        assert mapped(found.x)
        assert found.x.flags.writeable  # copy-on-write: torch takes it as it is
    kept = next((folder / ".cache").iterdir())
    before = (kept / "x.npy").read_bytes()
    second.x[:] = 0
    assert (kept / "x.npy").read_bytes() == before
    assert read("pictures").x.any()


def test_a_federation_takes_mapped_images_without_a_copy(folder):
    put(folder)
    found = read("pictures")
    data = Federation.from_source(found, clients=2, test=0, valid=0)
    column = data.columns["x"]
    assert column.shape == (6, 3, 6, 5)
    assert column.is_contiguous()
    assert column.data_ptr() == found.x.__array_interface__["data"][0]
    plain = Federation.from_arrays(np.array(found.x), np.array(found.y), clients=2, test=0, valid=0, classes=3)
    assert data.fingerprint() == plain.fingerprint()
    assert len(Federation.from_source("pictures", natural=True, test=0, valid=0).ids) == 2


def test_read_only_arrays_of_your_own_are_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Federation.from_arrays(mapped, np.arange(4) % 2, clients=1, test=0, valid=0)
    assert torch.equal(data.columns["x"], torch.ones(4, 2))  # and torch did not warn: warnings are errors here


def test_a_changed_file_or_reader_is_decoded_anew(folder, decoded):
    path = put(folder)
    read("pictures")
    path.write_bytes(BYTES[: 91 * 6][::-1])
    os.utime(path, ns=(1, 1))
    assert not np.array_equal(read("pictures").x.reshape(6, 90), pictures_of(BYTES)[:, 1:])
    assert len(decoded) == 2
    kept = [p.name for p in (folder / ".cache").iterdir()]
    assert len(kept) == 1  # the older one is gone
    files = [path]
    assert cache.key(pictures, path.parent, files) != cache.key(
        function_of("fedquilt.data.sources.readers:file"), path.parent, files
    )


@pytest.mark.parametrize("harm", ["cut", "empty", "gone", "facts", "header", "no facts"])
def test_a_damaged_cache_is_rebuilt(folder, decoded, harm):
    put(folder)
    read("pictures")
    kept = next((folder / ".cache").iterdir())
    x, facts = kept / "x.npy", kept / "facts.json"
    if harm == "cut":
        x.write_bytes(x.read_bytes()[:-7])
    elif harm == "empty":
        x.write_bytes(b"")
    elif harm == "gone":
        x.unlink()
    elif harm == "facts":
        facts.write_text(facts.read_text()[:-5])
    elif harm == "header":
        x.write_bytes(b"garbage!" * (x.stat().st_size // 8) + b"!" * (x.stat().st_size % 8))
    else:
        facts.write_text(json.dumps({"bytes": {}}))
    check_pictures()
    assert len(decoded) == 2
    check_pictures()
    assert len(decoded) == 2


def test_writers_at_the_same_time_do_not_disturb_each_other(folder):
    put(folder, "p.zip", zipped())
    problems = []

    def one():
        try:
            check_pictures()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    left = [p.name for p in (folder / ".cache").iterdir()]
    assert len(left) == 1
    assert not list((folder / "pictures" / "unpacked").glob(".*"))


def test_where_the_cache_is(folder, monkeypatch, tmp_path_factory):
    own = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    assert cache.folders() == [folder / ".cache", own / "fedquilt"]
    put(folder, "p.zip", zipped())
    for place in (folder / "pictures", folder):
        place.chmod(0o555)
    assert cache.writable() == own / "fedquilt"
    check_pictures()
    assert sorted(p.name for p in folder.rglob("*")) == ["p.zip", "pictures"]  # unpacked elsewhere, too
    assert [p.name[:9] for p in sorted((own / "fedquilt").iterdir())] == ["pictures-", "unpacked"]
    chosen = tmp_path_factory.mktemp("chosen")
    monkeypatch.setenv("FEDQUILT_CACHE", str(chosen))
    assert cache.folders() == [chosen]
    check_pictures()
    assert [p.name[:9] for p in sorted(chosen.iterdir())] == ["pictures-", "unpacked"]
    for place in (folder, folder / "pictures"):
        place.chmod(0o755)


def test_without_any_place_to_write_the_data_are_read_all_the_same(folder, monkeypatch, decoded):
    monkeypatch.setenv("FEDQUILT_CACHE", str(folder / "file"))
    (folder / "file").write_text("")
    put(folder)
    check_pictures()
    check_pictures()
    assert len(decoded) == 2


def test_clearing_takes_only_what_is_ours(folder):
    put(folder)
    read("pictures")
    (folder / ".cache" / "notes.txt").write_text("mine")
    (folder / ".cache" / "mine").mkdir()
    removed, places = cache.clear()
    assert removed > 540
    assert len(places) == 1
    assert sorted(p.name for p in (folder / ".cache").iterdir()) == ["mine", "notes.txt"]
    assert cache.clear() == (0, [])
    check_pictures()


def test_npz_comes_before_the_folder(folder):
    put(folder)
    np.savez(folder / "pictures.npz", x=np.ones((2, 3)), y=np.arange(2))
    assert read("pictures").x.shape == (2, 3)


def test_medmnist_as_its_authors_give_it(folder):
    images, labels = np.zeros((6, 28, 28), np.uint8), np.array([[0], [1], [0], [1], [0], [1]])
    parts = {"train": slice(0, 3), "val": slice(3, 5), "test": slice(5, 6)}
    given = {f"{p}_images": images[s] for p, s in parts.items()} | {f"{p}_labels": labels[s] for p, s in parts.items()}
    (folder / "pneumoniamnist").mkdir()
    np.savez(folder / "pneumoniamnist" / "pneumoniamnist.npz", **given)
    found = read("pneumoniamnist")
    assert found.x.shape == (5, 28, 28)
    assert found.y.tolist() == [0, 1, 0, 1, 0]
    assert found.y_test.tolist() == [1]


def test_the_catalogue_is_well_formed():
    """Names, checksums and addresses have the form they must have; every reader that is named exists."""
    pytest.importorskip("fedquilt.data.sources.formats.idx")
    lengths = {"sha256": 64, "md5": 32}
    for name, entry in KNOWN.items():
        assert name == entry.name
        assert entry.licence
        assert entry.source
        assert entry.needs or entry.files
        for reader in (entry.read, entry.npz):
            assert reader is None or callable(function_of(reader)), reader
        for file in entry.files:
            kind, _, digest = file.checksum.partition(":")
            assert not digest or len(digest) == lengths[kind]
            assert all(url.startswith(("http://", "https://")) for url in file.urls)
            assert file.urls or entry.by_hand


def test_files_behind_links_count_in_the_key(folder, decoded, tmp_path_factory):
    put(folder)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "image").write_bytes(b"1")
    (folder / "pictures" / "linked").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(elsewhere)
    read("pictures")
    read("pictures")
    assert len(decoded) == 1
    (elsewhere / "image").write_bytes(b"22")
    read("pictures")
    assert len(decoded) == 2
