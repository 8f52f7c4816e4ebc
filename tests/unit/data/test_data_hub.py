"""Hugging Face and Flower data sets: through stand-ins with their attributes, and the packages themselves if here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image as Pillow

from fedquilt.data import Federation
from fedquilt.errors import InputError


class Image:
    """Called as the feature of ``datasets`` is."""


@dataclass
class ClassLabel:
    names: list[str]


@dataclass
class Value:
    dtype: str = "float32"


@dataclass
class Rows:
    """What is used of a datasets.Dataset: features, a length, and columns by name."""

    columns: dict
    features: dict = field(default_factory=dict)

    def __post_init__(self):
        self.features = {name: self.features.get(name, Value()) for name in self.columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name):
        return self.columns[name]


def pictures(*reds, size=(4, 4), mode="RGB"):
    return [Pillow.new(mode, size, (red, 0, 0) if mode == "RGB" else red) for red in reds]


KINDS = {"img": Image(), "kind": ClassLabel(["cat", "dog", "owl"])}


def test_image_and_label_are_found_by_type():
    rows = Rows({"id": [1, 2, 3], "img": pictures(10, 20, 30), "kind": [0, 1, 1], "who": ["a", "b", "a"]}, KINDS)
    data = Federation.from_hf(rows, user="who", test=0, valid=0)
    assert data.ids == ("a", "b")
    assert data.classes == 3
    assert data.columns["x"].shape == (3, 3, 4, 4)
    assert data.columns["x"][:, 0, 0, 0].tolist() == [10, 20, 30]
    grey = Rows({"img": pictures(1, 2, mode="L"), "kind": [0, 1]}, KINDS)
    assert Federation.from_hf(grey, clients=1).columns["x"].shape == (2, 1, 4, 4)


def test_parts_of_a_data_set():
    parts = {
        "train": Rows({"img": pictures(1, 2), "kind": [0, 1], "who": [5, 6]}, KINDS),
        "validation": Rows({"img": pictures(3), "kind": [2], "who": [5]}, KINDS),
        "test": Rows({"img": pictures(4), "kind": [1]}, KINDS),
    }
    data = Federation.from_hf(parts, user="who", test=0, valid=0)
    assert data.ids == (5, 6)
    assert data.columns["y"].tolist() == [0, 1, 2]
    assert data.global_test.whole().y.tolist() == [1]
    with pytest.raises(InputError, match="has the parts a, and no train"):
        Federation.from_hf({"a": parts["train"]})


def test_numbers_and_names():
    rows = Rows({"row": [[1, 2], [3, 4], [5, 6]], "label": ["no", "yes", "no"]})
    data = Federation.from_hf(rows, x="row", clients=1, test=0, valid=0)
    assert data.columns["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (data.columns["y"].tolist(), data.classes) == ([0, 1, 0], 2)


def test_hf_refusals():
    def refuses(columns, message, **options):
        with pytest.raises(InputError, match=message):
            Federation.from_hf(Rows(columns, KINDS), **options)

    refuses({"a": [1], "label": [0]}, r"Which column is the input\? Name it with x=.*the columns are a, label")
    refuses({"a": [1], "b": [0]}, r"Which column is the label\?", x="a")
    refuses({"a": [1], "label": [0]}, "no column 'z'. Its columns are a, label", x="z")
    refuses({"a": ["text"], "label": [0]}, "Column 'a' holds str, not numbers", x="a")
    refuses({"a": [[1], [1, 2]], "label": [0, 1]}, "differ in length", x="a")
    refuses({"img": [*pictures(1), *pictures(1, size=(5, 5))], "kind": [0, 1]}, "give size=64")
    refuses({"img": [], "kind": []}, "has no rows")
    rows = Rows({"img": [*pictures(1), *pictures(1, size=(5, 5))], "kind": [0, 1]}, KINDS)
    assert Federation.from_hf(rows, size=4, clients=1).columns["x"].shape == (2, 3, 4, 4)


def test_a_name_needs_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'Loading mnist needs the package datasets.*"fedquilt\[hf\]"'):
        Federation.from_hf("mnist")


@dataclass
class Partitioner:
    parts: list
    partition_id_to_natural_id: dict = field(default_factory=dict)

    @property
    def num_partitions(self):
        return len(self.parts)

    def load_partition(self, number):
        return self.parts[number]


@dataclass
class Federated:
    partitioners: dict
    splits: dict

    def load_partition(self, number, split):
        return self.partitioners[split].load_partition(number)

    def load_split(self, split):
        if split not in self.splits:
            raise ValueError(split)
        return self.splits[split]


def numbers(*values):
    return Rows({"x": [[float(v)] for v in values], "label": ["even" if v % 2 == 0 else "odd" for v in values]})


def test_partitioner():
    data = Federation.from_flwr(Partitioner([numbers(1, 3), numbers(2, 5)]), x="x", test=0, valid=0, standardise=False)
    assert data.ids == (0, 1)
    assert data.site(1, 0).train.whole().x.tolist() == [[2.0], [5.0]]
    assert data.labels(0).tolist() == [1, 1]  # names are numbered over all clients
    assert data.labels(1).tolist() == [0, 1]
    named = Partitioner([numbers(1), numbers(2)], {0: "oslo", 1: "bergen"})
    assert Federation.from_flwr(named, x="x", test=0, valid=0).ids == ("bergen", "oslo")


def test_federated_data_set():
    train = Partitioner([numbers(1, 3), numbers(2, 5)])
    data = Federation.from_flwr(
        Federated({"train": train}, {"test": numbers(8)}), x="x", test=0, valid=0, standardise=False
    )
    assert data.global_test.whole().x.tolist() == [[8.0]]
    assert Federation.from_flwr(Federated({"train": train}, {}), x="x").global_test is None
    both = Federated({"train": train, "test": Partitioner([numbers(6), numbers(7)])}, {})
    data = Federation.from_flwr(both, x="x", standardise=False)
    assert (data.size(0), data.evaluation(1, "test").whole().x.tolist()) == (2, [[7.0]])
    for wrong in (Federated({"valid": train}, {}), numbers(1)):
        with pytest.raises(InputError, match="is not a partitioner, or does not partition 'train'"):
            Federation.from_flwr(wrong, x="x")


def test_the_real_datasets_package():
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5, 3), dtype=np.uint8)
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"]), "who": datasets.Value("string")}
    )
    columns = {"image": [Pillow.fromarray(p) for p in pixels], "label": [0, 1] * 3, "who": ["x", "y", "y"] * 2}
    rows = datasets.Dataset.from_dict(columns, features=kinds)
    data = Federation.from_hf(datasets.DatasetDict({"train": rows, "test": rows}), user="who", test=0, valid=0)
    assert data.ids == ("x", "y")
    assert np.array_equal(data.columns["x"].permute(0, 2, 3, 1), pixels)
    assert len(data.global_test) == 6


def test_the_real_flower_partitioners():
    datasets, flower = pytest.importorskip("datasets"), pytest.importorskip("flwr_datasets.partitioner")
    rows = datasets.Dataset.from_dict(
        {
            "x": [[float(i)] for i in range(12)],
            "label": [i % 3 for i in range(12)],
            "who": [f"w{i % 4}" for i in range(12)],
        }
    )
    for partitioner in (flower.IidPartitioner(num_partitions=3), flower.NaturalIdPartitioner(partition_by="who")):
        partitioner.dataset = rows
        data = Federation.from_flwr(partitioner, x="x", test=0, valid=0)
        for number, client in enumerate(data.ids):
            assert np.array_equal(
                data.site(client, 0).train.whole().x, np.array(partitioner.load_partition(number)["x"])
            )
    assert data.ids == ("w0", "w1", "w2", "w3")
