"""IDX, CIFAR's records and SVHN's MATLAB files, written here byte by byte as their authors describe them."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from scipy.io import savemat

from fedquilt.data import Federation
from fedquilt.data.sources.formats import cifar, idx, svhn
from fedquilt.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5], np.uint8)


def idx_bytes(array, kind=0x08):
    """Magic number (two zero bytes, type, axes), lengths as big-endian 32-bit numbers, then the numbers, big-endian."""
    head = struct.pack(">BBBB", 0, 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype({0x08: "u1", 0x0C: ">i4"}[kind]).tobytes()


def write(path, data, compressed):
    path.with_name(path.name + ".gz" * compressed).write_bytes(gzip.compress(data) if compressed else data)


def write_mnist(folder, compressed=False, names=("train-{}", "t10k-{}"), labels=LABELS):
    for name, rows in zip(names, (slice(None), slice(4)), strict=True):
        write(folder / name.format("images-idx3-ubyte"), idx_bytes(IMAGES[rows]), compressed)
        write(folder / name.format("labels-idx1-ubyte"), idx_bytes(labels[rows]), compressed)


def test_the_header_is_the_published_one():
    assert idx_bytes(IMAGES)[:8] == struct.pack(">II", 2051, 12)  # LeCun's page: 0x00000803, number of images
    assert idx_bytes(LABELS)[:4] == struct.pack(">I", 2049)
    assert idx_bytes(np.zeros((2, 8)), 0x0C)[:4] == struct.pack(">I", 3074)  # QMNIST's readme


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("read", [idx.mnist, idx.fashion_mnist])
def test_mnist_plain_and_compressed(tmp_path, read, compressed):
    write_mnist(tmp_path, compressed)
    found = read(tmp_path)
    assert np.array_equal(found.x, IMAGES)
    assert np.array_equal(found.y, LABELS)
    assert np.array_equal(found.x_test, IMAGES[:4])
    assert np.array_equal(found.y_test, LABELS[:4])
    assert (found.x.dtype, found.classes, found.user) == (np.uint8, 10, None)
    assert Federation.from_source(found, clients=2).columns["x"].shape == (12, 1, 28, 28)


def test_writers_come_from_column_2_of_the_extended_labels(tmp_path):
    write_mnist(tmp_path)
    extended = np.arange(96).reshape(12, 8)  # class, series, writer, index, code, global index, duplicate, unused
    extended[:, 0], extended[:, 2] = LABELS, np.repeat([2100, 7, 300000], 4)
    write(tmp_path / "qmnist-train-labels-idx2-int", idx_bytes(extended, 0x0C), compressed=True)
    found = idx.mnist(tmp_path)
    assert found.user.tolist() == [2100] * 4 + [7] * 4 + [300000] * 4
    assert Federation.from_source(found, natural=True).ids == (7, 2100, 300000)
    extended[3, 0] = 8
    write(tmp_path / "qmnist-train-labels-idx2-int", idx_bytes(extended, 0x0C), compressed=True)
    with pytest.raises(InputError, match="does not fit the digits"):
        idx.mnist(tmp_path)
    write(tmp_path / "qmnist-train-labels-idx2-int", idx_bytes(extended[:5], 0x0C), compressed=True)
    with pytest.raises(InputError, match=r"rows do not match.*idx2-int.gz 5"):
        idx.mnist(tmp_path)


@pytest.mark.parametrize(
    ("read", "part", "first"),
    [
        (idx.emnist_balanced, "balanced", 0),
        (idx.emnist_byclass, "byclass", 0),
        (idx.emnist_letters, "letters", 1),
        (idx.emnist_digits, "digits", 0),
    ],
)
def test_emnist_is_turned_upright(tmp_path, read, part, first):
    below = tmp_path / "gzip"  # as the official archive unpacks
    below.mkdir()
    write_mnist(below, True, (f"emnist-{part}-train-{{}}", f"emnist-{part}-test-{{}}"), LABELS + first)
    found = read(tmp_path)
    assert np.array_equal(found.x[3], IMAGES[3].T)
    assert np.array_equal(found.x_test, IMAGES[:4].transpose(0, 2, 1))
    assert np.array_equal(found.y, LABELS)
    assert found.classes == {"balanced": 47, "byclass": 62, "letters": 26, "digits": 10}[part]


def test_damaged_idx_files(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()

    def refuses(data, message, name=path.name):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=message) as info:
            idx.mnist(tmp_path)
        assert name in str(info.value)

    refuses(whole[:-1], rf"has {len(whole) - 1} bytes; its header \(\(12, 28, 28\)\) asks for {len(whole)}")
    refuses(whole[:9], "ends within its header, after 9 bytes")
    refuses(b"\0\0\x08\x01" + whole[4:], "does not begin as an IDX file with 3 axes .*00 00 08 01")
    refuses(b"<html>", "does not begin as an IDX file")
    refuses(idx_bytes(IMAGES[:, :14]), r"images of \(14, 28\), not of \(28, 28\)")
    refuses(idx_bytes(IMAGES[:11]), "rows do not match")
    path.write_bytes(whole)
    refuses(idx_bytes(LABELS + 1), "labels from 1 to 10, not 0 to 9", "train-labels-idx1-ubyte")


def test_damaged_gzip_and_missing_files(tmp_path):
    write_mnist(tmp_path, compressed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for broken in (whole[:-20], b"not gzip", whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz cannot be uncompressed"):
            idx.mnist(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"has no t10k-images-idx3-ubyte \(it holds t10k-labels.*Unpack the official"):
        idx.mnist(tmp_path)
    with pytest.raises(InputError, match="There is no folder"):
        idx.mnist(tmp_path / "none")


def records(count, labels, top):
    """Label bytes, then 1024 red, 1024 green and 1024 blue bytes, row by row."""
    rows = RNG.integers(0, 256, (count, labels + 3072), dtype=np.uint8)
    rows[:, :labels] = RNG.integers(0, top, (count, labels))
    return rows


def test_cifar10_binary(tmp_path):
    below = tmp_path / "cifar-10-batches-bin"
    below.mkdir()
    batches = [records(3, 1, 10) for _ in range(6)]
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for name, rows in zip(names, batches, strict=True):
        (below / name).write_bytes(rows.tobytes())
    found = cifar.cifar10(tmp_path)
    assert found.x.shape == (15, 3, 32, 32)
    assert found.x_test.shape == (3, 3, 32, 32)
    assert found.x[4, 1, 2, 3] == batches[1][1, 1 + 1024 + 2 * 32 + 3]  # the fifth image: green, row 2, column 3
    assert found.y.tolist() == [int(r[0]) for b in batches[:5] for r in b]
    assert found.y_test.tolist() == batches[5][:, 0].tolist()
    (below / "data_batch_2.bin").write_bytes(batches[1].tobytes()[:-5])
    with pytest.raises(InputError, match=r"data_batch_2.bin has 9214 bytes, not a multiple of 3073"):  # 3 * 3073 - 5
        cifar.cifar10(tmp_path)
    batches[1][2, 0] = 10
    (below / "data_batch_2.bin").write_bytes(batches[1].tobytes())
    with pytest.raises(InputError, match=r"data_batch_2.bin has the label 10, but there are 10 classes"):
        cifar.cifar10(tmp_path)


def test_cifar100_takes_the_fine_label(tmp_path):
    train, test = records(4, 2, 20), records(2, 2, 20)
    train[:, 1] = [99, 0, 50, 7]
    (tmp_path / "train.bin").write_bytes(train.tobytes())
    (tmp_path / "test.bin").write_bytes(test.tobytes())
    found = cifar.cifar100(tmp_path)
    assert found.y.tolist() == [99, 0, 50, 7]
    assert np.array_equal(found.x.reshape(4, -1), train[:, 2:])
    assert found.classes == 100
    (tmp_path / "test.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"test.bin has 0 bytes, not a multiple of 3074"):
        cifar.cifar100(tmp_path)


def test_svhn(tmp_path):
    x = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    y = np.array([[1], [10], [9], [2], [10]], np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": y}, do_compression=True)
    savemat(tmp_path / "test_32x32.mat", {"X": x[..., :2], "y": y[:2]})
    found = svhn.svhn(tmp_path)
    assert found.y.tolist() == [1, 0, 9, 2, 0]
    assert np.array_equal(found.x[2], x[:, :, :, 2])
    assert found.x_test.shape == (2, 32, 32, 3)
    assert Federation.from_source(found, clients=1).columns["x"].shape == (5, 3, 32, 32)


def test_svhn_refusals(tmp_path):
    x, y = np.zeros((32, 32, 3, 2), np.uint8), np.array([[1], [2]], np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": x, "y": y})
    path = tmp_path / "train_32x32.mat"
    for content, message in [
        ({"digitStruct": y}, "has no X and y"),
        ({"X": x, "y": y[:1]}, "expected uint8"),
        ({"X": x, "y": y - 1}, "labels from 0 to 1, not 1 to 10"),
    ]:
        savemat(path, content)
        with pytest.raises(InputError, match=message):
            svhn.svhn(tmp_path)
    savemat(path, {"X": x, "y": y}, do_compression=True)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"junk" * 100, b""):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"train_32x32.mat cannot be read as a MATLAB file"):
            svhn.svhn(tmp_path)
