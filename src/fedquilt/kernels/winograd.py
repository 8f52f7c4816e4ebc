"""Convolutions with a third of the multiplications or less, by the method of Toom, Cook and Winograd.

A convolution with an r x r kernel is made of tiles of 4 x 4 outputs. With B, G and A of :func:`matrices`,

    tile = A^T [ (G w G^T) * (B^T x B) ] A

where x is the tile's (r + 3) x (r + 3) inputs, and the product in the middle, entry by entry, is a sum over input
channels: one matrix product for each entry. Backward, the same transforms run the other way round. The result differs
from that of an ordinary convolution by rounding, about ten times as much as two ordinary ones differ; where all inputs
of an output are zero, it is the bias but for such a rounding, and what is not finite spreads over its tile.

Reference: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016, arXiv:1509.09308.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt.kernels.plain import laid_like, of_many, plain

OUT = 4  # outputs of a tile, in each direction
_POINTS = {3: "0 1 -1 2 -2", 5: "0 1 -1 2 -2 1/2 -1/2"}  # where polynomials are evaluated, and at infinity
_SAVED = 1.95  # so many times the multiplications must be saved: transforms have their price
_MOST = 2**21  # numbers of all transformed tiles: more do not fit into caches

Matrix = list[list[Fraction]]


def matrices(kernel: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T, G and B^T of one direction: ``y = A^T [(G g) * (B^T d)]`` is d convolved with g, four numbers."""
    points = [Fraction(word) for word in _POINTS[kernel].split()]
    ends, taps = _powers(points, OUT), _powers(points, kernel)
    within = [*(_lagrange(points, point) for point in points), _with_roots(points)]
    for row in range(len(points) + 1):  # the numbers of G stay small
        largest = max(map(abs, taps[row]))
        taps[row] = [number / largest for number in taps[row]]
        within[row] = [number * largest for number in within[row]]
    return [list(column) for column in zip(*ends, strict=True)], taps, within


def _lagrange(points: list[Fraction], point: Fraction) -> list[Fraction]:
    """The coefficients of the polynomial that is 1 at this point and 0 at the others, up to the power of all points."""
    others = [p for p in points if p != point]
    scale = math.prod((point - other for other in others), start=Fraction(1))
    return [*(c / scale for c in _with_roots(others)), Fraction(0)]


def _powers(points: list[Fraction], count: int) -> Matrix:
    """A polynomial's values at the points and at infinity, from its coefficients."""
    return [*([p**k for k in range(count)] for p in points), [Fraction(int(k == count - 1)) for k in range(count)]]


def _with_roots(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (t - root), lowest first."""
    found = [Fraction(1)]
    for root in roots:
        found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


@dataclass(frozen=True)
class _Plane:
    """The matrices for both directions at once, and the transposes that are asked for."""

    side: int  # of a tile's inputs
    ends: Tensor  # A^T, 16 rows
    ends_back: Tensor
    taps: Tensor  # G, as many columns as the kernel has entries
    taps_back: Tensor
    inputs: Tensor  # B^T
    inputs_back: Tensor


@cache
def _plane(kernel: int) -> _Plane:
    both = [
        torch.tensor([[float(v) for v in row] for row in m], dtype=torch.float64, device="cpu")
        for m in matrices(kernel)
    ]
    ends, taps, inputs = (torch.kron(m, m).float() for m in both)
    back = [m.t().contiguous() for m in (ends, taps, inputs)]
    return _Plane(kernel + OUT - 1, ends, back[0], taps, back[1], inputs, back[2])


class _Convolution(torch.autograd.Function):
    """x (images), weight, bias, padding -> what ``conv2d`` gives, laid out with channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: tuple[int, int]) -> Tensor:
        count, channels, *sides = x.shape
        outs, kernel = weight.shape[0], weight.shape[2]
        plane = _plane(kernel)
        high, wide = (side + 2 * pad - kernel + 1 for side, pad in zip(sides, padding, strict=True))
        down, along = -(-high // OUT), -(-wide // OUT)
        needed = down * OUT + kernel - 1, along * OUT + kernel - 1
        images = x.contiguous(memory_format=torch.channels_last)
        if needed != (sides[0], sides[1]):
            images = _within(images, needed, padding)
        line = needed[1] * channels
        tiles = images.as_strided(
            (plane.side, plane.side, count, down, along, channels),
            (line, channels, needed[0] * line, OUT * line, OUT * channels, 1),
        )
        many, entries = count * down * along, plane.side**2
        seen = torch.mm(plane.inputs, tiles.reshape(entries, many * channels)).view(entries, many, channels)
        kernels = weight.permute(0, 2, 3, 1).reshape(outs, kernel * kernel, channels)
        made = torch.bmm(plane.taps.expand(outs, -1, -1), kernels).transpose(0, 1)
        product = torch.bmm(seen, made.transpose(1, 2)).view(entries, many * outs)
        found = torch.mm(plane.ends, product).view(OUT, OUT, count, down, along, outs).permute(2, 3, 0, 4, 1, 5)
        out = torch.empty((count, outs, high, wide), dtype=x.dtype, memory_format=torch.channels_last)
        rows = out.permute(0, 2, 3, 1)
        if (down * OUT, along * OUT) == (high, wide):
            rows.view(count, down, OUT, along, OUT, outs).copy_(found)
        else:
            rows.copy_(found.reshape(count, down * OUT, along * OUT, outs)[:, :high, :wide])
        rows.add_(bias)
        ctx.save_for_backward(x, weight, seen, made)
        ctx.about = padding, (count, down, along), needed
        return out  # itself and no view, so that others may write into it

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, seen, made = ctx.saved_tensors
        padding, (count, down, along), needed = ctx.about
        wanted = list(ctx.needs_input_grad[:3])
        if torch.is_grad_enabled() or of_many(gradient):
            # Gradients of gradients are asked for, and those of what was saved are not known; or gradients of many at
            # once.
            usual: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
                gradient, x, weight, [len(weight)], [1, 1], list(padding), [1, 1], False, [0, 0], 1, wanted
            )
            return *usual, None
        outs, channels, kernel = weight.shape[0], weight.shape[1], weight.shape[2]
        plane = _plane(kernel)
        many, entries = count * down * along, plane.side**2
        bias = gradient.sum((0, 2, 3)) if wanted[2] else None
        images, size = gradient.contiguous(memory_format=torch.channels_last), (down * OUT, along * OUT)
        if size != (gradient.shape[2], gradient.shape[3]):
            images = _within(images, size, (0, 0))
        line = size[1] * outs
        tiles = images.as_strided(
            (OUT, OUT, count, down, along, outs), (line, outs, size[0] * line, OUT * line, OUT * outs, 1)
        )
        back = torch.mm(plane.ends_back, tiles.reshape(OUT * OUT, many * outs)).view(entries, many, outs)
        heavy = down_x = None
        if wanted[1]:
            kernels = torch.bmm(back.transpose(1, 2), seen).transpose(0, 1)
            flat = torch.bmm(plane.taps_back.expand(outs, -1, -1), kernels)
            heavy = laid_like(flat.view(outs, kernel, kernel, channels).permute(0, 3, 1, 2), weight)
        if wanted[0]:
            pieces = torch.mm(plane.inputs_back, torch.bmm(back, made).view(entries, many * channels))
            whole = _folded(pieces, plane.side, (count, down, along, channels), needed)
            high, wide = x.shape[2], x.shape[3]
            if needed != (high, wide):
                whole = whole[:, padding[0] : padding[0] + high, padding[1] : padding[1] + wide]
            down_x = whole.permute(0, 3, 1, 2)
        return down_x, heavy, bias, None


def _within(images: Tensor, size: tuple[int, int], at: tuple[int, int]) -> Tensor:
    """Images amid zeros, with channels last."""
    high, wide = min(images.shape[2], size[0] - at[0]), min(images.shape[3], size[1] - at[1])
    found = images.new_zeros(images.shape[0], *size, images.shape[1]).permute(0, 3, 1, 2)
    found[:, :, at[0] : at[0] + high, at[1] : at[1] + wide] = images[:, :, :high, :wide]
    return found


def _folded(pieces: Tensor, side: int, many: tuple[int, int, int, int], size: tuple[int, int]) -> Tensor:
    """The sum of overlapping tiles."""
    count, down, along, channels = many
    found = pieces.new_zeros(count, *size, channels)
    line, tile = size[1] * channels, count * down * along * channels
    for top in range(0, side, OUT):
        for left in range(0, side, OUT):
            shape = min(OUT, side - top), min(OUT, side - left), *many
            part = pieces.as_strided(
                shape,
                (side * tile, tile, down * along * channels, along * channels, channels, 1),
                (top * side + left) * tile,
            )
            place = found.as_strided(
                shape, (line, channels, size[0] * line, OUT * line, OUT * channels, 1), top * line + left * channels
            )
            place.add_(part)  # within one part, tiles do not overlap
    return found


class _Swift(nn.Conv2d):
    """A convolution that computes so where that pays."""

    def forward(self, input: Tensor) -> Tensor:
        if not _now(self, input):
            return super().forward(input)
        out: Tensor = _Convolution.apply(input, self.weight, self.bias, self.padding)  # type: ignore[no-untyped-call]
        return out


def swift(module: nn.Module) -> None:
    """Let the module's convolutions compute so where that pays."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and "forward" not in layer.__dict__ and suits(layer):
            layer.__class__ = _Swift


def suits(layer: nn.Conv2d) -> bool:
    """Whether it is a plain convolution with a kernel for which there are matrices.

    And with a bias: without one, outputs whose inputs are all zero would not be quite zero, and a ReLU after it would
    let gradients through at random.
    """
    kernel = layer.kernel_size[0]
    usual = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"
    paddable = isinstance(layer.padding, tuple) and all(0 <= pad < kernel for pad in layer.padding)
    square = layer.kernel_size == (kernel, kernel) and kernel in _POINTS
    return usual and paddable and square and layer.bias is not None


def _now(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether this is a call with ordinary tensors on a CPU for which it pays."""
    if not plain(x, layer.weight):
        return False
    kernel, ins, outs = layer.kernel_size[0], layer.in_channels, layer.out_channels
    high = x.shape[2] + 2 * int(layer.padding[0]) - kernel + 1
    wide = x.shape[3] + 2 * int(layer.padding[1]) - kernel + 1
    if min(high, wide, x.shape[0]) < 1:
        return False
    tiles, entries = x.shape[0] * -(-high // OUT) * -(-wide // OUT), (kernel + OUT - 1) ** 2
    ordinary = x.shape[0] * high * wide * kernel**2 * ins * outs
    here = entries * (tiles * (entries * ins + ins * outs + OUT**2 * outs) + kernel**2 * ins * outs)
    return ordinary >= _SAVED * here and tiles * entries * max(ins, outs) <= _MOST
