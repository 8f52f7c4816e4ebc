"""The own masked autoencoder: shapes, masks, positions, errors, precision, pictures, and recipes."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.params import everything_but, nbytes
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.models import MaskedAutoencoder, adapted, count, make, net, pictures
from fedquilt.models.masked.masking import patchify, unpatchify
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import one_thread
from helpers.command import fedquilt

SMALL = {"size": 16, "width": 16, "depth": 2, "heads": 2, "decoder_width": 8, "decoder_heads": 2}


def drawn(count=3, channels=3, size=16, patches=16, seed=0):
    draw = Seed(seed).torch()
    return torch.randn(count, channels, size, size, generator=draw), torch.rand(count, patches, generator=draw)


def made(**options):
    with Seed(0).ambient():
        return MaskedAutoencoder(**{**SMALL, **options}).eval()


def test_shapes_and_dtypes():
    images, noise = drawn()
    model = made()
    found = model(images, noise)
    assert [tuple(part.shape) for part in found] == [(3,), (3, 16), (3, 16, 48), (3, 16)]
    assert {part.dtype for part in found} == {torch.float32}
    assert found.mask.sum(1).tolist() == [12, 12, 12]
    assert model.embed(images).shape == (3, 16)
    assert (model.patches, model.width) == (16, 16)


@pytest.mark.parametrize(("channels", "size", "patch"), [(1, 8, 2), (3, 32, 8), (2, 12, 3)])
def test_any_size(channels, size, patch):
    model = MaskedAutoencoder(channels, size, patch, width=8, depth=1, heads=2, decoder_width=8, decoder_heads=1)
    images, noise = drawn(2, channels, size, model.patches)
    assert model(images, noise).loss.isfinite().all()
    assert count(partial(MaskedAutoencoder, channels, size, patch), (channels, size, size)).flops > 0


def test_what_is_hidden_is_not_seen():
    """The embedding and the guess do not depend on hidden pixels; they do on visible ones."""
    images, noise = drawn()
    model, target = made(norm_pixels=False), patchify(images, 4)
    with torch.no_grad():
        found = model(images, noise)
        hidden = found.mask[..., None]
        elsewhere = unpatchify(target + hidden * 5, 4, 3)
        seen = unpatchify(target + (1 - hidden) * 5, 4, 3)
        assert torch.equal(model(elsewhere, noise).embedding, found.embedding)
        assert torch.equal(model(elsewhere, noise).prediction, found.prediction)
        assert not torch.allclose(model(elsewhere, noise).loss, found.loss)
        assert not torch.allclose(model(seen, noise).embedding, found.embedding)


def test_the_same_noise_gives_the_same_mask_and_each_image_its_own():
    images, noise = drawn()
    model = made()
    with torch.no_grad(), one_thread():
        whole = model(images, noise)
        assert torch.equal(whole.mask, model.train()(images, noise).mask)
        for i in range(3):
            alone = model(images[i : i + 1], noise[i : i + 1])
            assert torch.equal(alone.mask[0], whole.mask[i])
            torch.testing.assert_close(alone.loss[0], whole.loss[i])
            torch.testing.assert_close(alone.embedding[0], whole.embedding[i])
    assert not torch.equal(whole.mask[0], whole.mask[1])


def test_the_embedding_of_forward_is_that_of_embed():
    images, noise = drawn()
    model = made()
    with torch.no_grad(), one_thread():
        assert torch.equal(model(images, noise).embedding, model.embed(images, noise))
        assert not torch.allclose(model.embed(images), model.embed(images, noise))
        assert torch.equal(model(images).mask, model(images).mask)  # without noise: one fixed mask


def test_patches_there_and_back():
    images, _ = drawn()
    assert torch.equal(unpatchify(patchify(images, 4), 4, 3), images)
    one = patchify(torch.arange(16.0).reshape(1, 1, 4, 4), 2)
    assert one[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_positions_tell_places_apart():
    table = made().positions.table
    assert not table[0].any()
    assert len({tuple(row) for row in table.tolist()}) == 17
    assert torch.equal(table[1], torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]))  # sin 0, cos 0
    assert not made().state_dict().keys() & {"positions.table", "decoder.positions.table"}  # computed, not saved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch": 5}, "multiple of patch; got size 16 and patch 5"),
        ({"width": 18}, "width must be a multiple of heads and, for its positions, of 4; got width 18"),
        ({"decoder_width": 9}, "decoder_width must be a multiple of decoder_heads"),
        ({"mask_ratio": 1.0}, r"mask_ratio must be a number in \[0, 1\)"),
        ({"mask_ratio": 0.99}, "leaves 0 of 16 patches visible"),
        ({"mask_ratio": 0.0}, "leaves 16 of 16 patches visible"),
        ({"depth": 0}, "depth must be a whole number of at least 1"),
        ({"norm_pixels": 1}, "norm_pixels must be true or false"),
    ],
)
def test_wrong_sizes_are_told(options, message):
    with pytest.raises(InputError, match=message):
        made(**options)


def test_wrong_input_is_told():
    images, noise = drawn()
    with pytest.raises(
        InputError, match=r"takes images \[B, 3, 16, 16\] of floating-point numbers, got \(3, 3, 8, 8\)"
    ):
        made()(images[:, :, :8, :8], noise)
    with pytest.raises(InputError, match=r"got .* uint8"):
        made().embed(images.byte())
    with pytest.raises(InputError, match=r"shape \(3, 16\), got \(3, 15\)"):
        made()(images, noise[:, :15])
    with pytest.raises(InputError, match="do not make a square image"):
        unpatchify(torch.zeros(1, 3, 48), 4, 3)


def test_bfloat16():
    """Model and adapters are cast; what comes out of them is float32, and messages carry half the bytes."""
    images, noise = drawn()
    whole = net("mae", (3, 16, 16), 10, **{k: v for k, v in SMALL.items() if k != "size"}, bottleneck=4)
    half = net(
        "mae", (3, 16, 16), 10, **{k: v for k, v in SMALL.items() if k != "size"}, bottleneck=4, dtype="bfloat16"
    )
    params = half.own(half.init(Seed(0)))
    assert {t.dtype for t in half.full(params).values()} == {torch.bfloat16}
    weights = [t.requires_grad_() for t in params.values()]
    found = half.ask(params, "forward", images, noise, train=True)
    assert {part.dtype for part in found} == {torch.float32}
    assert {g.dtype for g in torch.autograd.grad(found.loss.mean(), weights)} == {torch.bfloat16}
    exact = whole.ask(whole.init(Seed(0)), "forward", images, noise)
    torch.testing.assert_close(found.loss, exact.loss, rtol=0.05, atol=0.05)
    assert half.ask(params, "embed", images, None).dtype == torch.float32
    bare = {n: t.detach() for n, t in params.items()}
    assert 2 * nbytes(bare) == nbytes(whole.init(Seed(0)))
    assert all(torch.equal(t, bare[n]) for n, t in unpack(pack(bare)).items())


def test_pictures():
    images, noise = drawn()
    for norm in (False, True):
        model = made(norm_pixels=norm)
        with torch.no_grad():
            found = model(images, noise)
        shown = pictures(found, images, 4, norm)
        hidden = found.mask[..., None].bool().expand(-1, -1, 48)
        original, visible, completed = (patchify(part, 4) for part in shown)
        assert torch.equal(visible[~hidden], original[~hidden])
        assert torch.equal(completed[~hidden], original[~hidden])
        if not norm:
            torch.testing.assert_close(completed[hidden], found.prediction[hidden])
        torch.testing.assert_close(visible[0][hidden[0]], original[0].mean().expand(12 * 48))


def saved(folder, **options):
    """A folder as ``fedquilt pretrain-mae`` leaves it."""
    model = made(**options)
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"kind": "mae", "model": model.settings}))
    return model


def test_pretrained_weights_are_frozen_and_pinned(tmp_path):
    model = saved(tmp_path / "mae")
    found = net("mae", (3, 16, 16), 10, pretrained=str(tmp_path / "mae"), bottleneck=4)
    assert found.names == found.trainable
    assert all(name.startswith("adapters.") for name in found.names)
    params = found.init(Seed(3))
    whole = found.full(params)
    assert all(torch.equal(whole[n], t) for n, t in model.state_dict().items())
    images, noise = drawn()
    with one_thread(), torch.no_grad():
        assert torch.equal(found.ask(params, "forward", images, noise).loss, model(images, noise).loss)
        again = build(describe(found))
        assert torch.equal(again.ask(params, "embed", images, None), model.embed(images))
    saved(tmp_path / "mae", norm_pixels=False)
    (tmp_path / "mae" / "model.safetensors").write_bytes(
        (tmp_path / "mae" / "model.safetensors").read_bytes()[:-4] + b"abcd"
    )
    with pytest.raises(InputError, match="have changed"):
        build(describe(found)).init(Seed(0))


def test_pretrained_folders_that_do_not_fit(tmp_path):
    with pytest.raises(InputError, match="no pretrained autoencoder at"):
        make("mae", (3, 16, 16), 10, pretrained=str(tmp_path / "nowhere"))
    saved(tmp_path / "mae")
    place = str(tmp_path / "mae")
    with pytest.raises(InputError, match="has size 16, but 32 is wanted"):
        make("mae", (3, 32, 32), 10, pretrained=place)
    with pytest.raises(InputError, match="has width 16, but 32 is wanted"):
        make("mae", (3, 16, 16), 10, pretrained=place, width=32)
    (tmp_path / "mae" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="does not describe an autoencoder"):
        make("mae", (3, 16, 16), 10, pretrained=place)


def test_a_frozen_backbone_from_a_seed_is_the_same_everywhere():
    """Without a file the backbone is drawn from the net's own seed; the run's seed draws the adapters only."""
    nets = [
        Net(partial(adapted, partial(MaskedAutoencoder, **SMALL), size=4), everything_but("adapters")) for _ in "ab"
    ]
    one, two = (n.full(n.init(Seed(i))) for i, n in enumerate(nets))
    assert all(torch.equal(one[n], two[n]) for n in one if not n.startswith("adapters."))
    down = "adapters.blocks-0.down.weight"
    assert not torch.equal(one[down], two[down])
    images, _ = drawn()
    assert nets[0](nets[0].init(Seed(0)), Batch({"x": images})).loss.shape == (3,)


def test_net_says_what_it_does_not_have():
    found = net("mlp", (4,), 2)
    with pytest.raises(InputError, match="MLP has no 'embed'"):
        found.ask(found.init(Seed(0)), "embed", torch.zeros(1, 4))
    with pytest.raises(InputError, match="MLP has no 'patches'"):
        found.trait("patches")


def test_the_command_counts_it():
    found = fedquilt("models", "mae", "bottleneck=8", "--shape", "3,32,32", "--json").json
    assert found["trainable"] == 4 * (2 * 64 * 8 + 8 + 64)
    assert found["parameters"] == found["trainable"] + 219_728
