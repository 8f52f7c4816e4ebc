"""ResNets and vision transformers: sizes by hand, shapes, norms, and what is refused."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.models import ResNet, ViT, ViTCehgls, make
from fedquilt.models.registry import bare
from fedquilt.models.resnet import BasicBlock, groups


def sizes(builder):
    made = bare(builder)
    assert {n.split(".")[0] for n, _ in made.named_parameters()} == {"features", "head"}
    assert isinstance(made.head, nn.Linear)
    return tuple(sum(p.numel() for p in part.parameters()) for part in (made.features, made.head))


# A stage of two basic blocks a -> b maps: 9ab + 9bb in the first, 18bb in the second, 2b for each norm (5 with the
# one beside the 1x1 convolution of ab), and stage one has no such convolution.
def stage(a, b, count):
    first = 9 * a * b + 9 * b * b + (4 * b if a == b else a * b + 6 * b)
    return first + (count - 1) * (18 * b * b + 4 * b)


def body(counts, stem):
    return (
        stem
        + 128
        + sum(stage(a, b, n) for a, b, n in zip((64, 64, 128, 256), (64, 128, 256, 512), counts, strict=True))
    )


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet_bodies_have_the_published_sizes(norm):
    assert sizes(partial(ResNet, depth=18, norm=norm)) == (11_168_832, 5130)  # FedLoGe's ResNet-18
    assert sizes(partial(ResNet, depth=34, norm=norm, classes=100)) == (21_276_992, 51_300)
    # with the stem of ImageNet and 1000 classes: 11,689,512, as published with torchvision
    assert sum(sizes(partial(ResNet, depth=18, norm=norm, stem="7x7", size=224, classes=1000))) == 11_689_512
    assert sum(sizes(partial(ResNet, depth=34, norm=norm, stem="7x7", size=224, classes=1000))) == 21_797_672


def test_resnet_bodies_by_hand():
    assert sizes(make("resnet10", (3, 224, 224), 10, stem="7x7", norm="batch"))[0] == body((1, 1, 1, 1), 3 * 49 * 64)
    assert body((1, 1, 1, 1), 3 * 49 * 64) == 4_905_792  # 9,536 + 73,984 + 230,144 + 919,040 + 3,673,088
    assert sizes(make("resnet10", (1, 28, 28), 10))[0] == body((1, 1, 1, 1), 9 * 64)
    assert sizes(make("resnet34", (3, 32, 32), 10))[0] == body((3, 4, 6, 3), 27 * 64)


def test_the_skip_is_a_strided_convolution():
    block = BasicBlock(16, 24, 2, "group")
    x = torch.randn(2, 16, 7, 7, generator=Seed(0).torch())
    thin, conv, norm = block.skip
    strided = torch.nn.functional.conv2d(x, conv.weight, stride=2)
    torch.testing.assert_close(conv(thin(x)), strided)
    torch.testing.assert_close(block.skip(x), norm(strided))


def test_groups_divide_the_maps_and_hold_at_least_two():
    assert [groups(n) for n in (64, 512, 48, 8, 6, 7, 2, 1)] == [32, 32, 24, 4, 3, 1, 1, 1]
    for maps in range(1, 200):
        found = groups(maps)
        assert maps % found == 0
        assert 1 <= found <= 32


@pytest.mark.parametrize(("norm", "kind"), [("group", nn.GroupNorm), ("batch", nn.BatchNorm2d)])
def test_the_norm_can_be_chosen(norm, kind):
    made = bare(partial(ResNet, norm=norm))
    found = [m for m in made.modules() if isinstance(m, nn.GroupNorm | nn.BatchNorm2d)]
    assert len(found) == 20  # one for each of 17 convolutions 3x3 and 3 convolutions 1x1
    assert all(isinstance(m, kind) for m in found)
    assert Net(partial(ResNet, width=4, depth=10, norm=norm)).normalises is (norm == "batch")


@pytest.mark.parametrize(("stem", "size", "sides"), [("3x3", 32, (32, 16, 8, 4)), ("7x7", 64, (16, 8, 4, 2))])
def test_the_stem_sets_the_sides_of_the_stages(stem, size, sides):
    made = bare(partial(ResNet, stem=stem, size=size, depth=10, width=4))
    x = torch.zeros(2, 3, size, size, device="meta")
    x = made.features.stem(x)
    for number, side in enumerate(sides):
        x = getattr(made.features, f"stage{number + 1}")(x)
        assert x.shape == (2, 4 * 2**number, side, side)


@pytest.mark.parametrize(
    ("builder", "shape"),
    [
        (partial(ResNet, 4, 1, 28, depth=10, width=4), (1, 28, 28)),
        (partial(ResNet, 4, 1, 8, depth=10, width=4), (1, 8, 8)),
        (partial(ResNet, 4, 3, 32, depth=10, width=4, stem="7x7"), (3, 32, 32)),
        (partial(ViT, 4, 1, 28, width=16, depth=1, heads=2, mlp=32), (1, 28, 28)),
        (partial(ViT, 4, 3, 8, width=16, depth=2, heads=2, mlp=32, class_token=False), (3, 8, 8)),
    ],
)
def test_forward_is_head_of_features_and_differs_by_input(builder, shape):
    with Seed(1).ambient():
        made = builder().eval()
    x = torch.randn(2, *shape, generator=Seed(0).torch())
    scores = made(x)
    assert scores.shape == (2, 4)
    assert torch.equal(scores, made.head(made.features(x)))
    assert scores.isfinite().all()
    assert not torch.equal(scores[0], scores[1])


# A block of width w with an MLP of 4w: 3ww + 3w, ww + w, 4ww + 4w, 4ww + w and two norms of 2w: 12ww + 13w.
def transformer(w, depth, channels, patch, tokens, classes):
    return (
        depth * (12 * w * w + 13 * w) + (channels * patch * patch + 1) * w + w + tokens * w + 2 * w + (w + 1) * classes
    )


@pytest.mark.parametrize(
    ("builder", "size"),
    [
        (make("vit_small_patch16_224", (3, 224, 224), 1000), 22_050_664),  # as timm's vit_small_patch16_224
        (make("vit_tiny", (3, 32, 32), 10), transformer(192, 12, 3, 4, 65, 10)),
        (make("vit_tiny", (1, 28, 28), 10), transformer(192, 12, 1, 4, 50, 10)),
        (make("vit_tiny", (3, 32, 32), 10, width=64, depth=2, heads=4, mlp=256), transformer(64, 2, 3, 4, 65, 10)),
        (make("vit_cehgls", (1, 28, 28), 10), transformer(512, 6, 1, 4, 50, 10)),
        (make("vit_cehgls", (3, 32, 32), 10), transformer(512, 6, 3, 8, 17, 10)),
        (make("vit_cehgls", (3, 64, 64), 200), transformer(512, 6, 3, 16, 17, 200)),
        (make("vit_cehgls", (3, 224, 224), 10), transformer(512, 6, 3, 16, 197, 10)),
        (make("vit_tiny", (3, 32, 32), 10, class_token=False), transformer(192, 12, 3, 4, 65, 10) - 2 * 192),
    ],
)
def test_transformer_sizes(builder, size):
    assert sum(sizes(builder)) == size


def test_the_small_transformer_by_hand():
    assert transformer(384, 12, 3, 16, 197, 1000) == 22_050_664


def test_the_zero_head_says_nothing_at_first():
    made = ViT(3, 1, 8, width=8, depth=1, heads=2, mlp=8, zero_head=True).eval()
    assert torch.equal(made(torch.randn(2, 1, 8, 8, generator=Seed(0).torch())), torch.zeros(2, 3))


def test_the_transformer_of_cehgls():
    with patch("fedquilt.models.vit.ViT", wraps=ViT) as begun:
        ViTCehgls(classes=3, channels=1, size=28)
    given = begun.call_args.kwargs
    assert given == {"patch": 4, "width": 512, "depth": 6, "heads": 8, "mlp": 2048, "dropout": 0.5, "zero_head": True}


def test_attention_is_softmax_of_scaled_products():
    with Seed(3).ambient():
        made = ViT(2, 1, 8, width=6, depth=1, heads=2, mlp=8).eval()
    attention = made.features.blocks[0].attn
    x = torch.randn(2, 5, 6, generator=Seed(0).torch())
    q, k, v = (part.reshape(2, 5, 2, 3) for part in attention.qkv(x).split(6, dim=2))
    weights = torch.einsum("nqhd,nkhd->nhqk", q, k).div(3**0.5).softmax(-1)
    by_hand = attention.proj(torch.einsum("nhqk,nkhd->nqhd", weights, v).reshape(2, 5, 6))
    torch.testing.assert_close(attention(x), by_hand)


def test_dropout_works_in_training_only():
    net = Net(partial(ViT, 2, 1, 8, width=8, depth=1, heads=2, mlp=8, dropout=0.5))
    params, batch = net.init(Seed(0)), Batch({"x": torch.ones(4, 1, 8, 8)})
    assert torch.equal(net(params, batch), net(params, batch))
    with Seed(1).ambient():
        assert not torch.equal(net(params, batch, train=True), net(params, batch, train=True))


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: ResNet(depth=50), "depth must be one of 10, 18, 34, got 50"),
        (lambda: ResNet(norm="layer"), "norm must be one of 'group', 'batch', got 'layer'"),
        (lambda: ResNet(stem="5x5"), "stem must be one of '3x3', '7x7', got '5x5'"),
        (lambda: ResNet(size=7), "3x3 stem takes images of at least 8x8, got size 7"),
        (lambda: ResNet(size=28, stem="7x7"), "7x7 stem takes images of at least 32x32, got size 28"),
        (lambda: ViT(size=30), "multiple of patch; got size 30 and patch 4"),
        (lambda: ViT(heads=5), "width must be a multiple of heads; got width 192 and heads 5"),
        (lambda: ViT(class_token=1), "class_token must be true or false, got 1"),
        (lambda: ViT(dropout="0.1"), "dropout must be a number"),
        (lambda: ViTCehgls(size=30), "side 28, 32, 64 or 224, got size 30"),
        (lambda: make("vit_small_patch16_224", (3, 32, 32), 10), r"takes \(C, 224, 224\), not \(3, 32, 32\)"),
        (lambda: make("resnet18", (32, 32), 10), r"These fit: logistic, mlp, signal_cnn\."),
        (lambda: make("resnet18", (4,), 10), "These fit: logistic, mlp, text_cnn, char_lstm, char_gru, text_encoder"),
    ],
)
def test_refusals(make_one, message):
    with pytest.raises(InputError, match=message):
        make_one()


@pytest.mark.parametrize("builder", [partial(ResNet, width=4, depth=10), partial(ViT, width=8, depth=1, heads=1)])
def test_a_wrong_input_is_refused_with_the_right_one(builder):
    made = builder()
    with pytest.raises(InputError, match=r"takes rows of shape \(3, 32, 32\), got rows of shape \(1, 28, 28\)"):
        made(torch.zeros(2, 1, 28, 28))
    with pytest.raises(InputError, match="takes floating-point numbers, got uint8"):
        made(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
