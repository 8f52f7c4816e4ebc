"""Pixels: bytes to floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.core.describe import build, describe
from fedquilt.data import Pixels
from fedquilt.errors import InputError

RAW = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (7, 3, 5, 5), dtype=np.uint8))


@given(mean=st.floats(-1, 1), std=st.floats(0.01, 2))
def test_it_is_the_formula(mean, std):
    expected = (RAW.double() / 255 - mean) / std
    found = Pixels(mean, std)({"x": RAW})["x"]
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5 / std)


def test_one_number_for_each_channel():
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
    found = Pixels(mean, std)({"x": RAW})["x"]
    for c in range(3):
        assert torch.allclose(found[:, c], (RAW[:, c].float() / 255 - mean[c]) / std[c], atol=1e-5)
    mixed = Pixels(mean, 0.5)({"x": RAW})["x"]
    assert torch.allclose(mixed[:, 2], (RAW[:, 2].float() / 255 - 0.4465) / 0.5, atol=1e-5)


def test_the_default_ends_at_zero_and_one():
    found = Pixels()({"x": torch.tensor([[0, 255]], dtype=torch.uint8)})["x"]
    assert found.tolist() == [[0.0, 1.0]]


def test_other_columns_and_the_input_stay():
    y, before = torch.arange(7), RAW.clone()
    columns = {"x": RAW, "y": y}
    found = Pixels(0.5, 0.5)(columns)
    assert found["y"] is y
    assert columns["x"] is RAW
    assert torch.equal(RAW, before)


def test_a_row_does_not_depend_on_its_place_in_the_batch():
    prepare = Pixels((0.1, 0.2, 0.3), 0.7)
    whole = prepare({"x": RAW})["x"]
    assert all(torch.equal(prepare({"x": RAW[i : i + 1]})["x"][0], whole[i]) for i in range(7))


def test_it_is_a_value_that_travels():
    prepare = Pixels([0.1, 0.2, 0.3], 1)
    assert prepare == Pixels((0.1, 0.2, 0.3), 1.0)
    prepare({"x": RAW})
    assert build(describe(prepare)) == prepare


@pytest.mark.parametrize(("mean", "std"), [(0, 0), (0, -1.0), (0, (1, 0)), ("a", 1), ((), 1), (float("nan"), 1)])
def test_wrong_numbers_are_refused(mean, std):
    with pytest.raises(InputError, match=r"Pixels: (mean|std) must be"):
        Pixels(mean, std)
