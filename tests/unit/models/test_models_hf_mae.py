"""Masked autoencoders of transformers: equal to the library's own numbers, with and without adapters."""

from __future__ import annotations

import pytest
import torch

from fedquilt.core.describe import build, describe
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.models import MaskedAutoencoder, ViTMAE, inject, make, net
from fedquilt.rounds.client import one_thread

transformers = pytest.importorskip("transformers")
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}


def drawn(seed=0):
    draw = Seed(seed).torch()
    return torch.randn(3, 3, 16, 16, generator=draw), torch.rand(3, 16, generator=draw)


def theirs(**options):
    with Seed(0).ambient():
        return transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**TINY, **options)).eval()


def ours(**options):
    made = ViTMAE(config={**TINY, **options}).eval()
    made.load_state_dict(theirs(**options).state_dict())
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("vit_mae")
    transformers.utils.logging.disable_progress_bar()
    theirs().save_pretrained(place)
    return str(place)


@pytest.mark.parametrize("norm", [False, True])
def test_loss_and_guess_are_those_of_the_library(norm):
    images, noise = drawn()
    with torch.no_grad(), one_thread():
        wanted = theirs(norm_pix_loss=norm)(images, noise=noise)
        found = ours(norm_pix_loss=norm)(images, noise)
        states = theirs().vit(images, noise=noise).last_hidden_state
    torch.testing.assert_close(found.loss.mean(), wanted.loss, rtol=1e-6, atol=0)
    assert torch.equal(found.prediction, wanted.logits)
    assert torch.equal(found.mask, wanted.mask)
    torch.testing.assert_close(found.embedding, states[:, 1:].mean(1))


def test_the_mask_is_that_of_our_own_model():
    images, noise = drawn()
    own = MaskedAutoencoder(size=16, width=16, depth=1, heads=2)
    assert torch.equal(own(images, noise).mask, ours()(images, noise).mask)
    assert torch.equal(own(images).mask, ours()(images).mask)


def test_positions():
    """Those of He et al., for both halves: sines, then cosines, of the column and then of the row."""
    made = ViTMAE(config=TINY)
    found = made.vit.embeddings.position_embeddings[0]
    own = MaskedAutoencoder(size=16, width=16, depth=1, heads=2, decoder_width=8, decoder_heads=2)
    torch.testing.assert_close(found, own.positions.table)
    torch.testing.assert_close(made.decoder.decoder_pos_embed[0], own.decoder.positions.table)
    angles = torch.tensor([1.0, 0.1, 0.01, 0.001])
    row, column = 2 * angles, 3 * angles  # of patch 11 of 4 x 4
    torch.testing.assert_close(found[12], torch.cat([column.sin(), column.cos(), row.sin(), row.cos()]))


def test_embedding_without_a_mask():
    images, noise = drawn()
    with torch.no_grad():
        model, whole = ours(), theirs(mask_ratio=0.0)
        whole.load_state_dict(theirs().state_dict())
        shuffled = whole.vit(images, noise=noise).last_hidden_state[:, 1:].mean(1)  # the order does not matter
        torch.testing.assert_close(model.embed(images), shuffled)
        torch.testing.assert_close(model.embed(images, noise), model(images, noise).embedding)
        assert model(images, noise).mask.sum() == 36  # the ratio is back where it was


@pytest.mark.parametrize("kind", ["bottleneck", "low_rank"])
def test_adapters(kind):
    """No bit changes at first; afterwards also the last one is seen by embedding and loss."""
    images, noise = drawn()
    with torch.no_grad(), one_thread():
        model = ours()
        before = model(images, noise)
        inject(model, kind, size=4, rank=2)
        assert all(torch.equal(a, b) for a, b in zip(before, model(images, noise), strict=True))
        last = list(model.adapters.values())[-1]
        last.up.weight[0].fill_(1.0)
        after = model(images, noise)
    assert not torch.allclose(after.embedding, before.embedding)
    assert not torch.allclose(after.loss, before.loss)
    many = {"bottleneck": 2, "low_rank": 4}[kind]  # query and value of each block
    assert len(model.adapters) == many


def test_adapters_in_the_library_model_itself():
    """Its blocks are found and adapted without our class."""
    images, noise = drawn()
    model = inject(theirs(), size=4)
    with torch.no_grad():
        before = model(images, noise=noise).loss
        list(model.adapters.values())[-1].up.bias[0] = 1.0
        found = model(images, noise=noise)
    assert not torch.allclose(found.loss, before)


def test_from_a_folder(folder):
    images, noise = drawn()
    found = net("hf_mae", (3, 16, 16), 10, folder=folder, bottleneck=4)
    assert all(name.startswith("adapters.") for name in found.names)
    params = found.init(Seed(0))
    whole = found.full(params)
    assert all(torch.equal(whole[n], t) for n, t in theirs().state_dict().items())
    again = build(describe(found))
    with one_thread(), torch.no_grad():
        assert torch.equal(
            found.ask(params, "forward", images, noise).loss, again.ask(params, "forward", images, noise).loss
        )
    assert (found.trait("patches"), found.trait("width")) == (16, 16)


def test_bfloat16(folder):
    images, noise = drawn()
    found = net("hf_mae", (3, 16, 16), 10, folder=folder, bottleneck=4, dtype="bfloat16")
    params = found.init(Seed(0))
    assert {t.dtype for t in found.full(params).values()} == {torch.bfloat16}
    out = found.ask(params, "forward", images, noise)
    assert {part.dtype for part in out} == {torch.float32}
    with torch.no_grad():
        torch.testing.assert_close(out.loss, ours()(images, noise).loss, rtol=0.05, atol=0.05)


def test_what_does_not_fit_is_told(folder, tmp_path):
    images, noise = drawn()
    with pytest.raises(InputError, match=r"takes a folder .* or a config, one of the two"):
        ViTMAE()
    with pytest.raises(InputError, match="takes images of 3 channels and side 16, the data have 1 and 28"):
        make("hf_mae", (1, 28, 28), 10, folder=folder)
    with pytest.raises(InputError, match="needs the option folder"):
        make("hf_mae", (3, 16, 16), 10)
    with pytest.raises(InputError, match=r"takes images \[B, 3, 16, 16\]"):
        ours()(images[:, :1], noise)
    with pytest.raises(InputError, match=r"noise must have one number for each patch"):
        ours()(images, noise[:2])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor"):
        make("hf_mae", (3, 16, 16), 10, folder=str(tmp_path))
