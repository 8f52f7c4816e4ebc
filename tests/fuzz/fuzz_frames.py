"""Mutated frames: a damaged one is refused, a forged one is refused or gives a record, and nothing else happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fedquilt.core.exchange import Codec
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.jobs import Answer, Given, Here, NodeJobs, UpdateJob
from fedquilt.errors import FedquiltError, FrameError
from fedquilt.records.compact import MAGIC
from fedquilt.records.limits import upload_limits
from fedquilt.records.record import pack, unpack
from fedquilt.registry import entries, lookup
from fedquilt.rounds.client import Slot, Wire
from helpers.frames import resealed, sealed


@dataclass(frozen=True)
class Seedling:
    """A good frame; if a codec made its upload, what decodes it."""

    frame: bytes
    codec: Codec | None = None
    sent: Any = None


def seedlings() -> list[Seedling]:
    """Frames of both forms: of what travels on every engine, and of uploads in every codec."""
    draw = Seed(0).torch()
    params = {
        "body.weight": torch.randn(6, 5, generator=draw),
        "head.weight": torch.randn(4, 6, generator=draw),
        "head.bias": torch.randn(4, generator=draw),
        "steps": torch.tensor(3),
    }
    records = [
        Wire(12, params),
        Wire(7, {"delta": params, "loss": 0.5, "names": ("a", "b"), "raw": b"\\0" * 40}),
        Slot({"model": params, "round": 3}, {"train": params}),
        {"a": [1, -1, 2**40, 1.5, None, True, "text"]},
        Answer("n1", "print", [Given(0, 0, b"x" * 32, 0.1, True, 5, 0.3, None, None)]),
        NodeJobs("n1", [UpdateJob("train", ("site", 1), 0, 0, None, False, 0)], 0),
        Here(3, {("site", n): 10 + n for n in range(5)}, [], (1, 28, 28), "torch.float32", "nothing", 10, "p", {}),
        {str(n): torch.zeros(n % 3, 2, dtype=dtype) for n, dtype in enumerate((torch.int8, torch.bool, torch.float16))},
        [[[[1]]], (2,), {}, {3: {4: 5}}],
        torch.arange(30.0).view(5, 6),
        "x" * 50,
        b"raw" * 30,
    ]
    found = [Seedling(pack(value, compact)) for value in records for compact in (False, True)]
    for kind in entries("codec"):
        codec = lookup("codec", kind).load()()
        try:
            coded, _ = codec.encode(params, params, None, Seed(1))
        except FedquiltError:  # it is for one matrix
            matrix = {"head.weight": params["head.weight"]}
            try:
                coded, _ = codec.encode(matrix, matrix, None, Seed(1))
            except FedquiltError:
                continue
            found.append(Seedling(pack(Wire(5, coded), compact=True), codec, matrix))
            continue
        found.append(Seedling(pack(Wire(5, coded), compact=True), codec, params))
    return found


def _flips(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    for place in {draw.randrange(8 * len(frame)) for _ in range(draw.choice((1, 1, 1, 2, 3, 8)))}:
        frame[place // 8] ^= 1 << place % 8
    return bytes(frame)


def _bytes(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    for _ in range(draw.choice((1, 2, 5))):
        frame[draw.randrange(len(frame))] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
    return bytes(frame)


def _cut(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    return bytes(frame[: draw.randrange(len(frame))])


def _longer(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    return bytes(frame) + draw.randbytes(draw.choice((1, 4, 100)))


def _without(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    at = draw.randrange(len(frame))
    del frame[at : at + draw.randrange(1, 20)]
    return bytes(frame)


def _with(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    at = draw.randrange(len(frame))
    more = draw.choice(
        (draw.randbytes(draw.randrange(1, 20)), b"\xff" * draw.choice((9, 10, 11, 20_000)), b"\x09" * 300)
    )
    frame[at:at] = more
    return bytes(frame)


def _doubled(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    low = draw.randrange(len(frame))
    part = frame[low : low + draw.randrange(1, 60)] * draw.choice((1, 1, 2, 200))
    frame[low:low] = part
    return bytes(frame)


def _spliced(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    other = draw.choice(frames)
    return bytes(frame[: draw.randrange(len(frame))]) + other[draw.randrange(len(other)) :]


def _tree(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    """A compact tree of tags and numbers drawn at random, most of them ones that exist."""
    body = bytearray(MAGIC)
    for _ in range(draw.choice((3, 30, 300))):
        body.append(
            draw.choice((draw.randrange(14), draw.randrange(14), draw.randrange(128, 140), draw.randrange(256)))
        )
        if draw.random() < 0.3:
            body += bytes([draw.randrange(4)])
    return sealed(bytes(body))


@cache
def _headers() -> tuple[bytes, ...]:
    """Megabytes of header: far more values and names than limits allow, in both forms and with the right checksum."""
    many = ([0] * 2**20, {f"t{n}": torch.zeros(0) for n in range(2**17)}, dict.fromkeys(range(2**18)), ["x"] * 2**19)
    return tuple(pack(value, compact) for value in many for compact in (False, True))


def warm() -> None:
    """Write the large headers once, which takes longer than a case may."""
    _headers()


def _large(draw: random.Random, frame: bytearray, frames: list[bytes]) -> bytes:
    return draw.choice(_headers())


CHANGES = (_flips, _flips, _flips, _bytes, _cut, _longer, _without, _with, _doubled, _spliced, _tree)


def mutants(draw: random.Random, seeds: list[Seedling]) -> Iterator[tuple[Seedling, bytes, bool]]:
    """Without end: the good frame, what became of it, and whether its checksum was made anew."""
    frames = [seed.frame for seed in seeds]
    good = set(frames)
    while True:
        seed, forged = draw.choice(seeds), draw.random() < 0.5
        change = _large if draw.random() < 0.002 else draw.choice(CHANGES)
        made = change(draw, bytearray(seed.frame), frames)
        if made not in good:
            yield seed, resealed(made) if forged else made, forged or change in (_tree, _large)


def tried(seed: Seedling, frame: bytes, forged: bool) -> str:
    """What became of a frame: 'refused', or 'decoded'. Anything else is raised."""
    try:
        value = unpack(frame, limits=upload_limits(len(seed.frame)))
    except FrameError:
        return "refused"
    assert forged, "a damaged frame was accepted"
    if seed.codec is not None and isinstance(value, Wire):
        try:
            seed.codec.decode(value.upload, seed.sent)
        except MemoryError:
            raise
        except Exception:  # the round loop leaves the client out, with the reason
            return "refused by its codec"
    return "decoded"
