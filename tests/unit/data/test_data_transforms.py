"""Transforms: each step against a transcription in numpy, when the random ones act, and that engines agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.data import (
    Federation,
    GreyToRGB,
    Light,
    Noise,
    Normalise,
    Pixels,
    RandomCrop,
    RandomFlip,
    Resize,
    Transforms,
    channel_statistics,
)
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from helpers.toy import last

DRAW = np.random.default_rng(0)
BYTES = DRAW.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
LABELS = np.arange(60) % 3
ALL = Transforms((Resize(6), GreyToRGB(), RandomCrop(2), RandomFlip()), Pixels((0.5, 0.4, 0.3), 0.25))


def images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


@settings(max_samples=25, deadline=None)
@given(padding=st.integers(1, 5), seed=st.integers(0, 1000), height=st.integers(1, 6), width=st.integers(1, 6))
def test_a_crop_is_a_window_of_the_padded_image(padding: int, seed: int, height: int, width: int) -> None:
    x = images(7, 2, height, width)
    found = RandomCrop(padding).drawn(x, Seed(seed).torch()).numpy()
    corners = torch.randint(2 * padding + 1, (2, 7), generator=Seed(seed).torch()).numpy()
    for i in range(7):
        padded = np.zeros((2, height + 2 * padding, width + 2 * padding), np.float32)
        padded[:, padding:-padding, padding:-padding] = x[i]
        top, left = corners[:, i]
        np.testing.assert_array_equal(found[i], padded[:, top : top + height, left : left + width])


def test_crops_reach_every_place() -> None:
    x = torch.ones(2000, 1, 2, 2)
    found = RandomCrop(1).drawn(x, Seed(0).torch()).flatten(1)
    assert len({tuple(row) for row in found.tolist()}) == 9  # three places in either direction, all different here


def test_a_flip_mirrors_the_chosen_images() -> None:
    x = images(50, 3, 4, 5)
    chosen = torch.rand(50, generator=Seed(3).torch()).numpy() < 0.3
    expected = np.where(chosen[:, None, None, None], x.numpy()[..., ::-1], x.numpy())
    np.testing.assert_array_equal(RandomFlip(0.3).drawn(x, Seed(3).torch()).numpy(), expected)
    assert torch.equal(RandomFlip(0.0).drawn(x, Seed(3).torch()), x)
    assert torch.equal(RandomFlip(1.0).drawn(x, Seed(3).torch()), x.flip(3))


def test_grey_images_get_three_equal_channels() -> None:
    x = images(4, 1, 3, 3)
    np.testing.assert_array_equal(GreyToRGB()(x).numpy(), np.repeat(x.numpy(), 3, axis=1))
    assert torch.equal(GreyToRGB()(images(4, 3, 2, 2)), images(4, 3, 2, 2))
    with pytest.raises(InputError, match=r"images of 1 channel .or 3, unchanged., got 4"):
        GreyToRGB()(images(1, 4, 2, 2))


def bilinear(x: np.ndarray, size: int) -> np.ndarray:
    """Output pixel j lies at (j + 1/2) n/size - 1/2; two neighbours count by distance, beyond the rim it is flat."""

    def weights(n: int) -> np.ndarray:
        place = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
        low = np.floor(place).astype(int)
        found = np.zeros((size, n))
        np.add.at(found, (np.arange(size), low), 1 - (place - low))
        np.add.at(found, (np.arange(size), np.minimum(low + 1, n - 1)), place - low)
        return found

    return weights(x.shape[2]) @ x @ weights(x.shape[3]).T


def test_enlarging_is_bilinear() -> None:
    x = images(3, 2, 5, 7)
    np.testing.assert_allclose(Resize(11)(x).numpy(), bilinear(x.numpy().astype(float), 11), atol=1e-5)


def test_halving_averages_with_a_triangle() -> None:
    """Antialiased halving weighs the four nearest pixels 1, 3, 3, 1: a triangle of twice the width at 1/4 and 3/4."""
    x = images(1, 1, 8, 8)
    inner = Resize(4)(x)[0, 0, 1:3, 1:3].numpy()
    line = np.array([1, 3, 3, 1]) / 8
    expected = [[line @ x[0, 0, i : i + 4, j : j + 4].numpy() @ line for j in (1, 3)] for i in (1, 3)]
    np.testing.assert_allclose(inner, expected, atol=1e-5)


def test_bytes_stay_bytes_until_the_end() -> None:
    x = torch.from_numpy(BYTES)
    small = Resize(5)(x)
    assert small.dtype == torch.uint8
    np.testing.assert_allclose(small.numpy(), Resize(5)(x.float()).numpy(), atol=0.51)
    assert Resize(8)(x) is x
    found = ALL({"x": x})["x"]
    expected = Pixels((0.5, 0.4, 0.3), 0.25)({"x": GreyToRGB()(Resize(6)(x))})["x"]
    assert found.shape == (60, 3, 6, 6)
    assert torch.equal(found, expected)


def test_normalising_floats_and_bytes() -> None:
    x, mean, std = images(5, 3, 2, 2), (0.1, 0.2, 0.3), (1.0, 2.0, 4.0)
    expected = (x.numpy() - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    np.testing.assert_allclose(Normalise(mean, std)(x).numpy(), expected, atol=1e-6)
    raw = torch.from_numpy(BYTES)
    assert torch.equal(Normalise(0.5, 0.25)(raw), Pixels(0.5, 0.25)({"x": raw})["x"])
    with pytest.raises(InputError, match="has 3 channels, but x has 1"):
        Normalise(mean, std)(raw)
    table = torch.tensor([[1.0, 20.0], [3.0, 60.0]])
    assert Normalise((2.0, 40.0), (1.0, 20.0))(table).tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    with pytest.raises(InputError, match="has 3 columns, but x has 2"):
        Normalise(mean, std)(table)
    with pytest.raises(InputError, match=r"mean and std, or neither, got 0.5 and None"):
        Normalise(0.5)


@pytest.mark.parametrize("raw", [BYTES, BYTES.repeat(3, 1), DRAW.normal(size=(40, 3, 2, 2)), DRAW.normal(size=(40, 9))])
def test_statistics_of_channels(raw: np.ndarray) -> None:
    halves = [Table({"x": torch.from_numpy(part)}) for part in (raw[:13], raw[13:])]
    mean, std = channel_statistics(halves)
    scaled = raw.astype(float) / (255 if raw.dtype == np.uint8 else 1)
    axes = ((0, 2, 3) if raw.shape[1] > 1 else None) if raw.ndim == 4 else 0  # of a table, each column's
    np.testing.assert_allclose(mean, scaled.mean(axes), atol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axes), atol=1e-12)
    assert channel_statistics([Table({"x": torch.full((4, 2), 7.0)})]) == ((7.0, 7.0), (1.0, 1.0))


def test_a_normalisation_is_fitted_to_what_reaches_it() -> None:
    table = Table({"x": torch.from_numpy(BYTES)})
    fitted = Transforms((Resize(4), RandomFlip(), Normalise())).fitted([table])
    seen = Resize(4)(torch.from_numpy(BYTES)).double() / 255
    step = fitted.steps[2]
    assert (step.mean, step.std) == pytest.approx((float(seen.mean()), float(seen.std(correction=0))))
    prepared = fitted({"x": torch.from_numpy(BYTES)})["x"].double()
    assert (float(prepared.mean()), float(prepared.std(correction=0))) == pytest.approx((0, 1), abs=1e-5)


def test_random_steps_act_in_training_batches_only() -> None:
    prepare = Transforms((RandomCrop(3), RandomFlip()))
    table = Table({"x": torch.from_numpy(BYTES)}, None, prepare)
    plain = Table({"x": torch.from_numpy(BYTES)}, None, Pixels())
    assert torch.equal(table.whole().x, plain.whole().x)
    assert all(torch.equal(a.x, b.x) for a, b in zip(table.blocks(7), plain.blocks(7), strict=True))
    seed = Seed(4)
    batches = list(table.batches(20, 2, seed))
    same = list(plain.batches(20, 2, seed))
    for number, (found, raw) in enumerate(zip(batches, same, strict=True)):
        here = seed.fold("augment", number)
        x = RandomCrop(3).drawn((raw.x * 255).round().byte(), here.fold(0).torch())
        expected = Pixels()({"x": RandomFlip().drawn(x, here.fold(1).torch())})["x"]
        assert torch.equal(found.x, expected)
        assert not torch.equal(found.x, raw.x)


def test_padding_is_black_also_after_normalisation() -> None:
    prepare = Transforms((RandomCrop(8),), Pixels(0.5, 0.25))
    x = {"x": torch.full((64, 1, 8, 8), 255, dtype=torch.uint8)}
    assert prepare.augmented(x, Seed(0))["x"].unique().tolist() == [-2.0, 2.0]  # (0 - .5) / .25 and (1 - .5) / .25


def federation(prepare: Transforms | None) -> Federation:
    return Federation.from_arrays(BYTES, LABELS, clients=3, prepare=prepare)


def method() -> FedAvg:
    return FedAvg(objective=Net(make("mlp", (3, 6, 6), 3, hidden=(5,))), batch_size=7, epochs=2)


def test_engines_agree_to_the_last_bit(two_workers: Workers) -> None:
    here, there = (last(method(), federation(ALL), engine=engine).digest() for engine in (Local(), two_workers))
    fixed = Transforms(ALL.steps[:2], ALL.pixels)
    assert here == there != last(method(), federation(fixed)).digest()


def test_transforms_are_part_of_what_the_data_are() -> None:
    assert build(describe(ALL)) == ALL
    prints = [federation(p).fingerprint() for p in (None, ALL, Transforms(ALL.steps[:3], ALL.pixels))]
    assert len(set(prints)) == 3
    assert federation(ALL).fingerprint() == prints[1]
    lazy = federation(lambda columns: columns)  # type: ignore[arg-type]
    assert lazy.fingerprint() == federation(lambda columns: columns).fingerprint() != prints[0]  # type: ignore[arg-type]


class Halving:
    """A random step that changes the shape."""

    def drawn(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Half of the rows of pixels."""
        return x[:, :, ::2]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((GreyToRGB(), Normalise((0.1, 0.2), 1.0)), "has 2 channels, but x has 3"),
        ((Halving(),), r"Transform 0 .Halving. turns rows of \(1, 8, 8\) into \(1, 4, 8\) in training only"),
        ((3,), "a transform is called with x"),
        ((Normalise(0.5, 0.5),), "mean and std of pixels have no use"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_federation_is_made(steps: tuple, message: str) -> None:
    with pytest.raises(InputError, match=f"(?i){message}"):
        Federation.from_arrays(BYTES, LABELS, clients=3, prepare=Transforms(steps, Pixels(0.1)))


@pytest.mark.parametrize(
    "make_step", [lambda: Resize(0), lambda: RandomCrop(0), lambda: RandomFlip(1.5), lambda: Normalise(0.0, 0.0)]
)
def test_wrong_numbers_are_refused(make_step) -> None:
    with pytest.raises(InputError, match="must be"):
        make_step()


@pytest.mark.parametrize("step", [Resize(2), GreyToRGB(), RandomCrop(), RandomFlip()])
def test_images_are_asked_for_by_name(step) -> None:
    with pytest.raises(InputError, match=rf"{type(step).__name__} takes images .* shape \(1, 2\)"):
        Transforms((step,)).check(torch.zeros(5, 2))


def test_steps_that_need_more_memory_than_there_is_are_refused_at_once():
    for step in (Resize(10**7), RandomCrop(10**7)):
        with pytest.raises(InputError, match=rf"Transform 0, {type(step).__name__}.*, fails on one row of \(1, 8, 8\)"):
            Federation.from_arrays(BYTES, LABELS, clients=2, prepare=Transforms((step,)))


def test_a_large_constant_has_no_spread_that_rounding_left():
    x = torch.full((700, 2), 1000.1)
    assert channel_statistics([Table({"x": x})])[1] == (1.0, 1.0)
    assert channel_statistics([Table({"x": x[:, :, None, None]})])[1] == (1.0, 1.0)
    far = torch.tensor([[1e9], [1e9 + 1], [1e9 + 2]], dtype=torch.float64)  # squares would lose every digit of 2/3
    assert channel_statistics([Table({"x": far})])[1] == pytest.approx((float(np.sqrt(2 / 3)),), rel=1e-12)


@pytest.mark.parametrize("shift", [Noise((0.0, 0.1)), Light((0.1,))])
def test_shifts_of_floats_leave_token_ids_alone(shift):
    ids = np.arange(240).reshape(60, 4)
    with pytest.raises(InputError, match="whole numbers, such as token ids"):
        shift(Federation.from_arrays(ids, LABELS, clients=2))


def test_a_shift_without_bounds_is_refused():
    data = Federation.from_arrays(np.ones((60, 4), np.float32), LABELS, clients=2)
    with pytest.raises(InputError, match="The shift makes x infinite"):
        Noise((1e300,))(data)
