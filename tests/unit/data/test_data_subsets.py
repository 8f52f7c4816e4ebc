"""Fewer clients, newcomers held out, and rows that lose their labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.data import Federation, Pixels, Rotation, Stream, held_out, only_clients, without_labels
from fedquilt.errors import InputError

X = np.arange(240, dtype=np.float32).reshape(120, 2)
Y = np.arange(120) % 4


def small(clients: int = 6) -> Federation:
    return Federation.from_arrays(X, Y, clients=clients, standardise=False)


def rows(table) -> set[int]:
    """Which rows of X a table holds: the first column counts in twos."""
    return set() if table is None else set((table.whole().x[:, 0] / 2).int().tolist())


def test_some_clients_keep_what_they_have():
    whole = small()
    some = only_clients(whole, [4, 1])
    assert some.ids == some.evaluated == (1, 4)
    assert some.columns is whole.columns
    for client in some.ids:
        assert rows(some.site(client, 0).train) == rows(whole.site(client, 0).train)
        assert rows(some.evaluation(client, "test")) == rows(whole.evaluation(client, "test"))
    turned = Rotation((0, 180))(Federation.from_arrays(np.zeros((60, 2, 2), np.uint8), Y[:60], clients=4))
    assert only_clients(turned, [1, 2]).groups == {1: 1, 2: 0}
    assert isinstance(turned.prepare, Pixels)


def test_newcomers_are_drawn_by_the_seed_and_are_apart():
    whole = small()
    part, new = held_out(whole, 2)
    assert len(new.ids) == 2
    assert sorted(part.ids + new.ids) == list(whole.ids)
    assert held_out(whole, 2)[1].ids == new.ids
    assert len({held_out(whole, 2, seed)[1].ids for seed in range(20)}) > 5
    assert part.fingerprint() != whole.fingerprint()


def test_newcomers_of_a_stream_are_new_in_every_task():
    stream = Stream.by_class(small(), ((0, 1), (2, 3)), rounds_per_task=2, delays=(0, 1))
    part, new = held_out(stream, 2)
    assert all(task.ids == part.ids for task in part.tasks)
    assert set(part.delays) | set(new.delays) == set(stream.delays)
    for client in new.ids:
        assert new.task_at(client, 2) == stream.task_at(client, 2)
        assert rows(new.site(client, 2).train) == rows(stream.site(client, 2).train)


@given(share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_labels_are_lost_by_the_share_and_no_row_is(share, seed):
    whole = small()
    found = without_labels(whole, share, seed)
    for client in whole.ids:
        before, after = whole.site(client, 0), found.site(client, 0)
        lost = min(int(len(before.train) * share + 0.5), len(before.train) - 1)
        assert len(after.train) == after.samples == len(before.train) - lost >= 1
        assert rows(after.unlabelled).isdisjoint(rows(after.train))
        assert rows(after.unlabelled) | rows(after.train) == rows(before.train) == rows(after.inputs)
        assert rows(after.valid) == rows(before.valid)
        assert "y" not in after.inputs.columns


def test_nobody_sees_the_lost_labels():
    site = without_labels(small(), 0.5).site(0, 0)
    assert site.unlabelled is not None
    assert set(site.unlabelled.whole().columns) == {"x"}
    assert small().site(0, 0).unlabelled is None
    assert rows(small().site(0, 0).inputs) == rows(small().site(0, 0).train)


def test_unlabelled_rows_go_where_the_rest_goes():
    found = without_labels(small(), 0.5)
    assert found.fingerprint() != small().fingerprint()
    twin = Federation.from_shared(found.columns_for_sharing(), found.layout(), None)
    assert twin.fingerprint() == found.fingerprint()
    assert rows(twin.site(3, 0).unlabelled) == rows(found.site(3, 0).unlabelled)
    pooled = found.pooled().site("pooled", 0)
    assert rows(pooled.unlabelled) == set().union(*(rows(found.site(c, 0).unlabelled) for c in found.ids))
    assert rows(only_clients(found, [2]).site(2, 0).unlabelled) == rows(found.site(2, 0).unlabelled)
    stream = Stream.by_class(found, ((0, 1), (2, 3)))
    again = Stream.from_shared(stream.columns_for_sharing(), stream.layout(), None)
    for task in (0, 1):
        bare = stream.tasks[task].site(1, 0).unlabelled
        kept = {row for row in rows(found.site(1, 0).unlabelled) if Y[row] // 2 == task}
        assert rows(bare) == rows(again.tasks[task].site(1, 0).unlabelled) == kept
    both = Stream.of([found, without_labels(small(), 0.5, seed=1)])
    assert torch.equal(both.site(0, 3).unlabelled.whole().x, both.tasks[1].site(0, 0).unlabelled.whole().x)


def test_a_stream_loses_labels_in_every_task():
    stream = without_labels(Stream.by_class(small(3), ((0, 1), (2, 3)), rounds_per_task=1), 0.5)
    for round in (0, 1):
        site = stream.site(0, round)
        assert abs(len(site.unlabelled) - len(site.train)) <= 1


def test_together_a_stream_is_its_federation_again():
    whole = small(3)
    found = Stream.by_class(whole, ((0, 1), (2, 3))).together()
    for client in whole.ids:
        assert rows(found.site(client, 0).train) == rows(whole.site(client, 0).train)
        assert rows(found.evaluation(client, "test")) == rows(whole.evaluation(client, "test"))
    assert found.majority().overall == whole.majority().overall


def test_what_cannot_be_is_refused():
    whole = small()
    with pytest.raises(InputError, match=r"Of 6 clients from 1 to 5 can be newcomers, got 6"):
        held_out(whole, 6)
    with pytest.raises(InputError, match="no client 9"):
        only_clients(whole, [1, 9])
    with pytest.raises(InputError, match="at least one client"):
        only_clients(whole, [])
    with pytest.raises(InputError, match=r"from 0 to below 1, got 1.0"):
        without_labels(whole, 1.0)
    with pytest.raises(InputError, match="before pooling"):
        without_labels(whole.pooled(), 0.5)
    with pytest.raises(InputError, match="lost their labels already"):
        without_labels(without_labels(whole, 0.5), 0.5)
    images = Federation.from_arrays(np.zeros((40, 3, 3), np.uint8), Y[:40], clients=4)
    with pytest.raises(InputError, match="shift first"):
        Rotation()(without_labels(images, 0.5))
