"""Divisions made by PFLlib: read as its own code writes them, and never run."""

from __future__ import annotations

import io
import json
import os
import pickle  # noqa: TID251 -- written here to show that it is not run
import zipfile

import numpy as np
import pytest

from fedquilt.config.config import parse
from fedquilt.data import Federation
from fedquilt.data.imports.pfllib import unpickled
from fedquilt.errors import InputError
from fedquilt.runs.build import federation_of

RNG = np.random.default_rng(0)


def rows(count, first=0):
    return {"x": RNG.normal(size=(count, 1, 4, 4)).astype(np.float32), "y": np.arange(first, first + count) % 3}


def write_split(folder, clients):
    """As dataset/utils/dataset_utils.py does: np.savez_compressed(file, data=dict), and the settings beside them."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for number, parts in enumerate(clients):
            np.savez_compressed(folder / part / f"{number}.npz", data=parts[part])
    settings = {"num_clients": len(clients), "num_classes": 5, "non_iid": True, "balance": False, "partition": "dir"}
    (folder / "config.json").write_text(json.dumps({**settings, "alpha": 0.1, "batch_size": 10}))
    return folder


def write_pickle(path, data):
    """An .npz whose ``data`` is these bytes: a header that says 'objects', then a pickle."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", out.getvalue() + data)


def test_clients_and_their_tests_stay_as_they_are(tmp_path):
    clients = [{"train": rows(9), "test": rows(3)} for _ in range(12)]  # so that '10' must follow '9'
    data = Federation.from_pfllib(write_split(tmp_path / "Cifar10", clients), valid=0)
    assert data.ids == tuple(range(12))
    assert data.classes == 5
    for number, parts in enumerate(clients):
        batch, evaluation = data.site(number, 0).train.whole(), data.evaluation(number, "test").whole()
        assert np.array_equal(batch.x, parts["train"]["x"])
        assert np.array_equal(batch.y, parts["train"]["y"])
        assert np.array_equal(evaluation.x, parts["test"]["x"])
        assert data.evaluation(number, "valid") is None


def test_validation_rows_come_from_training(tmp_path):
    clients = [{"train": rows(10), "test": rows(3)}, {"train": rows(1), "test": rows(1)}]
    folder = write_split(tmp_path / "a", clients)
    data = Federation.from_pfllib(folder, valid=0.25, seed=3)
    site = data.site(0, 0)
    assert (len(site.train), len(site.valid)) == (7, 3)  # 2.5 goes up
    both = np.concatenate([site.train.whole().x, site.valid.whole().x]).reshape(10, -1)
    assert np.array_equal(np.sort(both, axis=0), np.sort(clients[0]["train"]["x"].reshape(10, -1), axis=0))
    assert (len(data.site(1, 0).train), data.site(1, 0).valid) == (1, None)
    assert Federation.from_pfllib(folder, 0.25, 3).fingerprint() == data.fingerprint()
    assert Federation.from_pfllib(folder, 0.25, 4).fingerprint() != data.fingerprint()


def test_other_contents_of_the_dict(tmp_path):
    """Lists instead of arrays, columns first, other byte order, numbers of numpy; and plain arrays without a pickle."""
    x = np.arange(12.0).reshape(3, 4)
    kinds = [
        {"x": list(x), "y": [0, 1, 2]},
        {"x": np.asfortranarray(x), "y": [np.int64(0), np.int64(1), np.int64(2)]},
        {"x": x.astype(">f8"), "y": np.array([0, 1, 2], np.uint8)},
    ]
    folder = write_split(tmp_path / "a", [{"train": kind, "test": kind} for kind in kinds])
    for part in ("train", "test"):
        np.savez(folder / part / "3.npz", x=x, y=np.arange(3))
    (folder / "config.json").unlink()
    data = Federation.from_pfllib(folder, valid=0)
    for client in range(4):
        assert data.site(client, 0).train.whole().x.tolist() == x.tolist()
        assert data.labels(client).tolist() == [0, 1, 2]


def test_files_of_older_numpy():
    """numpy before 2 calls its room numpy.core, and np.save pickled with protocol 3."""
    x = np.arange(6.0).reshape(2, 3)
    old = pickle.dumps({"x": x}, 3).replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert b"numpy._core" not in old
    assert unpickled(old, "a file")["x"].tolist() == x.tolist()


class Hostile:
    """What a pickle from a new client may hold."""

    def __init__(self, call, *given):
        self.what = call, given

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("inner", ["top", "in the dict", "in an array"])
def test_a_hostile_pickle_does_not_run(tmp_path, protocol, inner):
    folder = write_split(tmp_path / "a", [{"train": rows(3), "test": rows(3)}])
    mark = tmp_path / "it ran"
    bad = Hostile(os.mkdir, str(mark))
    content = {"top": bad, "in the dict": {"x": bad, "y": bad}, "in an array": np.array(bad, dtype=object)}[inner]
    write_pickle(folder / "train" / "0.npz", pickle.dumps(content, protocol))
    with pytest.raises(InputError, match=r"train/0.npz holds a pickle that asks for (posix.mkdir|_codecs.encode)"):
        Federation.from_pfllib(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("call", "name"),
    [(eval, "builtins.eval"), (getattr, "builtins.getattr"), (np.load, "numpy.load"), (np.memmap, "numpy.memmap")],
)
def test_every_other_name_is_refused(call, name):
    with pytest.raises(InputError, match=f"asks for {name}"):
        unpickled(pickle.dumps(Hostile(call, "1")), "a file")


def test_admitted_names_do_nothing_else():
    """numpy's own names, used otherwise: no allocation of what is not there, no change of the reader itself."""
    named = b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93"
    huge = named + b"J\xff\xff\xff\x7f\x85R" + b"(K\x01J\xff\xff\xff\x7f\x85"  # ndarray((2**31 - 1,)), its state
    huge += b"\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02f8\x85R\x89C\x00tb."
    with pytest.raises(InputError, match=r"damaged pickle: an array of .2147483647,. with 0 bytes"):
        unpickled(huge, "a file")
    with pytest.raises(InputError, match="damaged pickle: it changes what is not its own"):
        unpickled(named + b"N}\x8c\x05_make\x8c\x01a" + b"s\x86b.", "a file")
    with pytest.raises(InputError, match="damaged pickle: arrays of type"):
        unpickled(b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93\x8c\x03U99\x85R.", "a file")
    assert unpickled(pickle.dumps(rows(2), 4), "a file")["x"].shape == (2, 1, 4, 4)


def test_nesting_and_damage():
    deep = []
    for _ in range(30):
        deep = [deep, deep]  # small as a pickle, 2 ** 30 lists when written out
    with pytest.raises(InputError, match="nested too deeply"):
        unpickled(pickle.dumps(deep), "a file")
    whole = pickle.dumps(rows(3), 4)
    for length in range(0, len(whole), 7):
        with pytest.raises(InputError, match="a file holds a damaged pickle"):
            unpickled(whole[:length], "a file")


def test_refusals(tmp_path):
    with pytest.raises(InputError, match=r"has no train/\*.npz. Give the folder that PFLlib wrote"):
        Federation.from_pfllib(tmp_path)
    folder = write_split(tmp_path / "a", [{"train": rows(3), "test": rows(3)}])

    def refuses(message):
        with pytest.raises(InputError, match=message):
            Federation.from_pfllib(folder)

    path = folder / "train" / "0.npz"
    for content, message in [
        ({"x": np.zeros((2, 2))}, "holds no x and y"),
        ({"x": np.zeros((2, 2)), "y": [1]}, "x has 2 rows but y has 1"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "different lengths"),
        (np.zeros(3), "data is an array of float64, not a dict"),
    ]:
        np.savez(path, data=content)
        refuses(message)
    path.write_bytes(b"junk")
    refuses("cannot be read as .npz")
    np.savez(path, data=rows(3))
    np.savez(folder / "train" / "1.npz", data=rows(3))
    refuses("There is no .*test/1.npz")
    np.savez(folder / "test" / "1.npz", data=rows(3))
    refuses("config.json tells of 1 clients, but train holds 2 files")
    np.savez(folder / "test" / "2.npz", data=rows(3))
    refuses("do not hold the same clients")
    np.savez(folder / "train" / "x.npz", data=rows(3))
    refuses(r"x.npz is not called after a client's number")


def test_in_a_recipe(tmp_path):
    folder = write_split(tmp_path / "a", [{"train": rows(6), "test": rows(3)} for _ in range(2)])
    data = federation_of(parse({"data": {"path": str(folder), "by_user": True, "valid": 0.5}}))
    assert (data.ids, data.size(0), len(data.evaluation(1, "test"))) == ((0, 1), 3, 3)
    with pytest.raises(InputError, match=r"divided over clients already, by PFLlib; set data.by_user = true"):
        federation_of(parse({"data": {"path": str(folder)}}))
    with pytest.raises(InputError, match=r"data.limit cannot be had there"):
        federation_of(parse({"data": {"path": str(folder), "by_user": True, "limit": 3}}))
