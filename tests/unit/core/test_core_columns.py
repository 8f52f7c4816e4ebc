"""Columns of a table: sums that clients tell, what is agreed from them, and rows prepared by it."""

from __future__ import annotations

import numpy as np
import torch

from fedquilt.core.columns import LEVELS, Column, PerColumn, blank_of, code_of, fitted, own, sums_of
from fedquilt.records.record import pack, unpack

NUMBERS = blank_of(3, "federation")


def parts(x: np.ndarray, *cuts: int) -> list[torch.Tensor]:
    return [torch.from_numpy(part) for part in np.split(x, cuts)]


def test_sums_of_clients_are_those_of_all_rows():
    """Means and deviations of each column, however rows are divided; also far from zero, where squares lose digits."""
    x = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 1e-3, 1e5] + [0.0, 1e6, -3.0]
    agreed = fitted(NUMBERS, (sums_of(part, NUMBERS.columns) for part in parts(x, 3, 4, 250)))
    np.testing.assert_allclose([c.mean for c in agreed.columns], x.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose([c.std for c in agreed.columns], x.std(0), rtol=1e-6)
    z = agreed({"x": torch.from_numpy(x)})["x"]
    assert z.dtype == torch.float32
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(0, correction=0), 1, atol=1e-5)


def test_a_constant_column_is_not_divided_by_zero():
    x = torch.tensor([[5.0, 1e8, 0.1]] * 7, dtype=torch.float64)
    agreed = fitted(NUMBERS, [sums_of(x[:3], NUMBERS.columns), sums_of(x[3:], NUMBERS.columns)])
    assert [c.std for c in agreed.columns] == [1.0, 1.0, 1.0]
    assert torch.equal(agreed({"x": x})["x"], torch.zeros(7, 3))
    assert "constant: 0, 1, 2" in agreed.describe()


def test_missing_cells_are_the_mean_and_flagged():
    """Column 1 has a hole in training and gets a flag; one that is missing later is the mean, without a flag."""
    nan = float("nan")
    x = torch.tensor([[1.0, 10.0], [3.0, nan], [5.0, 30.0]], dtype=torch.float64)
    agreed = fitted(blank_of(2, "federation"), [sums_of(x, blank_of(2, "federation").columns)])
    assert (agreed.columns[1].mean, agreed.columns[1].std, agreed.width) == (20.0, 10.0, 3)
    found = agreed({"x": torch.tensor([[nan, nan], [3.0, 30.0]], dtype=torch.float64)})["x"]
    assert found.tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    raw = fitted(blank_of(2, "none"), [sums_of(x, agreed.columns)])
    assert raw({"x": x})["x"].tolist() == [[1.0, 10.0, 0.0], [3.0, 20.0, 1.0], [5.0, 30.0, 0.0]]
    empty = torch.full((4, 2), nan, dtype=torch.float64)
    assert torch.isfinite(fitted(agreed.blank(), [sums_of(empty, agreed.columns)])({"x": empty})["x"]).all()


def test_categories_are_the_most_frequent_levels_of_all():
    """Each client tells its own levels; those of all together decide. An unknown name is none of them."""
    kinds = PerColumn((Column("town", True),))
    codes = [code_of(f"town {i}") for i in range(60)]
    first = torch.tensor(sorted(codes[:40] * 2), dtype=torch.float64)[:, None]
    second = torch.tensor([codes[i] for i in range(20, 60) for _ in range(3)], dtype=torch.float64)[:, None]
    agreed = fitted(kinds, [sums_of(first, kinds.columns), sums_of(second, kinds.columns)])
    levels = set(agreed.columns[0].levels)
    assert len(levels) == LEVELS == agreed.width
    assert set(codes[20:40]) < levels  # 5 rows each, the others 3 or 2
    assert not levels & set(codes[:20])
    assert agreed.columns[0].levels == tuple(sorted(levels))
    seen = agreed({"x": torch.tensor([[codes[25]], [code_of("elsewhere")]], dtype=torch.float64)})["x"]
    assert seen.sum(1).tolist() == [1.0, 0.0]


def test_codes_are_exact_in_a_row_of_floats():
    assert all(int(float(code_of(name))) == code_of(name) < 2**48 for name in ("", "Oslo", "Tromsø", "x" * 99))
    assert code_of("f") == 0x252F10C83610  # the first 48 bits of sha256("f")


def test_a_clients_own_numbers_and_the_federations_levels():
    kinds = PerColumn((Column("age"), Column("sex", True)), "clients")
    f, m = float(code_of("f")), float(code_of("m"))
    rows = torch.tensor([[10.0, f], [20.0, m], [1000.0, f]], dtype=torch.float64)
    agreed = fitted(kinds, [sums_of(rows[:2], kinds.columns), sums_of(rows[2:], kinds.columns)])
    mine = own(agreed, sums_of(rows[:2], kinds.columns))
    found = mine({"x": rows[:2]})["x"]
    assert found[:, 0].tolist() == [-1.0, 1.0]
    assert found.shape == (2, 3)


def test_it_travels_and_comes_back():
    agreed = PerColumn((Column("age", mean=0.1, std=3.0, flagged=True), Column("sex", True, (1, 2**47))), "clients")
    assert unpack(pack(agreed)) == agreed
    assert agreed.blank() == PerColumn((Column("age"), Column("sex", True)), "clients")
    assert agreed.kinds() == "age, sex (category)"
