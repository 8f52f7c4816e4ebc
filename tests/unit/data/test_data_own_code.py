"""Data that a file of the user's own brings, to recipes and to sites."""

from __future__ import annotations

import pytest

from fedquilt.config.config import parse
from fedquilt.deploy.site import SiteSettings, is_function, source_of
from fedquilt.errors import InputError
from fedquilt.runs.build import federation_of

CODE = """
import numpy as np, torch
from torch.utils.data import Dataset
from fedquilt import Federation
from fedquilt.data import Arrays

class Scans(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((64,), i / 20) + torch.rand(64), i % 2

def arrays():
    return Arrays(np.arange(120.0).reshape(60, 2), np.arange(60) % 2)

def hospitals():
    return Federation.from_datasets({"a": Scans(), "b": Scans()}, groups={"a": "north", "b": "south"})

def broken():
    return 1 / 0

def five():
    return 5
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def data_of(folder, **data):
    return federation_of(parse({"data": data, "model": {"kind": "mlp"}}, folder=folder))


def test_a_recipe_names_a_function_that_gives_data(folder) -> None:
    assert data_of(folder, source="mine.py:arrays", clients=3).ids == (0, 1, 2)
    made = data_of(folder, source="mine.py:hospitals", by_user=True)
    assert made.ids == ("a", "b")
    assert made.groups == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"source": "mine.py:hospitals"}, r"gives a federation, divided .*by_user = true"),
        ({"source": "mine.py:hospitals", "by_user": True, "limit": 9}, r"data\.limit cannot be had there"),
        ({"source": "mine.py:broken"}, r"mine\.py:broken failed: ZeroDivisionError.*line 21"),
        ({"source": "mine.py:five"}, r"gave a int, but data\.source needs"),
        ({"source": "mine.py:hospital"}, "did you mean 'hospitals'"),
        ({"source": "other.py:hospitals"}, r"no file 'other\.py'"),
    ],
)
def test_what_is_refused(folder, data, said) -> None:
    with pytest.raises(InputError, match=said):
        data_of(folder, **data)


def test_a_site_names_a_file(folder) -> None:
    named = f"{folder / 'mine.py'}:hospitals"
    assert is_function(named)
    assert not is_function(str(folder / "mine.npz"))
    assert source_of(SiteSettings(data=named, state=str(folder))).ids == ("a", "b")
