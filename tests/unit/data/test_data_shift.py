"""Shifts: rotation, noise, light and label permutations, each client by its own setting, groups recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedquilt.data import ClassGroups, Colour, Dirichlet, Federation, LabelPermutation, Light, Noise, Rotation
from fedquilt.data.images import rotated, sampled
from fedquilt.errors import InputError

BYTES = np.random.default_rng(0).integers(0, 256, (120, 6, 6), dtype=np.uint8)
FLOATS = (BYTES[:, None] / 255).astype(np.float32)
Y = np.arange(120) % 3
SHIFTS = [
    Rotation(),
    Rotation((0, 30)),
    Noise((0, 0.1, 0.2)),
    Light((0.0, 0.2), (1.0, 0.5)),
    Colour(((1.0,), (0.5,))),
    LabelPermutation(2),
]


def made(x=FLOATS, **options):
    return Federation.from_arrays(x, Y, **{"partition": Dirichlet(0.5, 8), "clients": 6, **options})


def tables(data, client):
    return [data.site(client, 0).train, data.evaluation(client, "valid"), data.evaluation(client, "test")]


@pytest.mark.parametrize("x", [FLOATS, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("shift", SHIFTS, ids=repr)
def test_a_shift_keeps_who_holds_what_and_follows_the_seed(shift, x):
    data = made(x)
    before = data.fingerprint()
    new = shift(data, seed=3)
    assert data.fingerprint() == before  # the old one is untouched
    assert new.fingerprint() == shift(data, seed=3).fingerprint() != before
    assert new.columns["x"].dtype == data.columns["x"].dtype
    assert (new.ids, new.classes, new.prepare) == (data.ids, data.classes, data.prepare)
    many = len(set(new.groups.values()))
    for number, client in enumerate(data.ids):
        assert new.groups[client] == number % many
        for old, table in zip(tables(data, client), tables(new, client), strict=True):
            assert (old is None) == (table is None)
            if old is not None and number % many == 0:  # the first setting of every kind above changes nothing
                assert torch.equal(old.whole().x, table.whole().x)
                assert torch.equal(old.whole().y, table.whole().y)
            elif old is not None:
                assert len(old) == len(table)
                assert torch.equal(old.whole().x, table.whole().x) == isinstance(shift, LabelPermutation)


def test_right_angles_are_exact_and_sampling_agrees_with_them():
    images = torch.from_numpy(FLOATS[:5])
    for angle in (90, 180, 270, -90, 450):
        assert torch.allclose(rotated(images, angle), sampled(images, angle), atol=1e-4)
    corner = torch.zeros(1, 1, 4, 4)
    corner[0, 0, 0, 3] = 1.0  # top right goes to top left: counter-clockwise
    assert rotated(corner, 90)[0, 0, 0, 0] == 1.0
    there_and_back = rotated(rotated(images, 90), 270)
    assert torch.equal(there_and_back, images)
    data = Rotation()(made())
    old = made()
    for number, client in enumerate(old.ids):
        turned = torch.rot90(old.evaluation(client, "test").whole().x, number % 4, (2, 3))
        assert torch.equal(data.evaluation(client, "test").whole().x, turned)


def test_noise_has_its_level():
    x = np.full((4000, 1, 4, 4), 0.5, np.float32)
    data = Federation.from_arrays(x, np.arange(4000) % 2, clients=2, test=0, valid=0)
    new = Noise((0.0, 0.3))(data)
    assert float(new.site(0, 0).train.whole().x.std()) == 0
    assert abs(float(new.site(1, 0).train.whole().x.std()) - 0.3) < 0.005  # 32 000 numbers: +- 0.0012
    raw = Federation.from_arrays((x[:, 0] * 255).astype(np.uint8), np.arange(4000) % 2, clients=1, test=0, valid=0)
    assert abs(float(Noise((0.1,))(raw).site(0, 0).train.whole().x.std()) - 0.1) < 0.002


def test_light_by_hand():
    x = np.array([[[[0.2, 0.6]]]], np.float32).repeat(2, 0)  # mean 0.4: 0.5 * (-0.2, 0.2) + 0.4 + 0.1
    data = Federation.from_clients({0: (x, [0, 1])}, test=0, valid=0)
    assert Light((0.1,), (0.5,))(data).columns["x"][0].flatten().tolist() == pytest.approx([0.4, 0.6])
    raw = Federation.from_clients({0: (np.array([[[0, 250]]], np.uint8), [0])}, test=0, valid=0)
    assert Light((0.1,))(raw).columns["x"].flatten().tolist() == [26, 255]  # 25.5 is rounded to even, 275.5 clipped


def test_colour_by_hand():
    x = np.array([[[[0.2]], [[0.6]], [[1.0]]]], np.float32).repeat(2, 0)  # one pixel of three channels
    data = Federation.from_clients({0: (x, [0, 1]), 1: (x, [0, 1])}, test=0, valid=0)
    warm = Colour(((1.0, 1.0, 1.0), (1.5, 1.0, 0.5)))(data)
    assert warm.site(0, 0).train.whole().x[0].flatten().tolist() == pytest.approx([0.2, 0.6, 1.0])
    assert warm.site(1, 0).train.whole().x[0].flatten().tolist() == pytest.approx([0.3, 0.6, 0.5])
    assert warm.groups == {0: 0, 1: 1}
    raw = Federation.from_clients({0: (np.full((1, 8, 8, 3), 200, np.uint8), [0])}, test=0, valid=0)
    assert Colour(((1.5, 1.0, 0.1),))(raw).columns["x"][0, :, 0, 0].tolist() == [255, 200, 20]  # 300 is clipped


def test_labels_are_permuted_by_group_in_every_split():
    data = made()
    new = LabelPermutation(permutations=((0, 1, 2), (1, 2, 0)))(data)
    for number, client in enumerate(data.ids):
        for split in ("train", "valid", "test"):
            assert torch.equal(new.labels(client, split), (data.labels(client, split) + number % 2) % 3)


def test_a_row_of_two_clients_is_shifted_for_each():
    columns = {"x": torch.from_numpy(FLOATS[:4]), "y": torch.tensor([0, 1, 0, 1])}
    data = Federation.from_rows(columns, {"a": {"train": [0, 1]}, "b": {"train": [1, 2]}})
    new = Rotation((0, 180))(data)
    assert torch.equal(new.site("a", 0).train.whole().x, columns["x"][:2])
    assert torch.equal(new.site("b", 0).train.whole().x, columns["x"][1:3].flip(2, 3))


@pytest.mark.parametrize("pooled", [False, True])
def test_groups_travel_with_the_layout(pooled):
    data = Rotation((0, 90))(made())
    data = data.pooled() if pooled else data
    twin = Federation.from_shared(data.columns_for_sharing(), json.loads(json.dumps(data.layout())), data.prepare)
    assert twin.groups == data.groups == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}
    assert Federation.from_shared(made().columns_for_sharing(), made().layout(), None).groups is None


def test_class_groups_are_recorded_and_a_shift_on_top_makes_pairs():
    data = made(partition=ClassGroups(((0,), (1, 2))))
    assert data.groups == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    both = Rotation((0, 180))(data)
    # pairs (0,0) (0,1) (0,0) (1,1) (1,0) (1,1), numbered as they come
    assert both.groups == {0: 0, 1: 1, 2: 0, 3: 2, 4: 3, 5: 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotation(()), r"angles must be one or more numbers, got \(\)"),
        (lambda: Noise((0.1, -1)), "levels must be one or more numbers of at least 0"),
        (lambda: Light((0.1, 0.2), (1.0,)), "2 values of brightness but 1 of contrast"),
        (lambda: Colour(()), r"gains must be one or more numbers of at least 0, got \(\)"),
        (lambda: Colour(((1.0, -1.0),)), "gains must be one or more numbers of at least 0"),
        (lambda: Colour(((1.0, 1.0, 1.0),))(made()), r"Colour: 3 gains, but x has shape \(120, 1, 6, 6\)"),
        (lambda: LabelPermutation(0), "groups must be at least 1, got 0"),
        (lambda: LabelPermutation(permutations=((0, 0),)), r"\(0, 0\) is not a permutation"),
        (lambda: LabelPermutation(permutations=((1, 0),))(made()), "permutations of the 3 classes"),
        (lambda: Rotation()(made(np.zeros((120, 5)))), r"Rotation turns images .* x has shape \(120, 5\)"),
        (lambda: Rotation()(made(np.zeros((120, 1, 4, 6)))), "4 x 6 can only be turned by 0 or 180"),
        (lambda: Rotation()(made().pooled()), "before the federation is pooled"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()
