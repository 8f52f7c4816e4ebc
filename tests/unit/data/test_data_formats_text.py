"""LEAF's JSON, speeches, news and motion signals: small files in the layouts of their authors."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch

from fedquilt.data import IID, Federation, read
from fedquilt.data.sources.formats import har, leaf, text
from fedquilt.errors import InputError

PAGE = np.round(np.linspace(0, 1, 784) * 255) / 255  # pixels are bytes / 255 in LEAF's files


def leaf_file(path, users, compressed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"users": list(users), "num_samples": [len(d["y"]) for d in users.values()], "user_data": users}
    path.write_bytes(gzip.compress(json.dumps(whole).encode()) if compressed else json.dumps(whole).encode())


def femnist_user(*labels):
    return {"x": [PAGE.tolist() for _ in labels], "y": list(labels)}


def test_femnist_train_and_test(tmp_path):
    data = tmp_path / "data"  # LEAF writes data/femnist/data/train/...
    leaf_file(data / "train" / "all_data_0_niid_0_keep_0_train_9.json", {"f0001_41": femnist_user(0, 61)})
    leaf_file(
        data / "train" / "all_data_1_niid_0_keep_0_train_9.json", {"f0002_00": femnist_user(10)}, compressed=False
    )
    leaf_file(data / "test" / "all_data_0_niid_0_keep_0_test_9.json", {"f0001_41": femnist_user(3)})
    found = leaf.femnist(tmp_path)
    assert found.x.dtype == np.uint8
    assert np.array_equal(found.x[0].reshape(-1), np.rint(PAGE * 255))  # 1 is white and stays 255
    assert found.y.tolist() == [0, 61, 10]
    assert found.user.tolist() == ["f0001_41", "f0001_41", "f0002_00"]
    assert (found.y_test.tolist(), found.classes) == ([3], 62)
    assert Federation.from_source(found, natural=True, test=0, valid=0).ids == ("f0001_41", "f0002_00")


def test_leaf_writers_are_evaluated_on_their_own_test_rows(tmp_path):
    """train/ and test/ name the same writers: a writer's rows of test/ are its test samples, none is cut from train/;
    one who is only in train/ has none, and the rows of those who are only in test/ belong to no client."""
    train = {"f1": femnist_user(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), "f2": femnist_user(20, 21), "f3": femnist_user(30, 31)}
    leaf_file(tmp_path / "train" / "a.json", train)
    leaf_file(tmp_path / "test" / "a.json", {"f2": femnist_user(22), "f9": femnist_user(60, 61)})
    leaf_file(tmp_path / "test" / "b.json", {"f1": femnist_user(11, 12, 13)})
    data = Federation.from_source(leaf.femnist(tmp_path), natural=True, test=0.5, valid=0.1)
    assert data.ids == data.evaluated == ("f1", "f2", "f3")
    tests = {c: None if (t := data.evaluation(c, "test")) is None else t.whole().y.tolist() for c in data.ids}
    assert tests == {"f1": [11, 12, 13], "f2": [22], "f3": None}
    learned = {c: sorted(data.labels(c).tolist() + data.labels(c, "valid").tolist()) for c in data.ids}
    assert learned == {name: user["y"] for name, user in train.items()}
    assert data.size("f1") == 9  # a tenth is held out for validation, as everywhere
    assert data.global_test is not None
    assert data.global_test.whole().y.tolist() == [60, 61]
    some = Federation.from_source(leaf.femnist(tmp_path), natural=True, clients=1, seed=0)
    assert some.global_test is not None
    assert some.global_test.whole().y.tolist() == [60, 61]
    divided = Federation.from_source(leaf.femnist(tmp_path), clients=2, partition=IID())
    assert divided.global_test is not None
    assert len(divided.global_test) == 6


def test_leaf_split_by_user(tmp_path):
    """LEAF's option '-t user' puts every writer into one of both parts: then tests are cut, and test/ is common."""
    leaf_file(tmp_path / "train" / "a.json", {"f1": femnist_user(*range(10)), "f2": femnist_user(*range(10))})
    leaf_file(tmp_path / "test" / "a.json", {"f9": femnist_user(60, 61)})
    data = Federation.from_source(leaf.femnist(tmp_path), natural=True, test=0.2, valid=0)
    assert [data.size(c) for c in data.ids] == [8, 8]
    assert data.global_test is not None
    assert data.global_test.whole().y.tolist() == [60, 61]


def test_leaf_from_a_recipe_and_through_the_cache(tmp_path, monkeypatch):
    from fedquilt.config.config import Config
    from fedquilt.config.data import federation_of

    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    leaf_file(tmp_path / "femnist" / "train" / "a.json", {"f1": femnist_user(*range(10)), "f2": femnist_user(1, 2)})
    leaf_file(tmp_path / "femnist" / "test" / "a.json", {"f2": femnist_user(22), "f1": femnist_user(11, 12)})
    config = Config.model_validate({"data": {"source": "femnist", "by_user": True, "valid": 0.0}})
    for _ in range(2):  # decoded, then mapped
        data = federation_of(config)
        assert {c: data.labels(c, "test").tolist() for c in data.ids} == {"f1": [11, 12], "f2": [22]}
        assert data.global_test is None
        assert data.size("f1") == 10


def test_femnist_as_one_part(tmp_path):
    leaf_file(
        tmp_path / "all_data" / "all_data_0.json.gz", {"a": femnist_user(1), "b": femnist_user()}, compressed=True
    )
    found = leaf.femnist(tmp_path)
    assert (found.y.tolist(), found.x_test) == ([1], None)


def test_shakespeare_uses_leafs_characters(tmp_path):
    assert len(leaf.LETTERS) == 80
    line = "To be, or not to be: that is the question"
    x = line.rjust(80)
    for part in ("train", "test"):
        leaf_file(tmp_path / part / "some.json", {"HAMLET": {"x": [x, x[1:] + "."], "y": [".", "é"]}})
    found = leaf.shakespeare(tmp_path)
    assert found.x.shape == (2, 80)
    assert found.x[0, 0] == leaf.LETTERS.index(" ") == 1
    assert found.x[0, 39] == leaf.LETTERS.index("T")  # 80 - len(line)
    assert found.y.tolist() == [leaf.LETTERS.index("."), 79]  # LEAF's find is -1 for others: its last character
    data = Federation.from_source(found, natural=True, test=0, valid=0)
    assert data.columns["x"].dtype == torch.int64
    assert data.prepare is None


def test_leaf_refusals(tmp_path):
    def refuses(users, message, read=leaf.femnist):
        leaf_file(tmp_path / "all_data" / "a.json", users)
        with pytest.raises(InputError, match=message):
            read(tmp_path)

    refuses({"a": {"x": [[0.5] * 783], "y": [1]}}, r"a\.json: user 'a': images should be 784 numbers from 0 to 1")
    refuses({"a": {"x": [[255.0] * 784], "y": [1]}}, "784 numbers from 0 to 1")
    refuses({"a": femnist_user(62)}, "labels from 62 to 62, of 62 classes")
    refuses({"a": {"x": [], "y": [1]}}, "user 'a' should have 1 rows in x and in y")
    refuses({}, "its files have no users")
    refuses({"a": {"x": ["short"], "y": ["s"]}}, "should be 80 characters", leaf.shakespeare)
    refuses({"a": {"x": ["s" * 80], "y": ["st"]}}, "should be one character, not 'st'", leaf.shakespeare)
    (tmp_path / "all_data" / "a.json").write_text('{"users": [')
    with pytest.raises(InputError, match=r"a\.json is not well-formed JSON"):
        leaf.femnist(tmp_path)
    (tmp_path / "all_data" / "a.json").write_text("[]")
    with pytest.raises(InputError, match="it needs users, num_samples and user_data"):
        leaf.femnist(tmp_path)
    (tmp_path / "all_data" / "a.json").unlink()
    with pytest.raises(InputError, match=r"holds no \.json files"):
        leaf.femnist(tmp_path)


def test_roles_become_windows(tmp_path):
    speech = "".join(chr(97 + i % 26) for i in range(60))
    rows = (
        f'play,role,text\nhamlet,KING,"{speech}\n  {speech}"\nhamlet,FOOL,no\nlear,KING,{speech}\nlear,KING,{speech}\n'
    )
    (tmp_path / "shakespeare_roles.csv.gz").write_bytes(gzip.compress(rows.encode()))
    found = leaf.shakespeare_roles(tmp_path, step=20)
    whole = f"{speech} {speech}"  # 121 characters: windows begin at 0, 20 and 40
    assert found.x.shape == (6, 80)
    assert found.user.tolist() == ["hamlet/KING"] * 3 + ["lear/KING"] * 3
    assert ["".join(leaf.LETTERS[i] for i in row) for row in found.x[:3]] == [whole[s : s + 80] for s in (0, 20, 40)]
    assert [leaf.LETTERS[i] for i in found.y[:3]] == [whole[s + 80] for s in (0, 20, 40)]
    (tmp_path / "shakespeare_roles.csv.gz").write_bytes(gzip.compress(b"play,role\na,b\n"))
    with pytest.raises(InputError, match="has no column 'text'; its first line is 'play,role'"):
        leaf.shakespeare_roles(tmp_path)
    (tmp_path / "shakespeare_roles.csv.gz").write_bytes(gzip.compress(b"play,role,text\na,b\n"))
    with pytest.raises(InputError, match="record 2 has 2 fields, the header has 3"):
        leaf.shakespeare_roles(tmp_path)


def write_news(folder, train):
    (folder / "train.csv").write_text(train)
    (folder / "test.csv").write_text('"4","Moon","the ""big"" rock flies"\n')


def test_ag_news_words(tmp_path):
    write_news(tmp_path, '"3","The Market","the market\\rises"\n"1","Peace","THE talks, it\'s on"\n')
    found = text.ag_news(tmp_path, size=5, length=4)
    # the: 3 times, market: 2, then it, on, peace, rises, s, talks once: with padding and unknown, five ids
    assert text.vocabulary(text.strings(tmp_path).texts, 5) == {"the": 2, "market": 3, "it": 4}
    assert found.x.tolist() == [[2, 3, 2, 3], [1, 2, 1, 4]]
    assert text.ag_news(tmp_path).x.shape == (2, 128)
    assert found.x_test.tolist() == [[1, 2, 1, 1]]
    assert found.y.tolist() == [2, 0]
    assert (found.y_test.tolist(), found.classes, found.x.dtype) == ([3], 4, np.int32)
    assert text.strings(tmp_path).texts_test == ('Moon the "big" rock flies',)
    assert text.ag_news(tmp_path, length=7).x[1].tolist()[-1] == text.PADDING
    data = Federation.from_source(found, clients=1, test=0, valid=0)
    assert data.columns["x"].dtype == torch.int64
    assert data.site(0, 0).train.whole().x.tolist() == [[2, 3, 2, 3], [1, 2, 1, 4]]


def test_ag_news_refusals(tmp_path):
    for bad, message in [
        ('"5","a","b"\n', "record 1 is .* not a class from 1 to 4"),
        ('"1","a"\n', "record 1 is"),
        ("", "train.csv is empty"),
        ('"1","a","cut\n', "not well-formed csv"),
    ]:
        write_news(tmp_path, bad)
        with pytest.raises(InputError, match=message):
            text.ag_news(tmp_path)
    write_news(tmp_path, '"1","a","b"\n')
    (tmp_path / "test.csv").write_bytes(b'"1","\xff","b"\n')
    with pytest.raises(InputError, match=r"test.csv is not UTF-8 text"):
        text.ag_news(tmp_path)
    write_news(tmp_path, '"1","a","b"\n')
    with pytest.raises(InputError, match="size must be 3 or more"):
        text.ag_news(tmp_path, size=2)
    with pytest.raises(InputError, match="length must be 1 or more"):
        text.ag_news(tmp_path, length=0)


def write_har(folder, rows=3):
    base = folder / "UCI HAR Dataset"
    for number, part in enumerate(("train", "test")):
        signals = base / part / "Inertial Signals"
        signals.mkdir(parents=True)
        for place, name in enumerate(har._SIGNALS):
            values = np.full((rows, 128), place + 10 * number) + np.arange(128) / 1000
            np.savetxt(signals / f"{name}_{part}.txt", values, fmt=" %.7e")  # two blanks, exponents: as published
        np.savetxt(base / part / f"y_{part}.txt", [5, 1, 6][:rows], fmt="%d")
        np.savetxt(base / part / f"subject_{part}.txt", [1, 1, 30][:rows], fmt="%d")
    return base


def test_uci_har(tmp_path):
    write_har(tmp_path)
    found = har.uci_har(tmp_path)
    assert found.x.shape == found.x_test.shape == (3, 9, 128)
    assert found.x.dtype == np.float32
    assert np.allclose(found.x[1, :, 0], range(9))
    assert np.allclose(found.x_test[2, 4, 127], 14.127)
    assert found.y.tolist() == [4, 0, 5]
    assert found.user.tolist() == [1, 1, 30]


def test_uci_har_refusals(tmp_path):
    base = write_har(tmp_path)
    path = base / "train" / "y_train.txt"
    for content, message in [
        ("1\n2\n", "rows do not match.*y_train.txt 2"),
        ("1\n2\n7\n", "activities from 1 to 7"),
        ("1 2\n", "1 x 2 numbers, not 1 columns"),
        ("one\n", "not a table of numbers"),
    ]:
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            har.uci_har(tmp_path)


def test_hapt_windows_stay_within_a_stretch(tmp_path):
    raw = tmp_path / "RawData"
    raw.mkdir()
    for name, first in (("acc", 0), ("gyro", 3)):
        for experiment, user in ((1, 1), (2, 1), (61, 30)):
            values = np.arange(400)[:, None] + np.arange(first, first + 3) * 1000
            np.savetxt(raw / f"{name}_exp{experiment:02d}_user{user:02d}.txt", values)
    (raw / "labels.txt").write_text("1 1 5 11 202\n1 1 7 203 400\n2 1 1 1 127\n61 30 6 273 400\n")
    found = har.hapt(tmp_path, step=64)
    # 11..202 is 192 samples: windows at 10 and 74; a transition; 127 samples are too few; 273..400 is one window
    assert found.x.shape == (3, 6, 128)
    assert found.x[:, 0, 0].tolist() == [10, 74, 272]
    assert found.x[1, :, 1].tolist() == [75, 1075, 2075, 3075, 4075, 5075]
    assert found.y.tolist() == [4, 4, 5]
    assert found.user.tolist() == [1, 1, 30]
    (raw / "labels.txt").write_text("1 1 5 11 401\n")
    with pytest.raises(InputError, match="experiment 1 has 400 samples, not 11 to 401"):
        har.hapt(tmp_path, step=64)
    (raw / "labels.txt").write_text("1 1 5 11 20\n")
    with pytest.raises(InputError, match="no labelled stretch has 128 samples"):
        har.hapt(tmp_path, step=64)
    (raw / "labels.txt").write_text("9 1 5 11 200\n")
    with pytest.raises(InputError, match=r"has no acc_exp09_user01.txt"):
        har.hapt(tmp_path, step=64)


def recordings(**changed):
    """Two people, three recordings of one channel count each: sample i of all has the value i (times the channel)."""
    label = np.repeat([0, 5, 5, 7, 1], [10, 192, 130, 200, 127])
    experiment = np.repeat([1, 1, 2, 2, 3], [10, 192, 130, 200, 127])
    delta = np.ones((6, len(label)), np.int16)
    delta[:, 0] = 0
    whole = {"signal_delta": delta, "scale": np.arange(1, 7) / 2, "label": label, "experiment": experiment}
    return {**whole, "user": (experiment + 1) // 2, **changed}


def test_hapt_as_whole_recordings(tmp_path, monkeypatch):
    """10 samples without a label, 192 of activity 5 (windows at 10 and 74), 130 in another recording (one), a
    transition, and 127 samples, which are too few."""
    np.savez(tmp_path / "hapt.npz", **recordings())
    found = har.hapt_npz(tmp_path / "hapt.npz", step=64)
    assert (found.x.shape, found.x.dtype) == ((3, 6, 128), np.float32)
    assert found.x[:, 0, 0].tolist() == [5, 37, 101]  # samples 10, 74 and 202, in halves
    assert found.x[0, :, 1].tolist() == [11 * c / 2 for c in range(1, 7)]
    assert (found.y.tolist(), found.user.tolist(), found.classes) == ([4, 4, 4], [1, 1, 1], 6)
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    assert np.array_equal(read("hapt").x, found.x[::2])  # windows do not overlap unless asked to
    np.savez(tmp_path / "hapt.npz", x=found.x, y=found.y, user=found.user)
    assert np.array_equal(read("hapt").user, found.user)


def test_hapt_recordings_that_are_not_whole(tmp_path):
    for changed, message in [
        ({"user": np.ones(3, int)}, r"unlike numbers of samples: .*'signal_delta': 659, .*'user': 3"),
        ({"label": np.zeros(659, int)}, "no labelled stretch has 128 samples"),
    ]:
        np.savez(tmp_path / "hapt.npz", **recordings(**changed))
        with pytest.raises(InputError, match=message):
            har.hapt_npz(tmp_path / "hapt.npz", step=64)
    np.savez(tmp_path / "hapt.npz", signal_delta=recordings()["signal_delta"], label=np.zeros(659, int))
    with pytest.raises(InputError, match="has signal_delta but not scale, experiment, user"):
        har.hapt_npz(tmp_path / "hapt.npz", step=64)
