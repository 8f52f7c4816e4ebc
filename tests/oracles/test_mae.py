"""Masked autoencoders and adapters against worked numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn, tensor

from fedquilt.core.seed import Seed
from fedquilt.models import Adapter, LowRank, MaskedAutoencoder, ViTMAE, adapted, audit, inject
from fedquilt.models.masked.masking import hidden_error, mask_of, pooled, visible
from fedquilt.rounds.client import one_thread


def close(found: Tensor, wanted: object) -> None:
    torch.testing.assert_close(found, tensor(wanted), atol=1e-6, rtol=0)


def worked_adapter() -> Adapter:
    """The adapter of the worked example: four numbers in a token, two in the bottleneck."""
    made = Adapter(4, 2)
    values = {
        "down.weight": [[0.5, -0.25, 0, 1], [0, 1, 0.5, -1]],
        "down.bias": [0.1, -0.2],
        "up.weight": [[0.2, 0], [0, 0.1], [-0.1, 0.3], [0, 0]],
        "up.bias": [0, 0, 0, 0.05],
    }
    made.load_state_dict({name: tensor(value, dtype=torch.float32) for name, value in values.items()})
    return made


def test_adapter() -> None:
    made, token = worked_adapter(), tensor([1, 2, -1, 0.5])
    close(made.down(token), [0.6, 0.8])
    close(nn.functional.gelu(made.down(token)), [0.435448, 0.630516])  # the exact one, by erf
    close(made(token), [1.087090, 2.063051, -0.854390, 0.550000])
    close(made(token.expand(3, 5, 4))[2, 4], [1.087090, 2.063051, -0.854390, 0.550000])


def test_adapter_at_the_start() -> None:
    with Seed(0).ambient():
        made = Adapter(400, 64)
    token = torch.randn(7, 400, generator=Seed(1).torch())
    assert torch.equal(made(token), token)
    assert float(made.down.weight.detach().std()) == pytest.approx((2 / 64) ** 0.5, rel=0.02)
    made(token).square().sum().backward()
    gradients = {name: p.grad for name, p in made.named_parameters()}
    assert not gradients["down.weight"].any()
    assert not gradients["down.bias"].any()
    assert gradients["up.weight"].any()
    assert gradients["up.bias"].any()


def test_low_rank() -> None:
    """(alpha / rank) B A x by hand: A x = [3, -1], B A x = [3, 1, -2], times 4 / 2."""
    made = LowRank(2, 3, rank=2, alpha=4.0)
    assert not made(torch.ones(2)).any()
    with torch.no_grad():
        made.down.weight.copy_(tensor([[1.0, 1.0], [1.0, -1.0]]))
        made.up.weight.copy_(tensor([[1.0, 0.0], [0.0, -1.0], [-1.0, -1.0]]))
    close(made(tensor([1.0, 2.0])), [6.0, 2.0, -4.0])


def test_counts() -> None:
    assert sum(p.numel() for p in Adapter(4, 2).parameters()) == 22
    for width, size in ((4, 2), (768, 64), (10, 3)):
        assert sum(p.numel() for p in Adapter(width, size).parameters()) == 2 * width * size + size + width


def test_audit_of_vit_mae_base() -> None:
    """From the real configuration, without a weight."""
    pytest.importorskip("transformers")
    found = audit(partial(adapted, partial(ViTMAE, config={})))
    assert found.parts == {"vit": (85_798_656, 0), "decoder": (26_109_184, 0), "adapters": (1_189_632, 1_189_632)}
    assert (found.total, found.frozen, found.trainable) == (113_097_472, 111_907_840, 1_189_632)
    assert found.parts["adapters"][0] == 12 * 99_136
    assert found.percent == pytest.approx(1.05, abs=0.005)
    assert found.sent == 4_758_528  # bytes each way
    assert found.bytes == 447_631_360
    assert found.ratio == pytest.approx(94.07, abs=0.01)
    assert found.rows()[-1] == {
        "part": "total",
        "total": "113,097,472",
        "frozen": "111,907,840",
        "trainable": "1,189,632",
        "percent": "1.05 %",
    }
    upper = audit(partial(adapted, partial(ViTMAE, config={}), size=256, where="upper"))
    assert upper.trainable == 2_365_440
    assert upper.percent == pytest.approx(2.07, abs=0.005)


@pytest.mark.parametrize("kind", ["bottleneck", "low_rank"])
def test_fresh_adapters_change_no_bit(kind: str) -> None:
    draw = Seed(0).torch()
    images, noise = torch.randn(3, 3, 16, 16, generator=draw), torch.rand(3, 16, generator=draw)
    with one_thread(), torch.no_grad():
        model = MaskedAutoencoder(size=16, width=16, depth=2, heads=2)
        before, plain = model(images, noise), model.embed(images)
        inject(model, kind)  # type: ignore[arg-type]
        after = model(images, noise)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert torch.equal(model.embed(images), plain)


def test_first_step_of_an_injected_model() -> None:
    """The gradient passes through the frozen decoder to every up-projection, and to nothing else."""
    draw = Seed(0).torch()
    images, noise = torch.randn(3, 3, 16, 16, generator=draw), torch.rand(3, 16, generator=draw)
    model = inject(MaskedAutoencoder(size=16, width=16, depth=2, heads=2), size=4)
    model(images, noise).loss.mean().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {f"adapters.blocks-{i}.up.{leaf}" for i in (0, 1) for leaf in ("weight", "bias")}


def test_pooling() -> None:
    close(pooled(tensor([[[10.0, 0], [1, 3], [3, 1]]])), [[2.0, 2.0]])


def test_loss() -> None:
    target, guess = tensor([[[1.0, 2.0], [3.0, 5.0]]]), tensor([[[0.0, 0.0], [1.0, 1.0]]])
    mask = tensor([[0.0, 1.0]])
    close(hidden_error(guess, target, mask, norm_pixels=False), [10.0])
    close(hidden_error(guess, target, mask, norm_pixels=True), [1.5])


def test_mask() -> None:
    assert visible(196, 0.75) == 49
    assert visible(10, 0.75) == 2  # int(10 * 0.25): 8 of 10 are hidden
    found = mask_of(tensor([[0.9, 0.1, 0.5, 0.2]]), 0.5)
    assert found.kept.tolist() == [[1, 3]]
    assert found.hidden.tolist() == [[1, 0, 1, 0]]
    assert found.back.tolist() == [[3, 0, 2, 1]]
