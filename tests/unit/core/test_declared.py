"""What records declare of their fields, and what is refused by it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.errors import InputError
from fedquilt.records.declared import Between, Count, check_declared, shown
from fedquilt.records.record import record


@record
class Inner:
    """A record in a record."""

    share: float
    drifted: bool = False


@record
class Outer:
    """One field of every kind."""

    delta: Params
    inner: Inner
    count: Count = 3
    label: int | None = None
    way: Literal["up", "down"] = "up"
    losses: tuple[float, ...] = (0.5, 1.0)
    pair: tuple[int, str] = (1, "a")
    names: list[str] = ()  # type: ignore[assignment]
    rows: Annotated[Tensor, torch.int64, Between(1, 10)] | None = None
    raw: bytes = b""
    free: Any = None


GOOD = {"delta": {"w": torch.zeros(2)}, "inner": Inner(1.0), "names": ["a"]}
FITTING = [
    {},
    {"inner": Inner(1)},  # a whole number is a number
    {"label": -4},
    {"count": 0},
    {"rows": torch.tensor([1, 10])},
    {"rows": torch.zeros(0, dtype=torch.int64)},
    {"losses": ()},
    {"free": {"a": [1, None, torch.tensor(float("nan"))], 3: Inner(0.5)}},  # tensors are looked at elsewhere
]
UNFIT = {
    "delta": [None, "w", {"w": 1.0}, {1: torch.zeros(1)}, {"w": None}, [torch.zeros(1)]],
    "inner": [None, "x", Inner(None), Inner(float("inf")), Inner(1.0, 1), Inner(1.0, None), {"share": 1.0}],
    "count": [None, "3", 1.0, True, -1, 10**13, 10**400, torch.tensor(3), (3, 3)],
    "label": ["1", 1.5, False, 2**63, -(2**63)],
    "way": ["left", None, 1],
    "losses": [(0.5, None), [0.5], (float("nan"),), 0.5, ("a",)],
    "pair": [(1,), (1, "a", 2), ("a", 1), None],
    "names": [("a",), [1], "ab"],
    "rows": [torch.tensor([1.0]), torch.tensor([0]), torch.tensor([11]), 3, torch.tensor([1], dtype=torch.int32)],
    "raw": ["x", None, bytearray],
    "free": [float("nan"), 10**400, {"a": [1, float("inf")]}, (Inner(None),)],
}


@pytest.mark.parametrize("change", FITTING, ids=str)
def test_what_is_declared_passes(change):
    check_declared(Outer(**{**GOOD, **change}))
    check_declared(Outer(**{**GOOD, **change}), Outer | Inner)


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in UNFIT.items() for v in values], ids=shown)
def test_what_is_not_declared_is_refused_by_its_name(field, value):
    with pytest.raises(InputError, match=f"^upload.{field}|^a key of upload.{field}"):
        check_declared(Outer(**{**GOOD, field: value}))


def test_the_type_of_the_whole_can_be_declared():
    for wrong in (None, "x", Inner(1.0), torch.zeros(1)):
        with pytest.raises(InputError, match="upload should"):
            check_declared(wrong, Outer)
    with pytest.raises(InputError, match="upload should be None, got 'x'"):
        check_declared("x", None)
    check_declared(None, None)


def test_errors_name_the_place_and_what_was_expected():
    with pytest.raises(InputError, match=r"^upload\.count should be at least 0 and at most 1e\+12, got -1\.$"):
        check_declared(Outer(**{**GOOD, "count": -1}))
    with pytest.raises(InputError, match=r"^upload\.inner\.share should be a finite number, got 'much'\.$"):
        check_declared(Outer(**{**GOOD, "inner": Inner("much")}))
    with pytest.raises(InputError, match=r"^upload\.rows should be torch.int64, got a tensor \(2,\) torch.float32\.$"):
        check_declared(Outer(**{**GOOD, "rows": torch.ones(2)}))
    with pytest.raises(InputError, match="a whole number of 1329 bits"):
        check_declared(Outer(**{**GOOD, "label": 10**400}))
    assert len(shown("x" * 10**6)) < 60


def test_annotations_that_cannot_be_read_declare_nothing():
    class Local:
        pass

    @record
    class Odd:
        """An annotation of a class that only this function knows."""

        thing: Local

    check_declared(Odd(1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="finite"):
        check_declared(Odd(float("nan")))  # type: ignore[arg-type]
