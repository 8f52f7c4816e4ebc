"""PyTorch data sets as federations: read on demand, random by the run's seed, refused with a reason."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fedquilt import FedAvg, Federation, Net, client_update, run
from fedquilt.core.lazy import LazyColumn
from fedquilt.core.seed import Seed
from fedquilt.data import IID, Rotation, Stream, held_out
from fedquilt.engines.process import forks
from fedquilt.engines.workers import Workers
from fedquilt.errors import InputError, WorkerError
from helpers.torch_data import Images, Jittered, Linear, Told

METHOD = FedAvg(Net(Linear), batch_size=8)
SIZES = {"a": 21, "b": 30, "c": 17}


def federation(kind: type[Images] = Images, lazy: bool = True) -> Federation:
    return Federation.from_datasets({c: kind(n, n) for c, n in SIZES.items()}, lazy=lazy)


def digest(data, engine="local", method=METHOD) -> str:
    *_, snapshot = run(method, data, rounds=2, engine=engine)
    return snapshot.digest()


def test_lazy_data_are_the_same_data_as_in_memory() -> None:
    arrays = {c: (Images(n, n).x, Images(n, n).y) for c, n in SIZES.items()}
    kinds = federation(), federation(lazy=False), Federation.from_clients(arrays)
    assert isinstance(kinds[0].columns["x"], LazyColumn)
    assert not isinstance(kinds[1].columns["x"], LazyColumn)
    assert len({data.fingerprint() for data in kinds}) == 1
    assert len({digest(data) for data in kinds}) == 1
    assert kinds[0].summary() == kinds[2].summary()


def test_items_are_read_when_a_batch_needs_them() -> None:
    own = Images(40)
    data = Federation.from_datasets({"a": own, "b": Images(9)}, test=0, valid=0)
    before = own.reads
    next(data.site("a", 0).train.batches(8, 1, Seed(0)))  # small rows: those of a pass are gathered at once
    assert own.reads == before + 40
    before = own.reads
    data.site("a", 0).train.rows(torch.tensor([3, 1]))
    assert own.reads == before + 2


def test_random_items_follow_from_the_seed_on_every_engine(two_workers) -> None:
    data = federation(Jittered)
    found = digest(data)
    assert digest(data) == found
    if forks(None):  # not beside a thread that another test has left
        assert digest(data, two_workers) == found  # which began before the data were there
    assert digest(data, "lanes") == found
    table, seed = data.site("a", 0).train, Seed(3)
    passes = torch.cat([b.x for b in table.batches(100, 2, seed)]).split(len(table))
    assert not torch.equal(passes[0].flatten().sort()[0], passes[1].flatten().sort()[0])
    by_size = [torch.cat([b.x for b in table.batches(size, 1, seed)]) for size in (3, 100)]
    assert torch.equal(*by_size)  # by the sample, not by its batch
    assert torch.equal(table.whole().x, table.whole().x)


def test_default_generators_are_left_as_they_were() -> None:
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    federation(Jittered).site("a", 0).train.whole()
    assert states() == before


def test_random_items_in_a_loop_of_ones_own() -> None:
    seen = []

    @client_update
    def loop(model, data_loader, context):
        seen.append(torch.cat([x for _ in range(2) for x, _ in data_loader]))

    for _ in range(2):
        digest(Federation.from_datasets({"a": Jittered(10)}), method=FedAvg(Net(Linear), client_update=loop))
    assert torch.equal(seen[0], seen[2])
    first, second = seen[0].chunk(2)
    assert not torch.equal(first.flatten().sort()[0], second.flatten().sort()[0])


def test_processes_that_are_not_forked(monkeypatch) -> None:
    monkeypatch.setenv("FEDQUILT_START", "spawn")
    told = Federation.from_datasets({"a": Told(12), "b": Told(20, 0.5)})
    with Workers(1) as engine:
        assert digest(told, engine) == digest(told)
        with pytest.raises(WorkerError, match="frozen dataclass"):
            digest(federation(Jittered), engine)


def test_splits_pools_streams_and_shifts() -> None:
    parts = {"train": Images(20), "valid": Images(6, 1), "test": Images(8, 2)}
    both = [Federation.from_datasets({"a": parts, "b": Images(10)}, lazy=lazy) for lazy in (True, False)]
    assert [both[0].size(c) for c in "ab"] == [20, 7]
    assert torch.equal(both[0].evaluation("a", "test").whole().x, torch.from_numpy(Images(8, 2).x))
    for change in (Federation.pooled, Rotation((0, 90)), lambda d: held_out(d, 1)[0]):
        assert len({change(data).fingerprint() for data in both}) == 1
    streams = [Stream.of([data, data], rounds_per_task=1) for data in both]
    assert len({digest(stream) for stream in streams}) == 1
    other = Federation.from_datasets({"a": Images(20, 5), "b": Images(10, 6)})
    assert isinstance(Stream.of([both[0], other], rounds_per_task=1).tasks[1].columns["x"], LazyColumn)


def test_one_data_set_divided() -> None:
    own, wide = Images(40), Images(10, 1)
    found = Federation.from_dataset(own, IID(), clients=4, global_test=wide)
    like = Federation.from_arrays(own.x, own.y, IID(), clients=4, global_test=(wide.x, wide.y))
    assert found.fingerprint() == like.fingerprint()


@pytest.mark.parametrize(
    ("dataset", "shape", "labels"),
    [
        (TensorDataset(torch.rand(5, 2, dtype=torch.float64), torch.arange(5)), (2,), 5),
        (Subset(Images(9), [1, 2, 5]), (3, 4, 4), 3),
        (ConcatDataset([Images(3), Images(4)]), (3, 4, 4), 7),
        ([(Image.new("RGB", (6, 5)), 1), (Image.new("RGB", (6, 5)), 0)], (3, 5, 6), 2),
        ([(Image.new("P", (6, 5)), 1)], (3, 5, 6), 1),
        ([(Image.new("L", (6, 5)), np.int32(1))], (1, 5, 6), 1),
        ([{"img": np.zeros((5, 6, 3), np.uint8), "label": torch.tensor([2])}], (3, 5, 6), 1),
        ([np.zeros(3), np.ones(3)], (3,), None),
        (DataLoader(Images(4), batch_size=2, shuffle=True), (3, 4, 4), 4),
        ([([1, 2, 3], 0)], (3,), 1),
    ],
)
def test_what_items_may_be(dataset, shape, labels) -> None:
    data = Federation.from_datasets({"a": dataset}, test=0, valid=0)
    assert tuple(data.columns["x"].shape[1:]) == shape
    assert tuple(data.site("a", 0).train.whole().x.shape[1:]) == shape
    assert (len(data.columns["y"]) if labels else data.classes) == labels


class Endless(IterableDataset):
    def __iter__(self):
        return iter([1])


class Own(Images):
    """Draws from a generator of its own."""

    def __getitem__(self, place):
        self.generator = getattr(self, "generator", np.random.default_rng(0))
        return torch.from_numpy(self.generator.normal(size=3)), 0


class Broken(Images):
    def __getitem__(self, place):
        raise KeyError(place)


class Unsized(Dataset):
    def __getitem__(self, place):
        return torch.zeros(3), 0


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Endless(), "IterableDataset.*map-style"),
        (DataLoader(Endless()), "IterableDataset.*map-style"),
        (Unsized(), "map-style"),
        (iter([1]), "from its beginning only"),
        (5, "int is no data set"),
        ((np.zeros((3, 2)), np.zeros(3)), "from_clients"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 1)], r"item 1 has the shape \(4,\), item 0 \(3,\)"),
        ([(torch.zeros(3), 0), (torch.zeros(3), 0.5)], "item 1 has the label 0.5"),
        ([(torch.zeros(3), "cat")], "label 'cat'"),
        ([(torch.zeros(3), -1)], "label -1"),
        ([({"a": 1}, 0)], "input of an item is dict"),
        ([{"a": 1}], "none of x, image"),
        ([(1, 2, 3)], "tuples of 3"),
        ([(torch.tensor(float("nan")).expand(3), 0)], "NaN"),
        (Own(4), "another one each time"),
        (Broken(4), "item 0 of Broken cannot be read: KeyError"),
        ([], "None of 1 clients has a row"),
    ],
)
def test_what_is_refused(dataset, said) -> None:
    with pytest.raises(InputError, match=said):
        Federation.from_datasets({"a": dataset}).site("a", 0).train.whole()


def test_an_empty_client_is_named_or_left_out() -> None:
    clients = {"a": Images(9), "b": []}
    with pytest.raises(InputError, match="no training samples: 'b'"):
        Federation.from_datasets(clients)
    assert Federation.from_datasets(clients, drop_empty=True).ids == ("a",)


def test_targets_must_be_what_items_say() -> None:
    class Lying(Images):
        targets = [0] * 9

    own = Lying(9)
    own.y = np.arange(9)
    data = Federation.from_datasets({"a": own})
    assert own.reads == 2  # no labels were read
    with pytest.raises(InputError, match="item 1 has the label 1, and 0 before"):
        data.site("a", 0).train.whole()


def test_what_a_loader_loses_is_said() -> None:
    loader = DataLoader(Images(8), collate_fn=list, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 8, 8))
    with pytest.warns(UserWarning, match="without its collate_fn=list and sampler=WeightedRandomSampler"):
        Federation.from_datasets({"a": loader})


def test_groups_that_a_user_knows() -> None:
    arrays = {c: (Images(9).x, Images(9).y) for c in ("a", 1, "b")}
    groups = {"a": "north", "b": "north", 1: "south"}
    assert Federation.from_clients(arrays, groups=groups).groups == {1: 0, "a": 1, "b": 1}
    assert Federation.from_datasets({"a": Images(5)}, groups={"a": 7}).groups == {"a": 0}
    rows = {"a": {"train": [0, 1]}, "b": {"train": [2], "test": [3]}}
    columns = {"x": torch.zeros(4, 2), "y": torch.zeros(4, dtype=torch.int64)}
    assert Federation.from_rows(columns, rows, groups={"b": 3, "a": 9}).groups == {"a": 0, "b": 1}
    users = Federation.from_arrays(columns["x"], columns["y"], user=[5, 5, 6, 6], groups={5: "x", 6: "y"}, test=0)
    assert users.groups == {5: 0, 6: 1}
    with pytest.raises(InputError, match="lacks the clients 'b'"):
        Federation.from_rows(columns, rows, groups={"a": 9})
    with pytest.raises(InputError, match="names 'c', who are no clients"):
        Federation.from_rows(columns, rows, groups={"a": 9, "b": 1, "c": 2})
