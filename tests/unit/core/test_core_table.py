"""Tables, batches, and the one order of clients."""

from __future__ import annotations

import pytest
import torch

from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Table, in_order
from fedquilt.errors import InputError

ROWS = Table({"x": torch.arange(20.0), "y": torch.arange(20)}, torch.tensor([3, 5, 7, 11, 13, 17, 19]))


def values(batches) -> list[list[int]]:
    return [b.y.tolist() for b in batches]


def test_a_pass_shows_every_row_once_in_an_order_of_the_seed():
    one = values(ROWS.batches(3, 1, Seed(0)))
    assert [len(b) for b in one] == [3, 3, 1]
    assert sorted(row for batch in one for row in batch) == [3, 5, 7, 11, 13, 17, 19]
    assert values(ROWS.batches(3, 1, Seed(0))) == one
    assert values(ROWS.batches(3, 1, Seed(1))) != one


def test_each_pass_is_shuffled_anew_and_begins_like_a_shorter_run():
    two = values(ROWS.batches(3, 2, Seed(0)))
    assert two[:3] == values(ROWS.batches(3, 1, Seed(0)))
    assert two[:3] != two[3:]
    assert values(ROWS.batches(3, 1, Seed(0), steps=5)) == two[:5]


def test_blocks_keep_the_order():
    assert values(ROWS.blocks(4)) == [[3, 5, 7, 11], [13, 17, 19]]
    assert values(ROWS.blocks(7)) == [[3, 5, 7, 11, 13, 17, 19]]
    assert ROWS.whole().x.tolist() == [3, 5, 7, 11, 13, 17, 19]
    assert values(Table({"y": torch.arange(3)}).blocks(2)) == [[0, 1], [2]]


def test_no_rows_no_batches():
    empty = Table({"y": torch.arange(3)}, torch.zeros(0, dtype=torch.int64))
    assert (len(empty), values(empty.batches(2, 3, Seed(0), steps=4)), values(empty.blocks(2))) == (0, [], [])


def test_prepare_sees_raw_rows_and_gives_what_the_network_takes():
    def halves(columns):
        return {**columns, "x": columns["x"] / 2}

    table = Table({"x": torch.tensor([2, 4, 6])}, torch.tensor([2, 0]), halves)
    assert table.whole().x.tolist() == [3.0, 1.0]
    assert table.columns["x"].tolist() == [2, 4, 6]


def test_a_batch_is_as_long_as_its_rows():
    assert len(Batch({"x": torch.zeros(3, 2), "y": torch.zeros(3)})) == 3


def test_clients_are_in_one_order_numbers_words_tuples():
    ids = [(1, "b"), "b", 10, "a", (1, "a"), 9, (0, "z"), ("a", 1)]
    assert in_order(ids) == (9, 10, "a", "b", (0, "z"), (1, "a"), (1, "b"), ("a", 1))
    for bad in (1.5, None, True, (1, None)):
        with pytest.raises(InputError, match="must be an int, a string, or a tuple"):
            in_order([bad])
