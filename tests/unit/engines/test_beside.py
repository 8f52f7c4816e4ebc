"""A model beside a download: shared tensors once, the others with it, and the same model at the other end."""

from __future__ import annotations

import pytest
import torch

from fedquilt.errors import FrameError
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.beside import Beside, Companion


@record
class Offer:
    first: dict[str, torch.Tensor]
    more: tuple[torch.Tensor, ...]


A, B, C = torch.arange(1000.0), torch.ones(3), torch.zeros(2)


def there_and_back(model, download):
    beside = unpack(Companion(model).frame(download))
    return beside.model(unpack(pack(download, compact=True)))


@pytest.mark.parametrize(
    ("model", "download"),
    [
        ({"w": A, "b": B}, Offer({"w": A, "b": B}, ())),
        ({"b": B, "w": A}, Offer({"x": C}, (A, B))),
        ({"w": A, "own": C}, Offer({"w": A}, (B,))),
        ({"w": A, "b": B}, None),
        ({"w": A, "again": A}, Offer({"w": A}, ())),
        ({}, Offer({"w": A}, ())),
    ],
)
def test_the_model_arrives_with_its_names_in_order(model, download):
    found = there_and_back(model, download)
    assert list(found) == list(model)
    assert all(torch.equal(found[name], tensor) for name, tensor in model.items())


def test_tensors_of_the_download_do_not_travel_again():
    small = Companion({"w": A, "b": B}).frame(Offer({"w": A, "b": B}, ()))
    assert len(small) < 100
    assert len(Companion({"w": A, "b": B}).frame(Offer({"w": A.clone()}, ()))) > A.nbytes


def test_downloads_that_hold_the_same_parts_share_a_frame():
    companion = Companion({"w": A, "own": C})
    assert companion.frame(Offer({"w": A}, (B,))) is companion.frame(Offer({"w": A}, (C.clone(),)))
    assert companion.frame(Offer({}, ())) is companion.frame(None)


@pytest.mark.parametrize("place", [1, -2, 10**6])
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(FrameError, match="names tensors that the download does not have"):
        Beside({"w": place}, {}).model({"w": A})
